"""Requests that come in pieces, several at once or not to their end, over real connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import pytest
import uvicorn

from extender.server.connections import Doors, Limits, TimedProtocol
from tests.ledger.builders import until


class Echo:
    """An app that answers the body it was sent; `/slow` a piece at a time."""

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


@pytest.mark.parametrize(
    ("sent", "bodies"),
    [
        pytest.param([b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"], [b"abc"], id="one"),
        pytest.param([b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\na", b"bc"], [b"abc"], id="a body in two pieces"),
        pytest.param([b"POST /slow HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"], [b"abc"], id="a slow answer"),
        pytest.param(
            [b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\naPOST /slow HTTP/1.1\r\ncontent-length: 2\r\n\r\nbc"],
            [b"a", b"bc"],
            id="two at once",
        ),
    ],
)
def test_over_a_real_connection(sent: list[bytes], bodies: list[bytes]) -> None:
    async def run() -> bytes:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            echo = Echo()
            config = uvicorn.Config(echo, http=TimedProtocol, ws="none", lifespan="off", log_config=None)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            try:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                for data in sent:
                    writer.write(data)
                    await writer.drain()
                    await until(partial(echo.has_come_to, data[-1:]))
                received = b""
                while received.count(b"\r\n\r\n") < len(bodies) or not received.endswith(bodies[-1]):
                    received += await asyncio.wait_for(reader.read(4096), 10.0)
                writer.close()
                await writer.wait_closed()
                return received
            finally:
                server.should_exit = True
                await serving

    received = asyncio.run(run())
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
async def client_of(limits: Limits) -> AsyncIterator[tuple[Doors, Large, socket.socket]]:
    """The doors of a server of large answers, the server's app, and a client of it that reads nothing by itself."""
    doors, app = Doors(limits), Large()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(socket.socket()) as client:
        timed = partial(TimedProtocol, doors=doors)
        config = uvicorn.Config(app, http=timed, ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
            yield doors, app, client
        finally:
            server.should_exit = server.force_exit = True
            await serving


@pytest.mark.parametrize("sent", [GET, GET + GET], ids=["one answer", "two"])
def test_who_does_not_take_an_answer_is_let_go(sent: bytes) -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=0.2)) as (doors, _, client):
            await asyncio.get_running_loop().sock_sendall(client, sent)
            await until(lambda: doors.num_open)
            await until(lambda: not doors.num_open)

    asyncio.run(run())


def test_an_answer_that_is_taken_slowly_is_sent_to_its_end() -> None:
    async def run() -> int:
        async with client_of(Limits(answer_s=5.0)) as (_, _, client):
            await asyncio.get_running_loop().sock_sendall(client, GET)
            received = 0
            while received < len(LARGE):
                received += len(await asyncio.get_running_loop().sock_recv(client, 1 << 18))
                await asyncio.sleep(0.001)  # slowly
            return received

    assert asyncio.run(run()) >= len(LARGE)


def test_who_makes_room_does_so_with_an_answer_that_it_did_not_take() -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=60.0, connections_each=1)) as (_, app, client):
            await asyncio.get_running_loop().sock_sendall(client, GET)
            await until(lambda: app.num_answers)
            with socket.create_connection(client.getpeername()):
                async with asyncio.timeout(10.0):
                    while await asyncio.get_running_loop().sock_recv(client, 1 << 18):
                        pass  # what was sent before, and then the end

    asyncio.run(run())


def test_who_sends_requests_without_end_before_their_answers_is_let_go() -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=60.0)) as (doors, app, client):
            await asyncio.get_running_loop().sock_sendall(client, GET * 100)
            await until(lambda: app.num_answers)
            await until(lambda: not doors.num_open)

    asyncio.run(run())
