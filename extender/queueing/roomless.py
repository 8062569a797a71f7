"""The queue's interface to the part that releases units for which no node has room."""

from collections.abc import Sequence
from typing import Protocol

from extender.planning.plans import Plan
from extender.queueing.gangs import Unit
from extender.queueing.pods.entries import Entry


class RoomlessReleaser(Protocol):
    """Releases units without a node."""

    def refusal(self, uid: str, *, known: bool) -> str:
        """Return why a pod must not get a node yet, "" when it may. `known`: whether the queue's watches are synced."""

    async def release(self, units: Sequence[Unit], plan: Plan, batch: Sequence[Entry]) -> None:
        """Release the units that are next in the queue order; `batch` are the plan's pods."""
