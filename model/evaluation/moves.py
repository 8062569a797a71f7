"""Paired comparison of simulations with and without moves, on the same jobs and cluster."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Mask
from extender.ranking import files
from model.evaluation.reports import interval
from model.simulations.baselines import POOL, Baseline, baseline
from model.simulations.delays import Run
from model.simulations.departures import PeriodicWorkload, periodic_workload, simulate_churn
from model.simulations.job_churn import job_churn, some_days
from model.simulations.learned import LEARNED
from model.simulations.making_room import MakingRoom
from model.simulations.online import Follower, Seen, Watch
from model.simulations.side_by_side import side_by_side
from model.workloads.jobs import JobList, read_jobs
from model.workloads.samples import some_nodes, some_pods
from model.workloads.traces import NodeList, PodList, pods_path, read_nodes, read_pods

OFF: Final = "off"
MOVES: Final = "moves"
CHECKPOINTS: Final = "checkpoints"
BOUND: Final = "pool"
"""Upper bound: all GPUs of a model are one pool, so that pods wait only if too few are free in total."""
VARIANTS: Final = (OFF, MOVES, CHECKPOINTS, BOUND)
_LARGE_GPUS: Final = 4
"""Least GPUs of a large job."""
_PAIRED: Final = {
    "useful_percent": 1, "large_delay_s": -1, "large_p95_s": -1, "delay_s": -1, "small_delay_s": -1, "gpu_jct_s": -1,
}  # fmt: skip
"""Compared measures, with the sign of an improvement."""
_DAY_S: Final = 86400.0


@dataclass(frozen=True)
class Plan:
    """Parameters of the comparison."""

    path: Path
    """File of jobs, or folder of traces in the layout of openb."""
    trace: str = ""
    """Name of the trace; "" for a file of jobs."""
    num_nodes: int = 64
    num_days: int = 7
    """Days drawn from a file of jobs."""
    pods_frac: float = 0.5
    """Fraction of a trace's pods."""
    policy: str = LEARNED
    order: str = "kerf"
    room: MakingRoom = field(default_factory=MakingRoom)
    checkpoint_s: float = 3600.0
    """Checkpoint interval of the variant with checkpoints."""
    variants: tuple[str, ...] = VARIANTS


