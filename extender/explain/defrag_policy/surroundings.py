"""What the policy works with: whom it asks, what it sees of the cluster, and when moves are worth it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from extender.core.clusters import Cluster
from extender.explain.defrag_policy.sick_gpus import SickGpus
from extender.explain.defrag_policy.waits import Wait
from extender.planning.windows import Window
from extender.queueing.defrag.plan import RoomPlan


class Asks(Protocol):
    """What answers how room could be made."""

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        resting: frozenset[str] = frozenset(),
    ) -> bytes:
        """Raises QuestionError, BusyError, ClusterError."""

    def kept(self, plan: str) -> RoomPlan | None:
        """A plan that was answered, by its id."""


@dataclass(frozen=True, slots=True)
class Terms:
    """When moves are worth it; as the settings of the same names."""

    mode: str
    acts: bool
    every_s: float
    after_s: float
    least_gain: float
    rest_s: float
    free_nodes: int
    heal: bool
    moves_an_hour: int
    windows: tuple[Window, ...] = ()


@dataclass(eq=False)
class Around:
    """What the policy sees of the cluster."""

    cluster: Callable[[], Cluster]
    waits: Callable[[], Awaitable[list[Wait]]]
    is_there: Callable[[str], bool]
    """Whether a pod waits, or holds GPUs, by its UID."""
    standby: Callable[[], str]
    """Why nothing is to be decided now, "" where it is."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    sick: SickGpus


@dataclass
class Counts:
    """What has happened since the start."""

    rounds: int = 0
    begun: int = 0
    """Plans."""
    refused: int = 0
    """Plans that the mover would not begin."""
