"""Keep-alive connections, against a server whose responses are scripted byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from extender.kube.connections import MAX_CONNECTIONS, ConnectionPool, _Connection
from tests.kube.loops import in_loop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
HANG_UP = b""
SILENCE = b" "
"""No answer."""


class Server:
    """Answers the requests of each connection from a script, and records them."""

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


async def get(pool: ConnectionPool, path: str = "/x") -> tuple[int, bytes]:
    return await pool.exchange("GET", path, {}, None)


async def post(pool: ConnectionPool) -> tuple[int, bytes]:
    return await pool.exchange("POST", "/x", {"Content-Type": "y"}, b"body")


@in_loop
async def test_what_is_sent() -> None:
    server = Server([OK, OK])
    async with server.pool(path="/prefix/") as pool:
        assert await get(pool, "/a") == (200, b"ok")
        await post(pool)
    (_, first), (_, second) = server.asked
    assert first.startswith(b"GET /prefix/a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAccept: x\r\n" in first
    assert b"\r\nAccept-Encoding: identity\r\n" in first, "responses are not decompressed"
    assert second.startswith(b"POST /prefix/x HTTP/1.1\r\n")
    assert second.endswith(b"\r\nContent-Type: y\r\nContent-Length: 4\r\n\r\nbody")


@in_loop
async def test_a_connection_serves_one_exchange_at_a_time() -> None:
    server = Server([OK] * 6, *[[OK]] * 6)
    async with server.pool() as pool:
        for _ in range(5):
            await get(pool)
        assert server.num_connections == 1
        assert await asyncio.gather(*(get(pool) for _ in range(7))) == [(200, b"ok")] * 7
    assert server.num_connections == 7


@in_loop
async def test_forms_of_a_response() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    server = Server([b"HTTP/1.1 204 No Content\r\n\r\n", chunked, interim, OK])
    async with server.pool() as pool:
        assert [await get(pool) for _ in range(4)] == [(204, b""), (200, b"abcde"), (200, b"ok"), (200, b"ok")]
    assert server.num_connections == 1


@in_loop
async def test_a_connection_that_the_server_ends_is_not_reused() -> None:
    server = Server([LAST], [OK])
    async with server.pool() as pool:
        await get(pool)
        await post(pool)
    assert [number for number, _ in server.asked] == [0, 1]


@in_loop
async def test_on_a_connection_that_breaks_a_read_is_repeated_and_a_write_is_not() -> None:
    server = Server([OK, HANG_UP], [OK, HANG_UP], [OK])
    async with server.pool() as pool:
        await get(pool)
        assert await get(pool) == (200, b"ok")
        with pytest.raises(ConnectionError, match="closed the connection"):
            await post(pool)
    assert [number for number, _ in server.asked] == [0, 0, 1, 1]


@in_loop
async def test_an_invalid_response_ends_its_connection() -> None:
    for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", b"SSH-2.0-OpenSSH\r\n"):
        server = Server([answer, HANG_UP], [OK])
        async with server.pool(timeout_s=0.5) as pool:
            with pytest.raises((TimeoutError, ConnectionError)):
                await post(pool)
            assert await post(pool) == (200, b"ok")


@in_loop
async def test_a_cancelled_exchange_leaves_no_response_to_the_next() -> None:
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nst", OK], [OK])
    async with server.pool() as pool:
        cancelled = asyncio.create_task(get(pool))
        await server.was_asked.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await get(pool) == (200, b"ok")
    assert [number for number, _ in server.asked] == [0, 1]


@in_loop
async def test_an_exchange_cancelled_as_its_response_arrives_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server([OK, OK])
    completed = _Connection.on_message_complete
    async with server.pool() as pool:
        cancelled = asyncio.create_task(get(pool))

        def complete_and_cancel(connection: _Connection) -> None:
            completed(connection)
            cancelled.cancel()

        monkeypatch.setattr(_Connection, "on_message_complete", complete_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        async with asyncio.timeout(10.0):
            await asyncio.gather(*server.serving)  # it has seen the client hang up
    assert server.num_connections == 1


@in_loop
async def test_what_would_be_more_than_one_line_is_refused() -> None:
    server = Server([OK])
    async with server.pool() as pool:
        for path in ("/a b", "/a\r\nX: y", "/ä"):
            with pytest.raises(ValueError, match="is not a quoted path"):
                await get(pool, path)
        with pytest.raises(ValueError, match="Authorization has a line break"):
            await pool.exchange("GET", "/x", {"Authorization": "a\r\nb"}, None)
    assert not server.asked


@in_loop
async def test_a_timeout_includes_the_wait_for_a_connection() -> None:
    server = Server(*[[SILENCE]] * MAX_CONNECTIONS)
    async with server.pool(timeout_s=0.2) as pool, asyncio.timeout(3):  # 4 s if each wait began with its connection
        outcomes = await asyncio.gather(*(get(pool) for _ in range(20 * MAX_CONNECTIONS)), return_exceptions=True)
    assert {type(error) for error in outcomes} == {TimeoutError}
