"""The agent's port for probes: what it answers, and that nobody takes it from the kubelet."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extender.parts.agent.health import Health
from tests.controlplane.processes import free_port

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def listening() -> AsyncIterator[Health]:
    health = Health(free_port(), live=lambda: "", ready=lambda: "the kubelet has not reported its allocations yet")
    await health.start()
    try:
        yield health
    finally:
        await health.stop()


async def answer(health: Health, sent: bytes, address: str = "127.0.0.1") -> bytes:
    """All that comes back; who sends leaves it there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", health.port, local_addr=(address, 0))
    writer.write(sent)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 10.0)
    finally:
        writer.close()


def test_whatever_comes_is_answered_and_nothing_logged(caplog: pytest.LogCaptureFixture) -> None:
    ok, unavailable, bad = b"200 OK", b"503 Service Unavailable", b"400 Bad Request"

    async def run() -> None:
        async with listening() as health:
            for sent, status in (
                (GET, ok),
                (b"GET /readyz HTTP/1.1\r\n\r\n", unavailable),
                (b"GET /healthz?verbose HTTP/1.0\r\n\r\n", ok),
                (b"GET /nowhere HTTP/1.1\r\n\r\n", unavailable),
                (b"\r\n\r\n", bad),
                (b"GET /healthz\r\n\r\n", bad),
                (b"GET  /healthz HTTP/1.1\r\n\r\n", bad),
                (b"POST /healthz HTTP/1.1\r\n\r\n", bad),
                (b"GET /\xff\xfe\x00\x1b[2J HTTP/1.1\r\n\r\n", unavailable),
                (b"\x16\x03\x01\x02\x00", bad),
                (b"", bad),
                (b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 2000, bad),
            ):
                assert (await answer(health, sent)).startswith(b"HTTP/1.1 " + status), sent

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_however_many_connections_are_held_the_kubelet_is_answered() -> None:
    async def run() -> None:
        for num_addresses in (1, 20):
            async with listening() as health:
                held = []
                for number in range(400):
                    address = f"127.0.1.{1 + number % num_addresses}"
                    held.append(await asyncio.open_connection("127.0.0.1", health.port, local_addr=(address, 0)))
                    if number % 50 == 49:
                        assert (await answer(health, GET)).startswith(b"HTTP/1.1 200 OK")
                assert health.num_open <= 64
                for _, writer in held:
                    writer.close()

    asyncio.run(run())


def test_what_a_node_says_is_no_second_head() -> None:
    async def run() -> bytes:
        async with listening() as health:
            return await answer(health, b"GET /readyz HTTP/1.1\r\n\r\n")

    head, _, body = asyncio.run(run()).partition(b"\r\n\r\n")
    assert (b"Content-Length: %d" % len(body)) in head
    assert body == b"the kubelet has not reported its allocations yet\n"
