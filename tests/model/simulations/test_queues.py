"""Jobs over time, against a loop that walks the whole queue at every event."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core import orders
from extender.core.durations import Durations
from extender.core.fragmentation import Nodes
from model.engine.node_scores import book, release
from model.simulations import delays
from model.simulations.baselines import BASELINES, Baseline
from model.simulations.delays import _UnknownOrderError
from model.simulations.simulated_jobs import Failures, Tasks, whole_gpu_nodes
from model.workloads.jobs import JobList
from tests.model.builders import twin_scores

Rows = list[tuple[int, int, int, str, int]]
"""Submission, duration, GPUs, team and priority of each job."""
ORDERS = ("fifo", "oracle-sjf", "kerf")
JOBS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from([1, 1, 2, 4, 7, 8, 9, 16]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0, 0, 5]),
    ),
    min_size=2,
    max_size=25,
)


def jobs_of(rows: Rows) -> JobList:
    submitted, duration, gpus, teams, priority = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    submitted_s = np.array(submitted, float)
    return JobList(submitted_s - submitted_s[0], np.array(duration, float), np.array(gpus), teams, np.array(priority))


Order = Callable[[list[int], float, Durations], list[int]]
"""Waiting jobs, the time, what was learned: the jobs in their order."""


def by_key(jobs: JobList, keys: list[float]) -> Order:
    return lambda waiting, now, known: sorted(waiting, key=lambda job: (-jobs.priority[job], keys[job], job))


def as_the_queue_orders(jobs: JobList) -> Order:
    """The order of the service's queue."""

    def in_order(waiting: list[int], now: float, known: Durations) -> list[int]:
        units = []
        for job in waiting:
            gpus, team = int(jobs.num_gpus[job]), jobs.cluster[job]
            held = orders.hold_s(known.expected_s((f"{team}/{gpus} GPUs", team)), gpus, orders.HELD_MOST_S)
            units.append(orders.WaitingJob(f"{job:04}", int(jobs.priority[job]), float(jobs.submitted_s[job]), held))
        return [int(unit.key) for unit in orders.ordered(units, now)]

    return in_order


def oracle_starts(
    jobs: JobList, num_gpus: int, policy: Baseline, order: Order, reserve_after_s: float = float("inf")
) -> list[float]:
    """When each job starts: at every event all that wait are tried, one after the other."""
    tasks = delays.tasks_of(jobs)
    nodes = whole_gpu_nodes(num_gpus, 8)
    started = [float("inf")] * len(jobs.cluster)
    known, head, kept = Durations(), -1, [-1]
    waiting: list[int] = []
    running: dict[int, tuple[float, list[tuple[int, int, int]]]] = {}
    coming = list(range(len(jobs.cluster)))
    while coming or running:
        now = min([jobs.submitted_s[coming[0]]] if coming else [], default=float("inf"))
        now = min([now, *(end for end, _ in running.values())])
        for job in sorted(job for job, (end, _) in running.items() if end == now):
            for part in running.pop(job)[1]:
                release(nodes, tasks.asks, *part)
            known.finished((f"{jobs.cluster[job]}/{jobs.num_gpus[job]} GPUs", jobs.cluster[job]), jobs.duration_s[job])
        while coming and jobs.submitted_s[coming[0]] == now:
            waiting.append(coming.pop(0))
        barred: list[int] = []
        for job in order(waiting, now, known):
            parts = oracle_parts(nodes, tasks, job, policy, barred)
            if parts is None and not barred and now - jobs.submitted_s[job] >= reserve_after_s:
                if job != head:
                    whole, rest = divmod(int(jobs.num_gpus[job]), 8)
                    free = [-int(gpus.sum()) for gpus in nodes.gpu_free_milli]
                    by_room = sorted(range(len(free)), key=free.__getitem__)
                    head, kept = job, [row for row in by_room if nodes.num_gpus[row] == 8][:whole]
                    kept += [row for row in by_room if row not in kept and nodes.num_gpus[row] >= rest][: rest > 0]
                barred = kept
            if parts is not None:
                started[job] = float(now)
                running[job] = (float(now + jobs.duration_s[job]), parts)
                waiting.remove(job)
    return started


def oracle_parts(
    nodes: Nodes, tasks: Tasks, job: int, policy: Baseline, barred: list[int]
) -> list[tuple[int, int, int]] | None:
    parts: list[tuple[int, int, int]] = []
    for c, count in tasks.kinds[job]:
        for _ in range(count):
            assert policy.rank is not None
            score, gpu = twin_scores(nodes, tasks.asks, c, policy.rank, tasks.mix)
            score[barred] = -np.inf
            node = int(score.argmax())
            if score[node] == -np.inf:
                for part in parts:
                    release(nodes, tasks.asks, *part)
                return None
            parts.append((c, node, book(nodes, tasks.asks, c, node, int(gpu[node]))))
    return parts


