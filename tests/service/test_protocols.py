"""Whole answers: what uvicorn writes in pieces leaves in one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import pytest
import uvicorn

from extender.service.doors import Doors, Limits
from extender.service.protocols import Protocol, WholeAnswers

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Recorded(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def after(*steps: Callable[[WholeAnswers], None], turns: int = 0) -> list[bytes]:
    """What is written after some steps, and as many turns of the loop."""

    async def run() -> list[bytes]:
        recorded = Recorded()
        transport = WholeAnswers(recorded, asyncio.get_running_loop())
        for step in steps:
            step(transport)
        for _ in range(turns):
            await asyncio.sleep(0)
        return list(recorded.written)

    return asyncio.run(run())


def test_head_and_body_are_one_write() -> None:
    assert after(lambda t: t.write(HEAD), lambda t: t.write(b"{}"), turns=2) == [HEAD + b"{}"]


def test_a_head_whose_body_is_late_does_not_wait_for_it() -> None:
    assert after(lambda t: t.write(HEAD)) == []
    assert after(lambda t: t.write(HEAD), turns=1) == [HEAD]


def test_nothing_is_lost_by_closing() -> None:
    assert after(lambda t: t.write(HEAD), lambda t: t.close(), turns=1) == [HEAD]


def test_a_head_for_a_caller_who_is_gone_is_dropped() -> None:
    async def run() -> Recorded:
        recorded = Recorded()
        WholeAnswers(recorded, asyncio.get_running_loop()).write(HEAD)
        recorded.close()
        await asyncio.sleep(0)
        return recorded

    assert asyncio.run(run()).written == []


@pytest.mark.parametrize("data", [b"{}", b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"{}"])
def test_what_is_no_head_alone_is_written_at_once(data: bytes) -> None:
    assert after(lambda t: t.write(data)) == [data]


async def answer(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """An app that answers the body it was sent; `/slow` a piece at a time."""
    body, more = b"", True
    while more:
        message = await receive()
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
            config = uvicorn.Config(answer, http=Protocol, ws="none", lifespan="off", log_config=None)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            try:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                for data in sent:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0.01)
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


async def large(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """An app whose answers are larger than what sockets buffer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(LARGE))]})
    await send({"type": "http.response.body", "body": LARGE})


@asynccontextmanager
async def client_of(limits: Limits) -> AsyncIterator[tuple[Doors, socket.socket]]:
    """The doors of a server of large answers, and a client of it that reads nothing by itself."""
    doors = Doors(limits)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(socket.socket()) as client:
        config = uvicorn.Config(large, http=partial(Protocol, doors=doors), ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
            yield doors, client
        finally:
            server.should_exit = server.force_exit = True
            await serving


async def until_empty(doors: Doors) -> None:
    async with asyncio.timeout(10.0):
        while doors.num_open:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [GET, GET + GET], ids=["one answer", "two"])
def test_who_does_not_take_an_answer_is_let_go(sent: bytes) -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=0.2)) as (doors, client):
            await asyncio.get_running_loop().sock_sendall(client, sent)
            async with asyncio.timeout(10.0):
                while not doors.num_open:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await until_empty(doors)

    asyncio.run(run())


def test_an_answer_that_is_taken_slowly_is_sent_to_its_end() -> None:
    async def run() -> int:
        async with client_of(Limits(answer_s=5.0)) as (_, client):
            await asyncio.get_running_loop().sock_sendall(client, GET)
            received = 0
            while received < len(LARGE):
                received += len(await asyncio.get_running_loop().sock_recv(client, 1 << 18))
                await asyncio.sleep(0.001)
            return received

    assert asyncio.run(run()) >= len(LARGE)


def test_who_makes_room_does_so_with_an_answer_that_it_did_not_take() -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=60.0, connections_each=1)) as (_, client):
            await asyncio.get_running_loop().sock_sendall(client, GET)
            await asyncio.sleep(0.2)
            with socket.create_connection(client.getpeername()):
                async with asyncio.timeout(10.0):
                    while await asyncio.get_running_loop().sock_recv(client, 1 << 18):
                        pass  # what was sent before, and then the end

    asyncio.run(run())


def test_who_sends_requests_without_end_before_their_answers_is_let_go() -> None:
    async def run() -> None:
        async with client_of(Limits(answer_s=60.0)) as (doors, client):
            await asyncio.get_running_loop().sock_sendall(client, GET * 100)
            await asyncio.sleep(0.2)
            await until_empty(doors)

    asyncio.run(run())
