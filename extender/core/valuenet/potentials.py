"""Learned rank: the potential V of a node's features, and the gain of V by a decision.

V is linear plus a small net of one hidden layer; its weights may depend on the kind of expected pods. A node's score is
floor((V after - V before) / quantum): nodes that differ by less than a quantum tie, and the first in a fixed order
wins. This concentrates pods on the first nodes and keeps others whole.

`LearnedValues` computes and caches these values for the nodes of a cluster.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Cluster, Floats, Longs, Rows
from extender.core.fit.fits import smallest_mib
from extender.core.fit.fittings import RowState, keep, state_of
from extender.core.fit.reasons import Fit
from extender.core.fragmentation import FragmentTables, Nodes, tables_of, unusable_milli
from extender.core.resources.nodes import MAX_GPUS_PER_NODE
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.features import (
    CONTEXT,
    FEATURES,
    FEATURES_VERSION,
    Outlook,
    after_share,
    after_whole,
    feature_columns,
    features,
    node_states,
)

TOLERANCE: Final = 1e-6
"""In quanta: rounding errors from the order of summation must not change a score."""

_EXTREME: Final = 1e6
"""Larger than every feature of a real node; V must still be finite there."""
_BY_CONTEXT: Final = "by_context"
_MOST_CONTEXT: Final = 2.0
"""Largest absolute value in a context."""


class Potential(NamedTuple):
    """V(x) = x . weights + tanh((x * scale) @ hidden + bias) . out, in GPUs, in a context of 0: see `in_context`."""

    weights: Floats
    """(F,)."""
    quantum: Floats
    """(1,) in GPUs, above 0."""
    scale: Floats
    """(F,) scales the net's inputs to about 1."""
    hidden: Floats
    """(F, H); H = 0 without a net."""
    bias: Floats
    """(H,)."""
    out: Floats
    """(H,)."""
    by_context: Floats
    """(K, F + 1) what each number of a context adds to the weights and the logarithm of the quantum; (0, F + 1) without
    context."""


class PotentialError(ValueError):
    """An invalid potential."""


def linear(weights: Floats, quantum: float) -> Potential:
    """A potential without a net."""
    F = len(FEATURES)
    return Potential(
        np.asarray(weights, np.float64), np.array([quantum]), np.ones(F), np.zeros((F, 0)), np.zeros(0), np.zeros(0),
        np.zeros((0, F + 1)),
    )  # fmt: skip


def in_context(potential: Potential, context: Floats) -> Potential:
    """The potential in a (K,) context, with constant weights."""
    if not len(potential.by_context):
        return potential
    added = context @ potential.by_context
    return potential._replace(
        weights=potential.weights + added[:-1], quantum=potential.quantum * np.exp(added[-1]),
        by_context=potential.by_context[:0],
    )  # fmt: skip


def fragments_only() -> Potential:
    """FGD's potential, with the resolution of its integer scores around 50: 0.01 of a sigmoid of slope 1/4."""
    return linear(-np.eye(len(FEATURES))[0], 0.04)


def potential_of(arrays: Mapping[str, Floats], version: int, names: tuple[str, ...]) -> Potential:
    """A potential from the arrays of a file and the features it was trained on.

    Raises PotentialError for other features than this program's, for missing, unknown or misshapen arrays, and for
    non-finite numbers or values.
    """
    check_features(version, names)
    F = len(FEATURES)
    check_arrays(arrays, tuple(name for name in Potential._fields if name != _BY_CONTEXT or name in arrays))
    arrays = {_BY_CONTEXT: np.zeros((0, F + 1)), **arrays}  # older models have none
    num_hidden, num_contexts = arrays["out"].size, len(CONTEXT) if arrays[_BY_CONTEXT].size else 0
    layers = {"hidden": (F, num_hidden), "bias": (num_hidden,), "out": (num_hidden,)}
    check_shapes(
        arrays, {"weights": (F,), "quantum": (1,), "scale": (F,), **layers, _BY_CONTEXT: (num_contexts, F + 1)}
    )
    if arrays["quantum"][0] <= 0:
        raise PotentialError("the quantum is not above 0")
    potential = Potential(*(np.ascontiguousarray(arrays[name]) for name in Potential._fields))
    with np.errstate(over="ignore", invalid="ignore"):
        inputs = np.array([np.full(F, _EXTREME), np.full(F, -_EXTREME)])
        most = np.abs(potential.by_context).sum(axis=0) * _MOST_CONTEXT
        for sign in (-1, 1):
            extreme = potential._replace(weights=potential.weights + sign * most[:-1])
            if not (np.isfinite(values(inputs, extreme)).all() and np.isfinite(np.exp(sign * most[-1]))):
                raise PotentialError(f"the value of features of {_EXTREME:g} is not finite")
    return potential


def check_features(version: int, names: tuple[str, ...]) -> None:
    """Raise PotentialError unless a model was trained on this program's features."""
    if version != FEATURES_VERSION:
        raise PotentialError(f"trained on features version {version}; this program has version {FEATURES_VERSION}")
    if names != FEATURES:
        raise PotentialError(f"trained on other features: {', '.join(names)}; this program has {', '.join(FEATURES)}")


