"""Paired comparison of the queue's order with kube-scheduler's on the same jobs."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from extender.core.clusters import Mask
from model.evaluation.reports import Interval, interval
from model.simulations import delays
from model.simulations.baselines import BASELINES
from model.simulations.delays import Run
from model.workloads.jobs import GPUS_PER_NODE, JobList, nodes_for_load

_JCT_AIM: Final = 0.3
"""Target reduction of the mean job completion time."""
_P99_AIM: Final = 1.2
"""Limit of the p99 queueing delay, as a multiple of the baseline's."""
_FEWEST_JOBS: Final = 200
"""Windows with fewer jobs are skipped."""
_KEPT_FRAC: Final = 0.5
"""Fraction of the jobs in each random sample."""
_DAY_S: Final = 86400.0


@dataclass(frozen=True)
class _Pair:
    """Two runs of one list of jobs on one cluster."""

    name: str
    jobs: JobList
    num_gpus: int
    baseline: Run
    """First come, first served, with skipping; nodes chosen by kube-scheduler's plugins."""
    queue: Run
    """The order `kerf`, with best fit."""

    def within(self, chosen: Mask, name: str) -> dict[str, Any]:
        """Return the measures of both runs for a selection of jobs, as JSON data; reductions are relative."""
        base_jct, base_delay = self.baseline.jct_s[chosen], self.baseline.delay_s[chosen]
        jct, delay = self.queue.jct_s[chosen], self.queue.delay_s[chosen]
        base_p99, p99 = float(np.percentile(base_delay, 99)), float(np.percentile(delay, 99))
        return {
            **{"name": name, "jobs": int(chosen.sum()), "gpus": self.num_gpus},
            **{"jct_s": [round(float(base_jct.mean()), 1), round(float(jct.mean()), 1)]},
            "jct_reduction": round(1 - float(jct.mean() / base_jct.mean()), 4),
            "p99_delay_s": [round(base_p99, 1), round(p99, 1)],
            "p99_ratio": round(p99 / base_p99, 4) if base_p99 else None,
            "max_delay_s": [round(float(base_delay.max()), 1), round(float(delay.max()), 1)],
        }

    def whole(self) -> dict[str, Any]:
        """Return the measures of all jobs, and the fairness between virtual clusters."""
        fairness = [delays.fairness(run, self.jobs.cluster) for run in (self.baseline, self.queue)]
        return self.within(np.ones(len(self.jobs.cluster), np.bool_), self.name) | {"fairness": fairness}


def _run_pair(jobs: JobList, load: float, seed: int, name: str, before: JobList | None = None) -> _Pair:
    """Run the jobs that fit a cluster sized for the load; `before`: earlier jobs known to the queue's order."""
    num_gpus = nodes_for_load(jobs, load) * GPUS_PER_NODE
    jobs = jobs.select(jobs.num_gpus <= num_gpus)
    baseline = delays.simulate_jobs(jobs, num_gpus, BASELINES["kube-default"], "fifo", seed)
    queue = delays.simulate_jobs(jobs, num_gpus, BASELINES["bestfit"], "kerf", seed, before=before)
    return _Pair(name, jobs, num_gpus, baseline, queue)


def compare(
    jobs: JobList,
    load: float,
    seeds: Sequence[int],
    window_days: float,
    skip_days: float,
    on_step: Callable[[str], None],
) -> dict[str, Any]:
    """Return the report of `kerf verify jobs`, as JSON data.

    `whole`: all jobs. `windows` of that run: the jobs submitted in each `window_days`; the first `skip_days`, on which
    constants may have been tuned, are reported but excluded from the interval. `samples`: half of the jobs, drawn with
    each seed, on a cluster sized for them. `apart`: the jobs of each window alone, starting with an empty cluster.
    """
    on_step("all jobs")
    pair = _run_pair(jobs, load, seeds[0], "all jobs")
    spans = _windows(jobs, window_days)
    windows = [
        pair.within(_between(pair.jobs, *span), _name(span)) | {"held_out": span[0] >= skip_days * _DAY_S}
        for span in spans
    ]
    samples = []
    for seed in seeds:
        on_step(f"sample {seed}")
        drawn = np.random.default_rng([seed, 3]).random(len(jobs.cluster)) < _KEPT_FRAC
        samples.append(_run_pair(_from_zero(jobs.select(drawn)), load, seed, f"sample {seed}").whole())
    apart = []
    for span in spans:
        on_step(f"{_name(span)} alone")
        ended = jobs.select(jobs.submitted_s + jobs.duration_s < span[0])
        alone = _from_zero(jobs.select(_between(jobs, *span)))
        apart.append(_run_pair(alone, load, seeds[0], _name(span), ended).whole())
    return {
        **{"load": load, "seeds": list(seeds), "order": "kerf", "policy": "bestfit", "baseline": "fifo, kube-default"},
        **{"whole": pair.whole(), "windows": windows, "samples": samples, "apart": apart},
        "intervals": {
            "windows": _intervals([window for window in windows if window["held_out"]]),
            **{"samples": _intervals(samples), "apart": _intervals(apart)},
        },
    }


def num_steps(jobs: JobList, seeds: Sequence[int], window_days: float) -> int:
    """Return the number of steps that `compare` reports."""
    return 1 + len(seeds) + len(_windows(jobs, window_days))


def met(report: dict[str, Any]) -> bool:
    """Whether all jobs reach the targets, and the samples reach them with 95 % confidence."""
    spread = report["intervals"]["samples"]["jct_reduction"]
    whole, samples = report["whole"], report["samples"]
    return (
        whole["jct_reduction"] >= _JCT_AIM
        and spread["half_width"] is not None  # one sample has no interval
        and spread["mean"] - spread["half_width"] >= _JCT_AIM
        and all((run["p99_ratio"] or 0.0) <= _P99_AIM for run in (whole, *samples))
    )


def _intervals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over runs with 95 % intervals."""
    if not rows:
        return {}
    values = {
        "jct_reduction": [row["jct_reduction"] for row in rows],
        "jct_saved_h": [(row["jct_s"][0] - row["jct_s"][1]) / 3600 for row in rows],
        "p99_ratio": [row["p99_ratio"] for row in rows if row["p99_ratio"] is not None] or [math.nan],
    }
    return {name: _rounded(interval(found)) for name, found in values.items()}


def _rounded(found: Interval) -> dict[str, float | None]:
    half_width = found.half_width
    return {"mean": round(found.mean, 4), "half_width": None if half_width is None else round(half_width, 4)}


def _windows(jobs: JobList, days: float) -> list[tuple[float, float]]:
    """Return (start, end) in seconds of windows with enough jobs."""
    edges = np.arange(0.0, jobs.span_s + days * _DAY_S, days * _DAY_S).tolist()
    return [span for span in itertools.pairwise(edges) if _between(jobs, *span).sum() >= _FEWEST_JOBS]


def _between(jobs: JobList, begin_s: float, end_s: float) -> Mask:
    chosen: Mask = (jobs.submitted_s >= begin_s) & (jobs.submitted_s < end_s)
    return chosen


def _from_zero(jobs: JobList) -> JobList:
    return replace(jobs, submitted_s=jobs.submitted_s - jobs.submitted_s[0])


def _name(span: tuple[float, float]) -> str:
    return f"day {span[0] / _DAY_S:g} to {span[1] / _DAY_S:g}"
