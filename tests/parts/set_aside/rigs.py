"""A keeper on a cluster in memory, whose pods start and fail as a test says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from extender.kube import objects
from extender.kube.cache import Cache
from extender.kube.events import EventRecorder
from extender.ledger.ledger import Ledger
from extender.parts.set_aside.quarantine import (
    AlikeNodes,
    Failures,
    FailureThresholds,
    PodOutcomes,
    QuarantineConfig,
    QuarantineController,
)
from extender.plugins.set_aside import SET_ASIDE, Note, read_note
from extender.scheduling.fence import Fence
from tests.ledger.builders import Clock, FaultyTransport, node_manifest, open_fence, pod_manifest

EARLY_S, WINDOW_S = 60.0, 600.0
FOR_S, MAX_FOR_S = 1800.0, 86400.0
WALL = 1_800_000_000.0
FAILED = {"terminated": {"exitCode": 1, "startedAt": "2027-01-15T08:00:00Z", "finishedAt": "2027-01-15T08:00:02Z"}}
"""In two seconds, at WALL."""


@dataclass
class Rig:
    """`nodes` of two GPUs each, or as many as there are names."""

    nodes: Sequence[str] = ("n", "m", "k")
    acts: bool = True
    fence: Fence = field(default_factory=open_fence)
    max_frac: float = 0.05
    transport: FaultyTransport = field(default_factory=FaultyTransport)
    clock: Clock = field(default_factory=Clock)
    began: float = 1000.0
    num: int = 0

    def __post_init__(self) -> None:
        for name in self.nodes:
            if ("", name) not in self.transport.inner._objects["/api/v1/nodes"]:  # noqa: SLF001 - else it is a restart
                self.transport.inner.apply(node_manifest(name, 2))
        self.start()

    def start(self) -> None:
        """A process that knows nothing but what the API server tells."""
        self.ledger = Ledger(reservation_ttl_s=30.0)
        if self.acts:
            self.ledger.enable_quarantine()
        self.failures = Failures(FailureThresholds(5, 3, WINDOW_S))
        times = {"early_s": EARLY_S, "window_s": WINDOW_S}

        def has_gpus(pod: objects.Pod) -> bool:
            claim = self.ledger.allocation(pod.metadata.uid)
            return claim is not None and bool(claim.holding)

        self.nodes_seen = Cache[objects.Node, objects.Node](lambda node: node)
        self.pods_seen = Cache[objects.Pod, objects.Pod](lambda pod: pod)
        self.alike = AlikeNodes(self.ledger, self.nodes_seen, self.clock)
        self.lives = PodOutcomes(self.transport, self.failures, self.alike, has_gpus, self.clock, self.wall, **times)
        terms = QuarantineConfig(self.acts, 3, EARLY_S, self.max_frac, FOR_S, MAX_FOR_S)
        self.events = EventRecorder(self.transport, self.clock)
        self.keeper = QuarantineController(
            *(self.transport, self.ledger, self.events, self.fence, self.failures, self.lives),
            *(terms, self.clock, self.wall),
        )
        self.nodes_seen.subscribe(self.keeper.changed)
        self.pods_seen.subscribe(self.lives.changed)
        for name in self.nodes:
            self.hear_node(name)

    def wall(self) -> float:
        return WALL + self.clock.now - self.began

    def hear_node(self, name: str) -> None:
        """What the watch tells of a node."""
        node = msgspec.convert(self.transport.inner.node(name), objects.Node)
        self.ledger.upsert_node(node)
        self.nodes_seen.upsert(node)

    def hear_pod(self, manifest: dict[str, Any]) -> None:
        """The same of a pod."""
        pod = msgspec.convert(manifest, objects.Pod)
        self.ledger.upsert_pod(pod, self.clock.now)
        self.pods_seen.upsert(pod)

    def pod(self, node: str, namespace: str, owner: str = "", name: str = "", **spec: Any) -> dict[str, Any]:
        """A pod that runs there since now; it is its own workload unless an owner is named."""
        self.num += 1
        manifest = pod_manifest(name or f"p-{self.num}", 1, uid=f"uid-{self.num}", node=node, phase="Running")
        manifest["metadata"]["namespace"] = namespace
        manifest["spec"] |= spec
        if owner:
            manifest["metadata"]["ownerReferences"] = [{"controller": True, "kind": "Job", "name": owner, "uid": "u"}]
        self.transport.inner.apply(manifest)
        self.hear_pod(manifest)
        return manifest

    def end(self, pod: dict[str, Any], phase: str = "Failed", **status: Any) -> None:
        """It ends: the watch tells no more than that it is gone, as that of an API server does."""
        before = msgspec.convert(pod, objects.Pod)
        pod["status"] = {"phase": phase, "containerStatuses": [{"state": FAILED}]} | status
        self.transport.inner.apply(pod)
        self.ledger.remove_pod(before.metadata.uid)
        self.pods_seen.remove(before)

    def fail(self, node: str, *namespaces: str, owner: str = "", **spec: Any) -> None:
        """A pod of each starts there and fails."""
        for namespace in namespaces:
            self.end(self.pod(node, namespace, owner, **spec))

    def live(self, node: str, namespace: str, owner: str = "") -> None:
        """A pod starts there and lives well."""
        self.pod(node, namespace, owner)
        self.pass_time(EARLY_S)

    def round(self, times: int = 1) -> None:
        """The keeper looks, and what it has written is heard of."""
        for _ in range(times):
            asyncio.run(self.keeper.round())
            for name in self.nodes:
                self.hear_node(name)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.round()

    def note(self, node: str = "n") -> Note | None:
        """What is written on a node."""
        return read_note(self.annotations(node))

    def annotations(self, node: str = "n") -> dict[str, str]:
        found: dict[str, str] = self.transport.inner.node(node)["metadata"].get("annotations", {})
        return found

    def annotate(self, value: str | None, node: str = "n") -> None:
        """Whoever looks after the cluster writes on a node, or takes that away."""
        manifest = self.transport.inner.node(node)
        annotations = manifest["metadata"].setdefault("annotations", {})
        annotations.pop(SET_ASIDE, None)
        if value is not None:
            annotations[SET_ASIDE] = value
        self.transport.inner.apply(manifest)
        self.hear_node(node)

    def told(self, node: str = "n") -> list[str]:
        """The events about a node by their reason, oldest first."""

        async def flush() -> None:
            self.events.start()
            await self.events.stop()

        asyncio.run(flush())
        return [event["reason"] for event in self.transport.inner.events if event["involvedObject"]["name"] == node]
