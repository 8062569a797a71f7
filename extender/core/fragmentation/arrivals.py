"""The mix of pods that arrive, estimated from those that were seen.

A pod counts less with every pod after it: half after as many as the half-life, so that the mix follows what users do
by now.
"""

from collections.abc import Hashable, Mapping
from heapq import nlargest
from typing import Final, Generic, TypeVar

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation.arrays import Asks
from extender.core.fragmentation.fragments import Mix, TypicalPod, mix_of

_TYPICAL_FRAC: Final = 0.95
"""Part of the pods that the typical ones stand for, as FGD's `PodPopularityThreshold` has it."""
_LEAST_PART: Final = 0.02
"""Of the pods, that any tenant may be, whatever its GPU work."""
_LARGEST_UNIT: Final = 1e100
_RESOLUTION: Final = 1000
"""Counts of a Mix are whole numbers: thousandths of a pod."""

ClassT = TypeVar("ClassT", bound=Hashable)


class Arrivals(Generic[ClassT]):
    """Decayed counts of pods by class."""

    def __init__(self, half_life: float, max_classes: int = 4096) -> None:
        """`half_life` in pods, above 0. With more classes than allowed the rarest go."""
        if half_life <= 0:
            raise ValueError("the half-life is not above 0")
        self._growth = 2.0 ** (1 / half_life)
        self._unit = 1.0  # what the newest pod weighs: the others never have to be touched
        self._weights: dict[ClassT, float] = {}
        self._num_added = 0
        self._max_classes = max_classes

    def add(self, asked: ClassT) -> None:
        """A pod has arrived."""
        self._num_added += 1
        self._unit *= self._growth
        self._weights[asked] = self._weights.get(asked, 0.0) + self._unit
        if self._unit > _LARGEST_UNIT:
            self._weights, self._unit = self.counts(), 1.0
        if len(self._weights) > self._max_classes:
            self._weights = dict(nlargest(self._max_classes // 2, self._weights.items(), key=lambda item: item[1]))

    def counts(self) -> dict[ClassT, float]:
        """Pods by class; the newest counts 1."""
        return {asked: weight / self._unit for asked, weight in self._weights.items()}

    def after(self, prior: Mapping[ClassT, float]) -> dict[ClassT, float]:
        """The same where so many pods by class had arrived before the first."""
        counts, faded = self.counts(), self._growth**-self._num_added
        for asked, pods in prior.items():
            counts[asked] = counts.get(asked, 0.0) + pods * faded
        return counts


def drift(one: Mapping[ClassT, float], other: Mapping[ClassT, float]) -> float:
    """How far two mixes are apart, 0 to 1: the part of the pods that would have to be others (total variation)."""
    totals = sum(one.values()), sum(other.values())
    if not all(totals):
        return float(any(totals))
    return sum(abs(one.get(key, 0) / totals[0] - other.get(key, 0) / totals[1]) for key in one.keys() | other) / 2


def typical_mix(asks: Asks, count: Floats) -> Mix:
    """The mix of (C,) classes, `count` pods each: by falling count until TYPICAL_FRAC of the pods are covered.

    Memory tells no classes apart. Equal counts go by CPU, GPU and model, so that equal counts give equal mixes.
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


def expected_count(asks: Asks, count: Floats | Longs, num_gpus: int, load: float = 1.0) -> Floats:
    """(C,) pods by class when their mix fills a cluster of GPUs to a load."""
    asked = float((count * asks.num_gpus * asks.gpu_milli).sum()) / WHOLE_MILLI
    return count.astype(np.float64) * np.float64(load * num_gpus / asked if asked > 0 else 1)


def fair_weights(pods: Mapping[ClassT, int], work: Mapping[ClassT, float]) -> dict[ClassT, float]:
    """What a pod of each tenant counts, 0..1, so that no tenant is a larger part of the pods than of the GPU work.

    Who submits thousands of pods that nobody else would has no more say than that; a small part everybody has.
    """
    total = sum(work.values())
    allowed = {name: max(work.get(name, 0.0) / total if total else 1.0, _LEAST_PART) for name in pods}
    weight = dict.fromkeys(pods, 1.0)
    for _ in pods:  # who is cut makes the parts of others larger: until nobody's is too large
        whole = sum(weight[name] * count for name, count in pods.items())
        over = {name for name, count in pods.items() if weight[name] * count > allowed[name] * whole * (1 + 1e-9)}
        rest = sum(weight[name] * count for name, count in pods.items() if name not in over)
        free = 1 - sum(allowed[name] for name in over)
        if not over or not rest or free <= 0:
            break
        for name in over:
            weight[name] = allowed[name] * rest / free / pods[name]
    return weight
