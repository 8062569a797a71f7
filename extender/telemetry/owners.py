"""Utilisation of pods, kept per owner: what an owner's pods did tells what its next pod will do.

Samples of a pod come from the exporter's pod labels. An owner is the controller whose pods are alike; see
`extender.plugins.pods.owner_of`.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.plugins.pods import owner_of
from extender.scheduling.placer import DEFAULT_LOAD
from extender.telemetry.sources.source import PodUsage

_MAX_OWNERS: Final = 2000
_MAX_PODS: Final = 50_000
_SAMPLES_EACH: Final = 240  # an hour of one pod's, at the default interval
_ENOUGH: Final = 4
"""Fewer samples say little: the first ones are of a pod that has just begun."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an owner's pods used."""

    num_samples: int
    load_mean: float
    """Fraction of a GPU's compute, 0 to 1; NaN where it is never told."""
    load_p95: float
    memory_mean_mib: float
    """MiB of a pod, on all its GPUs."""
    memory_p95_mib: float


class OwnerUsage:
    """Samples of pods by owner, the newest of each, for the owners heard of last. What holds no GPU has none: where
    series tell of no pod, scrapes put in the exporter's own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owner_of: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._samples: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Learn whose a pod is; samples of a pod may come when it is gone."""
        if new is None:
            return
        claim = self._ledger.claim(new.metadata.uid)
        if not (claim and claim.holding) and not new.spec.resource_claims:
            return
        key = (new.metadata.namespace, new.metadata.name)
        self._owner_of[key] = owner_of(new.metadata)
        self._owner_of.move_to_end(key)
        if len(self._owner_of) > _MAX_PODS:
            self._owner_of.popitem(last=False)

    def add(self, pods: PodUsage) -> None:
        """Take in a refresh: load and MiB by namespace and name; pods that Kerf does not know are left out."""
        for key, sample in pods.items():
            owner = self._owner_of.get(key)
            if owner is None:
                continue
            self._samples.setdefault(owner, deque(maxlen=_SAMPLES_EACH)).append(sample)
            self._samples.move_to_end(owner)
        while len(self._samples) > _MAX_OWNERS:
            self._samples.popitem(last=False)

    def usage(self, owner: str) -> Usage | None:
        """What an owner's pods used, None when nothing is known of them."""
        samples = self._samples.get(owner)
        if not samples:
            return None
        loads = sorted(load for load, _ in samples if not math.isnan(load))
        memories = sorted(memory for _, memory in samples if not math.isnan(memory))
        return Usage(len(samples), _mean(loads), _p95(loads), _mean(memories), _p95(memories))

    def expected_load(self, owner: str) -> float:
        """Load to expect of an owner's next pod on each of its GPUs."""
        samples = self._samples.get(owner)
        if samples is None or len(samples) < _ENOUGH:
            return DEFAULT_LOAD
        mean = _mean([load for load, _ in samples if not math.isnan(load)])
        return DEFAULT_LOAD if math.isnan(mean) else mean

    def latest(self, count: int = 50) -> dict[str, Usage]:
        """The owners heard of last, by name."""
        owners = sorted(islice(reversed(self._samples), count))
        return {owner: usage for owner in owners if (usage := self.usage(owner)) is not None}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _p95(ordered: list[float]) -> float:
    """The nearest rank: the smallest value that 95 % of the values don't exceed."""
    return ordered[max(math.ceil(0.95 * len(ordered)) - 1, 0)] if ordered else math.nan
