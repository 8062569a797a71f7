"""Runs of a list of jobs under a queue order and a policy, and their measures."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats
from extender.core.durations import Durations
from extender.core.fragmentation import ANY_MODEL, PodClasses, mix_of
from extender.core.orders import HELD_MOST_S, hold_s
from model.simulations.baselines import Baseline
from model.simulations.queues import Simulation
from model.simulations.simulated_jobs import (
    CPU_MILLI_PER_GPU,
    MEMORY_MIB_PER_GPU,
    Failures,
    Kind,
    Outcome,
    Tasks,
    Turns,
    whole_gpu_nodes,
)
from model.workloads.jobs import GPUS_PER_NODE, JobList

_ORDERS: Final = {
    "fifo": "by submission, skipping jobs that do not fit, as kube-scheduler does",
    "oracle-sjf": "shortest first, by the true duration",
    "oracle-area": "least GPU time first, by the true duration",
    "kerf": "the queue's: by submission, plus a hold in proportion to the expected GPU time",
}
_RESERVE_AFTER_S: Final = 10.0
"""Default of the service's `queue.reserve_after_s`, for the order `kerf`."""
_SHORTEST_S: Final = 10.0
"""Least duration in the bounded slowdown (Feitelson)."""
_PERCENTILES: Final = (50, 95, 99)

Owners = tuple[str, ...]


class _UnknownOrderError(ValueError):
    """An unknown order name."""


@dataclass(frozen=True)
class Run:
    """A finished simulation."""

    submitted_s: Floats
    duration_s: Floats
    outcome: Outcome
    capacity_gpus: float
    seconds: float
    """Wall time of the simulation."""
    num_before: int = 0
    """Number of leading jobs that ran before the window; they have no delays."""

    @property
    def delay_s(self) -> Floats:
        """(J,) time from submission to first start."""
        return (self.outcome.started_s - self.submitted_s)[self.num_before :]

    @property
    def jct_s(self) -> Floats:
        """(J,) time from submission to end."""
        return (self.outcome.ended_s - self.submitted_s)[self.num_before :]

    @property
    def slowdown(self) -> Floats:
        """(J,) time in the system divided by the duration, 1 or more."""
        return np.maximum(self.jct_s / np.maximum(self.duration_s[self.num_before :], _SHORTEST_S), 1.0)


def simulate_jobs(
    jobs: JobList,
    num_gpus: int,
    policy: Baseline,
    order: str,
    seed: int,
    *,
    failures: Failures | None = None,
    round_s: float = 0.0,
    before: JobList | None = None,
) -> Run:
    """Run jobs that all fit the cluster, on nodes of GPUS_PER_NODE.

    `before`: jobs that ended before the first submission, whose durations the order `kerf` knows.
    """
    tasks = tasks_of(jobs)
    durations = Durations()
    if before is not None:
        for job in np.argsort(before.submitted_s + before.duration_s, kind="stable").tolist():
            durations.finished(owners_of(before, job), float(before.duration_s[job]))
    owners = [owners_of(jobs, job) for job in range(len(jobs.cluster))]
    simulation = Simulation(
        tasks,
        whole_gpu_nodes(num_gpus, GPUS_PER_NODE),
        policy,
        turns_of(order, tasks, owners, durations),
        np.random.default_rng([seed, 2]),
        lambda job: durations.finished(owners[job], float(jobs.duration_s[job])),
        failures,
        round_s,
        reserve_after_s=reserve_after_s(order),
    )
    begin = time.perf_counter()
    outcome = simulation.run()
    return Run(jobs.submitted_s, jobs.duration_s, outcome, num_gpus, time.perf_counter() - begin)


def owners_of(jobs: JobList, job: int) -> Owners:
    """Keys of a job's duration history, narrowest first: virtual cluster and size, virtual cluster."""
    return f"{jobs.cluster[job]}/{jobs.num_gpus[job]} GPUs", jobs.cluster[job]


def reserve_after_s(order: str) -> float:
    """Waiting time after which nodes are reserved for the first job; inf for kube-scheduler's order."""
    return _RESERVE_AFTER_S if order == "kerf" else math.inf


