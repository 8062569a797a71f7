"""Processes beside the loop, as the service starts them: under uvloop, while NumPy's threads are at work."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop

from extender import children
from extender.children import Child, _PipeEnd

UNDER_LOAD = """
import asyncio
import numpy
import uvloop
from extender.children import Child, _PipeEnd

left, right = numpy.random.rand(6, 10, 150), numpy.random.rand(150, 1001)

async def main():
    for _ in range(5):
        work = asyncio.get_running_loop().run_in_executor(None, lambda: [left @ right for _ in range(3)])
        child = await Child.start("cat")
        assert await child.finished(b"told") == (0, b"told", "")
        await child.end()
        await work

uvloop.run(main())
"""


def num_open() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def is_open(number: int) -> bool:
    """Whether a file of this process has that number."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_a_process_is_started_while_numpy_multiplies() -> None:
    """A fork would wait for OpenBLAS's threads forever, in most runs at the first process."""
    done = subprocess.run([sys.executable, "-c", UNDER_LOAD], timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_of_another_thread_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop closes the number of a pipe, and then the file that it was given: by then the number may be another's."""
    open_before_and_after: list[tuple[bool, bool]] = []
    closed = asyncio.Event()

    class Late(_PipeEnd):
        def close(self) -> None:
            number = self.fileno()
            was_open = is_open(number)
            other = os.open(os.devnull, os.O_RDONLY)  # as a thread opens it meanwhile
            if other != number:
                os.dup2(other, number)
                os.close(other)
            super().close()
            open_before_and_after.append((was_open, is_open(number)))
            with contextlib.suppress(OSError):
                os.close(number)
            if len(open_before_and_after) == 3:
                closed.set()

    async def main() -> None:
        child = await Child.start("cat", complaints=True)
        assert await child.finished(b"told") == (0, b"told", "")
        await child.end()
        await asyncio.wait_for(closed.wait(), 10.0)

    monkeypatch.setattr(children, "_PipeEnd", Late)
    uvloop.run(main())
    assert open_before_and_after == [(False, True)] * 3


@pytest.mark.parametrize("mine", [True, False])
def test_an_end_closes_its_own_number_alone(mine: bool) -> None:
    source, target = os.pipe()
    end = _PipeEnd(os.fdopen(source, "rb"))
    number = end.fileno()
    with Path(os.devnull).open("rb") as other:
        if not mine:
            os.dup2(other.fileno(), number)
    end.close()
    assert is_open(number) is not mine
    if not mine:
        os.close(number)
    os.close(target)


def test_a_process_that_fails_tells_why() -> None:
    async def main() -> tuple[int, bytes, str]:
        child = await Child.start("sh", "-c", "echo half; echo 'no such thing' >&2; exit 3", complaints=True)
        try:
            return await child.finished(b"x" * 10_000_000)  # more than anybody reads
        finally:
            await child.end()

    assert asyncio.run(main()) == (3, b"half\n", "no such thing\n")


def test_no_such_command_leaves_nothing_open() -> None:
    async def main() -> None:
        await Child.start("/nowhere", complaints=True)

    before = num_open()
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        asyncio.run(main())
    assert num_open() == before


def test_ended_while_it_runs() -> None:
    async def main() -> Child:
        child = await Child.start("sleep", "60")
        assert child.running
        began = time.monotonic()
        await child.end()
        assert time.monotonic() - began < 30
        await child.end()  # a second time is nothing new
        return child

    before = num_open()
    child = asyncio.run(main())
    assert (child.running, child.process.returncode) == (False, -signal.SIGKILL)
    assert num_open() == before


def test_whenever_the_start_is_given_up_nothing_is_left() -> None:
    async def main() -> None:
        for turns in range(8):
            starting = asyncio.create_task(Child.start("sleep", "60"))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            try:
                child = await starting
            except asyncio.CancelledError:
                continue
            await child.end()
        await asyncio.sleep(0.05)  # until pipes are closed

    before = num_open(), num_children()
    asyncio.run(main())
    assert (num_open(), num_children()) == before


def num_children() -> int:
    """How many processes of this one there are."""
    return sum(len(tasks.read_text().split()) for tasks in Path("/proc/self/task").glob("*/children"))
