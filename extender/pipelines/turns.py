"""Looking at objects that are due: a few at once, namespaces in turn, each for a short while.

What one author has to be looked at is no hindrance to others: whoever comes meanwhile is next, and who needs long gives
way to them again and again.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from extender.kube.client import ClusterError
from extender.pipelines.due import Due

logger = logging.getLogger(__name__)

_MOST: Final = 8
_MOST_EACH: Final = 2
"""Of a namespace."""


class Turns:
    """Takes what is due of one kind, and has it looked at."""

    def __init__(
        self,
        kind: str,
        due: Due,
        key_of: Callable[[str], str],
        look: Callable[[str], Awaitable[None]],
        standby: Callable[[], str],
    ) -> None:
        """`key_of` is the namespace/name of a UID, "" where that is not known (any more); `look` does what is to be
        done next for one. A standby looks at nothing: what is due stays so."""
        self._kind = kind
        self._due = due
        self._key_of = key_of
        self._look = look
        self._standby = standby
        self._waiting: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()  # UIDs by namespace
        self._running: dict[asyncio.Task[None], tuple[str, str]] = {}

    async def run_round(self) -> None:
        """Look at all that is due, and at what comes to be so meanwhile."""
        try:
            self._begin()
            while self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._running if task.done()]:
                    del self._running[task]
                self._begin()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        for task, (_, uid) in self._running.items():
            task.cancel()
            self._due.touch(uid)
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        for uids in self._waiting.values():
            for uid in uids:
                self._due.touch(uid)
        self._waiting.clear()

    def _begin(self) -> None:
        """Look at as many as may be looked at now."""
        if self._standby():
            return
        for uid in self._due.take():
            self._waiting.setdefault(self._key_of(uid).partition("/")[0], OrderedDict())[uid] = None
        while len(self._running) < _MOST and (found := self._next()) is not None:
            self._running[asyncio.create_task(self._look_at(found[1]), name=f"{self._kind} {found[1]}")] = found

    def _next(self) -> tuple[str, str] | None:
        """Namespace and UID of whose turn it is, None where nobody may be looked at now."""
        busy = Counter(namespace for namespace, _ in self._running.values())
        running = {uid for _, uid in self._running.values()}
        for namespace in [name for name in self._waiting if busy[name] < _MOST_EACH]:
            uids = self._waiting[namespace]
            uid = next((uid for uid in uids if uid not in running), None)
            if uid is None:
                continue
            del uids[uid]
            self._waiting.move_to_end(namespace)
            if not uids:
                del self._waiting[namespace]
            return namespace, uid
        return None

    async def _look_at(self, uid: str) -> None:
        try:
            await self._look(uid)
            self._due.forget(uid)
        except Exception as error:  # whatever it is, it must not keep the others from their turn
            wait_s = self._due.failed(uid)
            name = self._key_of(uid) or f"of UID {uid}"
            unexpected = None if isinstance(error, ClusterError) else error
            logger.warning("%s %s, again in %.0f s: %s", self._kind, name, wait_s, error, exc_info=unexpected)
