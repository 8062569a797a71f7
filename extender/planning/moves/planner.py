"""Finds the cheapest moves by greedy construction and local search."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from extender.core.policies.policy import Policy
from extender.core.policies.tightest import tightest
from extender.planning.moves.obstacles import in_the_way
from extender.planning.moves.problems import MovePlan, Problem
from extender.planning.moves.search import searched
from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import forced, units_of


def _never() -> bool:
    return False


def plan_moves(problem: Problem, seed: int = 0, expired: Callable[[], bool] = _never) -> MovePlan:
    """The cheapest moves found after which the target fits and every moved pod has a node.

    Compares cost in GPU-seconds, then the number of pods moved, then the nodes' scores. Once `expired` returns True the
    search returns the best plan so far; until then plans are deterministic by problem and seed. Raises ValueError for
    an inconsistent problem.
    """
    units = units_of(problem)
    trial = MoveTrial(problem, units, _plain(problem.view.policies))
    proof = MoveTrial(problem, units)
    if why := in_the_way(problem, units):
        return MovePlan(problem.view.cluster.version, False, impossible=tuple(why))
    trial.close(problem.target.empty)
    for unit in forced(problem, units):
        trial.evict(unit)
    return searched(trial, proof, seed, expired)


def _plain(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """The same policies with the cheapest score: a search needs thousands of scores that decide little."""
    return {
        name: replace(
            policy,
            score=tightest,
            share=None,
            context=None,
            terms=None,
            breakdown=None,
            weighs_cpu=False,
            weighs_memory=False,
            by_state=True,
        )
        for name, policy in policies.items()
    }
