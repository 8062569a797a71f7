"""What is told of pods beside what they hold: whom they belong to, since when they are, and whether they run yet."""

from typing import Final, NamedTuple

from extender.core.annotations import read_priority
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.ledger.ledger import Ledger
from extender.queueing.pods.batches import gang_of
from extender.usage.holders import who_of

_MAX_CHARS: Final = 128
_FIRST_LOOK: Final = 1000


class BoundPod(NamedTuple):
    """A pod with a node that has GPUs there."""

    created: float
    """Unix time, 0 where nobody has told."""
    priority: int
    gang: str
    """`namespace/name`, "" for none."""
    starting: bool
    """Whether its containers have not begun."""
    leaving: bool
    """Whether it is being deleted; until it is gone it has what it has."""


class BoundPods:
    """Those pods by UID: a listener of the mirror. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pods: dict[str, BoundPod] = {}
        self._most = _FIRST_LOOK

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> BoundPod | None:
        """What is told of a pod now, None for one that is gone."""
        return self._pods.get(uid) if self._ledger.is_bound(uid) else None

    def node_changed(self, node: objects.Node) -> None:
        """Nodes are the ledger's to tell of."""

    def pod_changed(self, pod: objects.Pod) -> None:
        """A pod with a node was added or changed."""
        uid = pod.metadata.uid
        if pod.finished or not (self._ledger.claim(uid) is not None or pod.spec.resource_claims):
            self._pods.pop(uid, None)
            return
        self._pods[uid] = BoundPod(
            unix_time(pod.metadata.creation_timestamp),
            _priority(pod),
            _gang_name(pod),
            pod.status.phase == "Pending",
            pod.metadata.deletion_timestamp is not None,
        )
        if len(self._pods) > self._most:
            self._pods = {uid: told for uid, told in self._pods.items() if self._ledger.is_bound(uid)}
            self._most = 2 * len(self._pods) + _FIRST_LOOK


def belonging(pod: objects.Pod) -> tuple[str, str]:
    """The owner of a pod, as of `who_of`, and its gang."""
    return who_of(pod.metadata).owner, _gang_name(pod)


def _gang_name(pod: objects.Pod) -> str:
    """The gang of a pod, "" for none, or where that can't be understood."""
    try:
        return gang_of(pod)[0][:_MAX_CHARS]
    except RequestError:
        return ""


def _priority(pod: objects.Pod) -> int:
    try:
        return read_priority(pod.metadata.labels or {}, pod.spec.priority)
    except RequestError:
        return pod.spec.priority or 0
