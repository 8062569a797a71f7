"""Policies for partitions of GPUs compared on the same requests: how many are placed, and how many GPUs all need."""

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
"""What Kerf is compared with."""
_LESS_IS_BETTER: Final = ("gpus_staying", "gpus_leaving")
_OVERFULL: Final = 1.5
"""GPUs that requests ask for who stay, by GPUs there are: enough for the first refusal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated."""

    kinds: tuple[str, ...] = tuple(GPUS)
    mixes: tuple[str, ...] = partition_mixes.names()
    num_gpus: int = 64
    loads: tuple[float, ...] = (0.9, 1.0)
    """Work of those that leave, by GPUs there are."""
    num_leaving: int = 800
    """How many come and leave at each of these loads. The first third is not counted."""


def run(seeds: Sequence[int], plan: Plan, weights: Weights, jobs: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Figures by kind of GPU, mix, seed and policy, and how much better Kerf does, as JSON data."""
    tasks = {
        f"{kind}, {mix}, seed {seed}": partial(_figures, kind, mix, seed, plan, weights)
        for kind in plan.kinds
        for mix in plan.mixes
        for seed in seeds
    }
    with side_by_side(jobs, tell) as run_all:
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
    """By policy and measure: `bound` is what no policy passes, where that is known.

    Shares in percent; the load at the first refusal in percent of the GPUs; GPUs as a number.
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
    """One for all seeds: most of the time goes into the first looks at a GPU."""
    return Memory(GPUS[kind], policy)


def _share(memory: Memory, num_gpus: int, requests: Requests) -> float:
    placed = partitions.placed(memory, num_gpus, requests)
    return 100 * float(np.mean(placed[len(placed) // 3 :]))


def _better(cells: Sequence[Sequence[Mapping[str, Mapping[str, float]]]]) -> dict[str, dict[str, dict[str, float]]]:
    """By policy and measure: how much better Kerf does, in percent of the other's figure, paired by seed.

    `cells` are figures by cell and seed; of each seed the mean over cells counts. `at_most` is what nobody passes.
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
    """GPUs without which nobody serves all requests: a configuration LP at the time of most, rounded up.

    Its duals price the profiles; the dearest moment at these prices bounds what is needed, whatever moment they are of.
    """
    found = _cuts(kind)
    counts = _counts(requests, found.shape[1])
    share = np.array([profile.share for profile in GPUS[kind].profiles])
    fullest = counts[int(np.argmax(counts @ share))]
    solved = linprog(np.ones(len(found)), A_ub=-found.T, b_ub=-fullest, method="highs")
    prices = np.maximum(-solved.ineqlin.marginals, 0)
    return float(np.ceil(float((counts @ prices).max()) - 1e-6))


def _counts(requests: Requests, num_profiles: int) -> Floats:
    """(T, K) partitions of each profile that are there at once, after each coming and going."""
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
    """(C, K) how many partitions of each profile one GPU can have at once: all ways that leave no room for more."""
    of_gpu = inventory(GPUS[kind], 1)
    names = [profile.name for profile in GPUS[kind].profiles]
    # A whole GPU is what its largest profile is.
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
