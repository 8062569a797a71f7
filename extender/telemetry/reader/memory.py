"""How much memory a process that reads answers of others may have: what it has at first, and so much more."""

import contextlib
import resource
from pathlib import Path
from typing import Final

_MORE_MIB: Final = 512
"""48,000 series take 100; a container of the chart has 1,024 for all of Kerf's processes."""


def bound_memory() -> None:
    """Bound this process' own memory from now on: what asks for more gets a MemoryError.

    Data alone: address space counts what is only reserved as well, by threads and by what numpy computes with.
    """
    has = memory_mib("VmData")
    if has:  # elsewhere than on Linux nobody tells
        most = int((has + _MORE_MIB) * 2**20)
        with contextlib.suppress(OSError, ValueError):  # it is bounded more narrowly
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def memory_mib(what: str) -> float:
    """A line of `/proc/self/status` such as VmHWM, in MiB; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) / 1024
    return 0.0
