"""Fragmentation: idle GPU milli that expected pods can't use, and FGD's score from it.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC'23)
and its published simulator (hkust-adsl/kubernetes-scheduler-simulator, pkg/utils/frag.go). FGD's integer scores tie
often, and rounding errors then decide placements: `fragment_milli` therefore adds up in that program's order, one
partial sum per kind of fragment.

`unusable_milli` computes the same from tables, up to rounding and ten to thirty times as fast. If a node can host a
class, what is free on GPUs large enough for it is useful; everything else idle is a fragment. For classes of one GPU
the sum has one term per GPU, looked up by model, milli left and number of CPU demands met; for classes of several whole
GPUs it depends on the number of idle GPUs.

Axes: N nodes, G GPU slots of a node, C classes of pods with equal requests.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Ints, Longs, Mask, Rows, num_true, totals

ANY_MODEL: Final = -1
"""Bit mask of all GPU models."""
MAX_MODELS: Final = 62
"""GPU models are bits of a signed 64-bit integer."""


class Nodes(NamedTuple):
    """N nodes with up to G GPUs."""

    cpu_milli: Longs
    """(N,) allocatable."""
    memory_mib: Longs
    """(N,) allocatable."""
    num_gpus: Longs
    """(N,)."""
    model: Longs
    """(N,) index of the GPUs' model, below MAX_MODELS; -1 without GPUs."""
    cpu_free_milli: Longs
    """(N,)."""
    memory_free_mib: Longs
    """(N,)."""
    gpu_free_milli: Ints
    """(N, G) 0..1000, 0 where there is no GPU."""

    def at(self, rows: Rows | Mask) -> "Nodes":
        """A copy of some rows."""
        return Nodes(*(column[rows] for column in self))  # type: ignore[arg-type]

    def copy(self) -> "Nodes":
        """A copy that may be modified."""
        return Nodes(*(column.copy() for column in self))  # type: ignore[arg-type]

    def types(self) -> tuple[Longs, Longs]:
        """(4, T) model, number of GPUs, CPU and memory of each node type, and (T,) the number of nodes of it."""
        columns = (self.model, self.num_gpus, self.cpu_milli, self.memory_mib)
        types, count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        return types.T, count


class PodClasses(NamedTuple):
    """C classes of pods with equal requests."""

    cpu_milli: Longs
    memory_mib: Longs
    num_gpus: Longs
    gpu_milli: Longs
    """(C,) milli of each GPU: 1000 for whole GPUs, less for a share, 0 without GPUs."""
    models: Longs
    """(C,) bit mask of the allowed models."""

    def at(self, chosen: Rows | Mask) -> "PodClasses":
        """A selection of the classes."""
        return PodClasses(*(column[chosen] for column in self))

    def hosts(self, types: Longs) -> Mask:
        """(C, T) where an empty node of `types` (4, T) fits a pod of a class."""
        model, num_gpus, cpu, memory = types
        allowed = (model >= 0) & ((self.models[:, None] >> np.maximum(model, 0)) & 1 == 1)
        gpus = (self.num_gpus == 0)[:, None] | (allowed & (self.num_gpus[:, None] <= num_gpus))
        enough: Mask = gpus & (self.cpu_milli[:, None] <= cpu) & (self.memory_mib[:, None] <= memory)
        return enough


class TypicalPod(NamedTuple):
    """A class of the mix and the number of its pods."""

    cpu_milli: int
    num_gpus: int
    gpu_milli: int
    models: int
    """Bit mask of the allowed models."""
    num_pods: int


class Mix(NamedTuple):
    """K classes of typical pods as arrays."""

    cpu_milli: Longs
    num_gpus: Longs
    models: Longs
    frequency: Floats
    """(K,) sums to 1."""
    size: Longs
    """(K,) index into `sizes`."""
    sizes: Longs
    """(U,) distinct milli per GPU, ascending."""
    num_sizes_within: Longs
    """(1001,) number of `sizes` that fit into each number of milli left on a GPU."""


