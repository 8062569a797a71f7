"""Lists of jobs, read from a file in the format of Philly's trace, or drawn.

The format is that of Sia's artifact: `timestamp, duration, num_gpus, gpu_time, cluster`, in seconds and whole GPUs;
`cluster` is a virtual cluster (a team's part). `.csv.gz` can be read as well. An optional column `priority` orders
jobs, larger first.
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core.clusters import Floats, Longs, Mask
from model.workloads.traces import Cell, TraceError, read_table

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True)
class JobList:
    """J jobs by submission time."""

    submitted_s: Floats
    """(J,) since the first submission."""
    duration_s: Floats
    """(J,) duration on the requested GPUs."""
    num_gpus: Longs
    """(J,) 1 or more."""
    cluster: tuple[str, ...]
    """(J,) virtual cluster."""
    priority: Longs
    """(J,)."""

    @property
    def gpu_s(self) -> Floats:
        """(J,) GPU-seconds of each job."""
        return self.duration_s * self.num_gpus

    @property
    def span_s(self) -> float:
        """Time from the first to the last submission."""
        return float(self.submitted_s[-1] - self.submitted_s[0])

    def select(self, kept: Mask) -> "JobList":
        """Return the selected jobs."""
        cluster = tuple(name for name, keep in zip(self.cluster, kept, strict=True) if keep)
        return JobList(self.submitted_s[kept], self.duration_s[kept], self.num_gpus[kept], cluster, self.priority[kept])


def read_jobs(path: Path) -> JobList:
    """Read the jobs of a file. Raises TraceError with line and column."""
    rows: list[tuple[float, float, int, str, int]] = []
    try:
        for row in read_table(path, ("timestamp", "duration", "num_gpus", "cluster"), _open_text):
            priority = row["priority"].whole(-(2**31), 2**31) if "priority" in row else 0
            rows.append(
                (
                    _time(row["timestamp"]),
                    row["duration"].number(),
                    row["num_gpus"].whole(1, 2**20),
                    row["cluster"].text,
                    priority,
                )
            )
    except zlib.error as error:
        raise TraceError(f"{path}: {error}") from None
    if not rows:
        raise TraceError(f"{path}: no jobs")
    return _sorted_jobs(rows)


def drawn_jobs(num_jobs: int, seed: int) -> JobList:
    """Draw jobs from fixed distributions.

    Arrivals are Poisson with a daily cycle of the rate (1 + 0.5 sin); GPUs are 1, 2, 4, 8, 16, 32 with probabilities
    0.7, 0.1, 0.08, 0.08, 0.03, 0.01; durations are log-normal, median 15 minutes, sigma 1.8, times the square root of
    the GPUs, between 10 s and 30 days; each of 10 virtual clusters has a factor on durations (log-normal, sigma 0.7).
    """
    rng = np.random.default_rng(seed)
    day_s = 86400.0
    gaps = rng.exponential(60.0, num_jobs)
    submitted = np.zeros(num_jobs)
    now = 0.0
    for j, gap in enumerate(gaps.tolist()):
        now += gap / (1 + 0.5 * math.sin(2 * math.pi * now / day_s))
        submitted[j] = now
    num_gpus = rng.choice([1, 2, 4, 8, 16, 32], num_jobs, p=[0.7, 0.1, 0.08, 0.08, 0.03, 0.01])
    factor = rng.lognormal(0.0, 0.7, 10)
    cluster = rng.integers(0, 10, num_jobs)
    duration = 900 * rng.lognormal(0.0, 1.8, num_jobs) * np.sqrt(num_gpus) * factor[cluster]
    duration = np.clip(duration, 10.0, 30 * day_s).round(1)
    return _sorted_jobs(
        [(float(submitted[j]), float(duration[j]), int(num_gpus[j]), f"vc-{cluster[j]}", 0) for j in range(num_jobs)]
    )


def nodes_for_load(jobs: JobList, load: float) -> int:
    """Return the number of nodes of GPUS_PER_NODE on which the jobs have the given load over their submission span."""
    if jobs.span_s <= 0:
        raise TraceError("the load is undefined, because all jobs are submitted at once; give the number of GPUs")
    return max(math.ceil(float(jobs.gpu_s.sum()) / (load * jobs.span_s * GPUS_PER_NODE)), 1)


def _sorted_jobs(rows: list[tuple[float, float, int, str, int]]) -> JobList:
    rows = sorted(rows, key=lambda row: row[0])  # stable: equal times stay in the order of the file
    submitted, duration, num_gpus, cluster, priority = zip(*rows, strict=True)
    return JobList(
        np.array(submitted) - submitted[0], np.array(duration), np.array(num_gpus, np.int64), cluster,
        np.array(priority, np.int64),
    )  # fmt: skip


def _time(cell: Cell) -> float:
    """Return seconds from a number, or a date and time (UTC by default)."""
    try:
        when = datetime.fromisoformat(cell.text)
    except ValueError:
        try:
            return cell.number()
        except TraceError:
            raise cell.fault('a time such as "2017-09-04 10:30:41", or seconds') from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _open_text(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
