"""What a rank that is told nothing expects: the mix of the pods that it has seen so far, priced now and then.

As a cluster that Kerf has just been installed on: it begins with the service's own guess, the mix of a public trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.core.clusters import Floats
from extender.core.fragmentation import Arrivals, Asks, Nodes, typical_mix
from extender.core.resources.gpu_models import GpuModel
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential
from extender.ranking import prices
from extender.ranking.demands import asks_of, guessed, prior_pods_of
from model.simulations.learned import Learned
from model.workloads.workloads import Workload


@dataclass(frozen=True)
class Watch:
    """How the mix is estimated, and when it is priced."""

    half_life_pods: float = 2000
    """A pod counts half after as many more; the service's default."""
    prior_pods: float | None = None
    """What the guess counts as at first; None: by the cluster's GPUs, as in the service."""
    first_pods: int = 32
    """Pods seen when the mix is priced again for the first time."""
    growth: int = 2
    """Each further time after so many times as many."""
    last_pods: int = 1024
    """From there on after so many more."""

    def next_pricing(self, num_pods: int) -> int:
        """Pods seen when the mix is priced the next time, after `num_pods`."""
        end = self.first_pods
        while end <= num_pods:
            end = min(end * self.growth, end + self.last_pods)
        return end

    def pieces(self, num_pods: int) -> Iterator[slice]:
        """The arrivals between one pricing and the next."""
        begin = 0
        while begin < num_pods:
            end = self.next_pricing(begin)
            yield slice(begin, min(end, num_pods))
            begin = end


class Seen:
    """The pods seen so far, of classes of `asks`, on nodes that are empty here; prices are for `load`."""

    def __init__(self, nodes: Nodes, asks: Asks, model_names: Sequence[str], watch: Watch, load: float) -> None:
        self._nodes, self._load = nodes, load
        guess, pods = _guess(model_names)
        self._asks = Asks(*(np.concatenate(columns) for columns in zip(asks, guess, strict=True)))
        first = len(asks.cpu_milli)
        prior_pods = prior_pods_of(int(nodes.num_gpus.sum())) if watch.prior_pods is None else watch.prior_pods
        self._prior = {first + k: prior_pods * part for k, part in enumerate((pods / pods.sum()).tolist())}
        self._arrivals = Arrivals[int](watch.half_life_pods, 2 * len(self._asks.cpu_milli))

    def add(self, c: int) -> None:
        """A pod of class `c` has come."""
        self._arrivals.add(c)

    def outlook(self) -> Outlook:
        """What is expected by now; solves the LP."""
        count = np.zeros(len(self._asks.cpu_milli))
        for c, seen_pods in self._arrivals.after(self._prior).items():
            count[c] = seen_pods
        seen = count > 0  # as few classes as there are: the LP grows with them
        known, count = Asks(*(column[seen] for column in self._asks)), count[seen]
        return prices.outlook(self._nodes, known, count, typical_mix(known, count), self._load)


def outlooks(workload: Workload, watch: Watch, load: float) -> Iterator[tuple[slice, Outlook]]:
    """Pieces of the arrivals, each with what is expected after those before it; prices are for `load`."""
    seen = Seen(workload.nodes, workload.asks, workload.model_names, watch, load)
    for piece in watch.pieces(len(workload.pods)):
        yield piece, seen.outlook()
        for c in workload.classes[piece].tolist():
            seen.add(c)


class Follower:
    """A learned rank over time that is told nothing: what it expects follows the pods that come."""

    def __init__(self, potential: Potential, seen: Seen, watch: Watch) -> None:
        self._potential, self._seen, self._watch = potential, seen, watch
        self._num_pods, self._due = 0, 0
        self._now: Learned | None = None

    def add(self, c: int) -> None:
        """A pod of class `c` has come."""
        self._seen.add(c)
        self._num_pods += 1

    def now(self) -> Learned:
        """The rank by now: the same one until enough pods have come for the mix to be priced again."""
        if self._now is None or self._num_pods >= self._due:
            self._now = Learned(self._potential, self._seen.outlook())
            self._due = self._watch.next_pricing(self._num_pods)
        return self._now


def _guess(model_names: Sequence[str]) -> tuple[Asks, Floats]:
    """Classes that are expected at first, and how many pods each stands for.

    They leave memory open, and what memory GPUs have a trace does not tell: a choosy pod takes one model only.
    """
    kinds = {replace(kind, memory_mib=0): pods for kind, pods in guessed().items()}
    models = [GpuModel(name, (name,)) for name in model_names]
    return asks_of(kinds, models, np.zeros(len(models), np.int64))