def turns_of(order: str, tasks: Tasks, owners: Sequence[Owners], durations: Durations) -> Turns:
    """Return the queue order of a name; `owners` (J,) are the keys of `durations`."""
    gpus = (tasks.asked_milli / WHOLE_MILLI).tolist()
    submitted, duration = tasks.submitted_s, tasks.duration_s

    def held(job: int) -> float:
        return hold_s(durations.expected_s(owners[job]), gpus[job], HELD_MOST_S)

    match order:
        case "fifo":
            return Turns(lambda job: float(submitted[job]))
        case "oracle-sjf":
            return Turns(lambda job: float(duration[job]))
        case "oracle-area":
            return Turns(lambda job: float(duration[job] * tasks.asked_milli[job]))
        case "kerf":
            return Turns(lambda job: float(submitted[job]), held, lambda job: owners[job])
        case _:
            raise _UnknownOrderError(
                f"no order {order!r}; there are {', '.join(_ORDERS)} (preemptive orders are not simulated)"
            )


def tasks_of(jobs: JobList) -> Tasks:
    """Return jobs as gangs of whole GPUs: whole nodes, and one part for the rest."""
    sizes = np.arange(1, GPUS_PER_NODE + 1)
    whole, any_model = np.full(len(sizes), WHOLE_MILLI), np.full(len(sizes), ANY_MODEL)
    asks = PodClasses(sizes * CPU_MILLI_PER_GPU, sizes * MEMORY_MIB_PER_GPU, sizes, whole, any_model)
    kinds: list[Kind] = []
    for num_gpus in jobs.num_gpus.tolist():
        whole, rest = divmod(num_gpus, GPUS_PER_NODE)
        kinds.append((((GPUS_PER_NODE - 1, whole),) if whole else ()) + (((rest - 1, 1),) if rest else ()))
    asked_milli = jobs.num_gpus * WHOLE_MILLI
    return Tasks(jobs.submitted_s, jobs.duration_s, tuple(kinds), jobs.priority, asked_milli, asks, mix_of([], 1))


def measures(run: Run) -> dict[str, Any]:
    """Return the printed measures of a run, as JSON data."""
    span_s = float(run.submitted_s[-1] - run.submitted_s[0])
    outcome = run.outcome
    return {
        "jct_s": _distribution(run.jct_s),
        "queueing_delay_s": _distribution(run.delay_s),
        "slowdown": _distribution(run.slowdown),
        "gpu_utilisation": round(100 * outcome.allocated_gpu_s / max(run.capacity_gpus * span_s, 1e-9), 3),
        "mean_allocated_gpus": round(outcome.allocated_gpu_s / max(span_s, 1e-9), 3),
        "blocked_gpu_hours": round(outcome.blocked_gpu_s / 3600, 3),
        "makespan_s": round(float(outcome.ended_s.max()), 3),
        "failures": outcome.num_failures,
        "restarts": int(outcome.num_restarts.sum()),
        "decisions": outcome.decisions,
        "queueing_delay_percentiles_s": [
            round(value, 1) for value in np.percentile(run.delay_s, np.arange(101)).tolist()
        ],
    }


def fairness(run: Run, clusters: tuple[str, ...]) -> dict[str, Any]:
    """Return Jain's index of the virtual clusters' mean slowdowns (1: all equal), and each cluster's measures."""
    names = np.array(clusters)
    rows = {}
    for name in sorted(set(clusters)):
        selected = names == name
        rows[name] = {
            "jobs": int(selected.sum()),
            "mean_queueing_delay_s": round(float(run.delay_s[selected].mean()), 3),
            "mean_slowdown": round(float(run.slowdown[selected].mean()), 3),
        }
    slowdowns = np.array([cluster["mean_slowdown"] for cluster in rows.values()])
    jain = float(slowdowns.sum() ** 2 / (len(slowdowns) * (slowdowns**2).sum()))
    return {"jain_slowdown": round(jain, 6), "clusters": rows}


def _distribution(values: Floats) -> dict[str, float]:
    """Return mean and percentiles."""
    if not math.isfinite(float(values.max())):
        raise AssertionError("a job never ended")
    named = zip(_PERCENTILES, np.percentile(values, _PERCENTILES).tolist(), strict=True)
    return {"mean": round(float(values.mean()), 3)} | {f"p{percent}": round(value, 3) for percent, value in named}
