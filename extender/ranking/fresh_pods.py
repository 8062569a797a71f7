"""Pods that came since a stage began, by namespace: what a model on trial is judged by.

A namespace counts as a part of them no larger than its part of the GPUs held (`fair_weights`).
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from extender.core.fragmentation.arrivals import fair_weights
from extender.ranking.demands import Kind

_MAX_KINDS: Final = 500
"""Of a namespace, that are told apart: others are left out."""


class FreshPods:
    """Counts pods by kind and namespace, since `begin`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Kind]] = Counter()
        self._num_kinds: Counter[str] = Counter()
        self.num = 0
        """Of those that ask for GPUs: no others tell models apart."""

    def begin(self) -> None:
        """Forget what came so far."""
        self._counts.clear()
        self._num_kinds.clear()
        self.num = 0

    def add(self, namespace: str, kind: Kind) -> None:
        """A pod came."""
        new = (namespace, kind) not in self._counts
        if new and self._num_kinds[namespace] >= _MAX_KINDS:
            return
        self._num_kinds[namespace] += new
        self._counts[namespace, kind] += 1
        self.num += kind.gpus > 0

    def counts(self, held: Mapping[str, float]) -> dict[Kind, float]:
        """Pods by kind, where namespaces hold so much GPU."""
        pods: Counter[str] = Counter()
        for (namespace, _), count in self._counts.items():
            pods[namespace] += count
        weight = fair_weights(pods, held)
        found: dict[Kind, float] = {}
        for (namespace, kind), count in self._counts.items():
            found[kind] = found.get(kind, 0.0) + weight[namespace] * count
        return found
