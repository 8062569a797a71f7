"""A work queue that reconciles objects a few at a time, fairly between namespaces, with exponential back-off.

No namespace delays the others: each gets a turn, and objects that need long are requeued behind those of others.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from extender.kube.background import until_set
from extender.kube.client import ClusterError

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 60.0


class WorkQueue:
    """The time at which each object, by UID, is due to be reconciled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._from: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._failures: Counter[str] = Counter()

    def touch(self, uid: str, wait_s: float = 0.0) -> None:
        """Requeue an object, now or in `wait_s` seconds."""
        self._from[uid] = self._clock() + wait_s
        self._wake.set()

    def take(self) -> list[str]:
        """Remove and return the objects that are due."""
        now = self._clock()
        found = [uid for uid, since in self._from.items() if since <= now]
        for uid in found:
            del self._from[uid]
        return found

    def forget(self, uid: str) -> None:
        """Reset the back-off of an object."""
        self._failures.pop(uid, None)

    def failed(self, uid: str) -> float:
        """Requeue an object after a failure; returns the back-off in seconds."""
        self._failures[uid] += 1
        wait_s = float(min(_FIRST_BACKOFF_S * 2.0 ** (self._failures[uid] - 1), _MAX_BACKOFF_S))
        self.touch(uid, wait_s)
        return wait_s

    async def sleep(self) -> None:
        """Wait until something may be due."""
        soonest = min(self._from.values(), default=float("inf")) - self._clock()
        await until_set(self._wake, min(max(soonest, 0.0), _MAX_BACKOFF_S))
        self._wake.clear()


_MAX_RUNNING: Final = 8
_MAX_OF_NAMESPACE: Final = 2


class FairWorkers:
    """Reconciles the due objects of one kind, a few at a time."""

    def __init__(
        self,
        kind: str,
        due: WorkQueue,
        key_of: Callable[[str], str],
        look: Callable[[str], Awaitable[None]],
        standby: Callable[[], str],
    ) -> None:
        """`key_of` returns the namespace/name of a UID, "" if unknown; `look` reconciles an object. A standby leaves
        due objects queued."""
        self._kind = kind
        self._due = due
        self._key_of = key_of
        self._look = look
        self._standby = standby
        self._waiting: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()  # UIDs by namespace
        self._running: dict[asyncio.Task[None], tuple[str, str]] = {}

    async def run_round(self) -> None:
        """Reconcile all objects that are due, and those that become due meanwhile."""
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
        """Start reconciling as many objects as allowed."""
        if self._standby():
            return
        for uid in self._due.take():
            self._waiting.setdefault(self._key_of(uid).partition("/")[0], OrderedDict())[uid] = None
        while len(self._running) < _MAX_RUNNING and (found := self._next()) is not None:
            self._running[asyncio.create_task(self._reconcile(found[1]), name=f"{self._kind} {found[1]}")] = found

    def _next(self) -> tuple[str, str] | None:
        """Namespace and UID of the next object, None if none may be started now."""
        busy = Counter(namespace for namespace, _ in self._running.values())
        running = {uid for _, uid in self._running.values()}
        for namespace in [name for name in self._waiting if busy[name] < _MAX_OF_NAMESPACE]:
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

    async def _reconcile(self, uid: str) -> None:
        try:
            await self._look(uid)
            self._due.forget(uid)
        except Exception as error:  # an unexpected error of one object must not stop the others
            wait_s = self._due.failed(uid)
            name = self._key_of(uid) or f"of UID {uid}"
            unexpected = None if isinstance(error, ClusterError) else error
            logger.warning("%s %s failed, retry in %.0f s: %s", self._kind, name, wait_s, error, exc_info=unexpected)
