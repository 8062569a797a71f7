"""A loop's end, whatever still goes on in it."""

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import pytest
import uvloop

from tests.api.certificates import Authority
from tests.tools.chaos.loops import Loop

BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
NUM_STRESS = 10


class Mute:
    """A server that begins answers by TLS, ends none, and says no farewell."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder, "ca")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*authority.issue("server"))
        self.client = authority.client()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError):
                self._open.append(self._tls.wrap_socket(plain, server_side=True))
                self._open[-1].sendall(BEGUN)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Mute]:
    with closing(Mute(tmp_path)) as running:
        yield running


class Work:
    """All kinds of things that go on in a loop."""

    def __init__(self, server: Mute) -> None:
        self._server = server
        self.ended: list[str] = []

    async def begin(self) -> None:
        """Return once all of it goes on."""
        begun = asyncio.Barrier(5)
        self._tasks = [asyncio.create_task(self._watch(begun)) for _ in range(4)]
        self._generator = self._lines()
        await anext(self._generator)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self.ended.append, "thread")
        address = "127.0.0.1", int(self._server.url.rpartition(":")[2])
        self._left = await loop.create_connection(asyncio.Protocol, *address, ssl=self._server.client)
        await begun.wait()

    async def _watch(self, begun: asyncio.Barrier) -> None:
        try:
            connector = aiohttp.TCPConnector(ssl=self._server.client)
            async with aiohttp.ClientSession(connector=connector) as session, session.get(self._server.url) as answer:
                await begun.wait()
                await answer.read()
        finally:
            self.ended.append("task")

    async def _lines(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            self.ended.append("generator")


def test_a_loop_ends_with_connections_that_their_server_does_not_end(server: Mute) -> None:
    for _ in range(NUM_STRESS):
        loop, work = Loop(), Work(server)
        loop.start()
        loop.run(work.begin())
        loop.stop()
        assert sorted(work.ended) == ["generator", *["task"] * 4, "thread"]
        del work
        gc.collect()  # what is left open is told by whoever runs then


def test_so_does_any_other_of_uvloop(server: Mute) -> None:
    for _ in range(NUM_STRESS):
        uvloop.run(Work(server).begin())
        gc.collect()
