"""Pods without a node that ask for GPUs: all there are, also those that nobody has asked Kerf about.

Kerf hears of a pod when kube-scheduler's own plugins have left it a node. Of the others only the API server knows, and
so does whoever wants to see what is pending: one watch of pods without a node, the queue's own where that is on. Of
each pod a few words are kept, of a bounded number of pods: where there are more, the namespace that has most of them
gives its own up. Nothing is decided by them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.fair_caches import FairCache
from extender.cluster.fences import Fence
from extender.cluster.mirrors import PODS_PATH
from extender.cluster.reflectors import Reflector, Sink
from extender.cluster.tasks import Tasks
from extender.cluster.transports import Transport
from extender.core.requests import PodRequest, RequestError

PENDING_PODS: Final = "spec.nodeName=,status.phase=Pending"
"""Only pods without a node: one that gets its node leaves the selection, which the watch tells as a deletion."""

_MAX_PODS: Final = 20_000
_MAX_WORDS: Final = 500
_FIRST_WAIT_S: Final = 0.001  # without an election it leads at once
_MAX_WAIT_S: Final = 1.0


class Condition(objects.Object):
    type: str = ""
    reason: str = ""
    message: str = ""


class Gate(objects.Object):
    name: str = ""


class PodSpec(objects.PodSpec, rename="camel"):
    scheduling_gates: list[Gate] | None = None
    scheduler_name: str = ""


class PodStatus(objects.PodStatus, rename="camel"):
    conditions: list[Condition] | None = None


class Pod(objects.Pod):
    """What is read of a pod without a node."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def refusal(self) -> str:
        """Why kube-scheduler found no node for it when it tried last, "" where it has not tried or has found one."""
        return next((item.message or item.reason for item in self.status.conditions or () if _is_refusal(item)), "")


def _is_refusal(condition: Condition) -> bool:
    return condition.type == "PodScheduled" and condition.reason == "Unschedulable"


@dataclass(frozen=True, slots=True)
class UnboundPod:
    """A pod that waits for GPUs, in words."""

    uid: str
    namespace: str
    name: str
    request: str
    """What it asks for, "" where that can't be understood."""
    why: str
    """What kube-scheduler says of it, or what keeps it from being looked at."""
    priority: int
    created: float
    """Unix time; that of the first sight where nobody has told."""
    version: str = ""
    """Its resourceVersion."""
    owed: bool = False
    """Whether kube-scheduler is to try it although nothing changes: nobody has refused it, and nothing holds it."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class UnboundPods:
    """The pods by UID: the sink of a reflector, its own or the queue's."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        wall_clock: Callable[[], float],
        left: Callable[[str], None] = lambda uid: None,
        most: int = _MAX_PODS,
    ) -> None:
        """`read` tells what a pod asks for and raises RequestError; `left` hears of pods that do not wait any more."""
        self._read = read
        self._wall_clock = wall_clock
        self._left = left
        self._most = most
        self._pods: FairCache[UnboundPod] = FairCache(most)

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def full(self) -> bool:
        """Whether there may be more than are kept."""
        return len(self._pods) >= self._most

    def all(self) -> list[UnboundPod]:
        """The pods now."""
        return list(self._pods.values())

    def get(self, uid: str) -> UnboundPod | None:
        """One of them."""
        return self._pods.get(uid)

    def upsert(self, item: objects.Pod) -> None:
        """A pod was added or changed."""
        uid = item.metadata.uid
        if item.spec.node_name or item.finished or item.metadata.deletion_timestamp or not isinstance(item, Pod):
            self._drop(uid)
            return
        known = self._pods.get(uid)
        words = self._words(item, known)
        if words is None:
            self._pods.pop(uid)
        else:
            self._pods.put(item.metadata.namespace, uid, words, self._wall_clock())

    def remove(self, item: objects.Pod) -> None:
        """A pod is gone, or has its node."""
        self._drop(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        """Pods that a complete list does not name are gone, or have their nodes."""
        for pod in self.all():
            if pod.uid not in items:
                self._drop(pod.uid)

    def _drop(self, uid: str) -> None:
        self._pods.pop(uid)
        self._left(uid)

    def _words(self, pod: Pod, known: UnboundPod | None) -> UnboundPod | None:
        """What is kept of a pod, None for one that asks for no GPUs."""
        request, priority, fault = "", pod.spec.priority or 0, ""
        try:
            asked = self._read(pod)
            if asked.gpus is None:
                return None
            request, priority = str(asked.gpus), asked.priority
        except RequestError as error:
            fault = str(error)
        created = unix_time(pod.metadata.creation_timestamp) or (known.created if known else self._wall_clock())
        # The first sentence has the reasons; what follows is of preemption, on every such pod alike.
        refused = pod.refusal.partition(". ")[0].removesuffix(".")
        held = fault or _gated(pod) or refused
        return UnboundPod(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            request=request[:_MAX_WORDS],
            why=(held or _unseen(pod))[:_MAX_WORDS],
            priority=priority,
            created=created,
            version=pod.metadata.resource_version,
            owed=not held,
        )


class Both:
    """Two sinks of one reflector."""

    def __init__(self, first: Sink[objects.Pod], second: Sink[objects.Pod]) -> None:
        self._sinks = (first, second)

    def upsert(self, item: objects.Pod) -> None:
        """To both."""
        for sink in self._sinks:
            sink.upsert(item)

    def remove(self, item: objects.Pod) -> None:
        """To both."""
        for sink in self._sinks:
            sink.remove(item)

    def keep(self, items: set[str], list_began: float) -> None:
        """To both."""
        for sink in self._sinks:
            sink.keep(items, list_began)


class UnboundWatch:
    """Mirrors pods without a node from when this process first leads. Nothing waits for it, and it fails alone."""

    def __init__(
        self,
        transport: Transport,
        pods: UnboundPods,
        clock: Callable[[], float],
        fence: Fence,
        page_size: int = 500,
    ) -> None:
        self._fence = fence
        self._reflector = Reflector[objects.Pod](
            transport, PODS_PATH, Pod, pods, clock, field_selector=PENDING_PODS, page_size=page_size
        )
        self.tasks = Tasks()
        """What goes on in the background."""

    def start(self) -> None:
        """Begin, in the running event loop."""
        self.tasks.begin("unbound pods", self._run, needed=False)

    async def stop(self) -> None:
        """End."""
        await self.tasks.end()

    async def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while self._fence.standby():
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
        await self._reflector.run()


def unix_time(text: str) -> float:
    """Seconds since 1970 of an API server's time stamp, 0 where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _gated(pod: Pod) -> str:
    """Which gates keep it from kube-scheduler."""
    names = ", ".join(gate.name for gate in pod.spec.scheduling_gates or ())
    return f"held by scheduling gate {names}" if names else ""


def _unseen(pod: Pod) -> str:
    return f"no word yet from its scheduler {pod.spec.scheduler_name}".strip()
