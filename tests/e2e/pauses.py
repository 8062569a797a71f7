"""Kerf on a machine that is paused with its clocks: `python -m tests.e2e.pauses serve ...` is `kerf serve ...`, with a
monotonic clock that leaves out the time for which the process was stopped (SIGSTOP), as a virtual machine's may.
"""

import sys
import threading
import time
from typing import Final

_LOOK_EVERY_S: Final = 0.01
_STOPPED_S: Final = 0.5
"""Nobody has read the clock for so long: the process was stopped, or as good as."""


class PausingClock:
    """The monotonic clock, without the gaps in which nobody looked at it."""

    def __init__(self) -> None:
        self._now = time.monotonic
        self._left_out_s = 0.0
        self._looked_at = self._now()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            now = self._now()
            gap_s, self._looked_at = now - self._looked_at, now
            if gap_s > _STOPPED_S:
                self._left_out_s += gap_s
            return now - self._left_out_s

    def run(self) -> None:
        """Look at it all the time."""
        while True:
            self()
            time.sleep(_LOOK_EVERY_S)  # the pace of the clock itself


def main() -> None:
    """Run Kerf's command line."""
    clock = PausingClock()
    threading.Thread(target=clock.run, daemon=True).start()
    time.monotonic = clock  # before Kerf is imported: whatever it takes, it takes this one
    from extender.cli import main

    sys.argv[0] = "kerf"
    main.main()


if __name__ == "__main__":
    main()
