"""A queue, pods that run, and the mover between them; the test plays controllers, kubelets and kube-scheduler."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.kube.watches import BOUND_PODS, PODS
from extender.parts.defrag.checks import Facts
from extender.parts.defrag.evictions import Evictor
from extender.parts.defrag.mover import Mover
from extender.parts.defrag.places import Places
from extender.parts.defrag.plan import PlannedMove, RoomPlan, TargetPod
from extender.parts.defrag.proof import Around
from extender.parts.defrag.record import Record, Records
from extender.parts.defrag.steps import Follower, Limits
from extender.parts.defrag.target_pods import TargetPlacer
from extender.parts.defrag.tools import Tools
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.fence import Fence
from tests.queueing.direct.rigs import DirectRig, Sure, VersionedApi
from tests.queueing.rigs import GATES, Manifest, Rig

LIMITS = Limits(replace_s=100.0, start_s=200.0, target_s=50.0, budget_s=10.0)


class MoverApi(VersionedApi):
    """Evicts, and has one ConfigMap."""

    def __init__(self) -> None:
        super().__init__()
        self.map: Manifest = {"metadata": {"resourceVersion": "1"}, "data": {}}
        self.evicted: list[str] = []
        self.refuse: Callable[[str], ClusterError | None] = lambda name: None
        """What an eviction is answered by instead."""
        self.lost = False
        """Whether evictions take effect, and their answers are lost."""
        self.refuse_record: ClusterError | None = None
        self.on_record: Callable[[Record], None] = lambda record: None

    async def get(self, path: str, query: object = None) -> bytes:
        if "/configmaps/" in path:
            if self.refuse_record is not None:
                raise self.refuse_record
            return msgspec.json.encode(self.map)
        return await super().get(path, query)

    async def patch(self, path: str, body: bytes) -> bytes:
        if "/configmaps/" not in path:
            return await super().patch(path, body)
        if self.refuse_record is not None:
            raise self.refuse_record
        asked, metadata = msgspec.json.decode(body, type=Manifest), self.map["metadata"]
        if asked["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise ApiError(409, "Conflict", "it has changed")
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        self.map["data"] |= asked["data"]
        self.on_record(self.record)
        return msgspec.json.encode(self.map)

    @property
    def record(self) -> Record:
        return msgspec.json.decode(self.map["data"]["plan.json"], type=Record)

    async def post(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        assert part == "eviction"
        if error := self.refuse(name):
            raise error
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        metadata = self.pods[name]["metadata"]
        wanted = msgspec.json.decode(body, type=Manifest)["deleteOptions"]["preconditions"]
        if wanted != {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}:
            raise ApiError(409, "Conflict", "preconditions")
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.evicted.append(name)
        self.touch(name)
        self.told(decode_pod(self.pods[name]))
        if self.lost:
            raise ClusterError("the answer is lost")
        return b"{}"


class ExtenderRig(Rig):
    """A queue whose pods kube-scheduler asks Kerf about."""

    def __init__(self, versions: VersionedApi, **options: Any) -> None:
        self.election = Sure()
        self.fence = Fence(lambda: self.now, self.election)
        super().__init__(versions, **options)

    def lead(self) -> None:
        """This process leads."""
        self.fence.take_over("", lambda: float("inf"), lambda: "")
        self.fence.open("term")


class Defrag:
    """The cluster of a test: 'direct' without an extender."""

    def __init__(
        self, *, direct: bool = False, api: MoverApi | None = None, most_an_hour: int = 60, **options: Any
    ) -> None:
        self.api = api or MoverApi()
        self.direct = direct
        self.rig = DirectRig(self.api, **options) if direct else ExtenderRig(self.api, **options)
        self.rig.lead()
        self.nodes: dict[str, int] = {}
        self.events: list[tuple[str, str, str]] = []
        self.about: list[tuple[str, str, str]] = []
        """Namespaces, names and UIDs of what the events are about."""
        self.running = self.rig.hub.part(BOUND_PODS)
        self.exempt: frozenset[str] = frozenset()
        self.fault: Callable[[], str] = lambda: ""
        """Why nothing can be judged now."""
        self.most_an_hour = most_an_hour
        self.pauses: list[float] = []
        self.on_pause: Callable[[], Awaitable[None]] | None = None
        """What goes on in a pause."""
        self.api.told = self.told
        labels = {"kerf.dev/queue": "enabled"}
        self.rig.queue.namespaces.changed(
            None, decode_node({"metadata": {"name": "ns", "uid": "ns", "labels": labels}})
        )
        self.mover = self._mover()
        self.rig.kept_places = self.mover

    def _mover(self) -> Mover:
        rig, queue = self.rig, self.rig.queue
        transport, running = cast(Transport, self.api), self.running
        places = Places(rig.ledger, rig.placer, queue.dispatcher, lambda: rig.now)
        tools = Tools(
            records=Records(transport, "kerf", "kerf-defrag"),
            evictor=Evictor(transport, rig.fence, Resolver(rig.fence, lambda: rig.now)),
            follower=Follower(transport, queue, running, places, LIMITS),
            targets=TargetPlacer(queue, running, places, LIMITS),
            around=Around(
                *(rig.ledger, queue.nodes, running.values, lambda: rig.placer.policies, "bestfit", lambda: rig.now)
            ),
            facts=lambda: Facts(running, queue.backlog.entries, queue.namespaces, self.exempt, queue.use),
            fault=lambda: self.fault(),  # noqa: PLW0108 - tests change it
            fence=rig.fence,
            events=cast(EventRecorder, SimpleNamespace(emit=self._emit, emit_about_config_map=self._emit_map)),
            clock=lambda: rig.now,
            wall_clock=lambda: rig.now,
            most_an_hour=self.most_an_hour,
            pause=self._pause,
        )
        return Mover(tools)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.rig.now += seconds
        if self.on_pause is not None:
            await self.on_pause()

    def _emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        self.events.append((name, reason, message))
        self.about.append((namespace, name, uid))

    def _emit_map(self, namespace: str, name: str, *, reason: str, message: str) -> None:
        self.events.append((name, reason, message))
        self.about.append((namespace, name, ""))

    # The cluster

    def told(self, pod: Pod) -> None:
        """The watches tell of a pod as it is now."""
        if pod.spec.node_name:
            self.rig.ledger.upsert_pod(pod, self.rig.now)
        self.rig.hub.cache(PODS).upsert(pod)

    def node(self, name: str, gpus: int, **labels: str) -> None:
        self.nodes[name] = gpus
        self.rig.node(name, gpus, **labels)

    def runs(self, name: str, node: str, gpus: int = 1, controller: str = "rs", **metadata: Any) -> None:
        """A pod runs on a node."""
        self.api.pods[name] = _manifest(name, gpus, controller, **metadata)
        self.api.pods[name]["spec"]["nodeName"] = node
        del self.api.pods[name]["spec"]["schedulingGates"]
        self.api.pods[name]["status"] = {"phase": "Running"}
        self.told(decode_pod(self.api.pods[name]))

    def waits(self, name: str, gpus: int = 1, controller: str = "rs", **metadata: Any) -> None:
        """A pod waits behind the gate."""
        self.api.pods[name] = _manifest(name, gpus, controller, **metadata)
        self.told(decode_pod(self.api.pods[name]))

    def leaves(self, name: str) -> None:
        """A pod is gone."""
        pod = decode_pod(self.api.pods.pop(name))
        self.rig.ledger.remove_pod(pod.metadata.uid)
        self.rig.hub.cache(PODS).remove(pod)

    def is_replaced(self, name: str, by: str) -> None:
        """A pod leaves, and what is made in its place runs where it is led to."""
        self.leaves(name)
        self.waits(by)
        self.tick()
        self.bind(by)

    def bind(self, name: str, node: str = "", *, phase: str = "Running") -> None:
        """kube-scheduler binds a pod where it was nominated, or elsewhere, and it runs."""
        pod = self.api.pods[name]
        assert not pod["spec"].get("schedulingGates"), f"{name} is behind its gate"
        pod["spec"]["nodeName"] = node or pod["status"]["nominatedNodeName"]
        pod["status"] = {"phase": phase}
        self.api.touch(name)
        self.told(decode_pod(pod))

    def starts(self, name: str) -> None:
        self.api.pods[name]["status"]["phase"] = "Running"
        self.told(decode_pod(self.api.pods[name]))

    def node_of(self, name: str) -> str:
        """Where a pod is nominated, "" behind its gate."""
        pod = self.api.pods[name]
        return "" if pod["spec"].get("schedulingGates") else str(pod["status"].get("nominatedNodeName", ""))

    # What happens

    def begin(self, plan: RoomPlan) -> str:
        return asyncio.run(self.mover.begin(plan, "ns/big"))

    def tick(self, later_s: float = 0.3) -> None:
        """The mover looks, and a round of the queue goes by."""

        async def look() -> None:
            await self.mover.tick()
            await self.rig.queue.run_round()
            await self.rig.queue.dispatcher.finish()

        self.rig.now += later_s
        asyncio.run(look())

    def free(self, node: str) -> int:
        """GPUs of a node that anybody may have."""
        cluster = self.rig.ledger.snapshot(self.rig.now)
        row = cluster.row_of[node]
        return int(max(cluster.gpu_idle[row].sum() - cluster.untracked_units[row], 0))

    @property
    def why(self) -> str:
        return self.mover.state().why

    @property
    def stages(self) -> list[str]:
        return [move.stage for move in self.mover.state().moves]

    @property
    def phase(self) -> str:
        return self.mover.state().phase

    def restarted(self) -> "Defrag":
        """Another process on the same cluster, once it has taken over; of this one nothing is left."""
        other = Defrag(direct=self.direct, api=self.api)
        other.rig.now = self.rig.now
        for name, gpus in self.nodes.items():
            other.node(name, gpus)
        for pod in self.api.pods.values():
            other.told(decode_pod(pod))
        asyncio.run(other.mover.catch_up())
        return other


def _manifest(name: str, gpus: int, controller: str, **metadata: Any) -> Manifest:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": controller, "uid": controller, "controller": True}
    owners = [owner] if controller else []
    spec = metadata.pop("spec", {})
    return {
        "metadata": {
            **{"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "ownerReferences": owners},
            **{"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {}},
            **metadata,
        },
        "spec": {
            "schedulingGates": list(GATES),
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": 1}}}],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def move(pod: str, from_node: str, to_node: str, step: int = 0, controller: str = "rs", gang: str = "") -> PlannedMove:
    return PlannedMove(f"ns/{pod}", pod, from_node, to_node, step, [], 1.0, controller, gang)


def plan(*moves: PlannedMove, node: str = "a", target: str = "big", **fields: Any) -> RoomPlan:
    pods = [TargetPod(f"ns/{target}", node, [], uid=target)] if target else []
    return RoomPlan(True, list(moves), 1.0, pods, [], [], **fields)


def scattered(*, direct: bool = False, **options: Any) -> Defrag:
    """Two nodes of two GPUs, a pod on each, and one that needs two GPUs waits."""
    defrag = Defrag(direct=direct, **options)
    for name in "ab":
        defrag.node(name, 2)
    defrag.runs("v", "a")
    defrag.runs("w", "b", controller="other")
    defrag.waits("big", 2, controller="")
    defrag.tick()
    assert defrag.node_of("big") == ""
    return defrag


MOVE_V = plan(move("v", "a", "b"))
