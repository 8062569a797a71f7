"""What a simulation over time is given and what comes of it: jobs, turns, failures, outcomes."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Asks, Mix, Nodes

Kind = tuple[tuple[int, int], ...]
"""Parts of a job: classes, each with how many there are of it."""

CPU_MILLI_PER_GPU: Final = 12_000
MEMORY_MIB_PER_GPU: Final = 96 * 1024


Absence = tuple[int, float, float]
"""A node, from when to when it is not there; until inf where it does not return."""


@dataclass(frozen=True)
class Tasks:
    """J jobs by time of submission, in terms of the classes of `asks`."""

    submitted_s: Floats
    duration_s: Floats
    kinds: tuple[Kind, ...]
    priority: Longs
    asked_milli: Longs
    """(J,) GPU milli of all parts."""
    asks: Asks
    mix: Mix
    age_s: Floats | None = None
    """(J,) how long each has run already when it is submitted, which a restart loses too; None: not at all."""


@dataclass(frozen=True)
class Failures:
    """How nodes fail: both times are drawn from exponential distributions."""

    mean_between_s: float
    """Of one node."""
    repair_s: float


@dataclass(frozen=True)
class Moved:
    """A job that was restarted elsewhere, to make room."""

    at_s: float
    job: int
    target: int
    """The job for which room was made."""
    num_pods: int
    lost_s: float
    """How much later it ends."""
    lost_gpu_s: float


@dataclass
class Outcome:
    """What became of J jobs. Times are inf where it did not happen."""

    started_s: Floats
    """(J,) the first start."""
    ended_s: Floats
    num_restarts: Longs
    """(J,) how often a failing node threw the job back to its beginning."""
    allocated_gpu_s: float = 0.0
    """GPU seconds in use, in the window from the first to the last submission."""
    blocked_gpu_s: float = 0.0
    """In that window, GPU seconds that were free while jobs waited for so many or more."""
    fragment_gpu_s: float = 0.0
    """In that window, idle GPU seconds that a typical pod is expected to be unable to use."""
    num_failures: int = 0
    decisions: int = 0
    steps: list[tuple[float, float, float, float]] = field(default_factory=list)
    """In that window, one after the other: from, to, GPUs in use, fragments in GPUs."""
    blocked_jobs: frozenset[int] = frozenset()
    """Jobs that waited where only a move would have let them start; empty unless `Simulation.count_blocked`."""
    moves: list[Moved] = field(default_factory=list)
    """Restarts that made room for others, one after the other."""
    kept_gpu_s: float = 0.0
    """In that window, GPU seconds that were kept for jobs for which room was made, until the last move."""


@dataclass(frozen=True)
class Turns:
    """Whose turn it is among equals in priority: the job whose place plus what it is held back is smallest."""

    place: Callable[[int], float]
    """Told when a job is submitted."""
    held: Callable[[int], float] = lambda _: 0.0
    """Asked at each walk, of the first of a group: what is learned meanwhile counts."""
    group: Callable[[int], Hashable] = lambda _: None
    """Jobs of a group are held back alike."""


def is_gang(kind: Kind) -> bool:
    """Whether a job has several parts."""
    return len(kind) > 1 or kind[0][1] > 1


def whole_gpu_nodes(num_gpus: int, per_node: int) -> Nodes:
    """Nodes of one model of GPU, with CPU and memory in proportion; the last one has what remains.

    Jobs that ask in proportion never lack either: kube-scheduler's own scores go by nothing else.
    """
    sizes = [per_node] * (num_gpus // per_node) + ([num_gpus % per_node] if num_gpus % per_node else [])
    num = np.array(sizes, dtype=np.int64)
    free = np.where(np.arange(per_node) < num[:, None], WHOLE_MILLI, 0).astype(np.int32)
    cpu_milli, memory_mib = num * CPU_MILLI_PER_GPU, num * MEMORY_MIB_PER_GPU
    return Nodes(cpu_milli, memory_mib, num, np.zeros(len(num), np.int64), cpu_milli.copy(), memory_mib.copy(), free)
