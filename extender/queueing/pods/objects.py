"""Gates, opt-ins, and size bounds of the queue's pods.

Pods opt in by a label of their own or of their namespace, or by Genius's priority label; the API server calls the
webhook for those only. A pod may also be created with the gate. A pod whose opt-in is removed is released.

The node restrictions of a pod are bounded, since an author may write a megabyte of them, and each is compared with the
nodes while other pods wait. No real pod comes near the bounds.
"""

from collections.abc import Callable
from typing import Any, Final

from extender.core.resources.requests import RequestError
from extender.kube.decoding import convert
from extender.kube.objects import Node, Pod, PodSpec
from extender.plugins.pod_demands import says_too_much

GATE: Final = "kerf.dev/queue"
"""Scheduling gate of pods that wait in the queue."""
PIPELINE_LABEL: Final = "kerf.dev/pipeline"
"""Label with the pipeline's name on its Jobs and their pods."""


def is_gated(pod: Pod) -> bool:
    """Whether a pod waits in Kerf's queue."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def other_gates(pod: Pod) -> list[str]:
    """Return the names of scheduling gates other than Kerf's."""
    return [gate.name for gate in pod.spec.scheduling_gates or () if gate.name != GATE]


def decode_pod(manifest: dict[str, Any]) -> Pod:
    """Decode a pod's manifest. Raises msgspec.ValidationError, which names the field."""
    return convert(manifest, Pod)


def decode_node(manifest: dict[str, Any]) -> Node:
    """Decode a node's manifest. Raises msgspec.ValidationError, which names the field."""
    return convert(manifest, Node)


_MAX_TERMS: Final = 100
_MAX_EXPRESSIONS: Final = 1_000
_MAX_VALUES: Final = 10_000
_MAX_TOLERATIONS: Final = 1_000


def check_bounds(spec: PodSpec) -> None:
    """Raise RequestError for a pod with too many restrictions on nodes and other pods."""
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
"""Label of a namespace or a pod: "enabled" opts in, "disabled" on a pod opts out."""
QUEUED_BY: Final = "kerf.dev/queued-by"
"""Annotation written with the gate: what opted the pod in, "namespace", "label" or "priority"."""
ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
BY_NAMESPACE: Final = "namespace"
BY_LABEL: Final = "label"
BY_PRIORITY: Final = "priority"


class Namespaces:
    """The namespaces that opt in."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._enabled: set[str] = set()

    def enabled(self, namespace: str) -> bool:
        """Whether a namespace opts all its pods in."""
        return namespace in self._enabled

    @property
    def names(self) -> frozenset[str]:
        """The namespaces that opt in."""
        return frozenset(self._enabled)

    def changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a namespace, decoded as a node: only its metadata matters."""
        if _opts_in(old) != _opts_in(new):
            name = (new or old or Node()).metadata.name
            (self._enabled.add if _opts_in(new) else self._enabled.discard)(name)
            self._on_change()


def _opts_in(namespace: Node | None) -> bool:
    return namespace is not None and (namespace.metadata.labels or {}).get(QUEUE_LABEL) == ENABLED


def opted_out(pod: Pod, namespaces: Namespaces) -> str:
    """Return why a gated pod no longer opts in, "" while it does."""
    label = (pod.metadata.labels or {}).get(QUEUE_LABEL)
    if label == DISABLED:
        return f"{QUEUE_LABEL} is {DISABLED} on the pod"
    by = (pod.metadata.annotations or {}).get(QUEUED_BY)
    if by == BY_NAMESPACE and label != ENABLED and not namespaces.enabled(pod.metadata.namespace):
        return f"{QUEUE_LABEL} was removed from the namespace"
    if by == BY_LABEL and label != ENABLED:
        return f"{QUEUE_LABEL} was removed from the pod"
    return ""