def mix_of(pods: Sequence[TypicalPod], num_pods: int) -> Mix:
    """The arrays of a mix drawn from `num_pods` pods; an empty mix yields no fragments."""
    cpu, num, milli, models, count = (np.array([pod[i] for pod in pods], dtype=np.int64) for i in range(5))
    sizes, size = np.unique(milli, return_inverse=True)
    frequency = (count / num_pods) / (count.sum() / num_pods)  # rounds twice, like the published program
    num_sizes_within = np.searchsorted(sizes, np.arange(1001), side="right").astype(np.int64)
    return Mix(cpu, num, models, frequency, size.astype(np.int64), sizes, num_sizes_within)


# Kinds of fragments, in the published program's order of summation.
_LACKS_BOTH, _LACKS_GPU, _LACKS_CPU, _NO_GPU_ASKED, _NO_GPU_NO_CPU, _WRONG_MODEL, _NUM_KINDS = range(7)


def fragment_milli(cpu_free_milli: Longs, gpu_free_milli: Longs, model: Longs, mix: Mix) -> Floats:
    """(R,) expected idle GPU milli that the next pod can't use.

    For a class that a node can host, what is idle on GPUs too small for it; for other classes, and for classes without
    GPUs, everything idle. `gpu_free_milli` is (R, G), `model` (R,) with -1 for none.
    """
    idle = gpu_free_milli.sum(axis=1)
    parts = np.zeros((len(idle), _NUM_KINDS))
    every = np.arange(len(idle))
    for k in range(len(mix.frequency)):
        large_enough = gpu_free_milli >= mix.sizes[mix.size[k]]  # (R, G)
        lacks_cpu = cpu_free_milli < mix.cpu_milli[k]
        useless = idle
        if mix.num_gpus[k] == 0:
            kind = np.where(lacks_cpu, _NO_GPU_NO_CPU, _NO_GPU_ASKED)
        else:
            allowed = (model >= 0) & ((int(mix.models[k]) >> np.maximum(model, 0)) & 1 == 1)
            lacks_gpu = large_enough.sum(axis=1) < mix.num_gpus[k]
            kind = np.where(lacks_cpu, np.where(lacks_gpu, _LACKS_BOTH, _LACKS_CPU), _LACKS_GPU)
            kind = np.where(allowed, kind, _WRONG_MODEL)
            hosted = allowed & ~lacks_cpu & ~lacks_gpu
            useless = np.where(hosted, np.where(large_enough, 0, gpu_free_milli).sum(axis=1), idle)
        parts[every, kind] += mix.frequency[k] * useless
    total = np.zeros(len(idle))
    for kind_idx in range(_NUM_KINDS):
        total += parts[:, kind_idx]
    return total


def _percent(gain: float) -> int:
    return int(1 / (1 + math.exp(-gain)) * 100)


def _threshold(percent: int) -> float:
    """The smallest number whose sigmoid, in percent rounded down, reaches `percent`: by bisection, to the last bit."""
    low, high = -8.0, 8.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _percent(middle) >= percent else (middle, high)
    return high


THRESHOLDS: Final = np.array([_threshold(percent) for percent in range(1, 100)])
"""Where the score steps up. A table, because NumPy's vectorised exponential differs from `math.exp` in the last bit.

A node of 32 GPUs can't reach 100: 1 - sigmoid(32) > 1e-14.
"""


def fgd_score(before: Floats, after: Floats) -> Floats:
    """(R,) int(100 x sigmoid(F_before - F_after)), F in GPUs: 50 for no change, more when fragments shrink."""
    return np.searchsorted(THRESHOLDS, (before - after) / 1000, side="right").astype(np.float64)


_TYPICAL_FRAC: Final = 0.95
"""Fraction of the pods that the typical classes cover: FGD's `PodPopularityThreshold`."""
_LEAST_PART: Final = 0.02
"""Fraction of the pods that every tenant may have, whatever its GPU work."""
_LARGEST_UNIT: Final = 1e100
_RESOLUTION: Final = 1000
"""A Mix counts pods in thousandths, as integers."""

ClassT = TypeVar("ClassT", bound=Hashable)


