"""A queue on a test cluster, and the API server that it writes to."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import Resolver, Term
from extender.kube.events import EventRecorder
from extender.kube.objects import Node, Pod
from extender.kube.watches import NODES, PODS, WatchHub
from extender.ledger.ledger import Ledger
from extender.queueing.controller import QueueController
from extender.queueing.devices import AllocatorFactory
from extender.queueing.dispatch import Mode
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.kept_places import PlaceKeeper
from extender.queueing.options import Options
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.roomless import RoomlessReleaser
from extender.scheduling.placer import Placer, PodIdentity

Manifest = dict[str, Any]


GATES = [{"name": "kerf.dev/queue"}]


class Api:
    """An API server of pods; the controller's watch reports each write at once, unless `deaf`."""

    def __init__(self) -> None:
        self.pods: dict[str, Manifest] = {}
        self.told: Callable[[Pod], None] = lambda pod: None
        self.deaf = False
        self.fail: Callable[[str, str], ClusterError | None] = lambda name, part: None
        self.order: list[str] = []
        """Pods in the order in which their gates were opened."""

    async def get(self, path: str, query: object = None) -> bytes:
        if path.endswith("/pods"):
            return msgspec.json.encode({"items": list(self.pods.values())})
        if (pod := self.pods.get(path.rpartition("/pods/")[2])) is not None:
            return msgspec.json.encode(pod)
        raise ApiError(404, "NotFound", path)

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        error = self.fail(name, part)
        if error is not None:
            raise error
        pod, asked = self.pods[name], msgspec.json.decode(body, type=Manifest)
        for key, value in asked["metadata"].get("annotations", {}).items():
            pod["metadata"]["annotations"][key] = value
            if value is None:
                del pod["metadata"]["annotations"][key]
        if part == "status":
            changed = pod["status"] | asked.get("status", {})
            pod["status"] = {key: value for key, value in changed.items() if value is not None}
        elif "spec" in asked:
            pod["spec"] |= asked["spec"]
            self.order.append(name)
        if not self.deaf:
            self.told(decode_pod(pod))
        return b"{}"


