"""A queue, running pods and the mover; tests play controllers, kubelets and kube-scheduler."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest

from extender.api.contributions import Kernel
from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import Resolver
from extender.kube.objects import Pod
from extender.kube.watches import BOUND_PODS, PODS
from extender.parts.defrag.mover import Mover, build_mover
from extender.parts.defrag.plan import PlannedMove, RoomPlan, TargetPod
from extender.parts.defrag.record import Record
from extender.parts.defrag.settings import DefragSettings
from extender.parts.defrag.steps import Limits
from extender.parts.defrag.tools import Tools
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.fence import Fence
from tests.queueing.direct.rigs import DirectRig, Sure, VersionedApi
from tests.queueing.rigs import GATES, Manifest, Rig

BOTH = pytest.mark.parametrize("direct", [False, True], ids=["extender", "direct"])
LIMITS = Limits(replace_s=100.0, start_s=200.0, target_s=50.0, budget_s=10.0)
WANTED = DefragSettings(record="kerf/kerf-defrag", replace_s=100.0, start_s=200.0, target_s=50.0, budget_s=10.0)
BUDGET = ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


class MoverApi(VersionedApi):
    """Also evicts pods, and has one ConfigMap."""

    def __init__(self) -> None:
        super().__init__()
        self.map: Manifest = {"metadata": {"resourceVersion": "1"}, "data": {}}
        self.evicted: list[str] = []
        self.refuse: Callable[[str], ClusterError | None] = lambda name: None
        """The error of an eviction, by pod."""
        self.lost = False
        """Whether evictions take effect but their responses are lost."""
        self.refuse_record: ClusterError | None = None
        """The error of reads and writes of the ConfigMap."""
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
    """A queue with an extender."""

    def __init__(self, versions: VersionedApi, **options: Any) -> None:
        self.election = Sure()
        self.fence = Fence(lambda: self.now, self.election)
        super().__init__(versions, **options)

    def lead(self) -> None:
        """This process leads."""
        self.fence.take_over("", lambda: float("inf"), lambda: "")
        self.fence.open("term")


class Defrag:
    """A cluster and its mover; `direct`: without an extender."""

    def __init__(
        self, *, direct: bool = False, api: MoverApi | None = None, wanted: DefragSettings = WANTED, **options: Any
    ) -> None:
        self.api = api or MoverApi()
        self.direct = direct
        self.rig = DirectRig(self.api, **options) if direct else ExtenderRig(self.api, **options)
        self.rig.lead()
        self.nodes: dict[str, int] = {}
        self.events: list[tuple[str, str, str]] = []
        self.about: list[tuple[str, str, str]] = []
        """Namespaces, names and UIDs of the events' objects."""
        self.running = self.rig.hub.group(BOUND_PODS)
        self.fault: Callable[[], str] = lambda: ""
        """Why nothing can be decided now."""
        self.pauses: list[float] = []
        self.on_pause: Callable[[], Awaitable[None]] | None = None
        self.api.told = self.told
        labels = {"kerf.dev/queue": "enabled"}
        self.rig.queue.namespaces.changed(
            None, decode_node({"metadata": {"name": "ns", "uid": "ns", "labels": labels}})
        )
        rig = self.rig
        self.resolver = Resolver(rig.fence, lambda: rig.now)
        tools = replace(self.tools(wanted), wall_clock=lambda: rig.now, pause=self._pause)
        self.mover = Mover(replace(tools, fault=lambda: self.fault() or tools.fault()))
        self.rig.kept_places = self.mover

    def kernel(self) -> Kernel:
        """What the service builds the mover from."""
        rig = self.rig
        base = SimpleNamespace(
            transport=self.api,
            clock=lambda: rig.now,
            ledger=rig.ledger,
            mirror=SimpleNamespace(hub=rig.hub),
            events=SimpleNamespace(emit=self._emit, emit_about_config_map=self._emit_map),
            fence=rig.fence,
            resolver=self.resolver,
        )
        settings = SimpleNamespace(decisions=SimpleNamespace(policy="bestfit"))
        return cast(Kernel, SimpleNamespace(settings=settings, base=base, placer=rig.placer, queue=rig.queue))

    def tools(self, wanted: DefragSettings) -> Tools:
        """The tools of a mover with these settings."""
        with patch("extender.parts.defrag.mover.Mover", lambda tools: tools):
            return cast(Tools, build_mover(self.kernel(), wanted))

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
        """Report a pod as it is now by the watches."""
        if pod.spec.node_name:
            self.rig.ledger.upsert_pod(pod, self.rig.now)
        self.rig.hub.cache(PODS).upsert(pod)

    def node(self, name: str, gpus: int, **labels: str) -> None:
        self.nodes[name] = gpus
        self.rig.node(name, gpus, **labels)

    def runs(self, name: str, node: str, gpus: int = 1, controller: str = "rs", **metadata: Any) -> None:
        """Create a pod that runs on a node."""
        self.api.pods[name] = _manifest(name, gpus, controller, **metadata)
        self.api.pods[name]["spec"]["nodeName"] = node
        del self.api.pods[name]["spec"]["schedulingGates"]
        self.api.pods[name]["status"] = {"phase": "Running"}
        self.told(decode_pod(self.api.pods[name]))

    def waits(self, name: str, gpus: int = 1, controller: str = "rs", **metadata: Any) -> None:
        """Create a gated pod."""
        self.api.pods[name] = _manifest(name, gpus, controller, **metadata)
        self.told(decode_pod(self.api.pods[name]))

    def leaves(self, name: str) -> None:
        """Remove a pod."""
        pod = decode_pod(self.api.pods.pop(name))
        self.rig.ledger.remove_pod(pod.metadata.uid)
        self.rig.hub.cache(PODS).remove(pod)

    def replace(self, name: str, by: str, controller: str = "rs") -> None:
        """A pod leaves, and its controller creates a gated replacement."""
        self.leaves(name)
        self.waits(by, controller=controller)

    def comes(self, name: str, gpus: int = 1, controller: str = "rs") -> Pod:
        """Create a pod without the gate, unknown to the queue."""
        self.waits(name, gpus, controller)
        self.rig.hub.cache(PODS).remove(decode_pod(self.api.pods[name]))
        self.api.pods[name]["spec"]["schedulingGates"] = []
        pod = decode_pod(self.api.pods[name])
        self.told(pod)
        assert name not in self.rig.queue.backlog.entries
        return pod

    def unheard(self, name: str, **status: Any) -> None:
        """Remove a pod from all watches; its status in the API server changes."""
        self.rig.hub.cache(PODS).remove(decode_pod(self.api.pods[name]))
        self.rig.ledger.release(name)
        self.api.pods[name]["status"] |= status

    def bind(self, name: str, node: str = "", *, phase: str = "Running") -> None:
        """kube-scheduler binds a pod to its nominated node or another one, and it runs."""
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
        """A pod's nominated node, "" while it is gated."""
        pod = self.api.pods[name]
        return "" if pod["spec"].get("schedulingGates") else str(pod["status"].get("nominatedNodeName", ""))

    def claimed(self, uid: str) -> str:
        """The node on which the ledger holds something for a pod, "" for none."""
        claim = self.rig.ledger.allocation(uid)
        return "" if claim is None else claim.node

    # What happens

    def play(self, events: str) -> None:
        """Events in order: `tick` or `tick SECONDS`, `POD leaves`, `POD waits` or `POD waits for GPUS`, `POD replaces
        POD`, `POD is bound` (to its nominated node) or `POD is bound to NODE`, `POD starts`."""
        for event in events.split(", "):
            match event.split():
                case ["tick", *seconds]:
                    self.tick(*map(float, seconds))
                case [pod, "leaves"]:
                    self.leaves(pod)
                case [pod, "waits", *gpus]:
                    self.waits(pod, int(gpus[1]) if gpus else 1)
                case [pod, "replaces", old]:
                    self.replace(old, pod)
                case [pod, "is", "bound", *node]:
                    self.bind(pod, node[1] if node else "")
                case [pod, "starts"]:
                    self.starts(pod)
                case _:
                    raise ValueError(event)

    def begin(self, plan: RoomPlan) -> str:
        return asyncio.run(self.mover.begin(plan, "ns/big"))

    def tick(self, later_s: float = 0.3) -> None:
        """Let time pass, then run the mover and a round of the queue."""

        async def look() -> None:
            await self.mover.tick()
            await self.rig.queue.run_round()
            await self.rig.queue.dispatcher.finish()

        self.rig.now += later_s
        asyncio.run(look())

    def free(self, node: str) -> int:
        """GPUs of a node that any pod may get."""
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
    def moves(self) -> list[tuple[str, str]]:
        """Stage and fault of each move."""
        return [(move.stage, move.why) for move in self.mover.state().moves]

    @property
    def phase(self) -> str:
        return self.mover.state().phase

    @property
    def kept(self) -> list[str]:
        """The closed nodes."""
        return self.mover.state().kept

    def restarted(self) -> "Defrag":
        """Another process on the same cluster, which has taken over."""
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


