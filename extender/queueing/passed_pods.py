"""Detects pods that opt in to the queue but were created without its gate: the webhook was not called or failed.

With `failurePolicy: Ignore` such a pod is scheduled outside the queue, without its order, quotas and gangs, and nothing
on the pod shows that.
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
    """The unbound pods outside the queue that should be in it."""

    def __init__(
        self,
        namespaces: Namespaces,
        namespaces_known: Callable[[], bool],
        standby: Callable[[], str],
        events: EventRecorder | None,
    ) -> None:
        """`namespaces_known`: whether `namespaces` is complete."""
        self._namespaces_known = namespaces_known
        self._namespaces = namespaces
        self._standby = standby
        self._events = events
        self._checked: set[str] = set()
        """UIDs of the pods that were checked."""
        self.passed: dict[str, Pod] = {}
        """By UID, as first seen."""
        self.num_passed = 0
        """Such pods since the start."""

    def why(self, uid: str) -> str:
        """Return a sentence about why a pod should be in the queue and is not, "" for all others."""
        pod = self.passed.get(uid)
        return "" if pod is None else _sentence(_opted_in_by(pod, self._namespaces))

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """Check a pod when it is first seen, and forget it once it is bound or gone."""
        if new is not None:
            self._check(new)
        elif old is not None:
            self._checked.discard(old.metadata.uid)
            self.passed.pop(old.metadata.uid, None)

    def _check(self, pod: Pod) -> None:
        uid, metadata = pod.metadata.uid, pod.metadata
        by, annotations = _opted_in_by(pod, self._namespaces), metadata.annotations or {}
        if uid in self._checked or not (by or self._namespaces_known()):
            return
        self._checked.add(uid)
        if not by or is_gated(pod) or PLANNED_BY in annotations or QUEUED_BY in annotations or pod.spec.node_name:
            return
        self.passed[uid] = pod
        self.num_passed += 1
        if self._events is not None and not self._standby():
            message = _sentence(by)
            self._events.emit(metadata.namespace, metadata.name, metadata.uid, reason="PassedQueue", message=message)


def _sentence(by: str) -> str:
    gate = "and came without its gate: the webhook was not asked in time"
    return by and f"opted in to the queue by {_OPTED_IN[by]}, {gate}"


def _opted_in_by(pod: Pod, namespaces: Namespaces) -> str:
    """Return `BY_LABEL` or `BY_NAMESPACE`, whichever opts a pod in, "" for neither."""
    label = (pod.metadata.labels or {}).get(QUEUE_LABEL)
    if label == ENABLED:
        return BY_LABEL
    return BY_NAMESPACE if label != DISABLED and namespaces.enabled(pod.metadata.namespace) else ""
