"""Greedy construction of complete sets of moves with varying eviction prices; the cheapest is kept."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Mask
from extender.planning.moves.evictions import Prices
from extender.planning.moves.obstacles import impossible_reasons, no_place
from extender.planning.moves.placements import Placing
from extender.planning.moves.steps import Solution, proved
from extender.planning.moves.trials import MoveTrial

Expired = Callable[[], bool]
Way = tuple[Prices, dict[int, Mask]]
"""Eviction prices, and by position rows barred for pods of the target."""

_NUM_LEARNING: Final = 8
"""Constructions that learn from earlier ones what new nodes for evicted pods cost."""
_WEIGHTS: Final = ((1.0, 0.0), (0.3, 0.0), (5.0, 0.0), (0.0, 5.0), (100.0, 0.0), (0.0, 1000.0))
"""If those find nothing: extra price of a moved GPU and pod, in units of the mean cost of a GPU."""
_NUM_RANDOM: Final = 24
_NO_TIME: Final = "the search ran out of time: there may still be a way to make room"


class Construction:
    """Constructions on a trial, each verified on another one."""

    def __init__(self, trial: MoveTrial, proof: MoveTrial, rng: np.random.Generator, expired: Expired) -> None:
        self.trial = trial
        self._proof = proof
        self._rng = rng
        self._expired = expired
        pods = [pod.pod.alike for pod in trial.problem.running]
        numbers = {alike: number for number, alike in enumerate(dict.fromkeys(pods))}
        self._kind_of = np.array([numbers[alike] for alike in pods], np.intp)  # (R,)
        self._place_prices = np.zeros(len(numbers))
        self._num_learned = 0
        self._has_found = False
        self._learning = False
        """Whether the last construction had to evict for moved pods, so that prices changed."""
        self._stuck: list[int] = []
        self._cut_short = False
        """Whether time ran out before all ways were tried."""

    def best(self) -> tuple[Solution, Prices] | None:
        """The best solution with its prices, applied to the trial; None if there is none."""
        trial = self.trial
        start = trial.mark()
        best: tuple[Solution, Way] | None = None
        for number, way in enumerate(self._ways()):
            if number and self._expired():
                self._cut_short = True
                break
            placing = self._make(way)
            solution = proved(trial, self._proof) if placing is not None else None
            if solution is not None and (best is None or solution.cost < best[0].cost):
                best, self._has_found = (solution, way), True
            self._learning = placing is not None and self._learn(placing)
            trial.rollback(start)
            if best is not None and not self._learning:
                break
            if number == 0 and best is None and impossible_reasons(trial):
                return None
        if best is None:
            return None
        self._make(best[1])
        return best[0], replace(best[1][0], of_row=None)

    def why_none(self) -> list[str]:
        """Sentences that say why nothing was found."""
        problem = self.trial.problem
        reasons = impossible_reasons(self.trial)
        if reasons:
            return reasons
        if self._cut_short:
            return [_NO_TIME]
        reasons = no_place(self.trial, self._stuck)
        if problem.max_moves is not None:
            reasons.insert(0, f"found no solution with at most {problem.max_moves} moves")
        return reasons or ["found no order of moves in which each finds room"]

    def unit_prices(self, of_gpu: float = 0.0, of_pod: float = 0.0) -> Floats:
        """(U,) eviction price of each unit, with extra prices per GPU and pod; inf for units that may not move."""
        units = self.trial.units
        movable = units.movable & (units.gpus > 0)
        mean = units.cost[movable].sum() / units.gpus[movable].sum() if movable.any() else 0.0
        price: Floats = units.cost + (mean or 1.0) * (of_gpu * units.gpus + of_pod * units.size)
        return np.where(units.movable, price, np.inf)

    def row_prices(self, prices: Floats) -> Floats:
        """(N,) random prices, so that different nodes are chosen."""
        finite = prices[np.isfinite(prices)]
        scale = float(finite.mean()) * float(self._rng.choice([0.0, 0.2, 1.0])) if finite.size else 0.0
        noise: Floats = self._rng.random(len(self.trial.closed)) * scale
        return noise

    def _make(self, way: Way) -> Placing | None:
        placing = Placing(self.trial, way[0], dict(way[1]))
        if placing.complete():
            return placing
        self._stuck += placing.stuck
        return None

    def _learn(self, placing: Placing) -> bool:
        """Update the mean price of a new node for each kind of pod; False if no eviction was needed."""
        trial = self.trial
        moved = [member for unit in trial.away for member in trial.units.members[unit]]
        num = np.bincount(self._kind_of[moved], minlength=len(self._place_prices))
        paid = np.zeros(len(self._place_prices))
        for position, price in placing.paid.items():
            if position >= trial.num_target:
                paid[self._kind_of[position - trial.num_target]] += price
        self._num_learned += 1
        self._place_prices += (paid / np.maximum(num, 1) - self._place_prices) / self._num_learned
        return bool(paid.any())

    def _ways(self) -> Iterator[Way]:
        unit_of, num_units = self.trial.units.unit_of, len(self.trial.units.members)
        for _ in range(_NUM_LEARNING):
            of_places = np.bincount(unit_of, self._place_prices[self._kind_of], num_units)
            yield Prices(self.unit_prices() + of_places), {}
            if not self._learning:
                break
        if self._has_found:
            return
        for of_gpu, of_pod in _WEIGHTS:
            yield Prices(self.unit_prices(of_gpu, of_pod)), {}
        for _ in range(_NUM_RANDOM):
            of_gpu, of_pod = self._rng.choice([0.0, 0.3, 1.0, 5.0], 2).tolist()
            price = self.unit_prices(of_gpu, of_pod) * self._rng.uniform(0.3, 3.0, num_units)
            barred = {
                position: self._rng.random(len(self.trial.closed)) < 0.2 for position in range(self.trial.num_target)
            }
            yield Prices(price, self.row_prices(price)), barred
