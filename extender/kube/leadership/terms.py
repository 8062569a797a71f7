"""The time for which this process leads: begun, prolonged, ended and confirmed.

A term ends for certain before anybody else may begin one. A term that ran out ends for good, though nobody else has
taken the lease: what comes after the next renewal is another.

A clock may stand still, when a virtual machine is paused with it: the term looks good then, and others lead. So a
deadline only says who is to be asked. What must not happen twice waits for a confirmation besides: the answer to a
request that was sent later than what it rests on was known, and that shows the lease to be still this process's.
Requests are numbered, and no clock is asked.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from extender.kube.leadership.elections import Led

NEVER: Final = float("-inf")


class Terms:
    """The terms of one process, one after the other, told by the monotonic clock."""

    contested = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._certain_until = NEVER
        self._changed = asyncio.Event()
        self._held = ""  # how the lease was held when the term began
        self._led_since = self._led_until = NEVER
        self._num_tenures = self._num_terms = 0
        self._num_confirmed = 0  # the last request that showed the term to go on
        self._wanted = asyncio.Event()
        self._confirmed = asyncio.Event()  # another one for each confirmation
        self.term = self.tenure = ""
        self.num_asked = 0

    async def change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def deadline(self) -> float:
        return self._certain_until

    def led(self) -> Led:
        return Led(self.tenure, self._led_since, self._led_until)

    def hurry(self) -> None:
        self._wanted.set()

    def _ask(self) -> int:
        """The number of a request that is about to be sent."""
        self.num_asked += 1
        return self.num_asked

    async def _confirmed_after(self, since: int, within_s: float) -> bool:
        """Wait for a request sent after the first `since`; whether one has shown that nobody else led until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._num_confirmed <= since and self.term:
                    self._wanted.set()
                    await self._confirmed.wait()
        return self._num_confirmed > since

    def _confirm(self, number: int) -> None:
        """When this request was answered the lease was still this process's."""
        self._num_confirmed = number
        self._tell_waiting()

    def _prolong(self, held: str, until: float, *, since: float = NEVER, proven: float = NEVER) -> None:
        """The lease is `held` in this way, for certain until then. A term that has run out goes on as another one.

        `proven`: up to which nobody else has held it; in a new tenure, `since` when.
        """
        now = self._clock()
        if until <= now:
            if self._held != held:
                self._end()
            return
        if not self.term or self._held != held:
            self._held = held
            self._num_tenures += 1
            self.tenure = f"{held}.{self._num_tenures}"
            self._led_since, self._led_until = since, NEVER
            self._certain_until = NEVER
        if now >= self._certain_until:
            self._num_terms += 1
            self._set_term(f"{self.tenure}.{self._num_terms}")
        self._certain_until, self._led_until = until, max(self._led_until, proven)

    def _end(self) -> None:
        """Others lead, or nobody."""
        self._certain_until = NEVER
        self._set_term("")
        self._tell_waiting()

    def _set_term(self, term: str) -> None:
        if term != self.term:
            self.term = term
            self._changed.set()

    def _tell_waiting(self) -> None:
        self._confirmed.set()
        self._confirmed = asyncio.Event()