def gang(size: int, name: str = "g") -> Manifest:
    """Annotations of a gang."""
    return {"kerf.dev/gang": name, "kerf.dev/gang-size": str(size)}


def scattered(*, direct: bool = False, **options: Any) -> Defrag:
    """Two nodes of two GPUs with a pod on each, and pod `big` that waits for two GPUs."""
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


def evicted(*, direct: bool = False, **options: Any) -> Defrag:
    """A plan whose only move is under way: v has been evicted; at time 2048."""
    defrag = scattered(direct=direct, **options)
    defrag.rig.now = 2048.0
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    assert defrag.api.evicted == ["v"]
    return defrag


def two_moves(*, direct: bool = False, **target: Any) -> Defrag:
    """A plan of two steps in the first of which v has been evicted; `target` are metadata of `big`."""
    defrag = scattered(direct=direct)
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.waits("big", 2, controller="", **target)
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    assert defrag.api.evicted == ["v"]
    return defrag


def gang_of_three() -> Defrag:
    """A plan that is about to move the three pods of a gang from a to b, in one step."""
    defrag = Defrag()
    for name in "ab":
        defrag.node(name, 4)
    for number in range(3):
        defrag.runs(f"g{number}", "a", controller="job", annotations=gang(3))
    defrag.runs("w", "b", controller="other")
    defrag.waits("big", 4, controller="")
    defrag.tick()
    defrag.begin(plan(*(move(f"g{number}", "a", "b", 0, "job", "ns/g") for number in range(3))))
    return defrag


def moved(defrag: Defrag, node: str = "") -> None:
    """v's replacement is created and bound."""
    defrag.play("v2 replaces v, tick")
    assert defrag.node_of("v2") == "b"
    defrag.bind("v2", node)
    defrag.tick()


def stopped(defrag: Defrag, why: str) -> None:
    """Nothing is kept any more, the end is recorded, and pod u was never evicted."""
    defrag.tick()
    state = defrag.mover.state()
    assert (state.phase, state.kept, defrag.api.record.phase) == ("stopped", [], "stopped")
    assert why in state.why
    assert ("kerf-defrag", "RoomStopped", f"Plan {state.id}: {state.why}") in defrag.events
    assert defrag.mover.counts.stopped == 1
    assert "u" not in defrag.api.evicted
    assert not [claim for claim in defrag.rig.ledger.pinned() if claim.uid.startswith("defrag/")]
