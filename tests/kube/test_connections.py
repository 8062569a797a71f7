"""Kept connections, against a server that answers byte for byte what a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop
from pytest import MonkeyPatch
from yarl import URL

from extender.kube.connections import MAX_CONNECTIONS, ConnectionPool, _Connection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
HANG_UP = b""
SILENCE = b" "
"""Nothing that would be an answer."""


class Server:
    """Answers the requests of each connection in turn from a script; keeps what it was asked."""

    def __init__(self, *scripts: Sequence[bytes]) -> None:
        self.scripts = list(scripts)
        self.asked: list[tuple[int, bytes]] = []
        """(number of the connection, request)"""
        self.num_connections = 0
        self.serving: set[asyncio.Task[None]] = set()
        self.was_asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        number = self.num_connections
        self.num_connections += 1
        for answer in self.scripts[number] if number < len(self.scripts) else ():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break  # the client has hung up
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
            self.asked.append((number, head + await reader.readexactly(int(fields.get(b"Content-Length", 0)))))
            self.was_asked.set()
            if answer == HANG_UP:
                break
            if answer != SILENCE:
                writer.write(answer)
        else:
            await reader.read()  # until the client hangs up
        writer.close()
        await writer.wait_closed()

    @asynccontextmanager
    async def pool(self, path: str = "", timeout_s: float = 5.0) -> AsyncIterator[ConnectionPool]:
        listening = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        url = URL(f"http://127.0.0.1:{port}{path}")
        pool = ConnectionPool(url, headers=[("Accept", "x")], tls=None, server_name="", timeout_s=timeout_s)
        try:
            yield pool
        finally:
            pool.close()
            await asyncio.gather(*self.serving, return_exceptions=True)
            listening.close()


def run(server: Server, scenario: Callable[[ConnectionPool], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with server.pool(**options) as pool:  # type: ignore[arg-type]
            await scenario(pool)

    uvloop.run(run())


async def get(pool: ConnectionPool, path: str = "/x") -> tuple[int, bytes]:
    return await pool.exchange("GET", path, {}, None)


async def post(pool: ConnectionPool) -> tuple[int, bytes]:
    return await pool.exchange("POST", "/x", {"Content-Type": "y"}, b"body")


def test_what_is_sent() -> None:
    server = Server([OK, OK])

    async def scenario(pool: ConnectionPool) -> None:
        assert await get(pool, "/a") == (200, b"ok")
        await post(pool)

    run(server, scenario, path="/prefix/")
    (_, first), (_, second) = server.asked
    assert first.startswith(b"GET /prefix/a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAccept: x\r\n" in first
    assert b"\r\nAccept-Encoding: identity\r\n" in first, "nothing here would decompress an answer"
    assert second.startswith(b"POST /prefix/x HTTP/1.1\r\n")
    assert second.endswith(b"\r\nContent-Type: y\r\nContent-Length: 4\r\n\r\nbody")


def test_one_connection_serves_one_exchange_after_the_other() -> None:
    server = Server([OK] * 5)

    async def scenario(pool: ConnectionPool) -> None:
        for _ in range(5):
            await get(pool)

    run(server, scenario)
    assert [number for number, _ in server.asked] == [0] * 5


def test_exchanges_at_the_same_time_have_a_connection_each() -> None:
    server = Server(*[[OK]] * 7)

    async def scenario(pool: ConnectionPool) -> None:
        assert await asyncio.gather(*(get(pool) for _ in range(7))) == [(200, b"ok")] * 7

    run(server, scenario)
    assert server.num_connections == 7


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), id="no body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            (200, b"abcde"),
            id="in chunks",
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (200, b"ok"), id="first a word that it goes on"),
    ],
)
def test_forms_of_an_answer(answer: bytes, expected: tuple[int, bytes]) -> None:
    server = Server([answer, OK])

    async def scenario(pool: ConnectionPool) -> None:
        assert await get(pool) == expected
        assert await get(pool) == (200, b"ok"), "what came before is not mixed in"

    run(server, scenario)
    assert server.num_connections == 1


def test_a_connection_that_the_server_ends_is_not_used_again() -> None:
    server = Server([LAST], [OK])

    async def scenario(pool: ConnectionPool) -> None:
        await get(pool)
        await post(pool)

    run(server, scenario)
    assert [number for number, _ in server.asked] == [0, 1]


def test_a_read_on_a_kept_connection_that_breaks_is_made_again() -> None:
    server = Server([OK, HANG_UP], [OK])

    async def scenario(pool: ConnectionPool) -> None:
        await get(pool)
        assert await get(pool) == (200, b"ok")

    run(server, scenario)
    assert [number for number, _ in server.asked] == [0, 0, 1]


def test_a_write_is_never_made_again() -> None:
    server = Server([OK, HANG_UP], [OK])

    async def scenario(pool: ConnectionPool) -> None:
        await get(pool)
        with pytest.raises(ConnectionError, match="closed the connection"):
            await post(pool)

    run(server, scenario)
    assert [number for number, _ in server.asked] == [0, 0]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", id="too short"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
    ],
)
def test_an_answer_that_is_none(answer: bytes) -> None:
    server = Server([answer, HANG_UP], [OK])

    async def scenario(pool: ConnectionPool) -> None:
        with pytest.raises((TimeoutError, ConnectionError)):
            await post(pool)
        assert await post(pool) == (200, b"ok"), "the connection is given up, the pool goes on"

    run(server, scenario, timeout_s=0.5)


def test_who_stops_waiting_leaves_no_answer_to_the_next() -> None:
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nst", OK], [OK])

    async def scenario(pool: ConnectionPool) -> None:
        asking = asyncio.create_task(get(pool))
        await server.was_asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await get(pool) == (200, b"ok")

    run(server, scenario)
    assert [number for number, _ in server.asked] == [0, 1]


def test_who_is_stopped_in_the_moment_the_answer_comes_leaves_no_connection_open(monkeypatch: MonkeyPatch) -> None:
    server = Server([OK, OK])
    completed = _Connection.on_message_complete

    async def scenario(pool: ConnectionPool) -> None:
        asking = asyncio.create_task(get(pool))

        def complete_and_stop(connection: _Connection) -> None:
            completed(connection)
            asking.cancel()

        monkeypatch.setattr(_Connection, "on_message_complete", complete_and_stop)
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(10.0):
            await asyncio.gather(*server.serving)  # it has seen the client hang up

    run(server, scenario)
    assert server.num_connections == 1


def test_what_would_be_more_than_one_line_is_refused() -> None:
    server = Server([OK])

    async def scenario(pool: ConnectionPool) -> None:
        for path in ("/a b", "/a\r\nX: y", "/ä"):
            with pytest.raises(ValueError, match="is not a quoted path"):
                await get(pool, path)
        with pytest.raises(ValueError, match="Authorization has a line break"):
            await pool.exchange("GET", "/x", {"Authorization": "a\r\nb"}, None)

    run(server, scenario)
    assert not server.asked


def test_the_wait_for_a_connection_counts_in_the_time_of_a_request() -> None:
    server = Server(*[[SILENCE]] * MAX_CONNECTIONS)

    async def scenario(pool: ConnectionPool) -> None:
        # Twenty after one another for each connection: if each began to count when it got one, this would take 4 s.
        async with asyncio.timeout(3):
            found = await asyncio.gather(*(get(pool) for _ in range(20 * MAX_CONNECTIONS)), return_exceptions=True)
        assert {type(error) for error in found} == {TimeoutError}

    run(server, scenario, timeout_s=0.2)
