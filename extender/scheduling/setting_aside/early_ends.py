"""How a pod did on its node, by what its kubelet tells: whether it runs, or failed soon after its start."""

from typing import Final

from extender.kube import objects
from extender.kube.objects import unix_time

_REFUSED: Final = "UnexpectedAdmissionError"
_OUT_OF: Final = "OutOf"
"""What the kubelet refuses a pod with begins so where it lacks a resource: `OutOf` and its name."""
_NOT_STARTED: Final = frozenset({"CreateContainerError", "RunContainerError", "ContainerCannotRun", "StartError"})
_TELLS_NOTHING: Final = frozenset({"Completed", "OOMKilled", "ContainerStatusUnknown"})
"""Ends that are the pod's own doing, or of which nobody knows how they came."""
_SIGTERM: Final = 143
"""Exit code of who was asked to end."""


def early_failure(pod: objects.Pod, early_s: float, now: float, window_s: float) -> str:
    """Why a pod failed within so many seconds of its start, "" where it did not.

    Of one that is restarted, a failure counts that is no older than `window_s` at `now`, in Unix time. What the pod
    itself or its cluster has brought about says nothing of its node: evictions, deletions, memory over its limit,
    images and ConfigMaps that are missing.
    """
    status = pod.status
    if pod.metadata.deletion_timestamp or status.phase == "Succeeded":
        return ""
    if status.phase == "Failed":
        return _of_failed(status, early_s)
    for container in status.container_statuses or ():
        waiting, last = container.state and container.state.waiting, container.last_state
        if waiting and waiting.reason in _NOT_STARTED:
            return waiting.reason
        ended = last.terminated if last else None
        recent = ended is not None and now - unix_time(ended.finished_at) <= window_s
        if ended and recent and _lifetime_s(ended) < early_s and (fault := _fault(ended)):
            return fault
    return ""


def runs(pod: objects.Pod) -> bool:
    """Whether all its containers run."""
    for container in pod.status.container_statuses or ():
        if (state := container.state) and (state.waiting or state.terminated):
            return False
    return pod.status.phase == "Running"


def has_restarted(pod: objects.Pod) -> bool:
    """Whether a container has ended before, or waits for its start."""
    for container in pod.status.container_statuses or ():
        state, last = container.state, container.last_state
        if (last and last.terminated) or (state and state.waiting):
            return True
    return False


def _of_failed(status: objects.PodStatus, early_s: float) -> str:
    if status.reason:
        return status.reason if status.reason == _REFUSED or status.reason.startswith(_OUT_OF) else ""
    states = [container.state for container in status.container_statuses or () if container.state]
    ends = [state.terminated for state in states if state.terminated]
    if max(map(_lifetime_s, ends), default=0.0) >= early_s:
        return ""
    return next((fault for end in ends if (fault := _fault(end))), "")


def _fault(ended: objects.Ended) -> str:
    """What a container failed with, "" where that is not its node's doing."""
    if ended.exit_code in (0, _SIGTERM) or ended.reason in _TELLS_NOTHING:
        return ""
    return ended.reason if ended.reason in _NOT_STARTED else f"exit code {ended.exit_code}"


def _lifetime_s(ended: objects.Ended) -> float:
    """0 for one that never started, whose start is told as of 1970."""
    started = unix_time(ended.started_at)
    return max(unix_time(ended.finished_at) - started, 0.0) if started > 0 else 0.0
