"""Processes that this one starts beside its loop.

asyncio's own way forks under uvloop, and what libraries do before a fork may wait for a thread for ever, with the loop:
OpenBLAS joins its threads there, and one that is at work may overlook that it is to end. `subprocess` uses vfork, which
calls none of that and copies no page tables.
"""

import asyncio
import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import IO, Final

_END_S: Final = 2.0


class _PipeEnd:
    """This process' end of a pipe, for a loop to have.

    uvloop closes a pipe's number, and then what it was given for it. By then the number may be that of a file that a
    thread has opened meanwhile: a file object would close that one.
    """

    def __init__(self, pipe: IO[bytes] | None) -> None:
        """Takes the pipe over."""
        if pipe is None:
            raise ValueError("there is no pipe")
        self._number = os.dup(pipe.fileno())
        pipe.close()
        self._what = self._found()

    def fileno(self) -> int:
        """Its number."""
        return self._number

    def close(self) -> None:
        """Close it, if the number is still its own."""
        with contextlib.suppress(OSError):  # closed
            if self._found() == self._what:
                os.close(self._number)

    def _found(self) -> tuple[int, int]:
        found = os.fstat(self._number)
        return found.st_dev, found.st_ino


@dataclass(eq=False)
class Child:
    """A process, with pipes to it and from it."""

    process: subprocess.Popen[bytes]
    writer: asyncio.StreamWriter
    """Its input."""
    _pipes: list[asyncio.BaseTransport]
    reader: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    """Its output."""
    _complaints: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)

    @classmethod
    async def start(cls, *command: str, complaints: bool = False) -> "Child":
        """Start a command; without `complaints` what it says on stderr is not kept. Raises OSError."""
        # Returns as soon as the command runs. Without a shell, and of our own making.
        process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE if complaints else None)  # noqa: S603, ASYNC220
        joining = asyncio.create_task(cls._join(process, complaints))
        try:
            return await asyncio.shield(joining)
        except asyncio.CancelledError:  # nobody else knows of it
            await (await joining).end()
            raise

    @classmethod
    async def _join(cls, process: subprocess.Popen[bytes], complaints: bool) -> "Child":
        """Lay pipes to a process; it is to be carried through."""
        loop = asyncio.get_running_loop()
        pipe, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _PipeEnd(process.stdin))
        child = cls(process, asyncio.StreamWriter(pipe, flow, None, loop), [pipe])
        await child._listen(child.reader, process.stdout)
        if complaints:
            await child._listen(child._complaints, process.stderr)
        else:
            child._complaints.feed_eof()
        return child

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    async def finished(self, told: bytes = b"") -> tuple[int, bytes, str]:
        """Tell it all that it is told, and wait: its return code, its output, its complaints."""
        self.writer.write(told)
        self.writer.close()
        printed, complaint = await asyncio.gather(self.reader.read(), self._complaints.read())
        code = await asyncio.to_thread(self.process.wait)
        return code, printed, complaint.decode(errors="replace")

    async def end(self) -> None:
        """End it if it runs, and what leads to it."""
        self.process.kill()
        for pipe in self._pipes:
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, _END_S)

    async def _listen(self, reader: asyncio.StreamReader, pipe: IO[bytes] | None) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _PipeEnd(pipe))
        self._pipes.append(transport)