class Arrivals(Generic[ClassT]):
    """Exponentially decayed counts of arrived pods by class, so that the mix follows recent use."""

    def __init__(self, half_life: float, max_classes: int = 4096) -> None:
        """`half_life` in pods, above 0. Above `max_classes` the rarest classes are dropped."""
        if half_life <= 0:
            raise ValueError("the half-life is not above 0")
        self._growth = 2.0 ** (1 / half_life)
        self._unit = 1.0  # weight of the newest pod; it grows, so that older weights need no update
        self._weights: dict[ClassT, float] = {}
        self._num_added = 0
        self._max_classes = max_classes

    def add(self, asked: ClassT) -> None:
        """Count an arrived pod."""
        self._num_added += 1
        self._unit *= self._growth
        self._weights[asked] = self._weights.get(asked, 0.0) + self._unit
        if self._unit > _LARGEST_UNIT:
            self._weights, self._unit = self.counts(), 1.0
        if len(self._weights) > self._max_classes:
            self._weights = dict(nlargest(self._max_classes // 2, self._weights.items(), key=lambda item: item[1]))

    def counts(self) -> dict[ClassT, float]:
        """Decayed number of pods by class; the newest pod counts 1."""
        return {asked: weight / self._unit for asked, weight in self._weights.items()}

    def after(self, prior: Mapping[ClassT, float]) -> dict[ClassT, float]:
        """The counts as if the `prior` number of pods by class had arrived before the first."""
        counts, faded = self.counts(), self._growth**-self._num_added
        for asked, pods in prior.items():
            counts[asked] = counts.get(asked, 0.0) + pods * faded
        return counts


def drift(one: Mapping[ClassT, float], other: Mapping[ClassT, float]) -> float:
    """The total variation distance of two mixes, 0 to 1."""
    totals = sum(one.values()), sum(other.values())
    if not all(totals):
        return float(any(totals))
    return sum(abs(one.get(key, 0) / totals[0] - other.get(key, 0) / totals[1]) for key in one.keys() | other) / 2


def typical_mix(asks: PodClasses, count: Floats) -> Mix:
    """The mix of (C,) classes with `count` pods each: the most frequent ones that cover `_TYPICAL_FRAC` of the pods.

    Classes that differ only in memory are merged. Equal counts order by CPU, GPUs and models, so that the mix is
    deterministic.
    """
    totals: dict[tuple[int, int, int, int], float] = {}
    for cpu, num, milli, models, pods in zip(
        *(column.tolist() for column in (asks.cpu_milli, asks.num_gpus, asks.gpu_milli, asks.models, count)),
        strict=True,
    ):
        key = (cpu, num, milli, models)
        totals[key] = totals.get(key, 0.0) + pods
    wanted, covered = _TYPICAL_FRAC * float(count.sum()), 0.0
    typical: list[TypicalPod] = []
    for key in sorted(totals, key=lambda key: (totals[key], *key), reverse=True):
        if covered >= wanted:
            break
        covered += totals[key]
        typical.append(TypicalPod(*key, int(np.rint(_RESOLUTION * totals[key]))))
    return mix_of(typical, max(sum(pod.num_pods for pod in typical), 1))


def expected_count(asks: PodClasses, count: Floats | Longs, num_gpus: int, load: float = 1.0) -> Floats:
    """(C,) pods by class whose mix fills `num_gpus` GPUs to `load` (0..1)."""
    asked = float((count * asks.num_gpus * asks.gpu_milli).sum()) / WHOLE_MILLI
    return count.astype(np.float64) * np.float64(load * num_gpus / asked if asked > 0 else 1)


def fair_weights(pods: Mapping[ClassT, int], work: Mapping[ClassT, float]) -> dict[ClassT, float]:
    """Weight of a pod by tenant, 0..1, so that no tenant's part of the pods exceeds its part of the GPU work.

    This limits tenants that submit thousands of unusual pods. Every tenant keeps at least `_LEAST_PART`.
    """
    total = sum(work.values())
    allowed = {name: max(work.get(name, 0.0) / total if total else 1.0, _LEAST_PART) for name in pods}
    weight = dict.fromkeys(pods, 1.0)
    for _ in pods:  # cutting one tenant raises the parts of others, so repeat until none is too large
        whole = sum(weight[name] * count for name, count in pods.items())
        over = {name for name, count in pods.items() if weight[name] * count > allowed[name] * whole * (1 + 1e-9)}
        rest = sum(weight[name] * count for name, count in pods.items() if name not in over)
        free = 1 - sum(allowed[name] for name in over)
        if not over or not rest or free <= 0:
            break
        for name in over:
            weight[name] = allowed[name] * rest / free / pods[name]
    return weight


class FragmentTables(NamedTuple):
    """A mix for nodes of M models and up to G GPUs. Axis J is the number of CPU demands met."""

    cpu_milli: Longs
    """(J - 1,) distinct CPU demands, ascending."""
    single: Floats
    """(M + 1, J, 1001) milli useful to classes of one GPU, by milli left on the GPU; the last row is for no GPU."""
    several: Floats
    """(M + 1, J, G + 1) milli useful to classes of several whole GPUs, by number of idle GPUs."""
    shares: tuple[tuple[int, int, Floats], ...]
    """Classes of shares of several GPUs: milli of each GPU, number of GPUs, and (M + 1, J) frequency."""
    total: float
    """Sum of the frequencies."""


def tables_of(mix: Mix, num_models: int, num_slots: int) -> FragmentTables:
    """The tables of a mix."""
    demands = np.unique(mix.cpu_milli)
    met = np.searchsorted(demands, mix.cpu_milli) + 1  # demands that must be met for a class to count
    bits = np.arange(num_models)
    allowed = np.zeros((num_models + 1, len(mix.frequency)), np.bool_)  # (M + 1, K)
    allowed[:num_models] = (mix.models[None, :] >> bits[:, None]) & 1 == 1
    frequent = np.zeros((num_models + 1, len(demands) + 1, len(mix.frequency)))  # (M + 1, J, K)
    reached = np.arange(len(demands) + 1)[:, None] >= met
    frequent[:] = np.where(allowed[:, None, :] & reached[None], mix.frequency, 0.0)
    asked = mix.sizes[mix.size]
    left = np.arange(WHOLE_MILLI + 1)
    one = mix.num_gpus == 1
    large_enough = np.where(left >= asked[one, None], left, 0)  # (K1, 1001)
    single = frequent[:, :, one] @ large_enough
    idle = np.arange(num_slots + 1)
    whole = (mix.num_gpus > 1) & (asked == WHOLE_MILLI)
    several = frequent[:, :, whole] @ np.where(idle >= mix.num_gpus[whole, None], WHOLE_MILLI * idle, 0)
    parts = np.flatnonzero((mix.num_gpus > 1) & (asked < WHOLE_MILLI)).tolist()
    shares = tuple((int(asked[k]), int(mix.num_gpus[k]), frequent[:, :, k].copy()) for k in parts)
    return FragmentTables(demands, single, several, shares, float(mix.frequency.sum()))


def unusable_milli(cpu_free_milli: Longs, gpu_free_milli: Longs, model: Longs, tables: FragmentTables) -> Floats:
    """(R,) expected idle GPU milli that the next pod can't use, as `fragment_milli`."""
    j = np.searchsorted(tables.cpu_milli, cpu_free_milli, side="right")
    # Flat: NumPy takes from one axis several times as fast as with a tuple of indices.
    num_rows, num_met, _ = tables.single.shape
    base = np.where(model < 0, num_rows - 1, model) * num_met + j  # (R,)
    useful = tables.single.reshape(-1).take(base[:, None] * (WHOLE_MILLI + 1) + gpu_free_milli).sum(axis=1)
    if tables.several.any():
        num_idle = num_true(gpu_free_milli == WHOLE_MILLI)
        useful += tables.several.reshape(-1).take(base * tables.several.shape[2] + num_idle)
    for milli, num, frequency in tables.shares:
        enough = gpu_free_milli >= milli
        hosted = num_true(enough) >= num
        useful += frequency.reshape(-1).take(base) * np.where(hosted, totals(np.where(enough, gpu_free_milli, 0)), 0)
    unusable: Floats = totals(gpu_free_milli) * tables.total - useful
    return unusable
