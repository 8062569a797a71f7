"""The nodes on which a pod may run by its spec: node selector, required node affinity, tolerations, cordons.

kube-scheduler checks all of these itself; here they keep plans from nominating nodes that it would refuse.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import Cluster, Ints, Longs, Mask
from extender.kube.background import give_way
from extender.kube.objects import Expression, Node, NodeSelector, PodSpec, Taint, Term, Toleration
from extender.planning.wait_reasons import Code, WaitReason

_REPELS: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_PORTION: Final = 4
_MOST_NAMED: Final = 3
_MAX_INT64: Final = 2**63
_DIGITS: Final = re.compile("[+-]?[0-9]{1,100}")
_encode = msgspec.json.Encoder(order="sorted").encode


class _Values:
    """The values of one label, or of the name, on the nodes of a cluster."""

    def __init__(self, num_rows: int, values: Iterable[tuple[int, str]]) -> None:
        """`values` are rows with their values; other rows have none."""
        self.codes: Ints = np.full(num_rows, -1, np.int32)
        """(N,) code of each row's value, -1 for none."""
        self._code_of: dict[str, int] = {}
        for row, value in values:
            self.codes[row] = self._code_of.setdefault(value, len(self._code_of))

    def holds(self, expression: Expression) -> Mask:
        """Return (N,) where an expression holds."""
        values, operator = expression.values or [], expression.operator
        match operator:
            case "In":
                return self.among(values)
            case "NotIn":
                return ~self.among(values)
            case "Exists":
                return self.codes >= 0
            case "DoesNotExist":
                return self.codes < 0
            case "Gt" | "Lt" if values and (limit := _number(values[0])) is not None:
                rows, numbers = self._numbers
                mask = np.zeros(len(self.codes), np.bool_)
                mask[rows[numbers > limit if operator == "Gt" else numbers < limit]] = True
                return mask
        return np.zeros(len(self.codes), np.bool_)

    def among(self, values: Iterable[str]) -> Mask:
        """Return (N,) which rows have one of these values."""
        hit = np.zeros(len(self._code_of) + 1, np.bool_)  # the last one is for rows without a value, code -1
        hit[[code for value in values if (code := self._code_of.get(value)) is not None]] = True
        mask: Mask = hit[self.codes]
        return mask

    @cached_property
    def _numbers(self) -> tuple[Longs, Longs]:
        """The rows with integer values, and the integers."""
        numbers = {code: number for value, code in self._code_of.items() if (number := _number(value)) is not None}
        rows = np.flatnonzero(np.isin(self.codes, list(numbers)))
        return rows, np.array([numbers[code] for code in self.codes[rows].tolist()], np.int64)


