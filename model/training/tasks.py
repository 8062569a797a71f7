"""Training tasks: workloads, and a potential's gain over FGD on them."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.valuenet.features import CONTEXT, FEATURES, Outlook
from extender.core.valuenet.potentials import Potential, linear
from model.simulations import learned, replays
from model.simulations.baselines import BASELINES
from model.simulations.learned import Foresight, OutlookCache
from model.workloads.sources import Source
from model.workloads.workloads import Workload

PUBLISHED_SEEDS: Final = frozenset(range(42, 52))
"""Seeds of the published experiments, held out for final tables: training and validation refuse them."""

# Initial weights and step scales by feature: FGD's fragment, shadow prices, and CPU short of the free GPUs' needs.
_BEGIN_BY_NAME: Final = {
    "fragment": -0.75, "worth": 5.0, "cpu_short_half": 0.6, "cpu_short": 1.0, "cpu_short_more": 0.5, "gpu_wanted": 1.25,
    "compute_worth": 5.0,
}  # fmt: skip
REACH: Final = {
    "fragment": 0.5, "worth": 1.0, "compute_worth": 1.0, "cpu_short_half": 0.4, "cpu_short": 0.4, "cpu_short_more": 0.4,
    "gpu_wanted": 0.5, "worth_fed": 0.5, "node_idle": 0.3, "hosts_one": 0.3, "hosts_many": 0.3, "gpu_sqrt": 0.3,
}  # fmt: skip
REACH_OTHERS: Final = 0.15
_QUANTUM: Final = 0.2
_LOG_QUANTUM_REACH: Final = 0.5
_LARGEST_STEP: Final = 6.0
"""Bound of the log quantum and of a context's change of a weight, in units of their reach."""
_BEGIN: Final = np.array([_BEGIN_BY_NAME.get(name, 0.0) for name in FEATURES])
_REACH: Final = np.array([REACH.get(name, REACH_OTHERS) for name in FEATURES])


@dataclass(frozen=True)
class Task:
    """A workload, and FGD's result on it."""

    trace: str
    seed: int
    offered: Workload
    outlook: Outlook
    fgd: tuple[float, ...]
    """Percent that FGD allocates at each of LOADS."""

    def allocations(self, potential: Potential) -> tuple[float, ...]:
        """Return the percent allocated at each of LOADS under a potential."""
        return learned.allocations(self.offered, learned.replay(self.offered, self.outlook, potential).placed)

    def gains(self, potential: Potential) -> Floats:
        """(2,) gain over FGD in percentage points at each of LOADS."""
        gained: Floats = np.subtract(self.allocations(potential), self.fgd)
        return gained


class SeedError(ValueError):
    """A seed that is held out from training and validation."""


class Tasks:
    """Tasks by trace or mix, and seed; each trace is read and priced once."""

    def __init__(self, source_of: Callable[[str], Source], foresight: Foresight) -> None:
        self._source_of, self._foresight = cache(source_of), foresight
        self._told = OutlookCache()

    def task(self, trace: str, seed: int) -> Task:
        """Return a task. Raises SeedError for a published seed."""
        if seed in PUBLISHED_SEEDS:
            raise SeedError(f"seed {seed} is held out: the published experiment uses it")
        offer = self._source_of(trace)(seed)
        offered = offer.arrivals()
        outlook = self._told(offered.nodes, offered.asks, offered.mix, offer.nodes, offer.pods, self._foresight)
        fgd = replays.replay(offered, BASELINES["fgd"], seed).placed
        return Task(trace, seed, offered, outlook, learned.allocations(offered, fgd))


def num_parameters(by_context: bool) -> int:
    """Return the number of parameters: weights and quantum, and the same for each number of a context."""
    return (len(FEATURES) + 1) * (1 + len(CONTEXT) * by_context)


def point_of(potential: Potential, by_context: bool) -> Floats:
    """Return the search point of a linear potential: the inverse of `potential_at`."""
    quantum = math.log(float(potential.quantum[0]) / _QUANTUM) / _LOG_QUANTUM_REACH
    point: Floats = np.append((potential.weights - _BEGIN) / _REACH, quantum)
    if not by_context:
        return point
    steps = potential.by_context / np.append(_REACH, _LOG_QUANTUM_REACH)
    return np.append(point, steps if len(steps) else np.zeros((len(CONTEXT), len(point))))


def potential_at(point: Floats, without: Collection[str] = ()) -> Potential:
    """Return the potential at a search point (F + 1,), or ((1 + K) (F + 1),) with a context; features in `without` have
    weight 0."""
    point, *by_context = point.reshape(-1, len(FEATURES) + 1)
    quantum = _QUANTUM * float(np.exp(_LOG_QUANTUM_REACH * np.clip(point[-1], -_LARGEST_STEP, _LARGEST_STEP)))
    used = np.array([name not in without for name in FEATURES])
    found = linear(np.where(used, _BEGIN + _REACH * point[:-1], 0.0), quantum)
    if not by_context:
        return found
    steps = np.clip(by_context, -_LARGEST_STEP, _LARGEST_STEP) * np.append(
        np.where(used, _REACH, 0.0), _LOG_QUANTUM_REACH
    )
    return found._replace(by_context=steps)
