"""Pods that leave the queue without a node, because they no longer opt in or have waited too long.

Their gates are opened beside the rounds, a bounded number at once and namespaces in turn, so that one author's mass
opt-out delays no others.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from extender.kube.turns import in_turn
from extender.queueing.dispatch import Dispatcher
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage

_MAX_CONCURRENT: Final = 16


@dataclass(frozen=True, slots=True)
class LeavingPod:
    """A pod that leaves the queue."""

    entry: Entry
    why: str
    by_kerf: bool = False
    """Whether `fail_open_s` opens it; it then counts in quotas and is not checked against them."""


@dataclass(eq=False)
class GateOpener:
    """Opens the gates of leaving pods."""

    dispatcher: Dispatcher
    backlog: Backlog
    counts: Counts
    standby: Callable[[], str]
    _waiting: deque[LeavingPod] = field(default_factory=deque, init=False)
    _num_writers: int = field(default=0, init=False)

    def open(self, leavers: Iterable[LeavingPod]) -> None:
        """Replace the pods still to be opened; writes under way go on."""
        due = [leaver for leaver in leavers if self.dispatcher.rests(leaver.entry) is None]
        self._waiting = deque(in_turn(due, lambda leaver: leaver.entry.namespace))
        while self._num_writers < min(_MAX_CONCURRENT, len(self._waiting)):
            self._num_writers += 1
            self.dispatcher.begin(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting and not self.standby():
                leaver = self._waiting.popleft()
                entry = leaver.entry
                if entry.stage is Stage.GATED and self.backlog.entries.get(entry.uid) is entry:
                    self.counts.failed_open += leaver.by_kerf
                    await self.dispatcher.open_without_node(entry, leaver.why, by_kerf=leaver.by_kerf)
        finally:
            self._num_writers -= 1
