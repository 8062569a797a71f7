"""Local search: parts of a set of moves are taken back and made anew in another way, as long as that gains."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Mask
from extender.planning.moves.evictions import Prices
from extender.planning.moves.lower_bounds import least_cost
from extender.planning.moves.obstacles import never, no_place
from extender.planning.moves.placements import Placing, rows_of_target
from extender.planning.moves.problems import MovePlan
from extender.planning.moves.steps import Assignment, assignment_of, by_rank, in_steps
from extender.planning.moves.trials import Trial
from extender.planning.plans import units_of

Expired = Callable[[], bool]

_WEIGHTS: Final = ((0.0, 0.0), (1.0, 0.0), (0.3, 0.0), (5.0, 0.0), (0.0, 5.0), (100.0, 0.0), (0.0, 1000.0))
"""What a GPU and a pod that move count besides, by the mean cost of a GPU: large pods find places less easily."""
_TRIES_WITH_CHANCE: Final = 24
_ROUNDS: Final = 300
_ROUNDS_AT_LEAST_COST: Final = 20
_MOST_TAKEN_BACK: Final = 3
_FEW_MOVES: Final = 64
"""Up to so many pods the order of the moves is looked for in every round."""


@dataclass(frozen=True, slots=True)
class Found:
    """Moves that are possible."""

    cost: tuple[float, int]
    assignment: Assignment
    plan: MovePlan


class Search:
    """A search on `trial`, whose moves are proved on `proof`, where nodes are ranked as in a live decision."""

    def __init__(self, trial: Trial, proof: Trial, seed: int, expired: Expired) -> None:
        self.trial = trial
        self._proof = proof
        self._rng = np.random.default_rng(seed)
        self._expired = expired
        self._prices = Prices(self._unit_prices(0.0, 0.0))
        self._least = least_cost(trial)
        self._stuck: list[int] = []
        """Positions of pods that found no place."""

    def best(self) -> MovePlan:
        """The plan that costs least of all that were found; where none was, why."""
        found = self._constructed()
        if found is None:
            version = self.trial.problem.view.cluster.version
            return MovePlan(version, False, impossible=tuple(never(self.trial) or self._none_found()))
        found = self._improved(found)
        ranked = in_steps(self._proof, by_rank(self._proof, found.assignment))
        return found.plan if ranked is None else ranked

    def _constructed(self) -> Found | None:
        """The best of what is made at once, with several prices; the trial is left with it."""
        trial = self.trial
        start = trial.mark()
        best: tuple[tuple[float, int], int, Found] | None = None
        tried: list[tuple[Prices, dict[int, Mask]]] = []
        for number in range(len(_WEIGHTS) + _TRIES_WITH_CHANCE):
            if number and self._expired():
                break
            if number < len(_WEIGHTS):
                way = Prices(self._unit_prices(*_WEIGHTS[number])), {}
            elif best is None:
                way = self._by_chance(), self._barred_by_chance()
            else:
                break
            tried.append(way)
            if self._make(*way) and (found := self._proved()) is not None:
                if best is None or found.cost < best[0]:
                    best = found.cost, number, found
                if found.cost == (0.0, 0):
                    break
            trial.rollback(start)
            if number == 0 and best is None and never(trial):
                return None
        if best is None:
            return None
        if trial.mark() == start:
            self._make(*tried[best[1]])
        self._prices = Prices(self._unit_prices(0.0, 0.0))
        return best[2]

    def _make(self, prices: Prices, barred: dict[int, Mask]) -> bool:
        placing = Placing(self.trial, prices, dict(barred))
        made = self._complete(placing)
        if not made:
            self._stuck += placing.stuck
        return made

    def _complete(self, placing: Placing) -> bool:
        """Put all on nodes that are on none, and let those stay who need not move."""
        trial = self.trial
        target = trial.problem.target
        missing = len(target.empty) + target.num_empty - int(trial.closed.sum())
        if not (placing.target() and placing.empty(missing) and placing.settle()):
            return False
        self._spare()
        return True

    def _none_found(self) -> list[str]:
        problem = self.trial.problem
        said = no_place(self.trial, self._stuck)
        if problem.max_moves is not None:
            said.insert(0, f"no way was found that takes at most {problem.max_moves} moves")
        return said or ["no order of moves was found in which each has room in its turn"]

    def _spare(self) -> None:
        trial = self.trial
        cost, size = trial.units.cost, trial.units.size
        for unit in sorted(trial.away, key=lambda unit: (-cost[unit], -size[unit], unit)):
            trial.bring_home(unit)

    def _proved(self) -> Found | None:
        assignment = assignment_of(self.trial)
        plan = in_steps(self._proof, assignment)
        return None if plan is None else Found(self.trial.cost, assignment, plan)

    def _improved(self, found: Found) -> Found:
        """Rounds of taking back and making anew."""
        trial = self.trial
        left = _ROUNDS
        while left and found.cost[1] and not self._expired():
            left -= 1
            if found.cost[0] <= self._least * (1 + 1e-9):  # no cheaper ones; fewer moves at the same cost there may be
                left = min(left, _ROUNDS_AT_LEAST_COST)
            begun = trial.mark()
            placing = Placing(trial, replace(self._prices, of_row=self._row_prices()))
            self._take_back(placing)
            if self._complete(placing):
                if trial.cost < found.cost or (trial.cost == found.cost and trial.num_away <= _FEW_MOVES):
                    if (better := self._proved()) is not None:
                        found = better
                        continue
            trial.rollback(begun)
        return found

    def _take_back(self, placing: Placing) -> None:
        """Take some of the target's pods off their nodes, or open some that were emptied, and let all return who can."""
        trial, rng = self.trial, self._rng
        rows: set[int] = set()
        opened = [row for row in np.flatnonzero(trial.closed).tolist() if row not in trial.problem.target.empty]
        choices = [*sorted(rows_of_target(trial)), *opened]
        homes = sorted({trial.home[member][0] for unit in trial.away for member in trial.units.members[unit]})
        if homes and (not choices or rng.random() < 0.5):
            rows.add(int(rng.choice(homes)))
        if choices and (not rows or rng.random() < 0.5):
            num = int(rng.integers(1, min(len(choices), _MOST_TAKEN_BACK) + 1))
            rows.update(int(row) for row in rng.choice(choices, num, replace=False))
        keep_off = rng.random() < 0.6
        guests = [
            unit
            for unit in trial.away
            if any(trial.row(trial.position(member)) in rows for member in trial.units.members[unit])
        ]
        for unit in guests:
            for member in trial.units.members[unit]:
                trial.take(trial.position(member))
        barred = np.zeros(len(trial.closed), np.bool_)
        barred[sorted(rows)] = True
        for unit in units_of(trial.problem.target.pods):
            taken = [position for position in unit if trial.row(position) in rows]
            if taken and trial.pods[unit[0]].topology and rng.random() < 0.5:
                taken = unit  # else it stays in its domain
            for position in taken:
                trial.take(position)
                if keep_off:
                    placing.barred[position] = barred
        trial.open([row for row in opened if row in rows])
        if keep_off and placing.prices.of_row is not None:
            placing.prices.of_row[sorted(rows)] = np.inf
        self._spare()
        for unit in guests:
            for member in trial.units.members[unit]:
                placing.barred[trial.position(member)] = barred

    def _unit_prices(self, of_gpu: float, of_pod: float) -> Floats:
        """(U,) what it counts when a unit leaves; inf for those that may not."""
        units = self.trial.units
        movable = units.movable & (units.gpus > 0)
        mean = units.cost[movable].sum() / units.gpus[movable].sum() if movable.any() else 0.0
        mean = mean or 1.0
        price: Floats = units.cost + mean * (of_gpu * units.gpus + of_pod * units.size)
        return np.where(units.movable, price, np.inf)

    def _row_prices(self) -> Floats:
        """(N,) by chance, so that not always the same nodes are chosen."""
        finite = self._prices.of_unit[np.isfinite(self._prices.of_unit)]
        scale = float(finite.mean()) * float(self._rng.choice([0.0, 0.2, 1.0])) if finite.size else 0.0
        noise: Floats = self._rng.random(len(self.trial.closed)) * scale
        return noise

    def _by_chance(self) -> Prices:
        weights = self._rng.choice([0.0, 0.3, 1.0, 5.0], 2)
        price = self._unit_prices(float(weights[0]), float(weights[1])) * self._rng.uniform(
            0.3, 3.0, len(self.trial.units.size)
        )
        return Prices(price, self._row_prices())

    def _barred_by_chance(self) -> dict[int, Mask]:
        return {position: self._rng.random(len(self.trial.closed)) < 0.2 for position in range(self.trial.num_target)}
