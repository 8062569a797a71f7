"""Finds the cheapest evictions after which a pod fits a node, and the node where they are cheapest.

Lower bounds on the price count GPUs by number only, and units fractionally, without regard to where they go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.moves.trials import MoveTrial
from extender.planning.plan_state import free_units


def cover_costs(need: Longs, row: Rows, gpus: Longs, price: Floats) -> Floats:
    """(N,) least price of freeing `need` (N,) GPUs on each row; inf if there are too few, 0 if none are needed.

    `row`, `gpus` and `price` (E,) describe what can leave; parts of it count proportionally.
    """
    holds = gpus > 0
    row, gpus, price = row[holds], gpus[holds], price[holds]
    order = np.lexsort((price / gpus, row))
    row, gpus, price = row[order], gpus[order].astype(np.float64), price[order]
    starts = np.searchsorted(row, np.arange(len(need)))
    before = np.concatenate([[0.0], np.cumsum(gpus)])
    freed_before = before[:-1] - before[starts[row]]  # (E,) by cheaper ones on the row
    taken = np.clip(need[row] - freed_before, 0.0, gpus)
    costs = np.bincount(row, taken / gpus * price, len(need))
    enough = np.bincount(row, gpus, len(need)) >= need
    result: Floats = np.where(need <= 0, 0.0, np.where(enough, costs, np.inf))
    return result


MOST_LISTED: Final = 10
"""Most units on a node for which all subsets are enumerated."""
_MAX_TRIED: Final = 16
"""Most subsets tried, the cheapest first, of those that suffice by numbers; then units are spared one by one."""


class Eviction(NamedTuple):
    """Units to evict from a node so that a pod fits there; the smallest tuple is the best."""

    price: float
    num_pods: int
    tie: int
    row: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of evictions."""

    of_unit: Floats
    """(U,) price of evicting a unit, inf if it may not leave."""
    of_row: Floats | None = None
    """(N,) extra price of using a row."""
    known: dict[tuple[object, ...], tuple[int, ...] | None] = field(default_factory=dict)
    """Cache of the cheapest evictions, by pod, row and the pods there."""


def cheapest(trial: MoveTrial, position: int, allowed: Mask, prices: Prices) -> Eviction | None:
    """The cheapest eviction that makes room for a pod on a node of `allowed` (N,); None without one within `max_moves`.

    Nodes are examined in order of their lower bound, until no other can be cheaper.
    """
    least = least_prices(trial, position, prices)
    if prices.of_row is not None:
        least = least + prices.of_row
    rows = np.flatnonzero(allowed & ~trial.closed & np.isfinite(least))
    rows = rows[np.argsort(least[rows], kind="stable")]
    best: Eviction | None = None
    for row in rows.tolist():
        if best is not None and least[row] > best.price:
            break
        units = cheapest_at(trial, position, row, prices)
        if units is None:
            continue
        eviction = _priced(trial, row, units, prices)
        if trial.problem.max_moves is not None and trial.num_away + eviction.num_pods > trial.problem.max_moves:
            continue
        if best is None or eviction < best:
            best = eviction
    return best


def cheapest_at(trial: MoveTrial, position: int, row: int, prices: Prices) -> tuple[int, ...] | None:
    """The cheapest units to evict from one node for a pod; () if it fits already, None if nothing helps."""
    state = trial.state
    key = (*state.view.alike(trial.pods[position]), row, trial.marks[row], state.neighbours_version)
    if key in prices.known:
        return prices.known[key]
    units = prices.known[key] = _search(trial, position, row, prices)
    return units


def counts_whole(request: GpuRequest | None) -> bool:
    """Whether a pod requests exclusive GPUs by number, so that counting tells how many it misses."""
    if request is None or request.milli or request.shares_by_memory or request.devices is not None:
        return False
    return request.count > 0 and request.unit in (AskedUnit.GPU, AskedUnit.WHOLE, AskedUnit.PART)


def _priced(trial: MoveTrial, row: int, units: tuple[int, ...], prices: Prices) -> Eviction:
    chosen = list(units)
    price = float(prices.of_unit[chosen].sum()) + (0.0 if prices.of_row is None else float(prices.of_row[row]))
    num_pods = int(trial.units.size[chosen].sum())
    return Eviction(price, num_pods, int(trial.state.cluster.tie_rank[row]), row, units)