class NodeRestrictions:
    """The labels and taints of a cluster's nodes, indexed so that a pod's restrictions need no loop over the nodes."""

    def __init__(self, cluster: Cluster, nodes: Iterable[Node]) -> None:
        """Rows without a node in `nodes` allow no pods."""
        known = [(row, node) for node in nodes if (row := cluster.row_of.get(node.metadata.name)) is not None]
        self.cluster = cluster
        self._num_rows = cluster.num_nodes
        self._labels = [(row, node.metadata.labels or {}) for row, node in known]
        self._keys = frozenset[str]().union(*(labels for _, labels in self._labels))
        self._nothing = _Values(self._num_rows, ())
        self._values: dict[str, _Values] = {}  # by label
        self._names = _Values(self._num_rows, ((row, node.metadata.name) for row, node in known))
        self._tainted: dict[tuple[tuple[str, str, str], ...], list[int]] = {}
        for row, node in known:
            taints = [taint for taint in node.spec.taints or () if taint.effect in _REPELS]
            if node.spec.unschedulable:
                taints.append(_UNSCHEDULABLE)
            key = tuple((taint.key, taint.value, taint.effect) for taint in taints)
            self._tainted.setdefault(key, []).append(row)
        self._known = np.zeros(self._num_rows, np.bool_)
        self._known[[row for row, _ in known]] = True

    def allowed(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> Mask:
        """Return (N,) where a pod may run by cordons, taints, node affinity and each of these selectors."""
        return self.tolerated(spec) & self.chosen(spec, selectors)

    def tolerated(self, spec: PodSpec) -> Mask:
        """Return (N,) the nodes all of whose taints and cordons a pod tolerates."""
        mask = np.zeros(self._num_rows, np.bool_)
        for taints, rows in self._untolerated(spec):
            mask[rows] = not taints
        return mask

    def refusal(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> WaitReason:
        """Return why a pod may run nowhere: the taints on the nodes that its selectors match, if they match any."""
        chosen = self.chosen(spec, selectors) & self._known
        if not chosen.any():
            return Code.FORBIDDEN.reason()
        keys = {taint.key: None for taints, rows in self._untolerated(spec) if chosen[rows].any() for taint in taints}
        named = ", ".join(sorted(keys)[:_MOST_NAMED]) + (", ..." if len(keys) > _MOST_NAMED else "")
        return Code.UNTOLERATED.reason(taints=named, nodes=int(chosen.sum()))

    def _untolerated(self, spec: PodSpec) -> Iterator[tuple[list[Taint], list[int]]]:
        """Yield the taints that a pod does not tolerate, with the rows of the nodes that have them."""
        tolerations: dict[str, list[Toleration]] = {}
        distinct = {(item.key, item.operator, item.value, item.effect): item for item in spec.tolerations or ()}
        for toleration in distinct.values():
            tolerations.setdefault(toleration.key, []).append(toleration)
        for parts, rows in self._tainted.items():
            taints = [Taint(*part) for part in parts]
            yield (
                [
                    taint
                    for taint in taints
                    if not _tolerated(taint, [*tolerations.get(taint.key, ()), *tolerations.get("", ())])
                ],
                rows,
            )

    def chosen(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> Mask:
        """Return (N,) the nodes that match a pod's node selector and affinity, and each of these selectors."""
        mask = np.ones(self._num_rows, np.bool_)
        for key, value in (spec.node_selector or {}).items():
            mask &= self._values_of(key).among((value,))
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required if affinity is not None else None
        for selector in (*selectors, *([] if required is None else [required])):
            matched = np.zeros(self._num_rows, np.bool_)
            for term in selector.node_selector_terms or ():
                matched |= self._matched(term)
            mask &= matched
        return mask

    def domains(self, topology: str) -> Ints:
        """Return (N,) the code of each node's value of a label, -1 for none."""
        return self._values_of(topology).codes

    def _values_of(self, key: str) -> _Values:
        if key not in self._keys:  # pods may name any label
            return self._nothing
        values = self._values.get(key)
        if values is None:
            labelled = ((row, labels[key]) for row, labels in self._labels if key in labels)
            values = self._values[key] = _Values(self._num_rows, labelled)
        return values

    def _matched(self, term: Term) -> Mask:
        # An empty term matches nothing.
        mask = np.full(self._num_rows, bool(term.match_expressions or term.match_fields))
        for expression in term.match_expressions or ():
            mask &= self._values_of(expression.key).holds(expression)
        for expression in term.match_fields or ():
            mask &= (self._names if expression.key == "metadata.name" else self._nothing).holds(expression)
        return mask


class RestrictionKinds:
    """The kinds of restrictions seen so far, and the nodes that each allows. Kind 0 is no restriction."""

    def __init__(self) -> None:
        self._number_of: dict[bytes, int] = {}
        self._specs: list[tuple[PodSpec, Sequence[NodeSelector]]] = []
        self._terrain: NodeRestrictions | None = None
        self._masks: list[Mask] = []
        self._refusals: dict[int, WaitReason] = {}
        self.kind_of(PodSpec())

    @property
    def count(self) -> int:
        """K, the number of kinds."""
        return len(self._specs)

    def kind_of(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> int:
        """Return the number of a pod's kind; `selectors` are those of its ResourceClaims' devices."""
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required if affinity else None
        key = _encode((spec.node_selector or None, spec.tolerations or None, required, selectors))
        number = self._number_of.setdefault(key, len(self._specs))
        if number == len(self._specs):
            self._specs.append((spec, selectors))
        return number

    def masks(self, terrain: NodeRestrictions) -> Mask:
        """Return (K, N) the nodes that each kind allows, cached for the terrain."""
        self._compute(terrain, len(self._specs))
        return np.stack(self._masks)

    def refusals(self) -> dict[int, WaitReason]:
        """Return by kind why its pods may run nowhere on the terrain of `masks`."""
        return dict(self._refusals)

    def eligible(self, terrain: NodeRestrictions, number: int, *, by_affinity: bool, by_taints: bool) -> Mask:
        """Return (N,) the nodes that count for topology spread of a kind's pods."""
        spec, selectors = self._specs[number]
        mask = terrain.chosen(spec, selectors) if by_affinity else np.ones(terrain.cluster.num_nodes, np.bool_)
        return mask & terrain.tolerated(spec) if by_taints else mask

    async def work_out(self, terrain: NodeRestrictions) -> None:
        """Compute `masks`, yielding to the event loop: authors may write thousands of kinds of any complexity."""
        self._compute(terrain, _PORTION)
        while len(self._masks) < len(self._specs):
            await give_way()
            self._compute(terrain, _PORTION)

    def _compute(self, terrain: NodeRestrictions, most: int) -> None:
        """Compute up to `most` further masks."""
        if terrain is not self._terrain:
            self._terrain, self._masks, self._refusals = terrain, [], {}
        first = len(self._masks)
        for number, kind in enumerate(self._specs[first : first + most], first):
            self._masks.append(terrain.allowed(*kind))
            if not self._masks[-1].any():
                self._refusals[number] = terrain.refusal(*kind)


def domain_of(node: Node | None, topology: str) -> dict[str, str]:
    """Return the label that keeps a pod to a node's domain, none without a topology or the node's label for it."""
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
    """Parse an integer as kube-scheduler does: 64 bits, and no "1_000"; None if invalid."""
    if not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if -_MAX_INT64 <= number < _MAX_INT64 else None
