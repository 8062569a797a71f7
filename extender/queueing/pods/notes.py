"""Writes wait reasons on pods, after a delay and at a bounded rate."""

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
    """Writes the reasons that are due, one batch at a time."""

    def __init__(self, writer: PodWriter, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._writing = False

    async def write(self, entries: Sequence[Entry]) -> None:
        """Write the new reasons of pods that have waited a while.

        One after the other, with namespaces in turn: the writes of releases matter more.
        """
        if self._writing:
            return
        self._writing = True
        try:
            due = [entry for entry in entries if self._is_due(entry)]
            for entry in in_turn(due, lambda entry: entry.namespace)[:_MOST]:
                if self._is_due(entry):
                    entry.skips.written_at = self._clock()  # a failed write is retried after `_EVERY_S`, too
                    await self._write_one(entry)
        except ClusterError as error:
            logger.warning("could not write on pods why they wait: %s", error)
        finally:
            self._writing = False

    def _is_due(self, entry: Entry) -> bool:
        skips, now = entry.skips, self._clock()
        is_new = entry.stage.waits and skips.reason is not None and skips.reason != skips.written
        return is_new and now - entry.seen >= _AFTER_S and now - skips.written_at >= _EVERY_S

    async def _write_one(self, entry: Entry) -> None:
        """Write a pod's reason. Raises ClusterError, but only logs an ApiError, which may concern this pod only."""
        reason = entry.skips.reason
        try:
            if await self._writer.note(entry.pod, str(reason), entry.skips.count):
                entry.skips.written = reason
        except ApiError as error:
            logger.warning("could not write on pod %s why it waits: %s", entry.pod.key, error)