def check_arrays(arrays: Mapping[str, Floats], needed: tuple[str, ...]) -> None:
    """Raise PotentialError unless a file has exactly the needed arrays, of finite float64 numbers."""
    if set(arrays) != set(needed):
        raise PotentialError(f"has arrays {', '.join(sorted(arrays)) or 'none'}; needs {', '.join(needed)}")
    for name, array in arrays.items():
        if array.dtype != np.float64:
            raise PotentialError(f"array {name}: {array.dtype} numbers; needs float64")
        if not np.isfinite(array).all():
            raise PotentialError(f"array {name}: not all numbers are finite")


def check_shapes(arrays: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise PotentialError unless each array has its shape."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise PotentialError(f"array {name}: shape {arrays[name].shape}; needs {shape}")


def values(inputs: Floats, potential: Potential) -> Floats:
    """(R,) V of (R, F) features."""
    value: Floats = inputs @ potential.weights
    if len(potential.out):
        value = value + np.tanh((inputs * potential.scale) @ potential.hidden + potential.bias) @ potential.out
    return value


def _node_values(nodes: Nodes, outlook: Outlook, potential: Potential, unusable_milli: Floats | None = None) -> Floats:
    """(R,) V of nodes in their present state; `unusable_milli` as in `features`."""
    if len(potential.out):
        return values(features(nodes, outlook, unusable_milli), potential)
    # Without a net, add up column by column: building the matrix would dominate the cost.
    value = np.zeros(len(nodes.model))
    for weight, column in zip(potential.weights, feature_columns(nodes, outlook, unusable_milli), strict=True):
        value += weight * column
    return value


def _attribution(before: Floats, after: Floats, potential: Potential) -> Floats:
    """(F,) contribution of each feature's change from (F,) `before` to `after`; they sum to the gain of V.

    Exact for the linear part. The net's gain is attributed by integrated gradients along the straight line
    (Sundararajan, Taly and Yan 2017, eq. 1), with 64 midpoints and the residual spread in proportion.
    """
    change = after - before
    parts: Floats = change * potential.weights
    if len(potential.out):
        points = before + (np.arange(64) + 0.5)[:, None] / 64 * change  # (64, F)
        levels = np.tanh((points * potential.scale) @ potential.hidden + potential.bias)  # (64, H)
        slope = ((1 - levels**2) * potential.out).mean(axis=0) @ (potential.hidden * potential.scale[:, None]).T
        shares = change * slope
        parts = parts + shares
        ends = values(np.stack([before, after]), potential)
        missing = float(ends[1] - ends[0] - parts.sum())
        total = float(np.abs(shares).sum())
        if total > 0:
            parts = parts + missing * np.abs(shares) / total
    return parts


def _steps(gain: Floats, potential: Potential) -> Floats:
    """The score of a gain of V, in whole quanta."""
    whole: Floats = np.floor(gain / potential.quantum[0] + TOLERANCE)
    return whole


_FEW: Final = 8
"""Fewer than one row in this many counts as few."""
_unwarned: Final = np.errstate(over="ignore", invalid="ignore")
"""Callers detect non-finite values and report them once."""


class Prospect(NamedTuple):
    """A model with the pods that it expects."""

    potential: Potential
    outlook: Outlook
    """Its `worth` has M + 2 rows: M models of the cluster, one for later models, one for no model."""
    tables: FragmentTables

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.outlook.worth.left) - 2


def prospect(potential: Potential, outlook: Outlook) -> Prospect:
    """A model with an outlook whose `worth` has M + 2 rows, as `Prospect` requires."""
    tables = tables_of(outlook.mix, len(outlook.worth.left) - 1, MAX_GPUS_PER_NODE)
    return Prospect(in_context(potential, outlook.context), outlook, tables)


class _Valued(NamedTuple):
    """All nodes of a snapshot with V of each."""

    row_of: Mapping[str, int]
    version: int
    states: Nodes
    values: Floats


class _Before(NamedTuple):
    """Nodes before a decision."""

    states: Nodes
    values: Floats | None = None
    """V of each node, None if not computed yet."""


