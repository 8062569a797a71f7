"""Pods without a node that ask for GPUs: all there are, also those that nobody has asked Kerf about.

Kerf hears of a pod when kube-scheduler's own plugins have left it a node. Of the others only the API server knows, and
so does whoever wants to see what is pending: one watch of pods without a node, the queue's own where that is on. Of
each pod a few words are kept, of a bounded number of pods: where there are more, the namespace that has most of them
gives its own up. Nothing is decided by them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.scheduling.fair_cache import FairCache

_MAX_PODS: Final = 20_000
_MAX_WORDS: Final = 500
_MAX_NAME: Final = 63
_FIRST_WAIT_S: Final = 0.001  # without an election it leads at once
_MAX_WAIT_S: Final = 1.0


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
    least_priority: int
    """The lower of what its class and its label say: anyone may write a label on a pod of theirs."""
    created: float
    """Unix time; that of the first sight where nobody has told."""
    version: str = ""
    """Its resourceVersion."""
    owed: bool = False
    """Whether kube-scheduler is to try it although nothing changes: nobody has refused it, and nothing holds it."""
    refused: bool = False
    """Whether kube-scheduler has found no node for it, and nothing else holds it."""
    refused_since: float = 0.0
    """Unix time: since it was made, unless it was seen before that to wait for something else."""
    asked: PodRequest | None = None
    """The request itself, None where it can't be understood."""
    owner: str = ""
    """`Kind/name` of what keeps pods like it."""
    gang: str = ""
    """`namespace/name`, "" for none."""
    gated: bool = False
    """Whether a scheduling gate keeps it from kube-scheduler."""
    owed_since: float = 0.0
    """Unix time: since it was made, unless it was seen before that not to be owed."""
    scheduler: str = ""
    """Its schedulerName."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class UnboundPods:
    """The pods by UID."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        wall_clock: Callable[[], float],
        most: int = _MAX_PODS,
        belonging: Callable[[objects.Pod], tuple[str, str]] = lambda pod: ("", ""),
    ) -> None:
        """`read` tells what a pod asks for and raises RequestError; `belonging` its owner and gang."""
        self._belonging = belonging
        self._read = read
        self._wall_clock = wall_clock
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

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod without a node was added or has changed; or it is gone, or has its node."""
        if new is not None and (words := self._words(new)) is not None:
            self._pods.put(words.namespace, words.uid, words, self._wall_clock())
        elif (pod := new or old) is not None:
            self._pods.pop(pod.metadata.uid)

    def _words(self, pod: objects.Pod) -> UnboundPod | None:
        """What is kept of a pod, None for one that asks for no GPUs, or is being deleted."""
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
        # The first sentence has the reasons; what follows is of preemption, on every such pod alike.
        refused = pod.refusal.partition(". ")[0].removesuffix(".")
        gated = _gated(pod)
        held = fault or gated or refused
        owner, gang = self._belonging(pod)
        return UnboundPod(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            request=request[:_MAX_WORDS],
            why=(held or _unseen(pod))[:_MAX_WORDS],
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
    """Which gates keep it from kube-scheduler."""
    names = ", ".join(gate.name for gate in pod.spec.scheduling_gates or ())
    return f"held by scheduling gate {names}" if names else ""


def _unseen(pod: objects.Pod) -> str:
    return f"no status yet from its scheduler {pod.spec.scheduler_name}".strip()
