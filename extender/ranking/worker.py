"""Runs work that takes seconds in a separate low-priority process, with tensors as input and output."""

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
"""Arrays by name."""
CPU_S: Final = "cpu_s"
"""(1,) in each output: CPU seconds used."""
_NICE: Final = 10
_MAX_ERROR_CHARS: Final = 300
_PARENT_POLL_S: Final = 0.5


class WorkerError(RuntimeError):
    """The process returned no output."""


async def run_worker(module: str, asked: Arrays, max_s: float) -> Arrays:
    """The output of a module whose main part calls `answer`. Raises WorkerError."""
    content = tensors.save({name: np.ascontiguousarray(column) for name, column in asked.items()})
    child = await Child.start(sys.executable, "-m", module, str(os.getpid()), complaints=True)
    try:
        async with asyncio.timeout(max_s):
            code, output, errors = await child.finished(content)
    except TimeoutError:
        raise WorkerError(f"it did not finish within {max_s:g} s") from None
    finally:
        await child.end()
    if code != 0:
        raise WorkerError(errors.strip()[-_MAX_ERROR_CHARS:] or "the process ended")
    try:
        arrays: Arrays = tensors.load(output)
    except SafetensorError as error:
        raise WorkerError(f"its output can't be read: {error}") from None
    return arrays


def worker_main(work: Callable[[Arrays], Arrays]) -> None:
    """Run `work` on the arrays of standard input and write its result to standard output.

    The process' argument is its parent's id. `work` may exit with an error message.
    """
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    arrays = work(tensors.load(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(tensors.save({**arrays, CPU_S: np.array([time.process_time()])}))


def _end_with(parent: int) -> None:
    """Exit when the parent process has ended."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
