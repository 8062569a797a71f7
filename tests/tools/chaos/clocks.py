"""Kerf's clocks, made to jump and to stand still.

The wall clock jumps by an hour, forth and back in turn, at every SIGUSR1. The monotonic clock goes on as the system's
does, less what a page of shared memory says: what a stopped process has missed is left out there before it goes on, as
in a virtual machine that was paused with its clock.
"""

import mmap
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_JUMP_S = 3600.0
_PAGE_BYTES = 8


class WallClock:
    """The wall clock, moved."""

    def __init__(self) -> None:
        self._now = time.time
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return self._now() + self._ahead_s

    def jump(self, number: int, frame: FrameType | None) -> None:
        """Called on the signal."""
        self._ahead_s = _JUMP_S - self._ahead_s


class MissedTime:
    """Seconds that a process has missed, in a page that it shares with who stops it."""

    def __init__(self, path: Path) -> None:
        """Share the file's page; a new file says 0."""
        with path.open("a+b") as file:
            if path.stat().st_size < _PAGE_BYTES:
                file.truncate(_PAGE_BYTES)
            self._page = memoryview(mmap.mmap(file.fileno(), _PAGE_BYTES)).cast("d")

    def __call__(self) -> float:
        return self._page[0]

    def add(self, seconds: float) -> None:
        """Say so before the process goes on."""
        self._page[0] += seconds


class MonotonicClock:
    """The monotonic clock without what was missed."""

    def __init__(self) -> None:
        self._now = time.monotonic
        self.missed: Callable[[], float] = float  # float() is 0

    def __call__(self) -> float:
        return self._now() - self.missed()


wall = WallClock()
monotonic = MonotonicClock()


def install() -> None:
    """Replace the clocks of this process: before Kerf is imported, so that whatever it takes, it takes these."""
    time.time = wall
    time.monotonic = monotonic


def heed_signals() -> None:
    """Let the wall clock jump when it is told to."""
    signal.signal(signal.SIGUSR1, wall.jump)
