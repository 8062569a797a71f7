"""The moves that cost least, by greedy construction and local search."""

from collections.abc import Callable

from extender.planning.moves.problems import MovePlan, Problem


def _never() -> bool:
    return False


def plan_moves(problem: Problem, seed: int = 0, expired: Callable[[], bool] = _never) -> MovePlan:
    """The cheapest moves found after which the target fits and every moved pod has a place.

    Cost in GPU-seconds counts first, then the number of pods moved, then the rank of the places. `expired` tells
    when to stop searching: what was found until then is returned. Equal problems and seeds give equal plans as long
    as it says no. Raises ValueError for a problem that contradicts itself.
    """
    raise NotImplementedError
