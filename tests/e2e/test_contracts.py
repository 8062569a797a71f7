"""Pods of HAMi and gpushare placed through a real kube-scheduler, with their device plugins' side played."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.plugins.plugins import LOCK, AllocationError, PluginNode, gpushare_allocate, hami_allocate, hami_decode

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

HAMI_SHARES = 10
GPUSHARE_CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
}
"""config/scheduler-policy-config.yaml of gpushare-scheduler-extender c0b6141, but for its extender."""
MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture
def cluster(clusters: Clusters) -> KerfCluster:
    """An empty cluster in which Kerf has the place of HAMi's scheduler."""
    return clusters.open(SCHEDULER_CONFIG / "hami.yaml")


def hami_node(name: str, gpus: Mapping[str, int]) -> Manifest:
    """A node that HAMi's plugin has registered: MiB of each GPU by UUID."""
    register = [
        {"id": uuid, "index": index, "count": HAMI_SHARES, "devmem": mib, "devcore": 100}
        | {"type": "NVIDIA-Tesla T4", "numa": 0, "mode": "hami-core", "health": True}
        for index, (uuid, mib) in enumerate(gpus.items())
    ]
    node = cpu_node(name, allocatable={"nvidia.com/gpu": str(len(gpus) * HAMI_SHARES)})
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(register)}
    return node


def gpushare_node(name: str, count: int, gib: int) -> Manifest:
    """A node of gpushare's plugin."""
    return cpu_node(name, allocatable={"aliyun.com/gpu-mem": str(count * gib), "aliyun.com/gpu-count": str(count)})


def asking(name: str, resources: Mapping[str, str], **options: Any) -> Manifest:
    """A pod whose container has these limits."""
    manifest = pod(name, **options)
    manifest["spec"]["containers"][0]["resources"]["limits"] = dict(resources)
    return manifest


def sharing(name: str, mib: int, cores: int = 0, **options: Any) -> Manifest:
    """A pod that asks HAMi for a part of a GPU."""
    return asking(
        name, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": str(cores)}, **options
    )


