"""Requests in pieces or several at once, and answers that are not read, over real connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import uvicorn

from extender.server.connections import Limits, OpenConnections, TimedProtocol
from tests.kube.loops import in_loop
from tests.ledger.builders import until


class Echo:
    """An app that answers with the request body; `/slow` byte by byte."""

    def __init__(self) -> None:
        self.received = b""
        """All bodies, as far as they have come."""

    def has_come_to(self, end: bytes) -> bool:
        """Whether this is the last that was received."""
        return self.received.endswith(end)

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            self.received += message.get("body", b"")
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for index in range(len(body)):
            if scope["path"] == "/slow":
                await asyncio.sleep(0)
                await send({"type": "http.response.body", "body": body[index : index + 1], "more_body": True})
        await send({"type": "http.response.body", "body": b"" if scope["path"] == "/slow" else body})


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[tuple[str, int]]:
    """A server of an app; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        timed: Any = partial(TimedProtocol, **options)
        server = uvicorn.Server(uvicorn.Config(app, http=timed, ws="none", lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            await task


@in_loop
async def test_requests_may_come_in_pieces_or_several_at_once() -> None:
    fast, slow = b"POST / HTTP/1.1\r\n", b"POST /slow HTTP/1.1\r\n"
    rows: list[tuple[list[bytes], list[bytes]]] = [
        ([fast + b"content-length: 3\r\n\r\nabc"], [b"abc"]),
        ([fast + b"content-length: 3\r\n\r\na", b"bc"], [b"abc"]),
        ([slow + b"content-length: 3\r\n\r\nabc"], [b"abc"]),
        ([fast + b"content-length: 1\r\n\r\na" + slow + b"content-length: 2\r\n\r\nbc"], [b"a", b"bc"]),
    ]
    for sent, bodies in rows:
        echo = Echo()
        async with serving(echo) as address:
            reader, writer = await asyncio.open_connection(*address)
            for data in sent:
                writer.write(data)
                await writer.drain()
                await until(partial(echo.has_come_to, data[-1:]))
            received = b""
            while received.count(b"\r\n\r\n") < len(bodies) or not received.endswith(bodies[-1]):
                received += await asyncio.wait_for(reader.read(4096), 10.0)
            writer.close()
            await writer.wait_closed()
        heads_and_bodies = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert [part.partition(b"\r\n\r\n")[2] for part in heads_and_bodies] == bodies


LARGE = b"x" * (16 << 20)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Large:
    """An app whose answers are larger than what sockets buffer."""

    def __init__(self) -> None:
        self.num_answers = 0
        """On their way, or sent."""

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        headers = [(b"content-length", b"%d" % len(LARGE))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.num_answers += 1
        await send({"type": "http.response.body", "body": LARGE})


@asynccontextmanager
async def client_of(limits: Limits) -> AsyncIterator[tuple[OpenConnections, Large, socket.socket]]:
    """A server of large answers: its connections, its app, and a client that reads nothing by itself."""
    opened, app = OpenConnections(limits), Large()
    with closing(socket.socket()) as client:
        client.setblocking(False)
        async with serving(app, opened=opened) as address:
            await asyncio.get_running_loop().sock_connect(client, address)
            yield opened, app, client


@in_loop
async def test_a_client_that_does_not_read_its_answers_is_disconnected() -> None:
    loop = asyncio.get_running_loop()
    for sent, answer_s in ((GET, 0.2), (GET + GET, 0.2), (GET * 100, 60.0)):  # many requests before their answers
        async with client_of(Limits(answer_s=answer_s)) as (opened, app, client):
            await loop.sock_sendall(client, sent)
            await until(lambda: app.num_answers)
            await until(lambda: not opened.num_open)


@in_loop
async def test_an_answer_that_is_read_slowly_is_sent_to_its_end() -> None:
    loop = asyncio.get_running_loop()
    async with client_of(Limits(answer_s=5.0)) as (_, _, client):
        await loop.sock_sendall(client, GET)
        received = 0
        while received < len(LARGE):
            received += len(await loop.sock_recv(client, 1 << 18))
            await asyncio.sleep(0.001)  # slowly


@in_loop
async def test_a_connection_with_an_unread_answer_makes_room() -> None:
    loop = asyncio.get_running_loop()
    async with client_of(Limits(answer_s=60.0, connections_each=1)) as (_, app, client):
        await loop.sock_sendall(client, GET)
        await until(lambda: app.num_answers)
        with socket.create_connection(client.getpeername()):
            async with asyncio.timeout(10.0):
                while await loop.sock_recv(client, 1 << 18):
                    pass  # what was sent before, and then the end
