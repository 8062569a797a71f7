"""Which objects are to be looked at, and from when: what fails is tried again later and later."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from extender.kube.background import until_set

_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 60.0


class Due:
    """Objects by UID."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._from: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._failures: Counter[str] = Counter()

    def touch(self, uid: str, wait_s: float = 0.0) -> None:
        """Look at an object, at once or in so many seconds."""
        self._from[uid] = self._clock() + wait_s
        self._wake.set()

    def take(self) -> list[str]:
        """Those whose time has come; they are to be looked at once."""
        now = self._clock()
        found = [uid for uid, since in self._from.items() if since <= now]
        for uid in found:
            del self._from[uid]
        return found

    def forget(self, uid: str) -> None:
        """An object is gone, or has been looked at without a fault."""
        self._failures.pop(uid, None)

    def failed(self, uid: str) -> float:
        """Look at an object again; seconds until then."""
        self._failures[uid] += 1
        wait_s = float(min(_FIRST_BACKOFF_S * 2.0 ** (self._failures[uid] - 1), _MAX_BACKOFF_S))
        self.touch(uid, wait_s)
        return wait_s

    async def sleep(self) -> None:
        """Wait until something may be due."""
        soonest = min(self._from.values(), default=float("inf")) - self._clock()
        await until_set(self._wake, min(max(soonest, 0.0), _MAX_BACKOFF_S))
        self._wake.clear()
