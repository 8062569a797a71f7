"""Simulations with departures: the pods of a trace with their durations, on its nodes."""

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.durations import Durations
from extender.core.fragmentation import Nodes
from extender.core.selective_skip import wastes_gpu
from model.engine import kernels
from model.engine.pools import pooled
from model.engine.ranks import Rank
from model.simulations.baselines import POOL, Baseline
from model.simulations.delays import Owners, Run, reserve_after_s, turns_of
from model.simulations.learned import Learned
from model.simulations.making_room import MakingRoom, MovingSimulation
from model.simulations.online import Follower
from model.simulations.queues import Simulation
from model.simulations.replays import listed
from model.simulations.simulated_jobs import Absence, Failures, Tasks
from model.workloads.traces import NodeList, PodList, TraceError
from model.workloads.workloads import bits_of, classes_of, empty_nodes, typical_pods


@dataclass(frozen=True)
class PeriodicWorkload:
    """One period of a trace that repeats forever.

    J jobs: first those of earlier periods that still run when the period begins, then the trace's jobs.
    """

    tasks: Tasks
    nodes: Nodes
    model_names: tuple[str, ...]
    """(M,) names of the models that `nodes.model` indexes."""
    owners: list[Owners]
    """(J,) keys of the duration history: requested models and GPU milli."""
    num_before: int
    """Number of jobs of earlier periods; they have no delays."""
    left_out: int
    """Number of pods that fit on no empty node."""
    time_factor: float
    """Factor on the times between submissions; durations don't change."""
    absences: tuple[Absence, ...] = ()
    """Absences of nodes."""


def periodic_workload(path: Path, node_list: NodeList, pod_list: PodList, load: float, seed: int) -> PeriodicWorkload:
    """Return the tasks of a trace: GPU work submitted in the period is `load` times the GPU capacity.

    Pods of a trace run far longer than a cluster takes to fill, so an empty one would not be full before the last
    arrival. Therefore the period begins with the running pods of earlier periods, each with the rest of its duration.
    `seed` draws their order and the order of the nodes (the tie-break). Raises TraceError if the trace has no times.
    """
    if pod_list.submitted_s is None or pod_list.duration_s is None:
        raise TraceError(f"{path}: line 1: no creation_time and deletion_time; departures need them")
    rng = np.random.default_rng(seed)
    model_bits = bits_of(node_list)
    nodes = empty_nodes(node_list, model_bits, rng.permutation(len(node_list.names)))
    asks, pod_class = classes_of(pod_list, model_bits)
    kept = np.flatnonzero(kernels.can_run(nodes, asks)[pod_class])
    kept = kept[np.argsort(pod_list.submitted_s[kept], kind="stable")]
    if len(kept) == 0:
        raise TraceError(f"{path}: no pod fits an empty node")
    submitted, duration = pod_list.submitted_s[kept], pod_list.duration_s[kept]
    work_s = float((pod_list.asked_milli[kept] * duration).sum()) / node_list.gpu_milli
    span_s = float(submitted[-1] - submitted[0])
    if span_s <= 0 or work_s <= 0:
        raise TraceError(f"{path}: the load is undefined: all pods arrive at once, or there is no GPU work")
    period_s = work_s / load
    factor = period_s / span_s
    submitted = (submitted - submitted[0]) * factor
    before, age = earlier(submitted, duration, period_s, rng)
    jobs = kept[np.concatenate([before, np.arange(len(kept))])]
    tasks = Tasks(
        np.concatenate([np.zeros(len(before)), submitted]),
        np.concatenate([duration[before] - age, duration]),
        tuple(((c, 1),) for c in pod_class[jobs].tolist()),
        np.zeros(len(jobs), np.int64),
        pod_list.asked_milli[jobs],
        asks,
        typical_pods(pod_list, model_bits),
        np.concatenate([age, np.zeros(len(kept))]),
    )
    requests = [(pod_list.gpu_spec[p], int(pod_list.asked_milli[p])) for p in jobs.tolist()]
    owners: list[Owners] = [(f"{spec}/{milli}", spec) for spec, milli in requests]
    return PeriodicWorkload(
        tasks, nodes, tuple(model_bits), owners, len(before), len(pod_list.names) - len(kept), factor
    )


