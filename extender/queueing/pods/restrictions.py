"""On which nodes a pod may run by its own words: node selector, required node affinity, tolerations, cordons.

kube-scheduler has the last word on all of these: here they keep a plan from nominating nodes that it would refuse.
Pod (anti-)affinity and spread constraints are left to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import Cluster, Ints, Mask
from extender.kube.objects import Expression, Node, NodeSelector, PodSpec, Taint, Term, Toleration

_REPELS: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_encode = msgspec.json.Encoder(order="sorted").encode
Rows = list[int]


class Terrain:
    """What the nodes of a cluster say of themselves that pods may choose by, found by label rather than by node.

    Many kinds of pods are asked about: each costs what it says, not a look at every node.
    """

    def __init__(self, cluster: Cluster, nodes: Iterable[Node]) -> None:
        """Rows of nodes that are not named here allow nothing."""
        found = [(row, node) for node in nodes if (row := cluster.row_of.get(node.metadata.name)) is not None]
        self.cluster = cluster
        self._num_rows = cluster.num_nodes
        self._labels = [(row, node.metadata.labels or {}) for row, node in found]
        self._keys = frozenset[str]().union(*(labels for _, labels in self._labels))
        self._values: dict[str, dict[str, Rows]] = {}  # by label: of each value the rows
        self._domains: dict[str, Ints] = {}
        self._names: dict[str, Rows] = {node.metadata.name: [row] for row, node in found}
        self._tainted: dict[tuple[tuple[str, str, str], ...], Rows] = {}
        for row, node in found:
            taints = [taint for taint in node.spec.taints or () if taint.effect in _REPELS]
            if node.spec.unschedulable:
                taints.append(_UNSCHEDULABLE)
            key = tuple((taint.key, taint.value, taint.effect) for taint in taints)
            self._tainted.setdefault(key, []).append(row)

    def allowed(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> Mask:
        """(N,) where a pod may run, as kube-scheduler's plugins for cordons, taints and node affinity see it, and where
        each of these selectors wants it besides."""
        mask = np.zeros(self._num_rows, np.bool_)
        for taints, rows in self._tainted.items():
            mask[rows] = all(_tolerated(Taint(*taint), spec.tolerations or ()) for taint in taints)
        for key, value in (spec.node_selector or {}).items():
            mask &= self._mask(self._values_of(key).get(value, ()))
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required if affinity is not None else None
        for selector in (*selectors, *([] if required is None else [required])):
            matched = np.zeros(self._num_rows, np.bool_)
            for term in selector.node_selector_terms or ():
                matched |= self._matched(term)
            mask &= matched
        return mask

    def domains(self, topology: str) -> Ints:
        """(N,) number of each node's value of a label, -1 where it has none."""
        known = self._domains.get(topology)
        if known is None:
            known = np.full(self._num_rows, -1, np.int32)
            for number, rows in enumerate(self._values_of(topology).values()):
                known[rows] = number
            if topology in self._keys:  # pods may name any other
                self._domains[topology] = known
        return known

    def _values_of(self, key: str) -> Mapping[str, Rows]:
        if key not in self._keys:
            return {}
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = {}
            for row, labels in self._labels:
                if key in labels:
                    values.setdefault(labels[key], []).append(row)
        return values

    def _mask(self, rows: Sequence[int]) -> Mask:
        mask = np.zeros(self._num_rows, np.bool_)
        mask[list(rows)] = True
        return mask

    def _matched(self, term: Term) -> Mask:
        # An empty term matches nothing.
        mask = np.full(self._num_rows, bool(term.match_expressions or term.match_fields))
        for expression in term.match_expressions or ():
            mask &= self._holds(expression, self._values_of(expression.key))
        for expression in term.match_fields or ():
            mask &= self._holds(expression, self._names if expression.key == "metadata.name" else {})
        return mask

    def _holds(self, expression: Expression, values: Mapping[str, Rows]) -> Mask:
        wanted, operator = expression.values or [], expression.operator
        match operator:
            case "In" | "NotIn":
                found = [values.get(value, []) for value in set(wanted)]
            case "Exists" | "DoesNotExist":
                found = list(values.values())
            case "Gt" | "Lt" if (limit := _number(wanted[0] if wanted else "")) is not None:
                sign = 1 if operator == "Gt" else -1
                numbers = [(_number(value), rows) for value, rows in values.items()]
                found = [rows for number, rows in numbers if number is not None and sign * (number - limit) > 0]
            case _:
                found = []
        mask = self._mask(list(chain.from_iterable(found)))
        return ~mask if operator in ("NotIn", "DoesNotExist") else mask


class Kinds:
    """Kinds of restriction met so far, and the nodes of a cluster that each allows. Kind 0 is no restriction."""

    def __init__(self) -> None:
        self._number_of: dict[bytes, int] = {}
        self._specs: list[tuple[PodSpec, Sequence[NodeSelector]]] = []
        self._terrain: Terrain | None = None
        self._masks: list[Mask] = []
        self.kind_of(PodSpec())

    @property
    def count(self) -> int:
        """K."""
        return len(self._specs)

    def kind_of(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> int:
        """Number of a pod's kind; `selectors` are those of the devices that its ResourceClaims have."""
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required if affinity else None
        key = _encode((spec.node_selector or None, spec.tolerations or None, required, selectors))
        number = self._number_of.setdefault(key, len(self._specs))
        if number == len(self._specs):
            self._specs.append((spec, selectors))
        return number

    def masks(self, terrain: Terrain) -> Mask:
        """(K, N) the nodes that each kind allows; worked out once for each kind, as long as the terrain is the same."""
        if terrain is not self._terrain:
            self._terrain, self._masks = terrain, []
        self._masks += [terrain.allowed(*kind) for kind in self._specs[len(self._masks) :]]
        return np.stack(self._masks)


def domain_of(node: Node | None, topology: str) -> dict[str, str]:
    """The label that keeps a pod to a node's domain, none where the topology or the node's value of it is none."""
    value = (node.metadata.labels or {}).get(topology) if node is not None and topology else None
    return {} if value is None else {topology: value}


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value))
        for toleration in tolerations
    )


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
