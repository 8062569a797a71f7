"""Comparison of policies for GPU partitions on the same requests: partitions placed, and GPUs needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

import numpy as np
from scipy.optimize import linprog

from extender.core.clusters import Floats
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.packing import Weights
from model.evaluation.reports import interval
from model.simulations import partitions
from model.simulations.partitions import KERF, Memory, Policy
from model.simulations.side_by_side import side_by_side
from model.workloads import partition_mixes
from model.workloads.nvidia import DRIVER, GPUS, inventory
from model.workloads.partition_mixes import Requests

_POLICIES: Final = (partitions.FIRST_FIT, partitions.KUBE_SCHEDULER, partitions.BEST_FIT)
"""Baselines."""
_LESS_IS_BETTER: Final = ("gpus_staying", "gpus_leaving")
_OVERFULL: Final = 1.5
"""GPUs requested without departures, relative to capacity: enough for a first refusal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the comparison."""

    kinds: tuple[str, ...] = tuple(GPUS)
    mixes: tuple[str, ...] = partition_mixes.names()
    num_gpus: int = 64
    loads: tuple[float, ...] = (0.9, 1.0)
    """Offered loads with departures, relative to capacity."""
    num_leaving: int = 800
    """Arrivals at each load. The first third is warm-up."""


def run(
    seeds: Sequence[int], plan: Plan, weights: Weights, jobs: int, on_step: Callable[[str], None]
) -> dict[str, Any]:
    """Return the results by kind of GPU, mix, seed and policy, and Kerf's gains, as JSON data."""
    tasks = {
        f"{kind}, {mix}, seed {seed}": partial(_figures, kind, mix, seed, plan, weights)
        for kind in plan.kinds
        for mix in plan.mixes
        for seed in seeds
    }
    with side_by_side(jobs, on_step) as run_all:
        found = run_all(tasks)
    cells = {
        (kind, mix): [found[f"{kind}, {mix}, seed {seed}"] for seed in seeds]
        for kind in plan.kinds
        for mix in plan.mixes
    }
    return {
        **{"plan": asdict(plan), "seeds": list(seeds), "weights": asdict(weights)},
        "better": {"all": _better(list(cells.values()))}
        | {f"{kind}, {mix}": _better([rows]) for (kind, mix), rows in cells.items()},
        "cells": {f"{kind}, {mix}": rows for (kind, mix), rows in cells.items()},
    }


def _figures(kind: str, mix: str, seed: int, plan: Plan, weights: Weights) -> dict[str, dict[str, float]]:
    """Return results by policy and measure; `bound` has bounds for any policy, where known.

    Shares are in percent, the load at the first refusal in percent of the GPUs, and GPUs a number.
    """
    gpus, num = GPUS[kind], plan.num_gpus
    staying = partition_mixes.staying(gpus, mix, num, _OVERFULL, seed)
    full = partition_mixes.staying(gpus, mix, num, 1.0, seed)
    leaving = {load: partition_mixes.leaving(gpus, mix, num, load, seed, plan.num_leaving) for load in plan.loads}
    last = leaving[plan.loads[-1]]
    found = {"bound": {"gpus_staying": _gpus_bound(kind, full), "gpus_leaving": _gpus_bound(kind, last)}}
    for policy in (*_POLICIES, _kerf(tuple(sorted(weights.by_kind.items())), weights.default)):
        memory = _memory(kind, policy)
        first = len(partitions.placed(memory, num, staying, until_refused=True))
        found[policy.name] = {
            "first_refusal": 100 * float(staying.share[: first - 1].sum()) / num,
            "gpus_staying": float(partitions.gpus_needed(memory, full)),
            **{f"placed_at_{load:g}": _share(memory, num, requests) for load, requests in leaving.items()},
            "gpus_leaving": float(partitions.gpus_needed(memory, last)),
        }
    return found


@cache
def _kerf(by_kind: tuple[tuple[str, float], ...], default: float) -> Policy:
    return partitions.kerf(Weights(dict(by_kind), default))


