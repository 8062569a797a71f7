"""Jobs over time: the run of a list of jobs under an order and a policy, and what is told of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.fragments import mix_of
from extender.core.packing import ANY_MODEL, GPU_MILLI, Asks
from model.baselines import Baseline
from model.estimates import History
from model.jobs import GPUS_PER_NODE, JobList
from model.queues import Failures, Kind, Outcome, Simulation, Tasks, whole_gpu_nodes

ORDERS: Final = {
    "fifo": "by submission, skipping what does not fit: kube-scheduler's own",
    "oracle-sjf": "shortest first, by the true duration, which nobody can know",
    "oracle-area": "least GPU time first, by the true duration",
    "kerf": "by submission, held back in proportion to the duration expected from jobs that ended before",
}
PATIENCE: Final = 100.0
"""In the order `kerf`, how many expected durations later a job may have come and still go first."""
LONGEST_ESTIMATE_S: Final = 86400.0
"""No job is expected to take longer: so none is overtaken by jobs that came PATIENCE days after it."""
SHORTEST_S: Final = 10.0
"""Slowdown is bounded: jobs shorter than this count as so long (Feitelson's bounded slowdown)."""
PERCENTILES: Final = (50, 95, 99)


class UnknownOrderError(ValueError):
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
        return np.maximum(self.jct_s / np.maximum(self.duration_s[self.num_before :], SHORTEST_S), 1.0)


def simulate_jobs(
    jobs: JobList,
    num_gpus: int,
    policy: Baseline,
    order: str,
    seed: int,
    *,
    failures: Failures | None = None,
    round_s: float = 0.0,
) -> Run:
    """Run jobs that all fit the cluster on nodes of GPUS_PER_NODE."""
    tasks = tasks_of(jobs)
    history = History()
    key = order_key(order, tasks, [(jobs.cluster[j], int(jobs.num_gpus[j])) for j in range(len(jobs.cluster))], history)

    def ended(job: int) -> None:
        history.ended(jobs.cluster[job], int(jobs.num_gpus[job]), float(jobs.duration_s[job]))

    simulation = Simulation(
        tasks,
        whole_gpu_nodes(num_gpus, GPUS_PER_NODE),
        policy,
        key,
        np.random.default_rng([seed, 2]),
        ended,
        failures,
        round_s,
    )
    begin = time.perf_counter()
    outcome = simulation.run()
    return Run(jobs.submitted_s, jobs.duration_s, outcome, num_gpus, time.perf_counter() - begin)


def order_key(order: str, tasks: Tasks, groups: list[tuple[str, int]], history: History) -> Callable[[int], float]:
    """A job's place in the queue; `groups` are the (team, size) that history is kept by."""

    def by_estimate(job: int) -> float:
        expected = min(history.estimate_s(*groups[job]), LONGEST_ESTIMATE_S)
        return float(tasks.submitted_s[job]) + PATIENCE * expected

    match order:
        case "fifo":
            return lambda job: float(tasks.submitted_s[job])
        case "oracle-sjf":
            return lambda job: float(tasks.duration_s[job])
        case "oracle-area":
            return lambda job: float(tasks.duration_s[job] * tasks.asked_milli[job])
        case "kerf":
            return by_estimate
        case _:
            raise UnknownOrderError(
                f"no order {order!r}; there are {', '.join(ORDERS)} (orders that preempt, such as shortest remaining "
                "time, are not simulated: nothing that runs is stopped)"
            )


def tasks_of(jobs: JobList) -> Tasks:
    """Jobs as gangs of whole GPUs: whole nodes, and one part for what remains."""
    sizes = np.arange(1, GPUS_PER_NODE + 1)
    zeros = np.zeros(len(sizes), np.int64)
    asks = Asks(zeros, zeros.copy(), sizes, np.full(len(sizes), GPU_MILLI), np.full(len(sizes), ANY_MODEL))
    kinds: list[Kind] = []
    for num_gpus in jobs.num_gpus.tolist():
        whole, rest = divmod(num_gpus, GPUS_PER_NODE)
        kinds.append((((GPUS_PER_NODE - 1, whole),) if whole else ()) + (((rest - 1, 1),) if rest else ()))
    asked_milli = jobs.num_gpus * GPU_MILLI
    return Tasks(jobs.submitted_s, jobs.duration_s, tuple(kinds), jobs.priority, asked_milli, asks, mix_of([], 1))


def measures(run: Run) -> dict[str, Any]:
    """What is printed of any run over time, as JSON data."""
    span_s = float(run.submitted_s[-1] - run.submitted_s[0])
    outcome = run.outcome
    return {
        "jct_s": distribution(run.jct_s),
        "queueing_delay_s": distribution(run.delay_s),
        "slowdown": distribution(run.slowdown),
        "gpu_utilisation": round(100 * outcome.allocated_gpu_s / max(run.capacity_gpus * span_s, 1e-9), 3),
        "mean_allocated_gpus": round(outcome.allocated_gpu_s / max(span_s, 1e-9), 3),
        "blocked_gpu_hours": round(outcome.blocked_gpu_s / 3600, 3),
        "makespan_s": round(float(outcome.ended_s.max()), 3),
        "failures": outcome.num_failures,
        "restarts": int(outcome.num_restarts.sum()),
        "decisions": outcome.decisions,
        "queueing_delay_percentiles_s": [round(value, 1) for value in _percentiles(run.delay_s)],
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


def distribution(values: Floats) -> dict[str, float]:
    """Mean and percentiles."""
    if not math.isfinite(float(values.max())):
        raise AssertionError("a job never ended")
    named = zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True)
    return {"mean": round(float(values.mean()), 3)} | {f"p{percent}": round(value, 3) for percent, value in named}


def _percentiles(values: Floats) -> list[float]:
    found: list[float] = np.percentile(values, np.arange(101)).tolist()
    return found
