"""Local search: removes parts of a set of moves and rebuilds them in another way, keeping improvements."""

from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Mask
from extender.planning.moves.constructions import Construction, Expired
from extender.planning.moves.evictions import Prices
from extender.planning.moves.lower_bounds import least_cost
from extender.planning.moves.placements import Placing, rows_of_target
from extender.planning.moves.problems import MovePlan
from extender.planning.moves.steps import Solution, by_rank, in_steps, proved
from extender.planning.moves.trials import MoveTrial
from extender.planning.plans import units_of

_ROUNDS: Final = 600
_ROUNDS_WITHOUT_GAIN: Final = 200
_ROUNDS_AT_LEAST_COST: Final = 20
_MAX_ROWS_REMOVED: Final = 3
_SLACK: Final = 0.03
"""The search continues from solutions that cost up to this fraction more than the best; shrinks without gains."""


def searched(trial: MoveTrial, proof: MoveTrial, seed: int, expired: Expired) -> MovePlan:
    """The cheapest plan found on `trial`, or one with reasons why there is none.

    Moves are verified on `proof`, where nodes are scored as in a live decision.
    """
    rng = np.random.default_rng(seed)
    construction = Construction(trial, proof, rng, expired)
    least = least_cost(trial)
    begun = construction.best()
    if begun is None:
        version = trial.problem.view.cluster.version
        return MovePlan(version, False, impossible=tuple(construction.why_none()))
    best, prices = begun
    best = _Search(construction, proof, rng, prices, expired).improved(best, least)
    ranked = in_steps(proof, by_rank(proof, best.assignment))
    return best.plan if ranked is None else ranked


class _Search:
    """Rounds of removing and rebuilding moves."""

    def __init__(
        self, construction: Construction, proof: MoveTrial, rng: np.random.Generator, learned: Prices, expired: Expired
    ) -> None:
        self._construction = construction
        self._trial = construction.trial
        self._proof = proof
        self._rng = rng
        self._expired = expired
        self._prices = (learned, Prices(construction.unit_prices()))

    def improved(self, best: Solution, least: float) -> Solution:
        """The best after all rounds. Stops earlier without gains, and soon after reaching the lower bound `least`."""
        trial = self._trial
        last_gain = 0
        for number in range(_ROUNDS):
            patience = _ROUNDS_AT_LEAST_COST if best.cost[0] <= least * (1 + 1e-9) else _ROUNDS_WITHOUT_GAIN
            if not best.cost[1] or number - last_gain > patience or self._expired():
                break
            begun = trial.mark()
            prices = self._prices[int(self._rng.integers(len(self._prices)))]
            placing = Placing(trial, replace(prices, of_row=self._construction.row_prices(prices.of_unit)))
            self._remove(placing)
            if placing.complete():
                if trial.cost < best.cost and (better := proved(trial, self._proof)) is not None:
                    best, last_gain = better, number
                    continue
                slack = _SLACK * best.cost[0] * max(1 - (number - last_gain) / _ROUNDS_WITHOUT_GAIN, 0.0)
                if best.cost <= trial.cost <= (best.cost[0] + slack, best.cost[1] + 2):
                    continue
            trial.rollback(begun)
        return best

    def _remove(self, placing: Placing) -> None:
        """Remove target and moved pods from some nodes, reopen emptied ones, and return units home where possible."""
        trial, rng = self._trial, self._rng
        opened = [row for row in np.flatnonzero(trial.closed).tolist() if row not in trial.problem.target.empty]
        rows = self._chosen_rows(opened)
        guests = [
            unit
            for unit in trial.away
            if any(trial.row(trial.position(member)) in rows for member in trial.units.members[unit])
        ]
        for unit in guests:
            for member in trial.units.members[unit]:
                trial.take(trial.position(member))
        barred: Mask = np.zeros(len(trial.closed), np.bool_)
        barred[sorted(rows)] = True
        keep_off = rng.random() < 0.6
        for of_gang in units_of(trial.problem.target.pods):
            taken = [position for position in of_gang if trial.row(position) in rows]
            if taken and trial.pods[of_gang[0]].topology and rng.random() < 0.5:
                taken = of_gang  # else it stays in its domain
            for position in taken:
                trial.take(position)
                if keep_off:
                    placing.barred[position] = barred
        trial.open([row for row in opened if row in rows])
        if keep_off and placing.prices.of_row is not None:
            placing.prices.of_row[sorted(rows)] = np.inf
        placing.spare()
        for unit in guests:
            for member in trial.units.members[unit]:
                placing.barred[trial.position(member)] = barred

    def _chosen_rows(self, opened: list[int]) -> set[int]:
        """Rows to remove from: homes of moved pods, the target's rows and emptied ones."""
        trial, rng = self._trial, self._rng
        homes = sorted({trial.home[member][0] for unit in trial.away for member in trial.units.members[unit]})
        of_target = [*sorted(rows_of_target(trial)), *opened]
        rows: set[int] = set()
        if homes and (not of_target or rng.random() < 0.5):
            rows.add(int(rng.choice(homes)))
        if of_target and (not rows or rng.random() < 0.5):
            num = int(rng.integers(1, min(len(of_target), _MAX_ROWS_REMOVED) + 1))
            rows.update(int(row) for row in rng.choice(of_target, num, replace=False))
        return rows
