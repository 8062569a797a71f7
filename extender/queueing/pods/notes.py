"""Writing on pods why they wait: not at once, not for every change of a number, a bounded number at a time."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from extender.kube.client import ApiError, ClusterError
from extender.kube.turns import in_turn
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.nominations import PodWriter

logger = logging.getLogger(__name__)

_AFTER_S: Final = 1.0
_EVERY_S: Final = 30.0
_MOST: Final = 50


class Notes:
    """Writes what is due, one batch after the other."""

    def __init__(self, writer: PodWriter, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._writing = False

    async def write(self, entries: Sequence[Entry]) -> None:
        """Write the reasons of those that have waited a while with one that isn't written yet.

        One after the other, namespaces in turn: a place in the order matters more than why another one waits.
        """
        if self._writing:
            return
        self._writing = True
        try:
            due = [entry for entry in entries if self._is_due(entry)]
            for entry in in_turn(due, lambda entry: entry.namespace)[:_MOST]:
                if self._is_due(entry):
                    entry.skips.written_at = self._clock()  # if it fails: again after as long as any other change
                    await self._write_one(entry)
        except ClusterError as error:
            logger.warning("could not write on pods why they wait: %s", error)
        finally:
            self._writing = False

    def _is_due(self, entry: Entry) -> bool:
        skips, now = entry.skips, self._clock()
        news = entry.stage.waits and skips.reason is not None and skips.reason != skips.written
        return news and now - entry.seen >= _AFTER_S and now - skips.written_at >= _EVERY_S

    async def _write_one(self, entry: Entry) -> None:
        """Raises ClusterError, but not where it is this pod's own, which may have no room for an annotation."""
        reason = entry.skips.reason
        try:
            if await self._writer.note(entry.pod, str(reason), entry.skips.count):
                entry.skips.written = reason
        except ApiError as error:
            logger.warning("could not write on pod %s why it waits: %s", entry.pod.key, error)
