"""Work in a process of its own at low priority, tensors in and tensors out: what takes seconds keeps nobody waiting."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors import numpy as tensors

from extender.children import Child

Arrays = Mapping[str, npt.NDArray[Any]]
"""By name."""
CPU_S: Final = "cpu_s"
"""(1,) of each answer: CPU seconds that it took."""
_NICE: Final = 10
_MAX_WORDS: Final = 300
_LOOK_S: Final = 0.5


class AsideError(RuntimeError):
    """There is no answer: says why."""


async def worked_out(module: str, asked: Arrays, max_s: float) -> Arrays:
    """What a module answers whose `main` calls `answer`. Raises AsideError."""
    told = tensors.save({name: np.ascontiguousarray(column) for name, column in asked.items()})
    child = await Child.start(sys.executable, "-m", module, str(os.getpid()), complaints=True)
    try:
        async with asyncio.timeout(max_s):
            code, found, complaint = await child.finished(told)
    except TimeoutError:
        raise AsideError(f"it did not finish within {max_s:g} s") from None
    finally:
        await child.end()
    if code != 0:
        raise AsideError(complaint.strip()[-_MAX_WORDS:] or "the process ended")
    try:
        answer: Arrays = tensors.load(found)
    except SafetensorError as error:
        raise AsideError(f"the answer can't be read: {error}") from None
    return answer


def answer(work: Callable[[Arrays], Arrays]) -> None:
    """The process; its argument is the number of the one that asks. `work` may end it with a sentence."""
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    found = work(tensors.load(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(tensors.save({**found, CPU_S: np.array([time.process_time()])}))


def _end_with(parent: int) -> None:
    """End when the process that asked has: nobody reads the answer."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