@cache
def _memory(kind: str, policy: Policy) -> Memory:
    """Cache for all seeds: most of the time is spent on states seen for the first time."""
    return Memory(GPUS[kind], policy)


def _share(memory: Memory, num_gpus: int, requests: Requests) -> float:
    placed = partitions.placed(memory, num_gpus, requests)
    return 100 * float(np.mean(placed[len(placed) // 3 :]))


def _better(cells: Sequence[Sequence[Mapping[str, Mapping[str, float]]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return Kerf's gains by policy and measure, in percent of the other's result, paired by seed.

    `cells` are results by cell and seed, averaged over cells for each seed. `at_most` is the upper bound of any gain.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for other in cells[0][0]:
        if other in {KERF, "bound"}:
            continue
        found[other] = {}
        for measure in cells[0][0][other]:
            sign = -1 if measure in _LESS_IS_BETTER else 1
            gains = [
                float(np.mean([sign * 100 * (cell[KERF][measure] / cell[other][measure] - 1) for cell in of_seed]))
                for of_seed in zip(*cells, strict=True)
            ]
            mean = interval(gains)
            found[other][measure] = {"mean": round(mean.mean, 3), "half_width": round(mean.half_width or 0.0, 3)}
            if measure in _LESS_IS_BETTER:
                ratios = [row["bound"][measure] / row[other][measure] for cell in cells for row in cell]
                found[other][measure]["at_most"] = round(100 * (1 - float(np.mean(ratios))), 3)
    return found


def _gpus_bound(kind: str, requests: Requests) -> float:
    """Return a lower bound of the GPUs that any policy needs: a configuration LP at the peak, rounded up.

    Its duals price the profiles; the most expensive moment at these prices is a valid bound.
    """
    cuts = _cuts(kind)
    counts = _counts(requests, cuts.shape[1])
    share = np.array([profile.share for profile in GPUS[kind].profiles])
    fullest = counts[int(np.argmax(counts @ share))]
    solved = linprog(np.ones(len(cuts)), A_ub=-cuts.T, b_ub=-fullest, method="highs")
    prices = np.maximum(-solved.ineqlin.marginals, 0)
    return float(np.ceil(float((counts @ prices).max()) - 1e-6))


def _counts(requests: Requests, num_profiles: int) -> Floats:
    """(T, K) number of partitions of each profile after each arrival and departure."""
    leaving = np.isfinite(requests.duration)
    times = np.concatenate([requests.arrived, (requests.arrived + requests.duration)[leaving]])
    profiles = np.concatenate([requests.profiles, requests.profiles[leaving]])
    step = np.concatenate([np.ones(len(requests.profiles)), -np.ones(int(leaving.sum()))])
    order = np.lexsort((step, times))
    changes = np.zeros((len(times), num_profiles))
    changes[np.arange(len(times)), profiles[order]] = step[order]
    return np.cumsum(changes, axis=0)


@lru_cache(maxsize=8)
def _cuts(kind: str) -> Floats:
    """(C, K) numbers of partitions of each profile in all maximal configurations of one GPU."""
    of_gpu = inventory(GPUS[kind], 1)
    names = [profile.name for profile in GPUS[kind].profiles]
    # A whole GPU counts as its largest profile.
    profile_of = [names.index(str(item.attributes.get(f"{DRIVER}/profile", names[-1]))) for item in of_gpu.devices]
    found: set[tuple[int, ...]] = set()
    seen: set[int] = set()
    stack = [NodeDevices.of(of_gpu)]
    while stack:
        state = stack.pop()
        if state.taken in seen:
            continue
        seen.add(state.taken)
        more = [
            index
            for index, device in enumerate(of_gpu.devices)
            if not state.taken >> index & 1
            and all(state.left[counter] >= amount for counter, amount in device.consumes)
        ]
        stack += [state.taking([Taking(index)]) for index in more]
        if not more:
            taken = [profile_of[index] for index in range(len(of_gpu.devices)) if state.taken >> index & 1]
            found.add(tuple(np.bincount(taken, minlength=len(names)).tolist()))
    return np.array(sorted(found), float)
