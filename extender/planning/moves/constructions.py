"""Making all moves at once, with several prices for who leaves; the cheapest of what comes out is kept."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Mask
from extender.planning.moves.evictions import Prices
from extender.planning.moves.obstacles import never, no_place
from extender.planning.moves.placements import Placing
from extender.planning.moves.steps import Found, proved
from extender.planning.moves.trials import Trial

Expired = Callable[[], bool]
Way = tuple[Prices, dict[int, Mask]]
"""What it counts when units leave, and by position rows where pods of the target shall not go."""

_LEARNING: Final = 8
"""Constructions that learn from those before what places cost."""
_WEIGHTS: Final = ((1.0, 0.0), (0.3, 0.0), (5.0, 0.0), (0.0, 5.0), (100.0, 0.0), (0.0, 1000.0))
"""Where these find nothing, what a GPU and a pod that move count besides, by the mean cost of a GPU."""
_BY_CHANCE: Final = 24
_NO_TIME: Final = "there was no time to look for all ways to make room: there may be one"


class Construction:
    """Constructions on a trial; each is proved on another one."""

    def __init__(self, trial: Trial, proof: Trial, rng: np.random.Generator, expired: Expired) -> None:
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
        """Whether the last construction has told what places cost."""
        self._stuck: list[int] = []
        self._cut_short = False
        """Whether there was no time for all ways."""

    def best(self) -> tuple[Found, Prices] | None:
        """The best that is found, with the prices that led to it; the trial is left with it. None for none."""
        trial = self.trial
        start = trial.mark()
        best: tuple[Found, Way] | None = None
        for number, way in enumerate(self._ways()):
            if number and self._expired():
                self._cut_short = True
                break
            placing = self._make(way)
            found = proved(trial, self._proof) if placing is not None else None
            if found is not None and (best is None or found.cost < best[0].cost):
                best, self._has_found = (found, way), True
            self._learning = placing is not None and self._learn(placing)
            trial.rollback(start)
            if best is not None and not self._learning:
                break
            if number == 0 and best is None and never(trial):
                return None
        if best is None:
            return None
        self._make(best[1])
        return best[0], replace(best[1][0], of_row=None)

    def why_none(self) -> list[str]:
        """Why nothing was found: sentences."""
        problem = self.trial.problem
        said = never(self.trial)
        if said:
            return said
        if self._cut_short:
            return [_NO_TIME]
        said = no_place(self.trial, self._stuck)
        if problem.max_moves is not None:
            said.insert(0, f"no way was found that takes at most {problem.max_moves} moves")
        return said or ["no order of moves was found in which each has room in its turn"]

    def unit_prices(self, of_gpu: float = 0.0, of_pod: float = 0.0) -> Floats:
        """(U,) what it counts when a unit leaves; inf for those that may not."""
        units = self.trial.units
        movable = units.movable & (units.gpus > 0)
        mean = units.cost[movable].sum() / units.gpus[movable].sum() if movable.any() else 0.0
        price: Floats = units.cost + (mean or 1.0) * (of_gpu * units.gpus + of_pod * units.size)
        return np.where(units.movable, price, np.inf)

    def row_prices(self, prices: Floats) -> Floats:
        """(N,) by chance, so that not always the same nodes are chosen."""
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
        """Note what places have cost for each kind of pod; False where they cost nothing."""
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
        for _ in range(_LEARNING):
            of_places = np.bincount(unit_of, self._place_prices[self._kind_of], num_units)
            yield Prices(self.unit_prices() + of_places), {}
            if not self._learning:
                break
        if self._has_found:
            return
        for of_gpu, of_pod in _WEIGHTS:
            yield Prices(self.unit_prices(of_gpu, of_pod)), {}
        for _ in range(_BY_CHANCE):
            of_gpu, of_pod = self._rng.choice([0.0, 0.3, 1.0, 5.0], 2).tolist()
            price = self.unit_prices(of_gpu, of_pod) * self._rng.uniform(0.3, 3.0, num_units)
            barred = {
                position: self._rng.random(len(self.trial.closed)) < 0.2 for position in range(self.trial.num_target)
            }
            yield Prices(price, self.row_prices(price)), barred
