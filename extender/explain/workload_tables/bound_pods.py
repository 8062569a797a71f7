"""What is told of pods beside what they hold: whom they belong to, since when they are, and whether they run yet."""

from typing import Final, NamedTuple

from extender.core.annotations import read_priority
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.queueing.pods.batches import gang_of
from extender.usage.holders import who_of

_MAX_CHARS: Final = 128


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


def told_of_bound(pod: objects.Pod) -> BoundPod:
    """What is told of a pod with a node."""
    return BoundPod(
        unix_time(pod.metadata.creation_timestamp),
        _priority(pod),
        _gang_name(pod),
        pod.status.phase == "Pending",
        pod.metadata.deletion_timestamp is not None,
    )


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
