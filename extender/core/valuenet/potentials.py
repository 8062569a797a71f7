"""A learned rank: the potential V of a node's features, and what a decision adds to it.

V is linear plus a small net of one hidden layer; its weights may depend on what kind of pods are expected. A node's
score is floor((V after - V before) / quantum): nodes that differ by less than a quantum are equals, and the first of
them in a fixed order is taken. That is worth points: pods gather on the nodes that come first, others stay whole.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats
from extender.core.fragmentation.arrays import Nodes
from extender.core.valuenet.features import CONTEXT, FEATURES, FEATURES_VERSION, Outlook, feature_columns, features

TOLERANCE: Final = 1e-6
"""Of a quantum: sums of equal terms in another order must not fall on two sides of a step."""

_EXTREME: Final = 1e6
"""Beyond every feature of a real node; the value there must be finite."""
_BY_CONTEXT: Final = "by_context"
_MOST_CONTEXT: Final = 2.0
"""No number of a context is further from 0."""


class Potential(NamedTuple):
    """V(x) = x . weights + tanh((x * scale) @ hidden + bias) . out, in GPUs, in a context of 0: see `in_context`."""

    weights: Floats
    """(F,)."""
    quantum: Floats
    """(1,) in GPUs, above 0."""
    scale: Floats
    """(F,) brings the net's input to about 1."""
    hidden: Floats
    """(F, H); H = 0 without a net."""
    bias: Floats
    """(H,)."""
    out: Floats
    """(H,)."""
    by_context: Floats
    """(K, F + 1) what each number of a context adds to the weights and to the logarithm of the quantum; (0, F + 1)
    where they depend on none."""


class PotentialError(ValueError):
    """A potential that can't be used: says why."""


def linear(weights: Floats, quantum: float) -> Potential:
    """A potential without a net."""
    F = len(FEATURES)
    return Potential(
        np.asarray(weights, np.float64), np.array([quantum]), np.ones(F), np.zeros((F, 0)), np.zeros(0), np.zeros(0),
        np.zeros((0, F + 1)),
    )  # fmt: skip


def in_context(potential: Potential, context: Floats) -> Potential:
    """The potential for (K,) what is expected: one whose weights depend on nothing more."""
    if not len(potential.by_context):
        return potential
    added = context @ potential.by_context
    return potential._replace(
        weights=potential.weights + added[:-1], quantum=potential.quantum * np.exp(added[-1]),
        by_context=potential.by_context[:0],
    )  # fmt: skip


def fragments_only() -> Potential:
    """FGD's own potential, in steps as fine as its integer scores have around 50: 0.01 of a sigmoid of slope 1/4."""
    return linear(-np.eye(len(FEATURES))[0], 0.04)


def potential_of(arrays: Mapping[str, Floats], version: int, names: tuple[str, ...]) -> Potential:
    """A potential from the arrays of a file and the features that it was trained on.

    Raises PotentialError when the features are others than this program has, when an array is missing, is unknown or
    has another shape, or when a number or a value that comes out is not finite.
    """
    check_features(version, names)
    F = len(FEATURES)
    check_arrays(arrays, tuple(name for name in Potential._fields if name != _BY_CONTEXT or name in arrays))
    arrays = {_BY_CONTEXT: np.zeros((0, F + 1)), **arrays}  # models of before have none
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
    """Raise PotentialError unless a model was trained on the features that this program has."""
    if version != FEATURES_VERSION:
        raise PotentialError(f"trained on features version {version}; this program has version {FEATURES_VERSION}")
    if names != FEATURES:
        raise PotentialError(f"trained on other features: {', '.join(names)}; this program has {', '.join(FEATURES)}")


def check_arrays(arrays: Mapping[str, Floats], needed: tuple[str, ...]) -> None:
    """Raise PotentialError unless the arrays of a file are those needed, of finite float64 numbers."""
    if set(arrays) != set(needed):
        raise PotentialError(f"has arrays {', '.join(sorted(arrays)) or 'none'}; needed are {', '.join(needed)}")
    for name, array in arrays.items():
        if array.dtype != np.float64:
            raise PotentialError(f"array {name}: {array.dtype} numbers; needed are float64")
        if not np.isfinite(array).all():
            raise PotentialError(f"array {name}: not all numbers are finite")


def check_shapes(arrays: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise PotentialError unless each array has its shape."""
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise PotentialError(f"array {name}: shape {arrays[name].shape}; needed is {shape}")


def values(inputs: Floats, potential: Potential) -> Floats:
    """(R,) V of (R, F) features."""
    value: Floats = inputs @ potential.weights
    if len(potential.out):
        value = value + np.tanh((inputs * potential.scale) @ potential.hidden + potential.bias) @ potential.out
    return value


def node_values(nodes: Nodes, outlook: Outlook, potential: Potential, unusable_milli: Floats | None = None) -> Floats:
    """(R,) V of nodes in their present state; `unusable_milli` as `features` takes it."""
    if len(potential.out):
        return values(features(nodes, outlook, unusable_milli), potential)
    # Without a net the features are added up as they come: a matrix of them costs more than all else.
    value = np.zeros(len(nodes.model))
    for weight, column in zip(potential.weights, feature_columns(nodes, outlook, unusable_milli), strict=True):
        value += weight * column
    return value


def attribution(before: Floats, after: Floats, potential: Potential) -> Floats:
    """(F,) what each feature's change from (F,) `before` to `after` adds to V; they sum to the gain.

    Exact for the linear part. The net's is shared by integrated gradients along the straight line (Sundararajan, Taly
    and Yan 2017, eq. 1), and what the sum over 64 midpoints leaves is spread as the gradients are.
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


def steps(gain: Floats, potential: Potential) -> Floats:
    """The score of a gain of V: whole quanta."""
    whole: Floats = np.floor(gain / potential.quantum[0] + TOLERANCE)
    return whole