@given(JOBS, st.sampled_from([16, 20, 24]), st.sampled_from(["bestfit", "spread"]), st.sampled_from(ORDERS))
def test_each_order_equals_a_walk_over_all_that_wait(rows: Rows, num_gpus: int, policy: str, order: str) -> None:
    jobs = jobs_of([(2 * at, 10 * duration + 1, *rest) for at, duration, *rest in rows])  # type: ignore[misc]
    run = delays.simulate_jobs(jobs, num_gpus, BASELINES[policy], order, 0)
    walks = {
        "fifo": (by_key(jobs, jobs.submitted_s.tolist()), np.inf),
        "oracle-sjf": (by_key(jobs, jobs.duration_s.tolist()), np.inf),
        "kerf": (as_the_queue_orders(jobs), 10.0),
    }
    in_order, reserve_after_s = walks[order]
    right = oracle_starts(jobs, num_gpus, BASELINES[policy], in_order, reserve_after_s)
    assert run.outcome.started_s.tolist() == right
    assert (run.outcome.ended_s == run.outcome.started_s + jobs.duration_s).all()


def simulated(rows: Rows, num_gpus: int, order: str = "fifo", seed: int = 0, **more: Any) -> delays.Run:
    return delays.simulate_jobs(jobs_of(rows), num_gpus, BASELINES["bestfit"], order, seed, **more)


def test_nodes_are_kept_for_the_first_in_the_queue_and_those_behind_it_wait() -> None:
    # 16 GPUs: 8 busy until 100, 4 until 50. The 8 asked at 1 go first; from 11 on the half free node is kept for them.
    rows = [(0, 100, 8, "a", 0), (0, 50, 4, "b", 0), (1, 10, 8, "c", 5), (5, 20, 1, "b", 0), (20, 200, 1, "b", 0)]
    assert simulated(rows, 16, "kerf").outcome.started_s.tolist() == [0, 0, 50, 5, 60]
    assert simulated(rows, 16).outcome.started_s.tolist() == [0, 0, 100, 5, 20]


def test_a_small_job_goes_past_a_large_one_that_does_not_fit() -> None:
    # 8 GPUs: 6 busy until 10; 4 asked at 1 waits, 2 asked at 2 goes past it.
    run = simulated([(0, 10, 6, "a", 0), (1, 5, 4, "a", 0), (2, 5, 2, "a", 0)], 8)
    assert run.delay_s.tolist() == [0, 9, 0]
    assert run.jct_s.tolist() == [10, 14, 5]
    told = delays.measures(run)
    # In the window from 0 to 2: 6 GPUs in use for 2 s; the job of 4 waits from 1 to 2 while 2 are free.
    assert told["mean_allocated_gpus"] == 6
    assert told["gpu_utilisation"] == 75
    assert told["blocked_gpu_hours"] == pytest.approx(2 / 3600, abs=5e-4)
    assert told["slowdown"]["mean"] == pytest.approx((1 + 14 / 10 + 1) / 3, abs=5e-4)  # 5 s count as 10


def test_rounds_hold_back_until_the_next_one() -> None:
    run = simulated([(0, 10, 8, "a", 0), (1, 3, 8, "a", 0), (31, 1, 1, "a", 0)], 8, round_s=15)
    assert run.outcome.started_s.tolist() == [0, 15, 45]


def test_what_a_failing_node_ran_begins_again() -> None:
    rows = [(i, 500, 4, "a", 0) for i in range(20)]
    run, again = (simulated(rows, 40, seed=3, failures=Failures(mean_between_s=2000, repair_s=100)) for _ in range(2))
    assert again.outcome.ended_s.tobytes() == run.outcome.ended_s.tobytes()
    assert run.outcome.num_failures > 0
    calm = run.outcome.num_restarts == 0
    assert not calm.all()
    assert (run.jct_s[calm] == run.delay_s[calm] + 500).all()
    assert (run.jct_s[~calm] > run.delay_s[~calm] + 500).all()


def test_orders_that_preempt_are_not_offered() -> None:
    with pytest.raises(_UnknownOrderError, match="there are fifo, oracle-sjf, oracle-area, kerf"):
        simulated([(0, 10, 6, "a", 0), (1, 5, 4, "a", 0)], 8, "srtf")


def test_fairness_of_equal_and_unequal_teams() -> None:
    run = simulated([(0, 10, 8, "a", 0), (0, 10, 8, "b", 0), (1, 10, 1, "b", 0)], 16)
    # a: slowdown 1; b: 1 and (9 + 10) / 10: 1.45 on average. Jain: 2.45^2 / (2 (1 + 1.45^2)).
    told = delays.fairness(run, ("a", "b", "b"))
    assert told["jain_slowdown"] == pytest.approx(2.45**2 / (2 * (1 + 1.45**2)), abs=1e-6)
    assert told["clusters"]["b"] == {"jobs": 2, "mean_queueing_delay_s": 4.5, "mean_slowdown": 1.45}
