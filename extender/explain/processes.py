"""Answers questions in a separate process, one at a time and with a time limit.

Anyone with read access may ask, and a question may be as large as a request body. The event loop, on which filter and
the lease depend, only passes bytes on and decodes none of them. The process ends after its answer.
"""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import msgspec

from extender.children import Child
from extender.kube.client import ClusterError, Query, Transport
from extender.kube.watches import Lister

_MAX_WAITING: Final = 4
_NICE: Final = 10
_MAX_BYTES: Final = 4 << 30
_LENGTH_BYTES: Final = 8
_FAULT: Final = b"!"
"""First byte of an answer that is an error."""
_FINE: Final = b"="
"""First byte of any other answer."""


class QuestionError(ValueError):
    """An invalid question; says what would be valid."""


class BusyError(Exception):
    """No answer now; says why."""


class NotKnownError(Exception):
    """The requested object does not exist, or no longer."""


class RefusedError(Exception):
    """The request is refused; says why."""


@dataclass(frozen=True, slots=True)
class ParentPipe:
    """The parent's end of a conversation with a process."""

    child: Child

    async def send(self, content: bytes) -> None:
        """Send a message. Raises OSError."""
        self.child.writer.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
        await self.child.writer.drain()

    async def ask(self, content: bytes) -> bytes:
        """Send a message and return the answer. Raises QuestionError, OSError, EOFError."""
        await self.send(content)
        reader = self.child.reader
        reply = await reader.readexactly(int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big"))
        if reply.startswith(_FAULT):
            raise QuestionError(reply[1:].decode(errors="replace"))
        return reply[1:]


@dataclass(eq=False)
class QuestionQueue:
    """Runs one question at a time, with a short queue."""

    max_s: float = 60.0
    """Time limit of an answer, in seconds."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _num_waiting: int = field(default=0, init=False)

    @asynccontextmanager
    async def process(self, module: str) -> AsyncIterator[ParentPipe]:
        """A process for one question, once the earlier ones are done. Raises BusyError, also if the process fails."""
        if self._num_waiting >= _MAX_WAITING:
            raise BusyError(f"{_MAX_WAITING} questions are waiting already; try again later")
        self._num_waiting += 1
        try:
            async with self._busy, asyncio.timeout(self.max_s):
                child = await Child.start(sys.executable, "-m", module)
                try:
                    yield ParentPipe(child)
                except (OSError, EOFError) as error:
                    raise BusyError("the question used too much memory, or its process was killed") from error
                finally:
                    await child.end()
        except TimeoutError:
            raise BusyError(f"no answer within {self.max_s:g} s (setting access.what_if_s)") from None
        finally:
            self._num_waiting -= 1


async def pages(transport: Transport, path: str, query: Query | None = None) -> AsyncIterator[bytes]:
    """A list of the API server, each page as JSON `{"items": [...]}`. Raises ClusterError."""
    try:
        async for page in Lister(transport, path, msgspec.Raw, query).pages():
            yield b'{"items":[%b]}' % b",".join(map(bytes, page.items))
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path} can't be read: {error}") from None


async def whole(transport: Transport, path: str, query: Query | None = None) -> bytes:
    """The same as one page. Raises ClusterError."""
    try:
        listing = await Lister(transport, path, msgspec.Raw, query).all()
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path} can't be read: {error}") from None
    return b'{"items":[%b]}' % b",".join(map(bytes, listing.items))


@dataclass(frozen=True, slots=True)
class ChildPipe:
    """The child's end of a conversation."""

    source: BinaryIO
    target: BinaryIO

    def read(self) -> bytes:
        """The next message. Raises EOFError if the parent is gone."""
        length = self._exactly(_LENGTH_BYTES)
        return self._exactly(int.from_bytes(length, "big"))

    def tell(self, content: bytes) -> None:
        """Answer."""
        self.send(_FINE + content)

    def refuse(self, why: str) -> None:
        """Answer with an error."""
        self.send(_FAULT + why.encode(errors="replace"))

    def _exactly(self, num_bytes: int) -> bytes:
        content = self.source.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError("the parent process has ended")
        return content

    def send(self, content: bytes) -> None:
        """Send a message."""
        self.target.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
        self.target.flush()


def serve(answer: Callable[[ChildPipe], bytes]) -> None:
    """Run the child process: `answer` reads messages and returns the answer, or raises QuestionError."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    pipe = ChildPipe(sys.stdin.buffer, sys.stdout.buffer)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        _answer(pipe, answer)


def _answer(pipe: ChildPipe, answer: Callable[[ChildPipe], bytes]) -> None:
    try:
        pipe.tell(answer(pipe))
    except QuestionError as error:
        pipe.refuse(str(error))
