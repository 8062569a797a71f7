"""Lower bound on the cost of moves: ends a search that has reached it, and shows how far a result is from it."""

import numpy as np

from extender.core.clusters import Floats, Longs, Mask
from extender.planning.moves.evictions import MOST_LISTED, Prices, cheapest_at, counts_whole, cover_costs, least_prices
from extender.planning.moves.obstacles import may_be_emptied
from extender.planning.moves.trials import MoveTrial
from extender.planning.plan_state import free_units
from extender.planning.plan_state import units as gpu_units


def least_cost(trial: MoveTrial) -> float:
    """GPU-seconds that moves lose at least for the target to fit; inf if none can make it fit.

    On `trial` only the forced units are away. The bound ignores where moved pods go. The cost of a unit on several
    nodes is split equally among them, since its eviction helps all.
    """
    forced = trial.cost[0]
    return forced + max(_of_rows(trial), _of_gpus(trial), _of_emptied(trial))


def _shares(trial: MoveTrial) -> Floats:
    """(U,) the share of a unit's cost counted on each of its nodes; inf for units that stay."""
    units = trial.units
    num_rows = np.bincount(units.part_unit, minlength=len(units.members))
    cost: Floats = units.cost / np.maximum(num_rows, 1)
    if len(trial.problem.target.pods) + trial.problem.target.num_empty == 1:
        cost = units.cost
    return np.where(units.movable, cost, np.inf)


def _of_rows(trial: MoveTrial) -> float:
    """Bound by pods no two of which fit one node: the sum of the cheapest such nodes."""
    target = trial.problem.target
    prices = Prices(_shares(trial))
    alone = [position for position in range(trial.num_target) if target.apart or _fills_half(trial, position)]
    if not alone and trial.num_target:
        alone = [max(range(trial.num_target), key=lambda position: trial.pods[position].num_gpus)]
    if not alone:
        return 0.0
    smallest = np.full(len(trial.closed), np.inf)
    for position in {trial.state.view.alike(trial.pods[position]): position for position in alone}.values():
        smallest = np.minimum(smallest, _of_pod(trial, position, prices))
    return float(np.sort(smallest)[: len(alone)].sum())


def _fills_half(trial: MoveTrial, position: int) -> bool:
    pod = trial.pods[position]
    return counts_whole(pod.gpus) and 2 * pod.num_gpus > int(gpu_units(trial.state.cluster).max(initial=0))


def _of_pod(trial: MoveTrial, position: int, prices: Prices) -> Floats:
    """(N,) lowest cost of making room for a pod on each node."""
    costs = least_prices(trial, position, prices)
    costs[trial.closed] = np.inf
    if not counts_whole(trial.pods[position].gpus):
        return costs
    for row in np.flatnonzero(np.isfinite(costs) & (costs > 0)).tolist():
        if len(trial.at_home(row)) <= MOST_LISTED:
            chosen = cheapest_at(trial, position, row, prices)
            costs[row] = np.inf if chosen is None else float(prices.of_unit[list(chosen)].sum())
    return costs


def _of_gpus(trial: MoveTrial) -> float:
    """Bound by all pods of whole GPUs together: the cheapest way to free that many GPUs anywhere."""
    pods = [pod for pod in trial.problem.target.pods if counts_whole(pod.gpus)]
    may: Mask = np.zeros(len(trial.closed), np.bool_)
    for kind in {pod.kind for pod in pods}:
        may |= trial.state.view.allowed[kind]
    may &= ~trial.closed
    free: Longs = np.where(may, free_units(trial.state.cluster), 0)
    missing = sum(pod.num_gpus for pod in pods) - int(free.sum())
    if missing <= 0:
        return 0.0
    units, share = trial.units, _shares(trial)
    parts = may[units.part_row] & np.isfinite(share[units.part_unit])
    parts &= ~np.isin(units.part_unit, list(trial.away))
    gpus, price = units.part_gpus[parts], share[units.part_unit[parts]]
    return float(cover_costs(np.array([missing]), np.zeros(len(gpus), np.intp), gpus, price)[0])


def _of_emptied(trial: MoveTrial) -> float:
    """Bound by `Target.num_empty`: the sum of the cheapest nodes to empty."""
    num = trial.problem.target.num_empty
    share = _shares(trial)
    rows = np.flatnonzero(may_be_emptied(trial)).tolist()
    costs = sorted(float(share[list(trial.at_home(row))].sum()) for row in rows)
    return sum(costs[:num]) if len(costs) >= num else float("inf")
