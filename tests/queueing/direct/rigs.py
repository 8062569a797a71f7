"""A queue without an extender, and the API server that it writes to."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.events import EventRecorder
from extender.kube.leadership import Unelected
from extender.kube.watches import BOUND_PODS, NODES, PODS, WatchHub
from extender.plugins.nvidia.gpushare import _COUNT_RESOURCE, MEMORY_RESOURCE
from extender.queueing.direct.mode import DirectMode
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.fence import Fence
from tests.queueing.rigs import Api, Manifest, Rig


class VersionedApi(Api):
    """Refuses writes to any but the current version of a pod, and answers with the pod."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: tuple[str, str] = ("", "")
        """Name and part of one write that is done but not answered."""

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        error = self.fail(name, part)
        if error is not None:
            raise error
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        metadata = self.pods[name]["metadata"]
        asked = msgspec.json.decode(body, type=Manifest)["metadata"]
        if asked.get("uid", metadata["uid"]) != metadata["uid"]:
            raise ApiError(409, "Conflict", "uid")
        if asked.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            raise ApiError(409, "Conflict", "it has changed")
        self.touch(name)
        given, metadata["annotations"] = asked.get("annotations", {}), dict(metadata["annotations"])
        known = {key: value for key, value in given.items() if value is not None or key in metadata["annotations"]}
        patch = msgspec.json.decode(body, type=Manifest)
        patch["metadata"]["annotations"] = known
        await super().patch(path, msgspec.json.encode(patch))
        if self.lose == (name, part):
            self.lose = ("", "")
            raise ClusterError("the answer is lost")
        return msgspec.json.encode(self.pods[name])

    def touch(self, name: str) -> None:
        """A pod has changed."""
        metadata = self.pods[name]["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)


class Sure(Unelected):
    """An election that this process has won, while `sure`."""

    sure = True
    slow = False
    num_asked = 0
    num_sure: int | None = None
    """Confirms only what was known before this many requests, as after a pause; None: everything."""

    async def confirm(self, since: int) -> bool:
        for _ in range(10 * self.slow):
            await asyncio.sleep(0)
        return self.sure and (self.num_sure is None or since < self.num_sure)


class DirectRig(Rig):
    """A controller without reflectors; `settle` and `follow` do its background work."""

    extender = False

    def __init__(self, versions: VersionedApi | None = None, **options: Any) -> None:
        self.events: list[tuple[str, str]] = []
        recorder = SimpleNamespace(emit=self.emit, emit_placement=partial(self.emit, reason="GPUsAssigned"))
        self.told_of: list[tuple[str, str, str]] = []
        """Namespaces, names and UIDs of the pods that these are about."""
        self.election = Sure()
        self.fence = Fence(lambda: self.now, self.election)
        self.versions = versions or VersionedApi()
        hub = WatchHub(cast(Transport, self.versions), lambda: self.now)
        mode = partial(
            DirectMode,
            fence=self.fence,
            events=cast(EventRecorder, recorder),
            pods=hub.group(BOUND_PODS),
            wall_clock=lambda: self.now,
        )
        super().__init__(self.versions, mode, hub, **options)
        self.lead()

    def emit(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        """As of `EventRecorder`."""
        self.events.append((reason, message))
        self.told_of.append((namespace, name, uid))

    def lead(self) -> None:
        """Make this process the leader."""
        self.fence.take_over("", lambda: float("inf"), lambda: "")
        self.fence.open("term")

    @property
    def direct(self) -> DirectMode:
        assert isinstance(self.queue.mode, DirectMode)
        return self.queue.mode

    def pod(self, name: str, gpus: int, created: str = "", **more: Any) -> None:
        super().pod(name, gpus, created, **more)
        self.api.pods[name]["metadata"]["resourceVersion"] = "1"
        self.told(name)

    def gpushare_node(self, name: str, gpus: int, gib: int = 16) -> None:
        """A node whose plugin shares GPUs of this many GiB, and follows the assignments on pods."""
        offered = {"cpu": "64", "memory": "256Gi", _COUNT_RESOURCE: str(gpus), MEMORY_RESOURCE: str(gpus * gib)}
        node = decode_node(
            {"metadata": {"name": name, "uid": name}, "status": {"allocatable": offered, "capacity": offered}}
        )
        self.ledger.upsert_node(node)
        self.hub.cache(NODES).upsert(node)

    def gpushare_pod(self, name: str, gib: int) -> None:
        """A pod that requests this much of one GPU."""
        self.pod(name, 0, limits={MEMORY_RESOURCE: gib})

    def round(self, later_s: float = 0.1) -> None:
        """Run a round, and settle nothing."""
        self.now += later_s
        asyncio.run(self.queue.run_round())

    def why_standby(self) -> str:
        return self.fence.standby()

    def follow(self, later_s: float = 0.1) -> None:
        self.now += later_s
        asyncio.run(self.direct.follower.follow())

    def bind_to(self, name: str, node: str) -> None:
        """kube-scheduler binds a pod, and the watch reports it."""
        pod = self.api.pods[name]
        pod["spec"]["nodeName"] = node
        pod["status"].pop("nominatedNodeName", None)
        self.versions.touch(name)
        self.tell_bound(name)

    def tell_bound(self, name: str) -> None:
        """The watch reports a pod with a node."""
        pod = decode_pod(self.api.pods[name])
        self.ledger.upsert_pod(pod, self.now)
        self.hub.cache(PODS).upsert(pod)

    def refuse(self, name: str, message: str = "0/1 nodes are available") -> None:
        """kube-scheduler finds no node for a pod, and takes its nomination away."""
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.pods[name]["status"] = {"phase": "Pending", "conditions": [refusal]}
        self.versions.touch(name)
        self.told(name)

    def written(self, name: str) -> tuple[str, str]:
        """Node and GPUs that are written on a pod."""
        return self.note(name, "assigned-node"), self.note(name, "assigned-gpus")

    def free(self) -> int:
        """The number of free GPUs."""
        cluster = self.ledger.snapshot(self.now)
        return int(cluster.gpu_idle.sum() - cluster.untracked_units.sum())
