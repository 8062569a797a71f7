"""Jobs of a list, including gangs, as a periodic workload on nodes of GPUS_PER_NODE."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from model.simulations.delays import owners_of, tasks_of
from model.simulations.departures import PeriodicWorkload, earlier
from model.simulations.simulated_jobs import whole_gpu_nodes
from model.workloads.jobs import GPUS_PER_NODE, JobList
from model.workloads.traces import TraceError

_DAY_S: Final = 86400.0


def some_days(jobs: JobList, num_days: int, seed: int) -> JobList:
    """Return the jobs of `num_days` days of a list, drawn by `seed`, one day after the other.

    Times within a day don't change. The list's last day, usually incomplete, is never drawn. Raises TraceError if the
    list has fewer days.
    """
    whole = int(jobs.span_s // _DAY_S)
    if whole < num_days:
        raise TraceError(f"the jobs cover {whole} whole days, but {num_days} were requested")
    days = np.random.default_rng([seed, 3]).permutation(whole)[:num_days]
    place = np.full(whole + 1, -1)
    place[days] = np.arange(num_days)
    day = (jobs.submitted_s // _DAY_S).astype(np.int64)
    kept = place[day] >= 0
    if not kept.any():
        raise TraceError("no job was submitted on the drawn days")
    chosen = jobs.select(kept)
    submitted = chosen.submitted_s + (place[day[kept]] - day[kept]) * _DAY_S
    order = np.argsort(submitted, kind="stable")
    return JobList(
        submitted[order] - submitted[order[0]], chosen.duration_s[order], chosen.num_gpus[order],
        tuple(chosen.cluster[job] for job in order.tolist()), chosen.priority[order],
    )  # fmt: skip


def job_churn(path: Path, jobs: JobList, num_nodes: int, load: float, seed: int) -> PeriodicWorkload:
    """As `departures.periodic_workload`, for jobs: the GPU work submitted in a period is `load` times the capacity.

    Jobs larger than the cluster are left out. Raises TraceError if the load is undefined.
    """
    num_gpus = num_nodes * GPUS_PER_NODE
    fitting = jobs.select(jobs.num_gpus <= num_gpus)
    if not fitting.cluster or fitting.span_s <= 0 or fitting.gpu_s.sum() <= 0:
        raise TraceError(f"{path}: the load is undefined: no jobs fit, all are submitted at once, or they have no work")
    period_s = float(fitting.gpu_s.sum()) / num_gpus / load
    factor = period_s / fitting.span_s
    submitted = fitting.submitted_s * factor
    before, age = earlier(submitted, fitting.duration_s, period_s, np.random.default_rng(seed))
    num = len(fitting.cluster)
    source = np.concatenate([before, np.arange(num)])
    all_jobs = JobList(
        np.concatenate([np.zeros(len(before)), submitted]),
        np.concatenate([fitting.duration_s[before] - age, fitting.duration_s]),
        fitting.num_gpus[source], tuple(fitting.cluster[job] for job in source.tolist()), fitting.priority[source],
    )  # fmt: skip
    tasks = replace(tasks_of(all_jobs), age_s=np.concatenate([age, np.zeros(num)]))
    owners = [owners_of(all_jobs, job) for job in range(len(source))]
    nodes = whole_gpu_nodes(num_gpus, GPUS_PER_NODE)
    return PeriodicWorkload(tasks, nodes, ("GPU",), owners, len(before), len(jobs.cluster) - num, factor)
