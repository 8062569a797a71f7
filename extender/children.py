"""Child processes started without blocking the event loop.

asyncio's subprocess API forks under uvloop, and a library's pthread_atfork handler may then block the loop forever:
OpenBLAS joins its threads there, and a busy thread may miss the request to end. `subprocess` uses vfork, which runs no
such handlers and copies no page tables.
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
    """This process's end of a pipe, for an event loop.

    uvloop closes the file descriptor and then this object. By then another thread may have opened a file under the same
    descriptor, which a plain file object would close.
    """

    def __init__(self, pipe: IO[bytes] | None) -> None:
        """Takes ownership of the pipe."""
        if pipe is None:
            raise ValueError("there is no pipe")
        self._fd = os.dup(pipe.fileno())
        pipe.close()
        self._inode = self._current_inode()

    def fileno(self) -> int:
        """The file descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor, if it still belongs to this pipe."""
        with contextlib.suppress(OSError):  # closed
            if self._current_inode() == self._inode:
                os.close(self._fd)

    def _current_inode(self) -> tuple[int, int]:
        stat = os.fstat(self._fd)
        return stat.st_dev, stat.st_ino


@dataclass(eq=False)
class Child:
    """A child process and its pipes."""

    process: subprocess.Popen[bytes]
    writer: asyncio.StreamWriter
    """stdin of the process."""
    _pipes: list[asyncio.BaseTransport]
    reader: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    """stdout of the process."""
    _stderr: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)

    @classmethod
    async def start(cls, *command: str, complaints: bool = False) -> "Child":
        """Start a command; `complaints` captures its stderr. Raises OSError."""
        # Popen returns as soon as the command runs.
        process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE if complaints else None)  # noqa: S603, ASYNC220
        joining = asyncio.create_task(cls._join(process, complaints))
        try:
            return await asyncio.shield(joining)
        except asyncio.CancelledError:  # no other reference to the process exists
            await (await joining).end()
            raise

    @classmethod
    async def _join(cls, process: subprocess.Popen[bytes], complaints: bool) -> "Child":
        """Connect pipes to a process; must not be cancelled."""
        loop = asyncio.get_running_loop()
        pipe, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _PipeEnd(process.stdin))
        child = cls(process, asyncio.StreamWriter(pipe, flow, None, loop), [pipe])
        await child._listen(child.reader, process.stdout)
        if complaints:
            await child._listen(child._stderr, process.stderr)
        else:
            child._stderr.feed_eof()
        return child

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.poll() is None

    async def finished(self, told: bytes = b"") -> tuple[int, bytes, str]:
        """Write `told` to stdin, close it, and wait; returns the exit status, stdout and stderr."""
        self.writer.write(told)
        self.writer.close()
        stdout, stderr = await asyncio.gather(self.reader.read(), self._stderr.read())
        code = await asyncio.to_thread(self.process.wait)
        return code, stdout, stderr.decode(errors="replace")

    async def end(self) -> None:
        """Kill the process if it runs, and close its pipes."""
        self.process.kill()
        for pipe in self._pipes:
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, _END_S)

    async def _listen(self, reader: asyncio.StreamReader, pipe: IO[bytes] | None) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _PipeEnd(pipe))
        self._pipes.append(transport)