class Kubelet:
    """A node's kubelet with one of the device plugins: admits the pods that are bound to the node, one by one."""

    def __init__(self, cluster: KerfCluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._plugin = cluster.plane.api("plugin")
        self.served: dict[str, dict[str, str]] = {}
        """What containers were given, by pod."""
        self._starting: set[str] = set()
        self.faults: list[str] = []

    def admit(self) -> None:
        """Admit all pods that are there and not admitted yet; those of the last time run now.

        A container takes longer to start than two Bindings of one moment lie apart: were a pod Running at once, the
        plugin would not find it among the pending ones when the pod comes whose GPU it was given.
        """
        pods = {found["metadata"]["name"]: found for found in self._cluster.pods()}
        started = self._starting & pods.keys()
        self._starting = set()
        for name, found in pods.items():
            ours = found["spec"].get("nodeName") == self._node and found["status"]["phase"] == "Pending"
            if ours and name not in self.served:
                self._allocate(name, found["spec"]["containers"][0]["resources"].get("limits", {}))
        for name in started:
            self._cluster.set_phase(name, "Running")

    def _allocate(self, name: str, limits: Mapping[str, str]) -> None:
        view = self._view()
        lock = view.annotations.get(LOCK)
        before = json.dumps([seen["annotations"] for seen in view.pods])
        try:
            if "aliyun.com/gpu-mem" in limits:
                given = gpushare_allocate(view, int(limits["aliyun.com/gpu-mem"]), 64)
            else:
                given = hami_allocate(view, int(limits["nvidia.com/gpu"]))
        except AllocationError as error:
            self.faults.append(f"{name}: {error}")
            return
        for seen, old in zip(view.pods, json.loads(before), strict=True):
            self._patch(seen["name"], old, seen["annotations"])
        if lock is not None and LOCK not in view.annotations:
            self._let_go(lock)
        self._starting.add(name)
        self.served[name] = given

    def _view(self) -> PluginNode:
        node = self._read_node()
        view = PluginNode(self._node, node["metadata"].get("annotations", {}))
        for found in self._cluster.pods():
            if found["spec"].get("nodeName") == self._node:
                containers = [
                    {"name": container["name"], "limits": container["resources"].get("limits", {})}
                    for container in found["spec"]["containers"]
                ]
                view.pods.append(
                    {
                        "namespace": "default",
                        "name": found["metadata"]["name"],
                        "annotations": found["metadata"].get("annotations", {}),
                        "containers": containers,
                        "init_containers": [],
                        "phase": found["status"]["phase"],
                    }
                )
        return view

    def _read_node(self) -> Manifest:
        found: Manifest = self._cluster.plane.request("GET", f"/api/v1/nodes/{self._node}")
        return found

    def _patch(self, pod: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        changes = {key: new.get(key) for key in {*old, *new} if old.get(key) != new.get(key)}
        if changes:  # the admission policy knows the plugin's account
            body = {"metadata": {"annotations": changes}}
            self._plugin.request("PATCH", f"/api/v1/namespaces/default/pods/{pod}", body, MERGE_PATCH)

    def _let_go(self, lock: str) -> None:
        """HAMi's `ReleaseNodeLock`: whose the lock is, it looks at only once."""
        if self._read_node()["metadata"]["annotations"].get(LOCK) != lock:
            return
        while True:
            version = self._read_node()["metadata"]["resourceVersion"]
            body = {"metadata": {"annotations": {LOCK: None}, "resourceVersion": version}}
            try:
                self._cluster.plane.request("PATCH", f"/api/v1/nodes/{self._node}", body, MERGE_PATCH)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return

    def close(self) -> None:
        """Close its connections."""
        self._plugin.close()


@contextmanager
def kubelet_on(cluster: KerfCluster, node: str) -> Iterator[Kubelet]:
    """A kubelet that admits pods for as long as the test runs."""
    kubelet = Kubelet(cluster, node)
    stopping = threading.Event()
    crashes: list[BaseException] = []

    def run() -> None:
        try:
            while not stopping.wait(0.05):
                kubelet.admit()
        except BaseException as error:  # told to the test
            crashes.append(error)

    thread = threading.Thread(target=run, name=f"kubelet of {node}")
    thread.start()
    try:
        yield kubelet
    finally:
        stopping.set()
        thread.join()
        kubelet.close()
    assert not crashes, crashes
    assert not kubelet.faults


def hami_booked(pods: list[Manifest]) -> dict[str, tuple[int, int]]:
    """MiB and percent of the compute that is given away of each GPU, by HAMi's annotations alone."""
    booked: dict[str, tuple[int, int]] = {}
    for found in pods:
        text = found["metadata"].get("annotations", {}).get("hami.io/vgpu-devices-allocated", "")
        if not found["spec"].get("nodeName"):
            continue
        for devices in hami_decode(text):
            for uuid, _, mib, cores in devices:
                booked_mib, booked_cores = booked.get(uuid, (0, 0))
                booked[uuid] = booked_mib + mib, booked_cores + cores
    return booked


def bound_names(cluster: KerfCluster) -> set[str]:
    """Pods that have a node."""
    return {found["metadata"]["name"] for found in cluster.pods() if found["spec"].get("nodeName")}


def test_hami_pods_are_bound_one_by_one_and_served_as_decided(cluster: KerfCluster) -> None:
    gpus = {"GPU-0": 15360, "GPU-1": 15360}
    cluster.add_nodes(hami_node("node", gpus), cpu_node("plain"))
    with kubelet_on(cluster, "node") as kubelet:
        for number in range(7):
            scheduler = "hami-scheduler" if number % 2 else "default-scheduler"  # HAMi's webhook writes the first
            cluster.create(sharing(f"p{number}", 5000, 25, scheduler_name=scheduler))
        wait_until(
            lambda: len(kubelet.served) == 6, 3 * WITHIN_S, "six pods run: three on each GPU"
        )  # 3 x 5000 <= 15360

        left = ({f"p{number}" for number in range(7)} - kubelet.served.keys()).pop()
        cluster.pending(left, "360 MiB of one GPU free")
        for name, environment in kubelet.served.items():
            found = cluster.pod(name)["metadata"]["annotations"]
            assert environment["NVIDIA_VISIBLE_DEVICES"] == f"GPU-{found['kerf.dev/assigned-gpus']}"
            assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
            assert environment["CUDA_DEVICE_SM_LIMIT"] == "25"
            assert found["hami.io/bind-phase"] == "success"
        assert hami_booked(cluster.pods()) == dict.fromkeys(gpus, (15000, 75))

        cluster.delete_pod("p0" if left != "p0" else "p1")
        wait_until(lambda: left in kubelet.served, WITHIN_S, "the pod that was left runs in the place of another")
    node = cluster.plane.request("GET", "/api/v1/nodes/node")
    assert LOCK not in node["metadata"]["annotations"]


def test_gpushare_pods_are_served_as_decided(clusters: Clusters, tmp_path: Path) -> None:
    """With the file of gpushare's guide, its extender replaced as docs/guides/migrating.md says."""
    decisive = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
    config = tmp_path / "scheduler-policy-config.yaml"
    config.write_text(yaml.safe_dump({**GPUSHARE_CONFIG, "extenders": decisive["extenders"]}))
    cluster = clusters.open(config)
    cluster.add_nodes(gpushare_node("node", 2, 15), hami_node("other", {"GPU-0": 15360}))
    with kubelet_on(cluster, "node") as kubelet:

        def run(gib: int, *names: str) -> None:
            """Pods of one size at once: which of them gets which GPU is where decision and plugin could differ."""
            for name in names:
                cluster.create(asking(name, {"aliyun.com/gpu-mem": str(gib)}))
            wait_until(lambda: set(names) <= kubelet.served.keys(), WITHIN_S, f"pods of {gib} GiB run")

        run(8, "a", "b")
        run(7, "c", "d")  # came they first, both on one GPU, one of the others would have no room
        used = {"0": 0, "1": 0}
        for name in kubelet.served:
            found = cluster.pod(name)["metadata"]["annotations"]
            assert found["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
            assert found["ALIYUN_COM_GPU_MEM_IDX"] == found["kerf.dev/assigned-gpus"]
            used[found["ALIYUN_COM_GPU_MEM_IDX"]] += int(found["ALIYUN_COM_GPU_MEM_POD"])
        assert used == {"0": 15, "1": 15}


def test_old_pods_of_every_kind_are_counted(cluster: KerfCluster) -> None:
    """A cluster that HAMi, gpushare and a scheduler without any extender have filled: no GPU is given away twice."""
    cluster.add_nodes(hami_node("hami", {"GPU-0": 15360, "GPU-1": 15360}), gpushare_node("gpushare", 2, 15))
    placed = {"hami.io/vgpu-node": "hami", "hami.io/bind-phase": "success", "hami.io/bind-time": "1795241852"}
    written = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,10000,40:;", "hami.io/vgpu-devices-to-allocate": ";"}
    shared = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "10", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    for old in (
        sharing("by-hami", 10000, 40, nodeName="hami", annotations={**placed, **written}),
        sharing("by-nobody", 2000, nodeName="hami"),
        asking("by-gpushare", {"aliyun.com/gpu-mem": "10"}, nodeName="gpushare", annotations=shared),
    ):
        cluster.create(old)
        cluster.set_phase(old["metadata"]["name"], "Running")

    with kubelet_on(cluster, "hami") as hami, kubelet_on(cluster, "gpushare") as gpushare:
        # Of "by-nobody" only the number is known: GPU-1 is taken, and only GPU-0 has something left.
        cluster.create(sharing("fits", 5000, 30))
        assert assigned_gpus(cluster.bound("fits")) == [0]
        cluster.create(sharing("too-much", 1000))
        cluster.pending("too-much", "best here: 0 free")
        for name, gib in (("g0", 15), ("g1", 5)):
            cluster.create(asking(name, {"aliyun.com/gpu-mem": str(gib)}))
        wait_until(lambda: len(hami.served) == 1, WITHIN_S, "HAMi's pod runs")
        wait_until(lambda: len(gpushare.served) == 2, WITHIN_S, "gpushare's pods run")
        assert hami_booked(cluster.pods()) == {"GPU-0": (15000, 70)}
        assert [assigned_gpus(cluster.pod(name)) for name in ("g0", "g1")] == [[0], [1]]

        cluster.delete_pod("by-nobody")
        assert assigned_gpus(cluster.bound("too-much")) == [1]
        assert "too-much" in bound_names(cluster)


def offer(cluster: KerfCluster, node: str, **resources: str) -> None:
    """A kubelet tells what devices it has from now on; names are those of resources, `gpu` NVIDIA's."""
    names = {"gpu": "nvidia.com/gpu", "memory": "aliyun.com/gpu-mem", "count": "aliyun.com/gpu-count"}
    told = {names[name]: number for name, number in resources.items()}
    body = {"status": {"capacity": told, "allocatable": told}}
    cluster.plane.request("PATCH", f"/api/v1/nodes/{node}/status", body, MERGE_PATCH)


def drain(cluster: KerfCluster, *pods: str) -> None:
    for name in pods:
        cluster.delete_pod(name)


def test_nodes_whose_plugin_was_exchanged_take_pods_at_once(cluster: KerfCluster) -> None:
    """docs/guides/migrating.md, "To NVIDIA's own plugin", node by node, and back: register, handshake and lock of HAMi
    stay, and what gpushare has written into the node's status. Other pods run all the while; those that come pull their
    images, so that nobody ever marks them as served."""
    gpus = {f"GPU-{index}": 24576 for index in range(8)}
    hami, stays = hami_node("hami", gpus), hami_node("stays", {"GPU-other": 15360})
    hami["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2024-01-23 04:30:04"
    cluster.add_nodes(hami, stays, gpushare_node("gpushare", 7, 15))
    with kubelet_on(cluster, "hami") as of_hami, kubelet_on(cluster, "stays"), kubelet_on(cluster, "gpushare"):
        here = {"kubernetes.io/hostname": "hami"}
        cluster.create(sharing("part", 5000, nodeSelector=here))
        cluster.create(sharing("runs", 5000, nodeSelector={"kubernetes.io/hostname": "stays"}))
        cluster.create(asking("memory", {"aliyun.com/gpu-mem": "8"}))
        for name in ("part", "runs", "memory"):
            cluster.bound(name)
        wait_until(lambda: "part" in of_hami.served, WITHIN_S, "HAMi's plugin serves its pod")

    drain(cluster, "part", "memory")
    lock = {"metadata": {"annotations": {LOCK: "2024-01-23T04:30:04Z,default,gone"}}}
    cluster.plane.request("PATCH", "/api/v1/nodes/hami", lock, MERGE_PATCH)
    offer(cluster, "hami", gpu="0")
    offer(cluster, "gpushare", memory="0", count="7")
    by_annotation = {"kerf.dev/gpu-count": "1"}  # kube-scheduler itself counts nothing of these
    cluster.submit("early", annotations=by_annotation, nodeSelector={"kubernetes.io/hostname": "gpushare"})
    cluster.pending("early", "not available here: annotations of a removed device plugin remain")
    cluster.delete_pod("early")

    offer(cluster, "hami", gpu="8")
    offer(cluster, "gpushare", gpu="7", memory="0", count="7")
    names = set()
    for name, number in (("hami", 8), ("gpushare", 7)):
        for index in range(number):
            names.add(f"{name}-{index}")
            one = {"nvidia.com/gpu": "1"}
            cluster.create(asking(f"{name}-{index}", one, nodeSelector={"kubernetes.io/hostname": name}))
    wait_until(lambda: names <= bound_names(cluster), WITHIN_S, "all are bound")
    assert "runs" in bound_names(cluster)
    placed = [found for found in cluster.pods() if found["metadata"]["name"] in names]
    assert not any("hami.io/bind-phase" in found["metadata"]["annotations"] for found in placed)

    drain(cluster, *names)
    offer(cluster, "hami", gpu="80")  # and back: the same register counts again
    with kubelet_on(cluster, "hami") as of_hami:
        cluster.create(sharing("again", 20000, 30, nodeSelector=here))
        assert cluster.node_of("again") == "hami"
        wait_until(lambda: "again" in of_hami.served, WITHIN_S, "HAMi's plugin serves its pod")
    offer(cluster, "gpushare", gpu="0", memory="105", count="7")
    with kubelet_on(cluster, "gpushare") as of_gpushare:
        cluster.create(asking("memory-again", {"aliyun.com/gpu-mem": "8"}))
        assert cluster.node_of("memory-again") == "gpushare"
        wait_until(lambda: "memory-again" in of_gpushare.served, WITHIN_S, "gpushare's plugin serves its pod")
