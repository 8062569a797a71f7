"""Unbound pods that request GPUs, including those that kube-scheduler never asked Kerf about.

kube-scheduler calls Kerf only for a pod that its own plugins have left a node for. The others are known from a watch of
pods without a node, shared with the queue. A bounded number of pods is kept; beyond it, the namespace with the most
loses its oldest. They are for display and waking only.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.scheduling.fair_cache import FairCache

_MAX_PODS: Final = 20_000
_MAX_CHARS: Final = 500
_MAX_NAME: Final = 63


class UnboundPod(msgspec.Struct, frozen=True):
    """A summary of a pod that waits for GPUs."""

    uid: str
    namespace: str
    name: str
    request: str
    """Its request in words, "" if it can't be parsed."""
    why: str
    """kube-scheduler's reason for rejecting it, or what keeps it from being scheduled."""
    priority: int
    least_priority: int
    """The lower of the priorities of its class and its label: any author may set the label."""
    created: float
    """Unix time of its creation, or of when it was first seen if that is unknown."""
    version: str = ""
    """Its resourceVersion."""
    owed: bool = False
    """Whether kube-scheduler should try it now: it is neither rejected nor held."""
    refused: bool = False
    """Whether kube-scheduler has found no node for it, and nothing else holds it."""
    refused_since: float = 0.0
    """Unix time since which it is refused: its creation, unless it was seen to wait for something else before."""
    asked: PodRequest | None = None
    """Its request, None if it can't be parsed."""
    owner: str = ""
    """`Kind/name` of its controller."""
    gang: str = ""
    """`namespace/name`, "" for none."""
    gated: bool = False
    """Whether it has a scheduling gate."""
    owed_since: float = 0.0
    """Unix time since which it is owed: its creation, unless it was seen not to be owed before."""
    scheduler: str = ""
    """Its schedulerName."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class UnboundPods:
    """Unbound pods by UID."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        wall_clock: Callable[[], float],
        most: int = _MAX_PODS,
        belonging: Callable[[objects.Pod], tuple[str, str]] = lambda pod: ("", ""),
    ) -> None:
        """`read` returns a pod's request and raises RequestError; `belonging` returns its owner and gang."""
        self._belonging = belonging
        self._read = read
        self._wall_clock = wall_clock
        self._most = most
        self._pods: FairCache[UnboundPod] = FairCache(most)

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def full(self) -> bool:
        """Whether there may be more pods than are kept."""
        return len(self._pods) >= self._most

    def all(self) -> list[UnboundPod]:
        """Return the pods."""
        return list(self._pods.values())

    def get(self, uid: str) -> UnboundPod | None:
        """Return a pod by its UID."""
        return self._pods.get(uid)

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Handle an unbound pod that was added or changed; `new` is None once it is bound or gone."""
        if new is not None and (summary := self._summary(new)) is not None:
            self._pods.put(summary.namespace, summary.uid, summary, self._wall_clock())
        elif (pod := new or old) is not None:
            self._pods.pop(pod.metadata.uid)

    def _summary(self, pod: objects.Pod) -> UnboundPod | None:
        """Return what is kept of a pod, None for one that requests no GPUs or is being deleted."""
        if pod.metadata.deletion_timestamp:
            return None
        known = self._pods.get(pod.metadata.uid)
        request, priority, fault = "", pod.spec.priority or 0, ""
        asked: PodRequest | None = None
        try:
            asked = self._read(pod)
            if asked.gpus is None:
                return None
            request, priority = str(asked.gpus), asked.priority
        except RequestError as error:
            fault = str(error)
        created = unix_time(pod.metadata.creation_timestamp) or (known.created if known else self._wall_clock())
        # The first sentence has the reasons; the rest is about preemption and the same on every pod.
        refused = pod.refusal.partition(". ")[0].removesuffix(".")
        gated = _gated(pod)
        held = fault or gated or refused
        owner, gang = self._belonging(pod)
        return UnboundPod(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            request=request[:_MAX_CHARS],
            why=(held or _unseen(pod))[:_MAX_CHARS],
            priority=priority,
            least_priority=min(priority, pod.spec.priority or 0),
            created=created,
            version=pod.metadata.resource_version,
            owed=not held,
            refused=bool(refused) and not (fault or gated),
            refused_since=created if known is None else known.refused_since if known.refused else self._wall_clock(),
            asked=asked,
            owner=owner,
            gang=gang,
            gated=bool(gated),
            owed_since=created if known is None else known.owed_since if known.owed else self._wall_clock(),
            scheduler=pod.spec.scheduler_name[:_MAX_NAME],
        )


def _gated(pod: objects.Pod) -> str:
    """Return which scheduling gates hold a pod, "" for none."""
    names = ", ".join(gate.name for gate in pod.spec.scheduling_gates or ())
    return f"held by scheduling gate {names}" if names else ""


def _unseen(pod: objects.Pod) -> str:
    return f"no status yet from its scheduler {pod.spec.scheduler_name}".strip()
