"""Pods that opt in to the queue and came without its gate: the webhook was not asked, or did not answer.

A pod that Kerf can't be asked about does not wait (`failurePolicy: Ignore`): it goes to kube-scheduler past the
queue's order, quotas and gangs, and nothing on it says so.
"""

from collections.abc import Callable
from typing import Final

from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.queueing.pods.nominations import PLANNED_BY
from extender.queueing.pods.objects import (
    BY_LABEL,
    BY_NAMESPACE,
    DISABLED,
    ENABLED,
    QUEUE_LABEL,
    QUEUED_BY,
    Namespaces,
    is_gated,
)

_OPTED_IN: Final = {
    BY_LABEL: f"its label {QUEUE_LABEL}: {ENABLED}",
    BY_NAMESPACE: f"its namespace's label {QUEUE_LABEL}: {ENABLED}",
}


class PassedPods:
    """Of the pods without a node those that have passed by, as long as they have none."""

    def __init__(
        self,
        namespaces: Namespaces,
        namespaces_known: Callable[[], bool],
        standby: Callable[[], str],
        events: EventRecorder | None,
    ) -> None:
        """`namespaces_known`: whether all those that opt in are in `namespaces` by now."""
        self._namespaces_known = namespaces_known
        self._namespaces = namespaces
        self._standby = standby
        self._events = events
        self._looked_at: set[str] = set()
        """UIDs of the pods that there are."""
        self.passed: dict[str, Pod] = {}
        """By UID, as they came."""
        self.num_passed = 0
        """Since the start."""

    def why(self, uid: str) -> str:
        """Why a pod should have waited in the queue, and that it does not; "" for all others."""
        pod = self.passed.get(uid)
        return "" if pod is None else _words(_opted_in_by(pod, self._namespaces))

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod was added: what becomes of its gate later is the queue's affair. Or it is gone, or has its node."""
        if new is not None:
            self._look_at(new)
        elif old is not None:
            self._looked_at.discard(old.metadata.uid)
            self.passed.pop(old.metadata.uid, None)

    def _look_at(self, pod: Pod) -> None:
        uid, metadata = pod.metadata.uid, pod.metadata
        by, annotations = _opted_in_by(pod, self._namespaces), metadata.annotations or {}
        if uid in self._looked_at or not (by or self._namespaces_known()):
            return
        self._looked_at.add(uid)
        if not by or is_gated(pod) or PLANNED_BY in annotations or QUEUED_BY in annotations or pod.spec.node_name:
            return
        self.passed[uid] = pod
        self.num_passed += 1
        if self._events is not None and not self._standby():
            self._events.emit(metadata.namespace, metadata.name, metadata.uid, reason="PassedQueue", message=_words(by))


def _words(by: str) -> str:
    gate = "and came without its gate: the webhook was not asked in time"
    return by and f"opted in to the queue by {_OPTED_IN[by]}, {gate}"


def _opted_in_by(pod: Pod, namespaces: Namespaces) -> str:
    """What opts a pod in, "" for nothing."""
    label = (pod.metadata.labels or {}).get(QUEUE_LABEL)
    if label == ENABLED:
        return BY_LABEL
    return BY_NAMESPACE if label != DISABLED and namespaces.enabled(pod.metadata.namespace) else ""
