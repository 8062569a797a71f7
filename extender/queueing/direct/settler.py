"""Pods of which nobody knows what is written on them: they are read, and what is not to stand is taken back.

What was reserved for them is free only once the API server has answered that nothing of it is written any more: that
changes the pod, so that a write which is still on its way fails.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.kube.background import repeat
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.kube.objects import Pod
from extender.kube.pauses import Pauses
from extender.kube.turns import in_turn
from extender.ledger.ledger import Ledger
from extender.queueing.direct.writer import DirectWriter, is_blank
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import nominated_node
from extender.queueing.pods.objects import is_gated
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.1
_MAX_CONCURRENT: Final = 16


@dataclass(eq=False)
class Settler:
    """Settles what is in doubt, again and again until it is; `changed` hears of pods that have to be planned again."""

    writer: DirectWriter
    backlog: Backlog
    ledger: Ledger
    fence: Fence
    clock: Callable[[], float]
    changed: Callable[[], None]
    _pauses: Pauses = field(default_factory=Pauses, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    async def run(self) -> None:
        """Settle until cancelled."""
        await repeat(self.settle_all, _INTERVAL_S, "settling pods of the queue")

    async def settle_all(self) -> None:
        """Look at each pod in doubt once. Who stands by leaves that to the leader, and holds nothing."""
        if self.fence.standby():
            for claim in self.ledger.firm():
                self.ledger.release(claim.uid)
        elif not self.fence.fault():
            now = self.clock()
            due = [one for one in self.backlog.unsettled() if not self._pauses.why(one.namespace, one.uid, now)]
            unsettled = in_turn(due, lambda entry: entry.namespace)
            await asyncio.gather(*(self._settle(entry) for entry in unsettled))

    async def _settle(self, entry: Entry) -> None:
        async with self._slots:
            try:
                found = await self.writer.read(entry.pod)
                if found is None or found.metadata.deletion_timestamp or found.finished:
                    return  # the watch will tell
                if found.spec.node_name:
                    self.ledger.hold_as_read(found, self.clock())
                    return
                if not self._stands(entry, found):
                    await self.fence.confirm_now()
                    found = found if is_blank(found) else await self.writer.take_back(found, entry.node)
                    if found is None:
                        return  # it has changed since: once more
            except (ClusterError, FencedError, msgspec.DecodeError) as error:
                logger.warning("pod %s of the queue is still in doubt: %s", entry.pod.key, error)
                if not isinstance(error, FencedError):
                    self._pauses.failed(entry.namespace, entry.uid, error, self.clock())
                return
            self._pauses.succeeded(entry.namespace, entry.uid)
            if entry.stage is Stage.UNSETTLED and self.backlog.entries.get(entry.uid) is entry:
                self._end(entry, found)

    @staticmethod
    def _stands(entry: Entry, found: Pod) -> bool:
        """Whether a pod was let go as it was to be."""
        return not is_gated(found) and not entry.take_back and nominated_node(found) == entry.node

    def _end(self, entry: Entry, found: Pod) -> None:
        """It is known what a pod has."""
        if self._stands(entry, found):
            entry.settle_open(found, self.clock())
            return
        self.ledger.release(entry.uid)
        if is_gated(found):
            entry.settle_shut(found)
        elif entry.node:
            entry.settle_lost(found)
        else:
            entry.settle_open(found, self.clock())
        self.backlog.read_again(entry)
        self.changed()
