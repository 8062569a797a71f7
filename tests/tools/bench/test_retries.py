"""kube-scheduler's own queue, as it is where jobs end more than once in a back-off."""

from dataclasses import replace

import numpy as np

from model.simulations import delays
from model.simulations.baselines import BASELINES
from model.workloads.jobs import JobList, drawn_jobs
from tests.tools.bench.retries import started_s


def listed(*rows: tuple[float, float, int]) -> JobList:
    """Jobs of (submitted, duration, GPUs)."""
    submitted_s, duration_s, gpus = zip(*rows, strict=True)
    drawn = drawn_jobs(len(rows), 1)
    return replace(
        drawn, submitted_s=np.array(submitted_s), duration_s=np.array(duration_s), num_gpus=np.array(gpus, np.int64)
    )


def test_what_came_first_goes_first_where_jobs_end_one_by_one() -> None:
    jobs = listed((0, 10, 8), (1, 5, 8), (2, 5, 2), (3, 5, 8))
    found = started_s(jobs, 1, np.random.default_rng(1))
    np.testing.assert_allclose(found, [0, 10, 15, 20], atol=0.02)


def test_what_is_freed_during_an_attempt_goes_to_who_is_tried_next() -> None:
    # One GPU is freed, then, while the third job is tried, the other seven: the fourth is next, not the second.
    jobs = listed((0, 10, 1), (0.1, 9.907 - 0.005, 7), (1, 5, 8), (2, 5, 4), (3, 5, 4))
    found = started_s(jobs, 1, np.random.default_rng(1), attempt_s=0.005)
    assert 10 < found[4] < 10.05
    assert found[2] > 15
    fifo = delays.simulate_jobs(jobs, 8, BASELINES["kube-default"], "fifo", 0)
    assert fifo.delay_s[2] < fifo.delay_s[4]


def test_all_start_once_there_is_room_and_no_gpu_is_given_twice() -> None:
    drawn = drawn_jobs(300, 3)
    jobs = drawn.select(drawn.num_gpus <= 8)
    jobs = replace(jobs, submitted_s=jobs.submitted_s / jobs.submitted_s.max() * 60)
    jobs = replace(jobs, duration_s=np.clip(jobs.duration_s / jobs.duration_s.sum() * 900, 0.1, 20))
    begin = started_s(jobs, 2, np.random.default_rng(1))
    assert (begin > jobs.submitted_s).all()
    assert (begin - jobs.submitted_s).max() > 1
    for moment in begin:
        runs = (begin <= moment) & (moment < begin + jobs.duration_s)
        assert jobs.num_gpus[runs].sum() <= 16
