"""Whose leaving makes a pod fit on a node, at the least price; and on which node that is cheapest.

What making room costs at least: units in part, GPUs as mere numbers, no thought of where anybody goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.moves.trials import Trial
from extender.planning.plan_state import free_units


def cover_costs(need: Longs, row: Rows, gpus: Longs, price: Floats) -> Floats:
    """(N,) the least that it costs to free so many GPUs on each row, parts of units in proportion; inf where all
    together are too few, 0 where nothing is needed.

    `need` (N,); `row`, `gpus` and `price` (E,) of what can leave.
    """
    holds = gpus > 0
    row, gpus, price = row[holds], gpus[holds], price[holds]
    order = np.lexsort((price / gpus, row))
    row, gpus, price = row[order], gpus[order].astype(np.float64), price[order]
    starts = np.searchsorted(row, np.arange(len(need)))
    before = np.concatenate([[0.0], np.cumsum(gpus)])
    freed_before = before[:-1] - before[starts[row]]  # (E,) by what is cheaper on the row
    taken = np.clip(need[row] - freed_before, 0.0, gpus)
    costs = np.bincount(row, taken / gpus * price, len(need))
    enough = np.bincount(row, gpus, len(need)) >= need
    found: Floats = np.where(need <= 0, 0.0, np.where(enough, costs, np.inf))
    return found


MOST_LISTED: Final = 10
"""Up to so many units of a node all choices are looked at."""
_MOST_TRIED: Final = 16
"""So many choices that could do by numbers are tried, the cheapest first; then units are spared one by one."""


class Eviction(NamedTuple):
    """Units that leave a node, so that a pod fits there. The smaller, the better."""

    price: float
    num_pods: int
    tie: int
    row: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """What it counts when a unit leaves, and who may not."""

    of_unit: Floats
    """(U,) inf for those that may not leave."""
    of_row: Floats | None = None
    """(N,) what it counts besides to use a row."""
    known: dict[tuple[object, ...], tuple[int, ...] | None] = field(default_factory=dict)
    """Cheapest choices by pod, row and who is there."""


def cheapest(trial: Trial, position: int, allowed: Mask, prices: Prices) -> Eviction | None:
    """The node on which room for a pod costs least, of the allowed ones (N,); None where it costs too much everywhere.

    What it costs at least, by GPUs alone, orders the nodes; they are looked at until no other can be cheaper.
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
        found = _priced(trial, row, units, prices)
        if trial.problem.max_moves is not None and trial.num_away + found.num_pods > trial.problem.max_moves:
            continue
        if best is None or found < best:
            best = found
    return best


def cheapest_at(trial: Trial, position: int, row: int, prices: Prices) -> tuple[int, ...] | None:
    """The units that leave one node for a pod at the least price; () where it fits, None where nothing helps."""
    state = trial.state
    key = (*state.view.alike(trial.pods[position]), row, trial.marks[row], state.neighbours_version)
    if key in prices.known:
        return prices.known[key]
    found = prices.known[key] = _search(trial, position, row, prices)
    return found


def counts_whole(request: GpuRequest | None) -> bool:
    """Whether a pod asks for a number of GPUs of which it gets each alone, so that mere numbers tell what it misses."""
    if request is None or request.milli or request.shares_by_memory or request.devices is not None:
        return False
    return request.count > 0 and request.unit in (AskedUnit.GPU, AskedUnit.WHOLE, AskedUnit.PART)


def _priced(trial: Trial, row: int, units: tuple[int, ...], prices: Prices) -> Eviction:
    chosen = list(units)
    price = float(prices.of_unit[chosen].sum()) + (0.0 if prices.of_row is None else float(prices.of_row[row]))
    num_pods = int(trial.units.size[chosen].sum())
    return Eviction(price, num_pods, int(trial.state.cluster.tie_rank[row]), row, units)


