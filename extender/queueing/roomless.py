"""What lets units go that no node has room for, as the queue sees it: a part does."""

from collections.abc import Sequence
from typing import Protocol

from extender.planning.plans import Plan
from extender.queueing.gangs import Unit
from extender.queueing.pods.entries import Entry


class LetsRoomlessGo(Protocol):
    """Lets them go without a node, and says what follows from that."""

    def refusal(self, uid: str, *, known: bool) -> str:
        """Why a pod gets no node yet although it may have room, "" when it may have one. `known` says whether the
        queue is known."""

    async def release(self, units: Sequence[Unit], plan: Plan, batch: Sequence[Entry]) -> None:
        """Let go whose turn it is; `batch` are the plan's pods."""