class Rig:
    """A controller without reflectors: the test feeds its caches."""

    extender = True

    def __init__(
        self,
        api: Api | None = None,
        mode: Callable[..., Mode] = ExtenderMode,
        hub: WatchHub | None = None,
        keeper: AllocatorFactory | None = None,
        **options: Any,
    ) -> None:
        self.now = 1000.0
        self.emitted: list[tuple[str, str, str, str, str]] = []
        """Namespace, name, UID, reason and message of the queue's own events."""
        self.mirror_fault = ""
        self.api = api or Api()
        self.ledger = Ledger(reservation_ttl_s=30.0, extender=self.extender)
        clock = lambda: self.now  # noqa: E731 - a clock
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=clock, wall_clock=clock)
        self.standby = ""
        self.kept_places: PlaceKeeper | None = None
        self.lets_roomless_go: RoomlessReleaser | None = None
        self.wastes_gpu: Callable[[GpuRequest], bool] = lambda request: False
        self.why_refused: Callable[[PodIdentity], str] = lambda pod: ""
        self.hub = hub or WatchHub(self.api, clock)  # type: ignore[arg-type]
        standing = SimpleNamespace(standby=self.why_standby)
        self.resolver = Resolver(cast(Term, standing), clock)
        self.queue = QueueController(
            self.api,  # type: ignore[arg-type]
            self.hub,
            self.ledger,
            self.placer,
            Options(**options),
            clock=clock,
            wall_clock=clock,
            standby=lambda: self.standby,
            mirror_fault=lambda: self.mirror_fault,
            events=cast(EventRecorder, SimpleNamespace(emit=self._emit)),
            wastes_gpu=lambda request: self.wastes_gpu(request),  # noqa: PLW0108 - tests change it
            why_refused=lambda pod: self.why_refused(pod),  # noqa: PLW0108
            mode=partial(mode, resolver=self.resolver),
            keeper=keeper,
            kept_places=lambda: self.kept_places,
            roomless_releaser=lambda: self.lets_roomless_go,
        )
        for reflector in self.queue.reflectors.values():
            reflector.num_lists = 1
        self.api.told = self.hub.cache(PODS).upsert

    def _emit(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        self.emitted.append((namespace, name, uid, reason, message))

    def why_standby(self) -> str:
        return self.standby

    def node(self, name: str, gpus: int, **labels: str) -> None:
        allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus)}
        metadata = {"name": name, "uid": name, "labels": labels}
        node: Node = decode_node({"metadata": metadata, "status": {"allocatable": allocatable}})
        self.ledger.upsert_node(node)
        self.hub.cache(NODES).upsert(node)

    def pod(
        self,
        name: str,
        gpus: int,
        created: str = "",
        *,
        namespace: str = "ns",
        owner: str = "",
        labels: Any = None,
        limits: Any = None,
        spec: Any = None,
        **annotations: str,
    ) -> None:
        """Create a gated pod; `owner` is its ReplicaSet, `limits` are those beside GPUs, `spec` are further fields."""
        metadata: Manifest = {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "annotations": {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
            "labels": labels or {},
            "creationTimestamp": created,
        }
        if owner:
            metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
        container = {"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": 1} | (limits or {})}}
        self.api.pods[name] = {
            "metadata": metadata,
            "spec": {"schedulingGates": GATES, "containers": [container]} | (spec or {}),
            "status": {"phase": "Pending"},
        }
        self.told(name)

    def told(self, name: str) -> None:
        """The watch reports a pod as it is now."""
        self.hub.cache(PODS).upsert(decode_pod(self.api.pods[name]))

    def gone(self, name: str) -> None:
        """The watch of pods without a node reports that one has a node or is deleted."""
        self.hub.cache(PODS).remove(decode_pod(self.api.pods[name]))

    def bind(self, name: str) -> None:
        """kube-scheduler follows the nomination."""
        pod = self.api.pods[name]
        pod["spec"]["nodeName"] = pod["status"]["nominatedNodeName"]
        self.ledger.upsert_pod(decode_pod(pod), self.now)
        self.gone(name)

    def round(self, later_s: float = 0.1) -> None:
        self.now += later_s

        async def run() -> None:
            await self.queue.run_round()
            await self.resolver.resolve_round()

        asyncio.run(run())

    def settle(self) -> None:
        """Run a round of the resolver."""
        asyncio.run(self.resolver.resolve_round())

    def refuse(self, name: str, message: str = "0/1 nodes are available") -> None:
        """kube-scheduler finds no node for a pod, and Kerf's filter releases its reservation."""
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.pods[name]["status"] = {"phase": "Pending", "conditions": [refusal]}
        self.ledger.release(name)
        self.told(name)

    def remove_node(self, name: str) -> None:
        self.ledger.remove_node(name)
        self.hub.cache(NODES).remove(decode_node({"metadata": {"name": name, "uid": name}}))

    def node_of(self, name: str) -> str:
        """A pod's nominated node, "" while its gate is closed."""
        pod = self.api.pods[name]
        return "" if pod["spec"]["schedulingGates"] else str(pod["status"].get("nominatedNodeName", ""))

    def placed(self) -> list[str]:
        """Pods that are open and nominated."""
        return [name for name in self.api.pods if self.node_of(name)]

    def entry(self, name: str) -> Entry:
        return self.queue.backlog.entries[name]

    def why(self, name: str) -> str:
        """Why a pod waits, "" if nothing is noted."""
        return str(self.entry(name).skips.reason or "")

    def note(self, name: str, key: str = "skipped") -> str:
        return str(self.api.pods[name]["metadata"]["annotations"].get(f"kerf.dev/{key}", ""))


async def idle(turns: int = 100) -> None:
    """Let other tasks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def turns_beside(work: Coroutine[Any, Any, object]) -> int:
    """Run some work; return how often another task ran meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        beside = asyncio.create_task(others())
        await work
        beside.cancel()

    asyncio.run(run())
    return turns


class SlowApi(Api):
    """Holds back writes to one pod until `may` is set."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.may = asyncio.Event()
        self.asked: list[tuple[str, str]] = []
        """Pod and part of each write, in order."""

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        self.asked.append((name, part))
        await idle()
        if name == self.slow:
            await self.may.wait()
        return await super().patch(path, body)


async def nominating() -> tuple[SlowApi, Rig]:
    """Pod "slow" while its nomination is being written."""
    api = SlowApi("slow")
    rig = Rig(api=api)
    rig.node("n", 1)
    rig.pod("slow", 1)
    await rig.queue.begin_round()
    await idle(5)
    return api, rig


def lost(**options: Any) -> Rig:
    """A pod was released to a node that is gone, and the other node is taken."""
    rig = Rig(**options)
    for name, node in (("runs", "a"), ("p", "b")):
        rig.node(node, 1)
        rig.pod(name, 1)
        rig.round()
        assert rig.node_of(name) == node
        if name == "runs":
            rig.bind(name)
    rig.remove_node("b")
    rig.refuse("p")
    return rig