def least_prices(trial: Trial, position: int, prices: Prices) -> Floats:
    """(N,) what room for a pod costs at least on each row; inf where it never fits."""
    units, pod = trial.units, trial.pods[position]
    present = np.ones(len(units.members), np.bool_)
    present[list(trial.away)] = False
    present &= np.isfinite(prices.of_unit)
    parts = present[units.part_unit]
    row, price = units.part_row[parts], prices.of_unit[units.part_unit[parts]]
    view = trial.state.view
    may = view.could_run(pod)
    fits = trial.state.fits(position)
    # Somebody has to leave at least.
    cheapest_one = np.full(view.num_nodes, np.inf)
    np.minimum.at(cheapest_one, row, price)
    least: Floats = np.where(fits, 0.0, cheapest_one)
    if counts_whole(pod.gpus):
        need: Longs = np.maximum(pod.num_gpus - free_units(trial.state.cluster), 0)
        by_gpus = cover_costs(need, row, units.part_gpus[parts], price)
        least = np.where(fits, 0.0, np.maximum(least, by_gpus))
    least[~may] = np.inf
    return least


def _search(trial: Trial, position: int, row: int, prices: Prices) -> tuple[int, ...] | None:
    if trial.state.has_room(position, row):
        return ()
    here = [unit for unit in trial.at_home(row) if np.isfinite(prices.of_unit[unit])]
    here.sort(key=lambda unit: (prices.of_unit[unit], trial.units.size[unit], unit))
    if not here or not _fits_without(trial, position, row, here):
        return None
    if len(here) <= MOST_LISTED:
        for chosen in _choices(trial, position, row, here, prices)[:_MOST_TRIED]:
            if _fits_without(trial, position, row, chosen):
                return tuple(chosen)
    return _spared(trial, position, row, here, prices)


def _fits_without(trial: Trial, position: int, row: int, units: Sequence[int]) -> bool:
    """Whether a pod fits on a row once some units have left."""
    state, at = trial.state, trial.units.at[row]
    begun = state.num_steps
    for unit in units:
        for member in at[unit]:
            state.take(trial.position(member))
    fits = state.has_room(position, row)
    state.undo(begun)
    return fits


def _choices(trial: Trial, position: int, row: int, here: list[int], prices: Prices) -> list[list[int]]:
    """Choices of those units that could do by numbers, the cheapest first; equal prices by the number of pods."""
    pod, state, units = trial.pods[position], trial.state, trial.units
    freed = np.array([_freed(trial, row, unit) for unit in here])  # (H, 4)
    cluster = state.cluster
    need = [
        (pod.num_gpus if counts_whole(pod.gpus) else 0) - int(free_units(cluster)[row]),
        pod.cpu_milli - int(cluster.cpu_free_milli[row]),
        pod.memory_mib - int(cluster.memory_free_mib[row]),
        1 - state.slots_free(row),
    ]
    subsets = _subsets(len(here))  # (S, H)
    enough = (subsets @ freed >= need).all(axis=1)
    subsets = subsets[enough]
    price = subsets @ prices.of_unit[here]
    num_pods = subsets @ units.size[here]
    order = np.lexsort((num_pods, price))[:_MOST_TRIED]
    return [[here[member] for member in np.flatnonzero(subset).tolist()] for subset in subsets[order]]


@lru_cache(maxsize=MOST_LISTED)
def _subsets(num: int) -> Longs:
    """(2^num - 1, num) all choices of some things but that of none."""
    return (np.arange(1, 2**num)[:, None] >> np.arange(num)) & 1


def _freed(trial: Trial, row: int, unit: int) -> tuple[int, int, int, int]:
    """GPUs, CPU, memory and pods that a unit gives back on a row, GPUs in part as whole ones."""
    booked = [trial.home[member][1] for member in trial.units.at[row][unit]]
    gpus = sum(len(one.all_gpus) + one.unknown for one in booked)
    return gpus, sum(one.cpu_milli for one in booked), sum(one.memory_mib for one in booked), len(booked)


def _spared(trial: Trial, position: int, row: int, here: list[int], prices: Prices) -> tuple[int, ...]:
    """Of units that make room together those that are needed: each is spared that can be, in two orders."""
    units = trial.units
    per_gpu = {unit: prices.of_unit[unit] / max(_freed(trial, row, unit)[0], 1) for unit in here}

    def spare(order: list[int]) -> list[int]:
        leaving = list(here)
        for unit in order:
            fewer = [other for other in leaving if other != unit]
            if fewer and _fits_without(trial, position, row, fewer):
                leaving = fewer
        return leaving

    dearest = sorted(here, key=lambda unit: (-prices.of_unit[unit], -units.size[unit], unit))
    least_gain = sorted(here, key=lambda unit: (-per_gpu[unit], -units.size[unit], unit))
    found = [spare(dearest), spare(least_gain)]
    return min(_priced(trial, row, tuple(chosen), prices) for chosen in found).units
