"""Nodes and pods of HAMi's and gpushare's plugins, and Kerf's filter and bind on a cluster in memory."""

import asyncio
from typing import Any

import msgspec

from extender.core.fit.reasons import Reason
from extender.kube import objects
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.ledger.ledger import Ledger
from extender.plugins.nvidia import gpushare
from extender.plugins.nvidia import hami as hami_nodes
from extender.plugins.nvidia.gpushare import _COUNT_RESOURCE
from extender.plugins.pods import read_pod_request
from extender.scheduling.binding import Binder
from extender.scheduling.placer import Placement, Placer, PodIdentity
from tests.ledger.builders import Clock, FaultyTransport, node_manifest, open_fence, pod_manifest
from tests.plugins.plugins import PluginNode, plugin_pod

NOW = 1795241852.0


A, B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"


def hami_node(
    name: str, *gpus: tuple[str, int], count: int = 10, annotations: dict[str, str] | None = None
) -> Manifest:
    """A node registered by HAMi's plugin of v2.10, with UUIDs and MiB of its GPUs."""
    register = [
        {"id": uuid, "index": index, "count": count, "devmem": mib, "devcore": 100, "type": "NVIDIA-Tesla T4"}
        | {"numa": 0, "mode": "hami-core", "health": True}
        for index, (uuid, mib) in enumerate(gpus)
    ]
    manifest = node_manifest(name)
    manifest["metadata"]["annotations"] = {hami_nodes.REGISTER: msgspec.json.encode(register).decode()}
    manifest["status"]["allocatable"]["nvidia.com/gpu"] = str(len(gpus) * count)
    return manifest


def gpushare_node(name: str, count: int, gib: int) -> Manifest:
    manifest = node_manifest(name)
    resources = {gpushare.MEMORY_RESOURCE: str(count * gib), _COUNT_RESOURCE: str(count)}
    manifest["status"] = {"allocatable": {"cpu": "64", **resources}, "capacity": resources}
    return manifest


def asking(name: str, resources: dict[str, str], **options: Any) -> Manifest:
    """A pod with one container of these resources."""
    manifest = pod_manifest(name, **options)
    manifest["spec"]["containers"] = [{"name": "main", "resources": {"limits": resources, "requests": resources}}]
    return manifest


def sharing(name: str, mib: int, cores: int = 0, **options: Any) -> Manifest:
    """A pod of HAMi with a part of a GPU."""
    cores_asked = {"nvidia.com/gpucores": str(cores)} if cores else {}
    return asking(name, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib), **cores_asked}, **options)


class Rig:
    """Kerf's filter and bind on a cluster in memory."""

    def __init__(self, *manifests: Manifest, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.cluster = MemoryCluster(manifests)
        self.transport = FaultyTransport(self.cluster)
        self.restart()

    def restart(self) -> None:
        """Start another Kerf, which knows what the API server knows."""
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        fence = open_fence()
        self.binder = Binder(
            self.transport,
            self.ledger,
            self.placer,
            EventRecorder(self.transport),
            self.clock,
            fence,
            lambda: NOW,
            resolver=Resolver(fence, self.clock),
        )
        self.warnings: list[str] = []
        self.sync()

    def sync(self) -> None:
        """Take in what the watch would deliver."""
        for item in msgspec.json.decode(asyncio.run(self.cluster.get(NODES_PATH)))["items"]:
            self.warnings += self.ledger.upsert_node(msgspec.convert(item, objects.Node))
        for item in msgspec.json.decode(asyncio.run(self.cluster.get(PODS_PATH)))["items"]:
            self.warnings += self.ledger.upsert_pod(msgspec.convert(item, objects.Pod), self.clock())

    def filter(self, manifest: Manifest) -> Placement:
        """Create a pod, and filter all nodes for it."""
        self.cluster.apply(manifest)
        pod = msgspec.convert(manifest, objects.Pod)
        identity = PodIdentity("default", pod.metadata.name, pod.metadata.uid)
        request = read_pod_request(pod)
        self.placer.remember(identity, request)
        assert request.gpus is not None
        names = sorted(self.ledger.rows.names())
        placement = self.placer.place(identity, request.gpus, self.placer.policy_of(request), names)
        self.placer.reserve(placement)
        return placement

    def run(self, manifest: Manifest) -> Manifest:
        """Create a pod and bind it; returns it as the API server has it then."""
        placement = self.filter(manifest)
        assert placement.node is not None, [Reason(code).name for code in placement.decision.evaluation.reason]
        asyncio.run(self.binder.bind(placement.pod, placement.node, ""))
        self.sync()
        return self.cluster.pod("default", manifest["metadata"]["name"])

    def refused(self, manifest: Manifest) -> set[Reason]:
        """Why a pod fits nowhere."""
        placement = self.filter(manifest)
        assert placement.node is None
        return {Reason(code) for code in placement.decision.evaluation.reason}

    def free_mib(self, node: str) -> list[int]:
        """Free memory by GPU."""
        cluster = self.ledger.snapshot(self.clock())
        mib: list[int] = cluster.gpu_free_mib[cluster.row_of[node]].tolist()
        return mib

    def free_milli(self, node: str) -> list[int]:
        """Free compute by GPU."""
        cluster = self.ledger.snapshot(self.clock())
        milli: list[int] = cluster.gpu_free_milli[cluster.row_of[node]].tolist()
        return milli

    def untracked(self, node: str) -> int:
        """Held GPUs of unknown index."""
        cluster = self.ledger.snapshot(self.clock())
        return int(cluster.untracked_units[cluster.row_of[node]])

    def plugin_node(self, name: str) -> PluginNode:
        """A node as its plugin sees it; what the plugin writes reaches the API server."""
        node = self.cluster.node(name)
        annotations = node["metadata"].setdefault("annotations", {})
        pods = []
        for pod in msgspec.json.decode(asyncio.run(self.cluster.get(PODS_PATH)))["items"]:
            if pod["spec"].get("nodeName") == name:
                seen = plugin_pod(
                    pod["metadata"]["name"],
                    {},
                    containers=[
                        {"name": container.get("name", "main"), "limits": container["resources"].get("limits", {})}
                        for container in pod["spec"]["containers"]
                    ],
                )
                seen["annotations"] = self.cluster.pod("default", seen["name"])["metadata"]["annotations"]
                pods.append(seen)
        return PluginNode(name, annotations, pods)
