"""A rank without prior knowledge of the workload: its mix is estimated from the pods so far, and repriced at times.

It starts from the service's prior, the mix of a public trace, as on a cluster where Kerf was just installed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.core.clusters import Floats
from extender.core.fragmentation import Arrivals, Nodes, PodClasses, typical_mix
from extender.core.resources.gpu_models import GpuModel
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential
from extender.ranking import prices
from extender.ranking.demands import asks_of, guessed, prior_pods_of
from model.simulations.learned import Learned
from model.workloads.workloads import Workload


@dataclass(frozen=True)
class Watch:
    """How the mix is estimated, and when it is repriced."""

    half_life_pods: float = 2000
    """Number of later pods after which a pod counts half; the service's default."""
    prior_pods: float | None = None
    """Pods that the prior counts as; None: by the cluster's GPUs, as in the service."""
    first_pods: int = 32
    """Number of pods before the first repricing."""
    growth: int = 2
    """Factor between the pod counts of consecutive repricings."""
    last_pods: int = 1024
    """Largest number of pods between two repricings."""

    def next_pricing(self, num_pods: int) -> int:
        """Return the pod count of the next repricing after `num_pods`."""
        end = self.first_pods
        while end <= num_pods:
            end = min(end * self.growth, end + self.last_pods)
        return end

    def pieces(self, num_pods: int) -> Iterator[slice]:
        """Yield the slices of arrivals between repricings."""
        begin = 0
        while begin < num_pods:
            end = self.next_pricing(begin)
            yield slice(begin, min(end, num_pods))
            begin = end


class Seen:
    """Mix of the pods so far, by classes of `asks`; `nodes` are empty at construction; prices are for `load`."""

    def __init__(self, nodes: Nodes, asks: PodClasses, model_names: Sequence[str], watch: Watch, load: float) -> None:
        self._nodes, self._load = nodes, load
        guess, pods = _guess(model_names)
        self._asks = PodClasses(*(np.concatenate(columns) for columns in zip(asks, guess, strict=True)))
        first = len(asks.cpu_milli)
        prior_pods = prior_pods_of(int(nodes.num_gpus.sum())) if watch.prior_pods is None else watch.prior_pods
        self._prior = {first + k: prior_pods * part for k, part in enumerate((pods / pods.sum()).tolist())}
        self._arrivals = Arrivals[int](watch.half_life_pods, 2 * len(self._asks.cpu_milli))

    def add(self, c: int) -> None:
        """Count a pod of class `c`."""
        self._arrivals.add(c)

    def outlook(self) -> Outlook:
        """Return the current outlook; solves the LP."""
        count = np.zeros(len(self._asks.cpu_milli))
        for c, pods in self._arrivals.after(self._prior).items():
            count[c] = pods
        present = count > 0  # the LP grows with the number of classes
        asks, count = PodClasses(*(column[present] for column in self._asks)), count[present]
        return prices.outlook(self._nodes, asks, count, typical_mix(asks, count), self._load)


def outlooks(workload: Workload, watch: Watch, load: float) -> Iterator[tuple[slice, Outlook]]:
    """Yield slices of the arrivals, each with the outlook after the pods before it; prices are for `load`."""
    seen = Seen(workload.nodes, workload.asks, workload.model_names, watch, load)
    for piece in watch.pieces(len(workload.pods)):
        yield piece, seen.outlook()
        for c in workload.classes[piece].tolist():
            seen.add(c)


class Follower:
    """A learned rank over time without prior knowledge: its outlook follows the arriving pods."""

    def __init__(self, potential: Potential, seen: Seen, watch: Watch) -> None:
        self._potential, self._seen, self._watch = potential, seen, watch
        self._num_pods, self._due = 0, 0
        self._now: Learned | None = None

    def add(self, c: int) -> None:
        """Count a pod of class `c`."""
        self._seen.add(c)
        self._num_pods += 1

    def now(self) -> Learned:
        """Return the current rank: the same object until the next repricing."""
        if self._now is None or self._num_pods >= self._due:
            self._now = Learned(self._potential, self._seen.outlook())
            self._due = self._watch.next_pricing(self._num_pods)
        return self._now


def _guess(model_names: Sequence[str]) -> tuple[PodClasses, Floats]:
    """Return the classes of the prior, and the number of pods of each.

    GPU memory is left out, because traces don't have it: a pod that is restricted by it takes one model only.
    """
    kinds = {replace(kind, memory_mib=0): pods for kind, pods in guessed().items()}
    models = [GpuModel(name, (name,)) for name in model_names]
    return asks_of(kinds, models, np.zeros(len(models), np.int64))
