"""A list of jobs as a cluster that churns: the load, days that are drawn, what runs when the period begins."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.clusters import WHOLE_MILLI
from model.simulations.job_churn import job_churn, some_days
from model.workloads.jobs import JobList, drawn_jobs
from model.workloads.traces import TraceError

FILE = Path("jobs.csv")
DAY_S = 86400.0


def jobs_on(days: int, a_day: int = 4) -> JobList:
    """Jobs of one GPU at equal times of each day, the day's number being how many seconds they run."""
    submitted = np.array([day * DAY_S + 3600.0 * hour for day in range(days) for hour in range(a_day)])
    num = len(submitted)
    duration = np.repeat(np.arange(1, days + 1), a_day).astype(float)
    return JobList(submitted, duration, np.ones(num, np.int64), ("a",) * num, np.zeros(num, np.int64))


def test_days_are_drawn_whole_and_keep_their_course() -> None:
    found = some_days(jobs_on(9), 3, seed=1)
    assert found.submitted_s.tolist() == [day * DAY_S + 3600.0 * hour for day in range(3) for hour in range(4)]
    days = found.duration_s.reshape(3, 4)
    assert (days == days[:, :1]).all()
    assert len(set(days[:, 0].tolist())) == 3
    assert some_days(jobs_on(9), 3, seed=2).duration_s.tolist() != found.duration_s.tolist()
    with pytest.raises(TraceError, match="cover 8 whole days, but 9 were requested"):
        some_days(jobs_on(9), 9, seed=1)


def test_the_work_of_a_period_is_the_load() -> None:
    jobs = drawn_jobs(400, 3)
    offered = job_churn(FILE, jobs, 4, 1.1, 0)
    tasks, new = offered.tasks, slice(offered.num_before, None)
    period_s = tasks.submitted_s[-1] - tasks.submitted_s[offered.num_before]
    work_gpu_s = (tasks.asked_milli[new] * tasks.duration_s[new]).sum() / WHOLE_MILLI
    assert work_gpu_s / (32 * period_s) == pytest.approx(1.1)
    assert len(tasks.kinds) - offered.num_before == (jobs.num_gpus <= 32).sum() == 400 - offered.left_out
    with pytest.raises(TraceError, match="the load is undefined"):
        job_churn(FILE, jobs_on(1, 1), 4, 1.0, 0)


def test_what_runs_when_the_period_begins_has_its_age_and_its_rest() -> None:
    jobs = drawn_jobs(300, 5)
    offered = job_churn(FILE, jobs, 4, 1.0, 0)
    tasks, num = offered.tasks, offered.num_before
    assert num > 0 and tasks.age_s is not None
    assert (tasks.age_s[:num] >= 0).all()  # the last one of a period is submitted at its end
    assert (tasks.age_s[num:] == 0).all()
    assert (tasks.duration_s > 0).all()
    lengths = set(np.round(jobs.duration_s, 6).tolist())
    assert {round(value, 6) for value in (tasks.age_s + tasks.duration_s)[:num].tolist()} <= lengths
