"""The mover's dependencies and counters."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.kube.events import EventRecorder
from extender.parts.defrag.checks import CheckInputs
from extender.parts.defrag.evictions import Evictor
from extender.parts.defrag.proof import ProofInputs
from extender.parts.defrag.record import Records
from extender.parts.defrag.steps import Follower
from extender.parts.defrag.target_pods import TargetPlacer
from extender.scheduling.fence import Fence


@dataclass
class Counts:
    """Counts since the start."""

    evicted: int = 0
    """Pods evicted to make room."""
    moved: int = 0
    """Evicted pods whose replacement runs where planned."""
    done: int = 0
    """Plans carried out."""
    stopped: int = 0
    """Plans given up."""


@dataclass(eq=False)
class Tools:
    """The mover's dependencies."""

    records: Records
    evictor: Evictor
    follower: Follower
    targets: TargetPlacer
    proof_inputs: ProofInputs
    check_inputs: Callable[[], CheckInputs]
    fault: Callable[[], str]
    """Why the cluster can't be judged now, "" if it can."""
    fence: Fence
    events: EventRecorder
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    most_an_hour: int
    """Most evictions per hour."""
    pause: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)
