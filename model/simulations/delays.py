"""Jobs over time: the run of a list of jobs under an order and a policy, and what is told of it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats
from extender.core.durations import Durations
from extender.core.fragmentation import ANY_MODEL, Asks, mix_of
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
    "fifo": "by submission, skipping what does not fit: kube-scheduler's own",
    "oracle-sjf": "shortest first, by the true duration, which nobody can know",
    "oracle-area": "least GPU time first, by the true duration",
    "kerf": "the queue's own: by submission, held back by the GPU time expected from jobs that ended before",
}
_RESERVE_AFTER_S: Final = 10.0
"""In the order `kerf`, as `queue.reserve_after_s` of the service."""
_SHORTEST_S: Final = 10.0
"""Slowdown is bounded: jobs shorter than this count as so long (Feitelson's bounded slowdown)."""
_PERCENTILES: Final = (50, 95, 99)

Owners = tuple[str, ...]


class _UnknownOrderError(ValueError):
    """A name that no order has."""


@dataclass(frozen=True)
class Run:
    """A finished simulation."""

    submitted_s: Floats
    duration_s: Floats
    outcome: Outcome
    capacity_gpus: float
    seconds: float
    """Time that the simulation took."""
    num_before: int = 0
    """The first so many jobs ran before the window began: nothing is told of their delays."""

    @property
    def delay_s(self) -> Floats:
        """(J,) from submission to the first start."""
        return (self.outcome.started_s - self.submitted_s)[self.num_before :]

    @property
    def jct_s(self) -> Floats:
        """(J,) from submission to the end."""
        return (self.outcome.ended_s - self.submitted_s)[self.num_before :]

    @property
    def slowdown(self) -> Floats:
        """(J,) time in the system by the time of running alone, 1 or more."""
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
    """Run jobs that all fit the cluster on nodes of GPUS_PER_NODE.

    `before` has jobs that ended before the first submission: the order `kerf` knows how long they took.
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
    """Whose history tells of a job, narrowest first: its virtual cluster's jobs of that size, the virtual cluster."""
    return f"{jobs.cluster[job]}/{jobs.num_gpus[job]} GPUs", jobs.cluster[job]


def reserve_after_s(order: str) -> float:
    """When nodes are kept for the first in the queue: kube-scheduler never does."""
    return _RESERVE_AFTER_S if order == "kerf" else math.inf


def turns_of(order: str, tasks: Tasks, owners: Sequence[Owners], durations: Durations) -> Turns:
    """Whose turn it is in an order, by name; `owners` (J,) are those that `durations` is kept by."""
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
                f"no order {order!r}; there are {', '.join(_ORDERS)} (orders that preempt, such as shortest remaining "
                "time, are not simulated: nothing that runs is stopped)"
            )


def tasks_of(jobs: JobList) -> Tasks:
    """Jobs as gangs of whole GPUs: whole nodes, and one part for what remains."""
    sizes = np.arange(1, GPUS_PER_NODE + 1)
    whole, any_model = np.full(len(sizes), WHOLE_MILLI), np.full(len(sizes), ANY_MODEL)
    asks = Asks(sizes * CPU_MILLI_PER_GPU, sizes * MEMORY_MIB_PER_GPU, sizes, whole, any_model)
    kinds: list[Kind] = []
    for num_gpus in jobs.num_gpus.tolist():
        whole, rest = divmod(num_gpus, GPUS_PER_NODE)
        kinds.append((((GPUS_PER_NODE - 1, whole),) if whole else ()) + (((rest - 1, 1),) if rest else ()))
    asked_milli = jobs.num_gpus * WHOLE_MILLI
    return Tasks(jobs.submitted_s, jobs.duration_s, tuple(kinds), jobs.priority, asked_milli, asks, mix_of([], 1))


def measures(run: Run) -> dict[str, Any]:
    """What is printed of any run over time, as JSON data."""
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
    """How virtual clusters fare beside each other: Jain's index of their mean slowdowns (1: all alike), and each."""
    names = np.array(clusters)
    told = {}
    for name in sorted(set(clusters)):
        mine = names == name
        told[name] = {
            "jobs": int(mine.sum()),
            "mean_queueing_delay_s": round(float(run.delay_s[mine].mean()), 3),
            "mean_slowdown": round(float(run.slowdown[mine].mean()), 3),
        }
    slowdowns = np.array([cluster["mean_slowdown"] for cluster in told.values()])
    jain = float(slowdowns.sum() ** 2 / (len(slowdowns) * (slowdowns**2).sum()))
    return {"jain_slowdown": round(jain, 6), "clusters": told}


def _distribution(values: Floats) -> dict[str, float]:
    """Mean and percentiles."""
    if not math.isfinite(float(values.max())):
        raise AssertionError("a job never ended")
    named = zip(_PERCENTILES, np.percentile(values, _PERCENTILES).tolist(), strict=True)
    return {"mean": round(float(values.mean()), 3)} | {f"p{percent}": round(value, 3) for percent, value in named}
