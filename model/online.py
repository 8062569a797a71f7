"""What a rank that is told nothing expects: the mix of the pods that it has seen so far, priced now and then.

As a cluster that Kerf has just been installed on: it begins with the service's own guess, the mix of a public trace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.arrivals import Arrivals, typical_mix
from extender.core.clusters import Floats
from extender.core.features import Outlook
from extender.core.packing import ANY_MODEL, GPU_MILLI, Asks
from extender.core.typical import DEFAULT_MIX
from extender.models import prices
from model.workloads import Workload

CHOOSY_FRAC: Final = 0.2
"""Part of the pods that are expected at first to take one GPU model only."""
CHOOSY_CPU_MILLI: Final = 8000
"""What those ask for."""


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
    guessed, pods = _guess(int(workload.nodes.model.max(initial=-1)) + 1)
    asks = Asks(*(np.concatenate(columns) for columns in zip(workload.asks, guessed, strict=True)))
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


def _guess(num_models: int) -> tuple[Asks, Floats]:
    """Classes that are expected at first, and how many pods each stands for.

    They are those of DEFAULT_MIX, which leaves memory and models open, and pods that take one model only, as many for
    each: whoever has rare GPUs will be asked for them, and what they were given to until then does not come back.
    """
    cpu, num, milli, pods = (
        np.array([getattr(pod, name) for pod in DEFAULT_MIX]) for name in ("cpu_milli", "gpus", "gpu_milli", "count")
    )
    choosy = np.full(num_models, CHOOSY_FRAC / (1 - CHOOSY_FRAC) * pods.sum() / max(num_models, 1))
    one = np.ones(num_models, np.int64)
    asks = Asks(
        np.append(cpu, CHOOSY_CPU_MILLI * one),
        np.zeros(len(cpu) + num_models, np.int64),
        np.append(num, one),
        np.append(milli, GPU_MILLI * one),
        np.append(np.full(len(cpu), ANY_MODEL), one << np.arange(num_models)),
    )
    return asks, np.append(pods, choosy)
