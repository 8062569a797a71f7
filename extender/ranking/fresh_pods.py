"""Pods that came since a stage began, by namespace: what a model on trial is judged by.

Who submits thousands of pods that nobody else would has no more say than the GPUs that are in use for it: a namespace
counts as a part of the pods no larger than its part of the GPUs held, or than a small part that everybody has.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from extender.ranking.demands import Kind

_LEAST_PART: Final = 0.02
"""Of the pods, that any namespace may be, whatever it holds."""
_MAX_KINDS: Final = 20_000


class FreshPods:
    """Counts pods by kind and namespace, since `begin`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Kind]] = Counter()
        self.num = 0

    def begin(self) -> None:
        """Forget what came so far."""
        self._counts.clear()
        self.num = 0

    def add(self, namespace: str, kind: Kind) -> None:
        """A pod came; where there are too many kinds, others are left out."""
        if len(self._counts) < _MAX_KINDS or (namespace, kind) in self._counts:
            self._counts[namespace, kind] += 1
            self.num += 1

    def counts(self, held: Mapping[str, float]) -> dict[Kind, float]:
        """Pods by kind, where namespaces hold so much GPU."""
        pods: Counter[str] = Counter()
        for (namespace, _), count in self._counts.items():
            pods[namespace] += count
        weight = capped(pods, held)
        found: dict[Kind, float] = {}
        for (namespace, kind), count in self._counts.items():
            found[kind] = found.get(kind, 0.0) + weight[namespace] * count
        return found


def capped(pods: Mapping[str, int], held: Mapping[str, float]) -> dict[str, float]:
    """What a pod of each namespace counts, so that none is a larger part of all than it may be."""
    total = sum(held.values())
    allowed = {name: max(held.get(name, 0.0) / total if total else 1.0, _LEAST_PART) for name in pods}
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
