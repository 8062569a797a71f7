"""On which nodes a pod may run by its own words: node selector, required node affinity, tolerations, cordons.

kube-scheduler has the last word on all of these: here they keep a plan from nominating nodes that it would refuse.
Pod (anti-)affinity and spread constraints are left to it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import Cluster, Ints, Mask
from extender.queueing.manifests import Expression, Node, PodSpec, Taint, Term, Toleration

_REPELS: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_encode = msgspec.json.Encoder(order="sorted").encode


class Kinds:
    """Kinds of restriction met so far, and the nodes of a cluster that each allows. Kind 0 is no restriction."""

    def __init__(self) -> None:
        self._number_of: dict[bytes, int] = {}
        self._specs: list[PodSpec] = []
        self.kind_of(PodSpec())

    @property
    def count(self) -> int:
        """K."""
        return len(self._specs)

    def kind_of(self, spec: PodSpec) -> int:
        """Number of a pod's kind."""
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required if affinity else None
        key = _encode((spec.node_selector or None, spec.tolerations or None, required))
        number = self._number_of.setdefault(key, len(self._specs))
        if number == len(self._specs):
            self._specs.append(spec)
        return number

    def masks(self, cluster: Cluster, nodes: Iterable[Node]) -> Mask:
        """(K, N) the nodes that each kind allows; rows of nodes not named here allow nothing."""
        masks = np.zeros((len(self._specs), cluster.num_nodes), np.bool_)
        for node in nodes:
            row = cluster.row_of.get(node.metadata.name)
            if row is not None:
                for number, spec in enumerate(self._specs):
                    masks[number, row] = allows(spec, node)
        return masks


def domains(cluster: Cluster, nodes: Iterable[Node], topology: str) -> Ints:
    """(N,) number of each node's value of a label, -1 where it has none."""
    result = np.full(cluster.num_nodes, -1, np.int32)
    number_of: dict[str, int] = {}
    for node in nodes:
        row = cluster.row_of.get(node.metadata.name)
        value = (node.metadata.labels or {}).get(topology)
        if row is not None and value is not None:
            result[row] = number_of.setdefault(value, len(number_of))
    return result


def domain_of(node: Node | None, topology: str) -> dict[str, str]:
    """The label that keeps a pod to a node's domain, none where the topology or the node's value of it is none."""
    value = (node.metadata.labels or {}).get(topology) if node is not None and topology else None
    return {} if value is None else {topology: value}


def allows(spec: PodSpec, node: Node) -> bool:
    """Whether a pod may run on a node, as kube-scheduler's plugins for cordons, taints and node affinity see it."""
    taints = [taint for taint in node.spec.taints or () if taint.effect in _REPELS]
    if node.spec.unschedulable:
        taints.append(_UNSCHEDULABLE)
    if taints and not all(_tolerated(taint, spec.tolerations or ()) for taint in taints):
        return False
    labels = node.metadata.labels or {}
    if spec.node_selector and not spec.node_selector.items() <= labels.items():
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(_matches(term, node) for term in affinity.required.node_selector_terms or ())


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value))
        for toleration in tolerations
    )


def _matches(term: Term, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False  # an empty term matches nothing
    fields = {"metadata.name": node.metadata.name}
    labels = node.metadata.labels or {}
    return all(_holds(expression, labels) for expression in term.match_expressions or ()) and all(
        _holds(expression, fields) for expression in term.match_fields or ()
    )


def _holds(expression: Expression, values: dict[str, str]) -> bool:
    value, wanted = values.get(expression.key), expression.values or []
    match expression.operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                number, limit = int(value or ""), int(wanted[0])
            except (ValueError, IndexError):
                return False
            return number > limit if expression.operator == "Gt" else number < limit
        case _:
            return False