def run(
    loads: Sequence[float], seeds: Sequence[int], plan: Plan, jobs: int, on_step: Callable[[str], None]
) -> dict[str, Any]:
    """Return the results by load, variant and seed, and the gains from moves, as JSON data.

    Raises TraceError, ValueError.
    """
    if unknown := set(plan.variants) - set(VARIANTS):
        raise ValueError(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    _offered_by(plan, loads[0], seeds[0])  # fail early on invalid files
    tasks = {
        _name(load, variant, seed): partial(_figures, plan, load, variant, seed)
        for load in loads
        for variant in plan.variants
        for seed in seeds
    }
    with side_by_side(jobs, on_step) as run_all:
        found = run_all(tasks)
    cells = {
        f"{load:g}": {variant: [found[_name(load, variant, seed)] for seed in seeds] for variant in plan.variants}
        for load in loads
    }
    plan_data = asdict(plan) | {"path": plan.path.name}
    plan_data["room"] = {name: value for name, value in plan_data["room"].items() if value != math.inf}
    return {
        "plan": plan_data,
        "seeds": list(seeds),
        "means": {load: {name: _means(rows) for name, rows in cell.items()} for load, cell in cells.items()},
        "better": {load: _better(cell) for load, cell in cells.items() if OFF in cell},
        "cells": cells,
    }


def _name(load: float, variant: str, seed: int) -> str:
    return f"load {load:g}, {variant}, seed {seed}"


def _figures(plan: Plan, load: float, variant: str, seed: int) -> dict[str, float]:
    """Return the measures of one run."""
    offered = _offered_by(plan, load, seed)
    room = None
    if variant in {MOVES, CHECKPOINTS}:
        room = plan.room if variant == MOVES else replace(plan.room, checkpoint_s=plan.checkpoint_s)
    policy = POOL if variant == BOUND else _policy(plan.policy, offered)
    return _measures(offered, simulate_churn(offered, policy, plan.order, seed, room=room))


def _offered_by(plan: Plan, load: float, seed: int) -> PeriodicWorkload:
    """Return the workload: the seed determines the jobs, also across variants and loads."""
    if not plan.trace:
        return job_churn(plan.path, some_days(_jobs(plan.path), plan.num_days, seed), plan.num_nodes, load, seed)
    nodes, pods = _trace(plan.path, plan.trace)
    rng = np.random.default_rng([seed, 4])
    nodes, pods = some_nodes(nodes, plan.num_nodes, rng), some_pods(pods, plan.pods_frac, rng)
    return periodic_workload(pods_path(plan.path, plan.trace), nodes, pods, load, seed)


@cache
def _jobs(path: Path) -> JobList:
    return read_jobs(path)


@cache
def _trace(directory: Path, trace: str) -> tuple[NodeList, PodList]:
    return read_nodes(directory), read_pods(directory, trace)


def _policy(name: str, offered: PeriodicWorkload) -> Baseline | Follower:
    """Return the policy; `kerf` is the released model without prior knowledge of the workload."""
    if name != LEARNED:
        return baseline(name)
    model = files.read(files.RELEASED)
    load = model.manifest.foresight_load
    seen = Seen(offered.nodes, offered.tasks.asks, offered.model_names, Watch(), load)
    return Follower(model.potential, seen, Watch())


def _measures(offered: PeriodicWorkload, run: Run) -> dict[str, float]:
    """Return measures of the period from the first to the last submission, and of its jobs that request GPUs.

    Percentages are of the available GPU time. `useful_percent` excludes the cost of moves: repeated work, restarts, and
    GPUs reserved for targets. Completion times (JCT) are weighted by the jobs' GPUs.
    """
    outcome, span_s = run.outcome, float(run.submitted_s[-1] - run.submitted_s[0])
    milli = offered.tasks.asked_milli[run.num_before :]
    moves = [move for move in outcome.moves if move.at_s <= run.submitted_s[-1]]
    lost_gpu_s = sum(move.lost_gpu_s for move in moves) + outcome.kept_gpu_s
    available_gpu_s, days = run.capacity_gpus * span_s, span_s / _DAY_S
    small, large = (milli > 0) & (milli < _LARGE_GPUS * WHOLE_MILLI), milli >= _LARGE_GPUS * WHOLE_MILLI
    weights = milli[milli > 0] / WHOLE_MILLI
    found = {
        "in_use_percent": 100 * outcome.allocated_gpu_s / available_gpu_s,
        "useful_percent": 100 * (outcome.allocated_gpu_s - lost_gpu_s) / available_gpu_s,
        "lost_percent": 100 * lost_gpu_s / max(outcome.allocated_gpu_s, 1e-9),
        "moves_a_day": len(moves) / days,
        "plans_a_day": len({move.target for move in moves}) / days,
        "days": days,
        "num_large": float(large.sum()),
        **_delays("large_", run.delay_s, large),
        **_delays("small_", run.delay_s, small),
        **_delays("", run.delay_s, milli > 0),
        "gpu_jct_s": float((run.jct_s[milli > 0] * weights).sum() / weights.sum()) if len(weights) else 0.0,
    }
    return {name: round(value, 4) for name, value in found.items()}


def _delays(prefix: str, delay_s: Floats, which: Mask) -> dict[str, float]:
    delays = delay_s[which] if which.any() else np.zeros(1)
    return {
        f"{prefix}delay_s": float(delays.mean()),
        f"{prefix}median_s": float(np.median(delays)),
        f"{prefix}p95_s": float(np.percentile(delays, 95)),
    }


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means over seeds."""
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


def _better(cell: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the gains over no moves by variant and measure, paired by seed, with 95 % intervals.

    `percent` and `percent_half_width` are relative to the mean without moves.
    """
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for variant, rows in cell.items():
        if variant == OFF:
            continue
        found[variant] = {}
        for measure, sign in _PAIRED.items():
            gains = [sign * (row[measure] - off[measure]) for row, off in zip(rows, cell[OFF], strict=True)]
            mean, base = interval(gains), float(np.mean([off[measure] for off in cell[OFF]]))
            half_width = mean.half_width
            found[variant][measure] = {
                "mean": round(mean.mean, 4),
                "half_width": None if half_width is None else round(half_width, 4),
                "percent": round(100 * mean.mean / base, 3) if base else None,
                "percent_half_width": round(100 * half_width / base, 3) if base and half_width is not None else None,
            }
    return found
