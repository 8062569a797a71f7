"""Utilisation of pods per owner (`extender.plugins.pods.owner_of`), which predicts the owner's next pod.

Samples are attributed to pods by the exporter's pod labels.
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
"""Fewer samples are not used: a pod's first samples are from its start-up."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage by an owner's pods; NaN where there are no samples."""

    num_samples: int
    load_mean: float
    """Fraction of a GPU's compute, 0 to 1."""
    load_p95: float
    memory_mean_mib: float
    """MiB per pod, on all its GPUs."""
    memory_p95_mib: float


class OwnerUsage:
    """The newest samples of each owner's pods, for the most recently sampled owners.

    Pods without GPUs are ignored: series without a pod label get the exporter's own pod from the scrape.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owner_of: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._samples: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Record a pod's owner. It is kept after the pod is gone, since samples may come later."""
        if new is None:
            return
        claim = self._ledger.allocation(new.metadata.uid)
        if not (claim and claim.holding) and not new.spec.resource_claims:
            return
        key = (new.metadata.namespace, new.metadata.name)
        self._owner_of[key] = owner_of(new.metadata)
        self._owner_of.move_to_end(key)
        if len(self._owner_of) > _MAX_PODS:
            self._owner_of.popitem(last=False)

    def add(self, pods: PodUsage) -> None:
        """Add a refresh's samples; pods that Kerf does not know are skipped."""
        for key, sample in pods.items():
            owner = self._owner_of.get(key)
            if owner is None:
                continue
            self._samples.setdefault(owner, deque(maxlen=_SAMPLES_EACH)).append(sample)
            self._samples.move_to_end(owner)
        while len(self._samples) > _MAX_OWNERS:
            self._samples.popitem(last=False)

    def usage(self, owner: str) -> Usage | None:
        """Usage by an owner's pods; None if there are no samples."""
        samples = self._samples.get(owner)
        if not samples:
            return None
        loads = sorted(load for load, _ in samples if not math.isnan(load))
        memories = sorted(memory for _, memory in samples if not math.isnan(memory))
        return Usage(len(samples), _mean(loads), _p95(loads), _mean(memories), _p95(memories))

    def expected_load(self, owner: str) -> float:
        """The expected load of an owner's next pod on each of its GPUs, as a fraction."""
        samples = self._samples.get(owner)
        if samples is None or len(samples) < _ENOUGH:
            return DEFAULT_LOAD
        mean = _mean([load for load, _ in samples if not math.isnan(load)])
        return DEFAULT_LOAD if math.isnan(mean) else mean

    def latest(self, count: int = 50) -> dict[str, Usage]:
        """The most recently sampled owners, by name."""
        owners = sorted(islice(reversed(self._samples), count))
        return {owner: usage for owner in owners if (usage := self.usage(owner)) is not None}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _p95(ordered: list[float]) -> float:
    """The 95th percentile by nearest rank."""
    return ordered[max(math.ceil(0.95 * len(ordered)) - 1, 0)] if ordered else math.nan
