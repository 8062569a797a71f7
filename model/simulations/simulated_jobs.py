"""Inputs and outputs of a simulation over time: jobs, queue order, failures, outcomes."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Mix, Nodes, PodClasses

Kind = tuple[tuple[int, int], ...]
"""Parts of a job: (class, count) pairs."""

CPU_MILLI_PER_GPU: Final = 12_000
MEMORY_MIB_PER_GPU: Final = 96 * 1024


Absence = tuple[int, float, float]
"""Node, and start and end of its absence in seconds; inf if it does not return."""


@dataclass(frozen=True)
class Tasks:
    """J jobs by submission time, as classes of `asks`."""

    submitted_s: Floats
    duration_s: Floats
    kinds: tuple[Kind, ...]
    priority: Longs
    asked_milli: Longs
    """(J,) GPU milli that all parts request."""
    asks: PodClasses
    mix: Mix
    age_s: Floats | None = None
    """(J,) run time before the submission, which a restart loses as well; None: 0."""


@dataclass(frozen=True)
class Failures:
    """Node failures: both times are drawn from exponential distributions."""

    mean_between_s: float
    """Mean time between failures of one node."""
    repair_s: float


@dataclass(frozen=True)
class Moved:
    """A job that was restarted elsewhere to make room."""

    at_s: float
    job: int
    target: int
    """The job for which room was made."""
    num_pods: int
    lost_s: float
    """Delay of its end."""
    lost_gpu_s: float


@dataclass
class Outcome:
    """Results of J jobs. Times are inf for jobs that did not start or end."""

    started_s: Floats
    """(J,) first start."""
    ended_s: Floats
    num_restarts: Longs
    """(J,) number of restarts because of node failures."""
    allocated_gpu_s: float = 0.0
    """GPU-seconds in use between the first and the last submission (the window)."""
    blocked_gpu_s: float = 0.0
    """GPU-seconds in the window that were free while waiting jobs requested as much."""
    fragment_gpu_s: float = 0.0
    """Idle GPU-seconds in the window that a typical pod is expected not to be able to use."""
    num_failures: int = 0
    decisions: int = 0
    steps: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Consecutive steps of the window: start, end, GPUs in use, fragments in GPUs."""
    blocked_jobs: frozenset[int] = frozenset()
    """Jobs that waited because free GPUs were scattered; empty unless `Simulation.count_blocked`."""
    moves: list[Moved] = field(default_factory=list)
    """Restarts that made room for other jobs, in order."""
    kept_gpu_s: float = 0.0
    """GPU-seconds in the window that were reserved for the targets of moves until the last move."""


@dataclass(frozen=True)
class Turns:
    """Queue order within a priority: the smallest place plus hold goes first."""

    place: Callable[[int], float]
    """Called when a job is submitted."""
    held: Callable[[int], float] = lambda _: 0.0
    """Called for the first job of each group at each pass over the queue, so that new durations count."""
    group: Callable[[int], Hashable] = lambda _: None
    """Jobs of a group have the same hold."""


def is_gang(kind: Kind) -> bool:
    """Whether a job has several parts."""
    return len(kind) > 1 or kind[0][1] > 1


def whole_gpu_nodes(num_gpus: int, per_node: int) -> Nodes:
    """Return nodes of one GPU model, with CPU and memory in proportion; the last one has the remaining GPUs.

    Jobs that request CPU and memory in the same proportion never lack them; kube-scheduler's scores use nothing else.
    """
    sizes = [per_node] * (num_gpus // per_node) + ([num_gpus % per_node] if num_gpus % per_node else [])
    num = np.array(sizes, dtype=np.int64)
    free = np.where(np.arange(per_node) < num[:, None], WHOLE_MILLI, 0).astype(np.int32)
    cpu_milli, memory_mib = num * CPU_MILLI_PER_GPU, num * MEMORY_MIB_PER_GPU
    return Nodes(cpu_milli, memory_mib, num, np.zeros(len(num), np.int64), cpu_milli.copy(), memory_mib.copy(), free)
