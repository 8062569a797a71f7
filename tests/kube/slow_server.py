"""An API server that takes its time: requests arrive when they are told to, in any order, once more, or late; answers
come or are lost. What it does with a request once that has arrived is a real server's affair: `server` is any."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from extender.kube.client import ApiError, Query, UnreachableError

Answer = bytes | ApiError


@dataclass(eq=False)
class Request:
    """A request under way, or answered."""

    line: "Line"
    what: str
    arrive: Callable[[], Awaitable[bytes]]
    answered: "asyncio.Future[bytes]"
    decisive: str
    """Which of the writes it is that its sender's decision comes to, "" for none."""
    answer: Answer | None = None
    """Of the API server, once it has arrived."""
    num_arrived: int = 0

    @property
    def awaited(self) -> bool:
        """Whether its sender still waits for the response."""
        return not self.answered.done()


@dataclass(eq=False)
class SlowServer:
    """Requests of all lines."""

    server: Any
    requests: list[Request] = field(default_factory=list)
    applied: list[Request] = field(default_factory=list)
    """Decisive ones that took effect, in that order."""

    def line(self, name: str) -> "Line":
        return Line(self, name)

    async def arrive(self, request: Request) -> None:
        """A request reaches the API server, perhaps again."""
        request.num_arrived += 1
        try:
            answer: Answer = await request.arrive()
            if request.decisive:
                self.applied.append(request)
        except ApiError as error:
            answer = error
        request.answer = request.answer or answer

    def tell(self, request: Request) -> None:
        """Return its response."""
        assert request.answer is not None
        if isinstance(request.answer, ApiError):
            request.answered.set_exception(request.answer)
        else:
            request.answered.set_result(request.answer)

    def lose(self, request: Request) -> None:
        """Its sender times out; it may still arrive."""
        request.answered.set_exception(UnreachableError("timed out"))


@dataclass(eq=False)
class Line:
    """The transport of one process."""

    slow: SlowServer
    name: str
    decisive: str = ""
    """What the next request is."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, path: str, query: Query | None = None) -> bytes:
        return await self._send(f"GET {path}", lambda: self.slow.server.get(path, query))

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._send(f"POST {path}", lambda: self.slow.server.post(path, body))

    async def patch(self, path: str, body: bytes) -> bytes:
        return await self._send(f"PATCH {path}", lambda: self.slow.server.patch(path, body))

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        raise NotImplementedError
        yield []

    async def ask(self, what: str, arrive: Callable[[], Awaitable[bytes]]) -> bytes:
        """Another question, such as who leads."""
        return await self._send(what, arrive)

    async def _send(self, what: str, arrive: Callable[[], Awaitable[bytes]]) -> bytes:
        decisive, self.decisive = self.decisive, ""
        request = Request(self, what, arrive, asyncio.get_running_loop().create_future(), decisive)
        self.slow.requests.append(request)
        return await request.answered
