"""A learned rank: the potential V of a node's features, and what a decision adds to it.

V is linear plus a small net of one hidden layer. A node's score is floor((V after - V before) / quantum): nodes that
differ by less than a quantum are equals, and the first of them in a fixed order is taken. That is worth points:
pods gather on the nodes that come first, others stay whole.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Ints, Rows
from extender.core.features import FEATURES, FEATURES_VERSION, Outlook, feature_columns, features
from extender.core.packing import GPU_MILLI, Asks, Nodes, fits

TOLERANCE: Final = 1e-6
"""Of a quantum: sums of equal terms in another order must not fall on two sides of a step."""

_EXTREME: Final = 1e6
"""Beyond every feature of a real node; the value there must be finite."""


class Potential(NamedTuple):
    """V(x) = x . weights + tanh((x * scale) @ hidden + bias) . out, in GPUs."""

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


class PotentialError(ValueError):
    """A potential that can't be used: says why."""


def linear(weights: Floats, quantum: float) -> Potential:
    """A potential without a net."""
    F = len(FEATURES)
    return Potential(
        np.asarray(weights, np.float64), np.array([quantum]), np.ones(F), np.zeros((F, 0)), np.zeros(0), np.zeros(0)
    )


def fragments_only() -> Potential:
    """FGD's own potential, in steps as fine as its integer scores have around 50: 0.01 of a sigmoid of slope 1/4."""
    return linear(-np.eye(len(FEATURES))[0], 0.04)


def potential_of(arrays: Mapping[str, Floats], version: int, names: tuple[str, ...]) -> Potential:
    """A potential from the arrays of a file and the features that it was trained on.

    Raises PotentialError when the features are others than this program has, when an array is missing, is unknown or
    has another shape, or when a number or a value that comes out is not finite.
    """
    check_features(version, names)
    check_arrays(arrays, Potential._fields)
    F, num_hidden = len(FEATURES), arrays["out"].size
    layers = {"hidden": (F, num_hidden), "bias": (num_hidden,), "out": (num_hidden,)}
    check_shapes(arrays, {"weights": (F,), "quantum": (1,), "scale": (F,), **layers})
    if arrays["quantum"][0] <= 0:
        raise PotentialError("the quantum is not above 0")
    potential = Potential(*(np.ascontiguousarray(arrays[name]) for name in Potential._fields))
    with np.errstate(over="ignore", invalid="ignore"):
        extremes = values(np.array([np.full(F, _EXTREME), np.full(F, -_EXTREME)]), potential)
    if not np.isfinite(extremes).all():
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


def evaluate(
    nodes: Nodes, asks: Asks, c: int, rows: Rows, outlook: Outlook, potential: Potential
) -> tuple[Floats, Ints]:
    """(R,) score of a class on each row, -inf where it does not fit, and (R,) the GPU of a share, else -1.

    A share tries each GPU that has enough left, and takes the first of those that gain most.
    """
    num, milli = int(asks.num_gpus[c]), int(asks.gpu_milli[c])
    fit = fits(nodes, asks, c, rows)
    score = np.full(len(rows), -np.inf)
    gpu = np.full(len(rows), -1, np.int32)
    where = np.flatnonzero(fit)
    if len(where) == 0:
        return score, gpu
    here = Nodes(*(column[rows[where]] for column in nodes))  # type: ignore[arg-type]
    before = node_values(here, outlook, potential)
    left = here._replace(
        cpu_free_milli=here.cpu_free_milli - asks.cpu_milli[c],
        memory_free_mib=here.memory_free_mib - asks.memory_mib[c],
    )
    free = here.gpu_free_milli
    if 0 < milli < GPU_MILLI:
        gain, chosen = np.full(len(where), -np.inf), np.full(len(where), -1, np.int32)
        for g in range(free.shape[1]):
            usable = np.flatnonzero(free[:, g] >= milli)
            after = Nodes(*(column[usable] for column in left))  # type: ignore[arg-type]
            after.gpu_free_milli[:, g] -= milli
            tried = node_values(after, outlook, potential) - before[usable]
            # More by a hair is no more: see TOLERANCE.
            better = tried > gain[usable] + TOLERANCE * potential.quantum[0]
            gain[usable[better]], chosen[usable[better]] = tried[better], g
        score[where], gpu[where] = steps(gain, potential), chosen
        return score, gpu
    idle = free == GPU_MILLI
    taken = idle & (np.cumsum(idle, axis=1) <= num)
    after = left._replace(gpu_free_milli=np.where(taken, 0, free).astype(np.int32))
    score[where] = steps(node_values(after, outlook, potential) - before, potential)
    return score, gpu
