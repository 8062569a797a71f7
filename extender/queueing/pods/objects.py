"""What the queue reads of pods and nodes beyond what placing them takes.

How much a pod may say of the nodes and neighbours that it wants: its author writes a megabyte of it, and each word
is compared with every node, for all who wait beside it. No pod that is meant to run comes near.

Who takes part: pods opt in by a label of their own or of their namespace, or by Genius's priority label.

The API server asks the webhook for those alone; a pod may also be created with the gate. A pod whose opt-in has gone
is let go.
"""

from collections.abc import Callable
from typing import Any, Final

from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.decoding import convert
from extender.kube.objects import Node, Pod, PodSpec
from extender.plugins.pod_demands import says_too_much

GATE: Final = "kerf.dev/queue"
"""Scheduling gate of pods that wait in the queue."""
PIPELINE_LABEL: Final = "kerf.dev/pipeline"
"""On Jobs of a pipeline and their pods: its name."""


def is_gated(pod: Pod) -> bool:
    """Whether a pod waits in Kerf's queue."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def other_gates(pod: Pod) -> list[str]:
    """Names of the gates that others keep shut."""
    return [gate.name for gate in pod.spec.scheduling_gates or () if gate.name != GATE]


def decode_pod(manifest: dict[str, Any]) -> Pod:
    """A pod from a manifest. Raises msgspec.ValidationError, which names the place."""
    return convert(manifest, Pod)


def decode_node(manifest: dict[str, Any]) -> Node:
    """A node from a manifest. Raises msgspec.ValidationError, which names the place."""
    return convert(manifest, Node)


_MAX_TERMS: Final = 100
_MAX_EXPRESSIONS: Final = 1_000
_MAX_VALUES: Final = 10_000
_MAX_TOLERATIONS: Final = 1_000


def check_bounds(spec: PodSpec) -> None:
    """Raises RequestError for a pod whose words about nodes and other pods are too many to be read."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    expressions = [item for term in terms for item in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    for number, most, what in (
        (len(terms), _MAX_TERMS, "terms in its node affinity"),
        (len(expressions) + len(spec.node_selector or ()), _MAX_EXPRESSIONS, "conditions on labels of nodes"),
        (sum(len(item.values or ()) for item in expressions), _MAX_VALUES, "values in its node affinity"),
        (len(spec.tolerations or ()), _MAX_TOLERATIONS, "tolerations"),
    ):
        if number > most:
            raise RequestError(f"{number:,} {what} are too many to be read: write {most:,} at most")
    if too_much := says_too_much(spec):
        raise RequestError(too_much)


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
