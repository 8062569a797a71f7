"""Who takes part: pods opt in by a label of their own or of their namespace, or by Genius's priority label.

The API server asks the webhook for those alone; a pod may also be created with the gate. A pod whose opt-in has gone
is let go.
"""

from collections.abc import Callable
from typing import Final

from extender.cluster import objects
from extender.queueing.manifests import Pod

QUEUE_LABEL: Final = "kerf.dev/queue"
"""On a namespace or a pod: "enabled" opts in, "disabled" on a pod opts out."""
QUEUED_BY: Final = "kerf.dev/queued-by"
"""Written with the gate: what opted the pod in, "namespace", "label" or "priority"."""
ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
BY_NAMESPACE: Final = "namespace"
BY_LABEL: Final = "label"
BY_PRIORITY: Final = "priority"
NAMESPACES_PATH: Final = "/api/v1/namespaces"


class Namespaces:
    """Namespaces that opt in; the sink of a reflector of namespaces."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._names: dict[str, str] = {}  # by uid
        self._enabled: set[str] = set()

    def enabled(self, namespace: str) -> bool:
        """Whether all its pods take part."""
        return namespace in self._enabled

    def upsert(self, item: objects.Node) -> None:
        """A namespace was added or changed."""
        name = item.metadata.name
        self._names[item.metadata.uid] = name
        enabled = (item.metadata.labels or {}).get(QUEUE_LABEL) == ENABLED
        if enabled != (name in self._enabled):
            (self._enabled.add if enabled else self._enabled.discard)(name)
            self._changed()

    def remove(self, item: objects.Node) -> None:
        """A namespace is gone."""
        self._names.pop(item.metadata.uid, None)
        self._enabled.discard(item.metadata.name)

    def keep(self, items: set[str], list_began: float) -> None:
        """Namespaces that a complete list does not name are gone."""
        for uid in self._names.keys() - items:
            self._enabled.discard(self._names.pop(uid))


def opted_out(pod: Pod, namespaces: Namespaces) -> str:
    """Why a gated pod takes part no longer, "" while it does."""
    label = (pod.metadata.labels or {}).get(QUEUE_LABEL, "")
    if label == DISABLED:
        return f"{QUEUE_LABEL} is {DISABLED} on the pod"
    by = (pod.metadata.annotations or {}).get(QUEUED_BY, "")
    if by == BY_NAMESPACE and label != ENABLED and not namespaces.enabled(pod.metadata.namespace):
        return f"{QUEUE_LABEL} was removed from the namespace"
    if by == BY_LABEL and label != ENABLED:
        return f"{QUEUE_LABEL} was removed from the pod"
    return ""
