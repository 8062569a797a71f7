"""Questions answered beside the loop: in a process of its own, one at a time, for so long and no longer.

Whoever may read may ask, and a question may be as large as a body. The loop, which filter and the lease wait for, hands
bytes on and decodes nothing of it. The process ends with its answer.
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
"""Begins an answer that is a sentence."""
_FINE: Final = b"="
"""Begins any other one."""


class QuestionError(ValueError):
    """An invalid question; says what would be right."""


class BusyError(Exception):
    """No answer now; says why."""


class NotKnownError(Exception):
    """What is asked about is not there, or not any more."""


class RefusedError(Exception):
    """What is asked for is not done; says why."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said to a process, and what it answers."""

    child: Child

    async def send(self, content: bytes) -> None:
        """Tell it something. Raises OSError."""
        self.child.writer.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
        await self.child.writer.drain()

    async def ask(self, content: bytes) -> bytes:
        """Tell it something, and take its answer. Raises QuestionError, OSError, EOFError."""
        await self.send(content)
        reader = self.child.reader
        reply = await reader.readexactly(int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big"))
        if reply.startswith(_FAULT):
            raise QuestionError(reply[1:].decode(errors="replace"))
        return reply[1:]


@dataclass(eq=False)
class Turns:
    """Whose turn it is: one question at a time, of whatever kind, and a few that wait."""

    max_s: float = 60.0
    """The time for an answer."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _num_waiting: int = field(default=0, init=False)

    @asynccontextmanager
    async def process(self, module: str) -> AsyncIterator[Talk]:
        """A process for one question, once it is its turn. Raises BusyError, also for what goes wrong within."""
        if self._num_waiting >= _MAX_WAITING:
            raise BusyError(f"{_MAX_WAITING} questions are waiting already; try again later")
        self._num_waiting += 1
        try:
            async with self._busy, asyncio.timeout(self.max_s):
                child = await Child.start(sys.executable, "-m", module)
                try:
                    yield Talk(child)
                except (OSError, EOFError) as error:
                    raise BusyError("the question used too much memory, or its process was ended") from error
                finally:
                    await child.end()
        except TimeoutError:
            raise BusyError(f"no answer within {self.max_s:g} s (setting access.what_if_s)") from None
        finally:
            self._num_waiting -= 1


async def pages(transport: Transport, path: str, query: Query | None = None) -> AsyncIterator[bytes]:
    """A list of the API server page by page, each a list of objects as they come. Raises ClusterError."""
    try:
        async for page in Lister(transport, path, msgspec.Raw, query).pages():
            yield b'{"items":[%b]}' % b",".join(map(bytes, page.items))
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path} can't be read: {error}") from None


async def whole(transport: Transport, path: str, query: Query | None = None) -> bytes:
    """The same as one list. Raises ClusterError."""
    try:
        found = await Lister(transport, path, msgspec.Raw, query).all()
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path} can't be read: {error}") from None
    return b'{"items":[%b]}' % b",".join(map(bytes, found.items))


@dataclass(frozen=True, slots=True)
class Pipe:
    """The process' end of a talk."""

    source: BinaryIO
    target: BinaryIO

    def read(self) -> bytes:
        """What is said next. Raises EOFError where nobody is there any more."""
        length = self._exactly(_LENGTH_BYTES)
        return self._exactly(int.from_bytes(length, "big"))

    def tell(self, content: bytes) -> None:
        """Answer."""
        self.send(_FINE + content)

    def refuse(self, why: str) -> None:
        """Answer with a sentence."""
        self.send(_FAULT + why.encode(errors="replace"))

    def _exactly(self, num_bytes: int) -> bytes:
        content = self.source.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError("whoever asked has ended")
        return content

    def send(self, content: bytes) -> None:
        """Say something."""
        self.target.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
        self.target.flush()


def serve(answer: Callable[[Pipe], bytes]) -> None:
    """Be the process: `answer` reads, asks for what it needs, and returns the last thing to tell or raises
    QuestionError."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    pipe = Pipe(sys.stdin.buffer, sys.stdout.buffer)
    with contextlib.suppress(EOFError, BrokenPipeError):  # Kerf was killed: nobody waits for an answer
        _answer(pipe, answer)


def _answer(pipe: Pipe, answer: Callable[[Pipe], bytes]) -> None:
    try:
        pipe.tell(answer(pipe))
    except QuestionError as error:
        pipe.refuse(str(error))