class LearnedValues:
    """Gains of V by decisions, for one model and one outlook.

    Caches values across successive snapshots of one cluster, like `evaluations.Memo`. Use another object for another
    cluster or thread.
    """

    def __init__(self, served: Prospect) -> None:
        self.served = served
        self._valued: _Valued | None = None
        self._known: dict[tuple[GpuRequest, RowState, bytes, int, bool], tuple[Floats, Longs]] = {}
        """Gains of single rows by state: samples change a row's score, but not its V."""

    def warm(self, cluster: Cluster) -> None:
        """Compute V of all nodes ahead of the first request; `cluster` with the policy's observed usage."""
        self._before(cluster, np.arange(cluster.num_nodes))

    def steps(self, gain: Floats) -> Floats:
        """(R,) whole quanta of (R,) gains."""
        return _steps(gain, self.served.potential)

    def gains(
        self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, *, apart: bool = False
    ) -> tuple[Floats, Longs]:
        """(R,) V after - V before in GPUs on rows that fit, and (R,) the GPU for a share of one GPU, else -1.

        A share tries each GPU of the smallest memory with room, and takes the first with the largest gain: V assumes
        one model per node. With `apart`, nothing is cached and any thread may call it.
        """
        if apart:
            return self._gains(cluster, request, rows, fit, _Before(node_states(cluster, rows, self.served.num_models)))
        if len(rows) != 1 or request.by_identity:  # a request may name thousands of UUIDs: don't cache it
            return self._gains(cluster, request, rows, fit, self._before(cluster, rows))
        units, shares = fit.taken_units.item(0), fit.shares.item(0)
        key = request, state_of(cluster, rows.item(0)), fit.room.tobytes(), units, shares
        known = self._known.get(key)
        if known is None:
            known = self._gains(cluster, request, rows, fit, self._before(cluster, rows))
            for array in known:
                array.flags.writeable = False
            keep(self._known, key, known)
        return known

    def changes(
        self, cluster: Cluster, request: GpuRequest, row: int, fit: Fit, gpu: int
    ) -> tuple[Floats, Floats, Floats]:
        """(F,) features of a node before and after, and (F,) contributions to V; `gpu` is that of a share, else -1."""
        served, rows = self.served, np.array([row])
        before = node_states(cluster, rows, served.num_models)
        if gpu >= 0:
            states, _, tried = after_share(cluster, request, rows, fit.room, before)
            after = states.at(np.flatnonzero(tried == gpu)[:1])
        else:
            after = after_whole(cluster, request, rows, fit, before)
        old, new = (features(state, served.outlook, self._unusable_milli(state))[0] for state in (before, after))
        return old, new, _attribution(old, new, served.potential)

    @_unwarned
    def _gains(
        self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, before: _Before
    ) -> tuple[Floats, Longs]:
        gpu = np.full(len(rows), -1, np.int64)
        single = fit.shares & (request.count == 1)
        if not single.all():
            value, after = self._both(before, after_whole(cluster, request, rows, fit, before.states))
            before = before._replace(values=value)
            gain = after - value
            if not single.any():
                return gain, gpu
        else:
            gain = np.zeros(len(rows))
        room = fit.room & single[:, None]
        memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
        room = room & (memory == smallest_mib(cluster, rows, fit)[:, None])
        states, of, tried = after_share(cluster, request, rows, room, before.states)
        value, after = self._both(before, states)
        gains = np.full(room.T.shape, -np.inf)  # (G, R)
        gains[tried, of] = after - value[of]
        best = np.full(len(rows), -np.inf)
        tolerance = TOLERANCE * self.served.potential.quantum[0]
        for g, gained in enumerate(gains):
            better = gained > best + tolerance
            best, gpu = np.where(better, gained, best), np.where(better, g, gpu)
        return np.where(single, best, gain), gpu

    def _before(self, cluster: Cluster, rows: Rows) -> _Before:
        """R rows with their values. V of all nodes is cached, because all classes of requests share it."""
        num_models = self.served.num_models
        if len(rows) * _FEW < cluster.num_nodes:
            return _Before(node_states(cluster, rows, num_models))
        kept = self._valued
        if kept is None or kept.row_of is not cluster.row_of or kept.version > cluster.version:
            states = node_states(cluster, np.arange(cluster.num_nodes), num_models)
            states = states.copy()  # some arrays belong to the cluster
            kept = _Valued(cluster.row_of, cluster.version, states, self._values(states))
        elif kept.version < cluster.version:
            changed = np.flatnonzero(cluster.row_version > kept.version)
            states = node_states(cluster, changed, num_models)
            for name in Nodes._fields:
                getattr(kept.states, name)[changed] = getattr(states, name)
            kept.values[changed] = self._values(states)
            kept = kept._replace(version=cluster.version)
        self._valued = kept
        taken = Nodes(*(cluster.take_rows(column, rows) for column in kept.states))
        return _Before(taken, cluster.take_rows(kept.values, rows))

    def _both(self, before: _Before, after: Nodes) -> tuple[Floats, Floats]:
        """V before and after; computed in one call where V before is unknown, because calls cost more than rows."""
        if before.values is not None:
            return before.values, self._values(after)
        pairs = zip(before.states, after, strict=True)
        values = self._values(Nodes(*(np.concatenate(pair) for pair in pairs)))  # type: ignore[arg-type]
        num_before = len(before.states.model)
        return values[:num_before], values[num_before:]

    @_unwarned
    def _values(self, nodes: Nodes) -> Floats:
        served = self.served
        return _node_values(nodes, served.outlook, served.potential, self._unusable_milli(nodes))

    def _unusable_milli(self, nodes: Nodes) -> Floats:
        free = nodes.gpu_free_milli.astype(np.int64)
        return unusable_milli(nodes.cpu_free_milli, free, nodes.model, self.served.tables)
