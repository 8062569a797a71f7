"""Who takes part: pods opt in by a label of their own or of their namespace, or by Genius's priority label.

The API server asks the webhook for those alone; a pod may also be created with the gate. A pod whose opt-in has gone
is let go.
"""

from collections.abc import Callable
from typing import Final

from extender.kube import objects
from extender.kube.objects import Pod

QUEUE_LABEL: Final = "kerf.dev/queue"
"""On a namespace or a pod: "enabled" opts in, "disabled" on a pod opts out."""
QUEUED_BY: Final = "kerf.dev/queued-by"
"""Written with the gate: what opted the pod in, "namespace", "label" or "priority"."""
ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
BY_NAMESPACE: Final = "namespace"
BY_LABEL: Final = "label"
BY_PRIORITY: Final = "priority"


class Namespaces:
    """Which namespaces opt in."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._enabled: set[str] = set()

    def enabled(self, namespace: str) -> bool:
        """Whether all its pods take part."""
        return namespace in self._enabled

    @property
    def names(self) -> frozenset[str]:
        """All that opt in."""
        return frozenset(self._enabled)

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """Tell of one that opts in or out."""
        if _opts_in(old) != _opts_in(new):
            name = (new or old or objects.Node()).metadata.name
            (self._enabled.add if _opts_in(new) else self._enabled.discard)(name)
            self._on_change()


def _opts_in(namespace: objects.Node | None) -> bool:
    return namespace is not None and (namespace.metadata.labels or {}).get(QUEUE_LABEL) == ENABLED


def opted_out(pod: Pod, namespaces: Namespaces) -> str:
    """Why a gated pod takes part no longer, "" while it does."""
    label = (pod.metadata.labels or {}).get(QUEUE_LABEL)
    if label == DISABLED:
        return f"{QUEUE_LABEL} is {DISABLED} on the pod"
    by = (pod.metadata.annotations or {}).get(QUEUED_BY)
    if by == BY_NAMESPACE and label != ENABLED and not namespaces.enabled(pod.metadata.namespace):
        return f"{QUEUE_LABEL} was removed from the namespace"
    if by == BY_LABEL and label != ENABLED:
        return f"{QUEUE_LABEL} was removed from the pod"
    return ""