def least_prices(trial: MoveTrial, position: int, prices: Prices) -> Floats:
    """(N,) lower bound on the price of room for a pod on each row; inf where it never fits."""
    units, pod = trial.units, trial.pods[position]
    present = np.ones(len(units.members), np.bool_)
    present[list(trial.away)] = False
    present &= np.isfinite(prices.of_unit)
    parts = present[units.part_unit]
    row, price = units.part_row[parts], prices.of_unit[units.part_unit[parts]]
    view = trial.state.view
    may = view.fits_empty(pod)
    fits = trial.state.fits(position)
    # At least one unit has to leave.
    cheapest_one = np.full(view.num_nodes, np.inf)
    np.minimum.at(cheapest_one, row, price)
    least: Floats = np.where(fits, 0.0, cheapest_one)
    if counts_whole(pod.gpus):
        need: Longs = np.maximum(pod.num_gpus - free_units(trial.state.cluster), 0)
        by_gpus = cover_costs(need, row, units.part_gpus[parts], price)
        least = np.where(fits, 0.0, np.maximum(least, by_gpus))
    least[~may] = np.inf
    return least


def _search(trial: MoveTrial, position: int, row: int, prices: Prices) -> tuple[int, ...] | None:
    if trial.state.has_room(position, row):
        return ()
    candidates = [unit for unit in trial.at_home(row) if np.isfinite(prices.of_unit[unit])]
    candidates.sort(key=lambda unit: (prices.of_unit[unit], trial.units.size[unit], unit))
    if not candidates or not _fits_without(trial, position, row, candidates):
        return None
    if len(candidates) <= MOST_LISTED:
        for chosen in _choices(trial, position, row, candidates, prices):
            if _fits_without(trial, position, row, chosen):
                return tuple(chosen)
    return _spared(trial, position, row, candidates, prices)


def _fits_without(trial: MoveTrial, position: int, row: int, units: Sequence[int]) -> bool:
    """Whether a pod fits on a row once some units have left."""
    state, at = trial.state, trial.units.at[row]
    begun = state.num_steps
    for unit in units:
        for member in at[unit]:
            state.take(trial.position(member))
    fits = state.has_room(position, row)
    state.undo(begun)
    return fits


def _choices(trial: MoveTrial, position: int, row: int, candidates: list[int], prices: Prices) -> list[list[int]]:
    """The cheapest subsets of the units that suffice by numbers, in order; ties break by number of pods."""
    pod, state, units = trial.pods[position], trial.state, trial.units
    freed = np.array([_freed(trial, row, unit) for unit in candidates])  # (C, 4)
    cluster = state.cluster
    need = [
        (pod.num_gpus if counts_whole(pod.gpus) else 0) - int(free_units(cluster)[row]),
        pod.cpu_milli - int(cluster.cpu_free_milli[row]),
        pod.memory_mib - int(cluster.memory_free_mib[row]),
        1 - state.slots_free(row),
    ]
    subsets = _subsets(len(candidates))  # (S, C)
    enough = (subsets @ freed >= need).all(axis=1)
    subsets = subsets[enough]
    price = subsets @ prices.of_unit[candidates]
    num_pods = subsets @ units.size[candidates]
    order = np.lexsort((num_pods, price))[:_MAX_TRIED]
    return [[candidates[member] for member in np.flatnonzero(subset).tolist()] for subset in subsets[order]]


@lru_cache(maxsize=MOST_LISTED)
def _subsets(num: int) -> Longs:
    """(2^num - 1, num) all non-empty subsets of `num` items."""
    return (np.arange(1, 2**num)[:, None] >> np.arange(num)) & 1


def _freed(trial: MoveTrial, row: int, unit: int) -> tuple[int, int, int, int]:
    """GPUs, CPU, memory and pods that a unit frees on a row; a share counts as a whole GPU."""
    booked = [trial.home[member][1] for member in trial.units.at[row][unit]]
    gpus = sum(len(booking.all_gpus) + booking.unknown for booking in booked)
    cpu_milli = sum(booking.cpu_milli for booking in booked)
    return gpus, cpu_milli, sum(booking.memory_mib for booking in booked), len(booked)


def _spared(trial: MoveTrial, position: int, row: int, candidates: list[int], prices: Prices) -> tuple[int, ...]:
    """A minimal subset of units that make room together, found by sparing units one by one in two orders."""
    units = trial.units
    per_gpu = {unit: prices.of_unit[unit] / max(_freed(trial, row, unit)[0], 1) for unit in candidates}

    def spare(order: list[int]) -> list[int]:
        leaving = list(candidates)
        for unit in order:
            fewer = [other for other in leaving if other != unit]
            if fewer and _fits_without(trial, position, row, fewer):
                leaving = fewer
        return leaving

    most_expensive = sorted(candidates, key=lambda unit: (-prices.of_unit[unit], -units.size[unit], unit))
    dearest_per_gpu = sorted(candidates, key=lambda unit: (-per_gpu[unit], -units.size[unit], unit))
    subsets = [spare(most_expensive), spare(dearest_per_gpu)]
    return min(_priced(trial, row, tuple(subset), prices) for subset in subsets).units
