"""What a rank that is told nothing expects: the mix of the pods that it has seen so far, priced now and then.

As a cluster that Kerf has just been installed on: it begins with the service's own guess, the mix of a public trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.core.arrivals import Arrivals, typical_mix
from extender.core.clusters import Floats
from extender.core.features import Outlook
from extender.core.models import GpuModel
from extender.core.packing import Asks
from extender.models import prices
from extender.models.demands import asks_of, guessed
from model.workloads import Workload


@dataclass(frozen=True)
class Watch:
    """How the mix is estimated, and when it is priced."""

    half_life_pods: float = 2000
    """A pod counts half after as many more; the service's default."""
    prior_pods: float = 500
    """What the guess counts as at first; the service's default too."""
    first_pods: int = 256
    """Pods seen when the mix is priced again for the first time."""
    growth: int = 4
    """Each further time after so many times as many."""
    last_pods: int = 4096
    """From there on after so many more."""

    def pieces(self, num_pods: int) -> Iterator[slice]:
        """The arrivals between one pricing and the next."""
        begin, end = 0, self.first_pods
        while begin < num_pods:
            yield slice(begin, min(end, num_pods))
            begin, end = end, min(end * self.growth, end + self.last_pods)


def outlooks(workload: Workload, watch: Watch, load: float) -> Iterator[tuple[slice, Outlook]]:
    """Pieces of the arrivals, each with what is expected after those before it; prices are for `load`."""
    guess, pods = _guess(workload.model_names)
    asks = Asks(*(np.concatenate(columns) for columns in zip(workload.asks, guess, strict=True)))
    first = len(workload.asks.cpu_milli)
    prior = {first + k: watch.prior_pods * part for k, part in enumerate((pods / pods.sum()).tolist())}
    arrivals = Arrivals[int](watch.half_life_pods, prior, 2 * len(asks.cpu_milli))
    for piece in watch.pieces(len(workload.pods)):
        count = np.zeros(len(asks.cpu_milli))
        for c, seen_pods in arrivals.counts().items():
            count[c] = seen_pods
        seen = count > 0  # as few classes as there are: the LP grows with them
        known, count = Asks(*(column[seen] for column in asks)), count[seen]
        yield piece, prices.outlook(workload.nodes, known, count, typical_mix(known, count), load)
        for c in workload.classes[piece].tolist():
            arrivals.add(c)


def _guess(model_names: Sequence[str]) -> tuple[Asks, Floats]:
    """Classes that are expected at first, and how many pods each stands for.

    They leave memory open, and what memory GPUs have a trace does not tell: a choosy pod takes one model only.
    """
    kinds = {replace(kind, memory_mib=0): pods for kind, pods in guessed().items()}
    models = [GpuModel(name, (name,)) for name in model_names]
    return asks_of(kinds, models, np.zeros(len(models), np.int64))