def earlier(submitted: Floats, duration: Floats, period_s: float, rng: np.random.Generator) -> tuple[Longs, Floats]:
    """Return jobs of earlier periods that still run when the period begins, and their ages, in random order.

    They are copies of (J,) jobs, submitted one or more periods earlier.
    """
    copies = np.maximum(np.ceil((duration + submitted) / period_s).astype(np.int64) - 1, 0)
    before = np.repeat(np.arange(len(submitted)), copies)
    age = np.concatenate([np.arange(1, count + 1) for count in copies]) * period_s - submitted[before]
    drawn = rng.permutation(len(before))
    return before[drawn], age[drawn]


def simulate_churn(  # noqa: PLR0913
    offered: PeriodicWorkload,
    policy: Baseline | Learned | Follower,
    order: str,
    seed: int,
    failures: Failures | None = None,
    round_s: float = 0.0,
    patience_s: float = 0.0,
    *,
    count_blocked: bool = False,
    room: MakingRoom | None = None,
) -> Run:
    """Run all pods to their ends; with `room`, running pods are moved to make room for others.

    Under a learned rank with prior knowledge, shares that take more of a GPU's worth than their fraction yield to pods
    that arrive up to `patience_s` later (`extender.core.selective_skip`). `count_blocked`: as in `Simulation`.
    """
    tasks = offered.tasks
    hold_s = np.zeros(len(tasks.kinds))
    if isinstance(policy, Learned):
        wasteful = wastes_gpu(policy.outlook.worth.left, tasks.asks.num_gpus, tasks.asks.gpu_milli)
        hold_s[wasteful[[kind[0][0] for kind in tasks.kinds]]] = patience_s
    nodes, absences = offered.nodes.copy(), offered.absences
    if policy is POOL:
        if absences:
            raise ValueError("pool: it has no nodes, but here nodes come and go")
        nodes, asks = pooled(nodes, tasks.asks)
        tasks = replace(tasks, asks=asks)
    elif isinstance(policy, Baseline) and policy.rank is Rank.LISTED:
        rows = listed(policy, nodes, offered.model_names)
        nodes, place = nodes.at(rows), np.argsort(rows)
        absences = tuple((int(place[node]), begin_s, end_s) for node, begin_s, end_s in absences)
    durations = Durations()
    turns = turns_of(order, tasks, offered.owners, durations)
    simulation_class = Simulation if room is None else partial(MovingSimulation, making_room=room)
    simulation = simulation_class(
        tasks,
        nodes,
        policy,
        replace(turns, place=lambda job: turns.place(job) + float(hold_s[job])),
        np.random.default_rng([seed, 2]),
        lambda job: durations.finished(offered.owners[job], float(tasks.duration_s[job])),
        failures,
        round_s,
        offered.model_names,
        reserve_after_s(order),
        absences,
        count_blocked,
    )
    begin = time.perf_counter()
    outcome = simulation.run()
    capacity = float(offered.nodes.gpu_free_milli.sum()) / WHOLE_MILLI
    return Run(tasks.submitted_s, tasks.duration_s, outcome, capacity, time.perf_counter() - begin, offered.num_before)


def churn_measures(offered: PeriodicWorkload, run: Run) -> dict[str, float]:
    """Return the measures of a run.

    GPUs are means over the period: in use; free while waiting pods requested as many; and idle but not usable by a
    typical pod. Delays, from submission to start, are of the period's pods: all, and those that request more than one
    GPU.
    """
    span_s = float(run.submitted_s[-1] - run.submitted_s[0])
    large = offered.tasks.asked_milli[offered.num_before :] > WHOLE_MILLI
    figures = {
        "allocated_gpus": run.outcome.allocated_gpu_s / span_s,
        "blocked_gpus": run.outcome.blocked_gpu_s / span_s,
        "fragments": run.outcome.fragment_gpu_s / span_s,
        **delay_measures(run.delay_s, large),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def delay_measures(delay_s: Floats, large: Mask) -> dict[str, float]:
    """Return statistics of (P,) delays; `large` marks large pods."""
    return {
        "mean_delay_s": float(delay_s.mean()),
        "median_delay_s": float(np.median(delay_s)),
        "p99_delay_s": float(np.percentile(delay_s, 99)),
        "max_delay_s": float(delay_s.max()),
        "large_delay_s": float(delay_s[large].mean()) if large.any() else 0.0,
    }
