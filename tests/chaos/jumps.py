"""Kerf with a wall clock that jumps: `python -m tests.chaos.jumps serve ...` is `kerf serve ...`, and every SIGUSR1
moves its wall clock by an hour, forth and back in turn. The monotonic clock is the system's, as on a machine whose
clock is set.
"""

import signal
import sys
import time
from types import FrameType

_JUMP_S = 3600.0


class JumpingClock:
    """The wall clock, moved."""

    def __init__(self) -> None:
        self._now = time.time
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return self._now() + self._ahead_s

    def jump(self, number: int, frame: FrameType | None) -> None:
        """Called on the signal."""
        self._ahead_s = _JUMP_S - self._ahead_s


def main() -> None:
    """Run Kerf's command line."""
    clock = JumpingClock()
    time.time = clock  # before Kerf is imported: whatever it takes, it takes this one
    signal.signal(signal.SIGUSR1, clock.jump)
    from extender.service import cli

    sys.argv[0] = "kerf"
    cli.main()


if __name__ == "__main__":
    main()
