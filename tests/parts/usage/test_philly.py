"""A day of Philly's trace, replayed: the account is the trace's own sum."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

from model.workloads.jobs import GPUS_PER_NODE, JobList, read_jobs
from tests.model.builders import PUBLISHED
from tests.parts.usage.rigs import Rig

TRACE = PUBLISHED / "philly" / "philly_2017-09_10.csv.gz"
DAY_S = 86_400.0
EIGHTH_S = 0.125
"""Times that floats hold exactly."""


@dataclass(frozen=True)
class Run:
    """A pod of a job."""

    name: str
    cluster: str
    gpus: int
    begins_s: float
    ends_s: float


def day_of(jobs: JobList, day: int) -> list[Run]:
    """What runs on that day, jobs larger than a node as several pods. They start as they are submitted."""
    begin = jobs.submitted_s - day * DAY_S
    end = begin + jobs.duration_s
    runs = []
    for job in np.flatnonzero((begin < DAY_S) & (end > 0)).tolist():
        begins, ends = max(_exact(begin[job]), 0.0), min(_exact(end[job]), DAY_S)
        left, number = int(jobs.num_gpus[job]), 0
        while left > 0 and ends > begins:
            gpus = min(left, GPUS_PER_NODE)
            runs.append(Run(f"job-{job}-{number}", f"vc-{jobs.cluster[job]}", gpus, begins, ends))
            left, number = left - gpus, number + 1
    return runs


def _exact(seconds: float) -> float:
    return float(np.round(seconds / EIGHTH_S) * EIGHTH_S)


@pytest.mark.slow
@pytest.mark.nightly(of=("extender/parts/usage/",))
def test_a_day_of_philly_is_accounted_for() -> None:
    if not TRACE.exists():
        pytest.skip(f"there is no {TRACE}")
    runs = day_of(read_jobs(TRACE), 20)
    assert len(runs) > 500
    rig, events = Rig(), defaultdict[float, list[tuple[bool, Run]]](list)
    rig.clock.now = began = 1000.0
    for run in runs:
        events[run.begins_s].append((True, run))
        events[run.ends_s].append((False, run))
    on: dict[str, str] = {}
    room: dict[str, int] = {}
    for at_s in sorted(events):
        rig.clock.now = began + at_s
        rig.tick()  # counts up to now
        for begins, run in sorted(events[at_s], key=lambda event: event[0]):
            if not begins:
                rig.gone(run.name)
                room[on.pop(run.name)] += run.gpus
                continue
            node = next((name for name, left in room.items() if left >= run.gpus), "")
            if not node:
                node = f"n{len(room)}"
                rig.node(node, GPUS_PER_NODE)
                room[node] = GPUS_PER_NODE
            rig.pod(run.name, run.gpus, node, run.cluster, owner=f"Job/{run.name}")
            on[run.name] = node
            room[node] -= run.gpus
        rig.tick()  # looks
    wanted: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        wanted[run.cluster] += run.gpus * (run.ends_s - run.begins_s)
    assert {name: seconds for name, seconds in rig.booked().items() if seconds} == {
        name: seconds for name, seconds in wanted.items() if seconds
    }
    sums = rig.sums()
    assert sums["capacity"] == sums["booked"] + sums["free"] + sums["stranded"] + sums["sick"]
