"""The reading process: arrays come out of it as they went in, and whatever it does ends in time."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import ReaderError, SourceError
from extender.telemetry.reader.process import ReaderProcess
from extender.telemetry.sources.source import EXPORTERS, PROMETHEUS, Access, Command
from tests.telemetry.exporters import V4_8, Gpu, Node, dcgm_page
from tests.telemetry.servers import Answer, Page, serving

GOLDEN = Path(__file__).parents[1] / "golden"


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


@pytest.mark.slow
def test_a_refresh_comes_through_whole() -> None:
    nodes = [
        Node(f"n{host}", [Gpu(number, load=number / 8, uuid=f"{host}-{number}") for number in range(8)])
        for host in range(120)
    ]
    pages = {f"/{node.name}": dcgm_page(node, V4_8).encode() for node in nodes}

    async def read() -> None:
        reader = ReaderProcess(60)
        with serving(lambda path, *_: (200, pages[path])) as server:
            command = Command(EXPORTERS, [server.url + path for path in pages])
            reading = await reader.read(command)
            assert len(reading.inventory.hosts) == 120
            assert len(reading.inventory.uuids) == 960  # more than one frame of them
            loads = reading.values[Gauge.LOAD]
            for index, uuid in enumerate(reading.inventory.uuids):
                host, _, number = uuid.partition("-")
                assert reading.inventory.hosts[reading.inventory.host_idx[index]].names == (f"n{host}",)
                assert loads[index] == pytest.approx(round(int(number) / 8 * 100) / 100)
            assert np.allclose(reading.age_s, 0, atol=1)
            again = await reader.read(command)
            assert again.inventory is reading.inventory  # it is sent once
            assert len(again.values[Gauge.LOAD]) == 960
            assert 0 < again.report.rss_mib < 500
        await reader.close()

    asyncio.run(read())


def test_a_fault_leaves_the_process_running() -> None:
    async def read() -> None:
        reader = ReaderProcess(60)
        with serving(lambda *_: (503, b"")) as server:
            with pytest.raises(SourceError, match="503"):
                await reader.read(Command(PROMETHEUS, [server.url]))
            pid = reader.pid
            with pytest.raises(SourceError, match="503"):
                await reader.read(Command(PROMETHEUS, [server.url]))
            assert reader.pid == pid
        await reader.close()
        assert reader.pid is None

    asyncio.run(read())


@pytest.mark.slow
def test_a_process_that_hangs_or_is_killed_is_started_again() -> None:
    async def read() -> None:
        reader = ReaderProcess(60)
        page = (GOLDEN / "dcgm-exporter-4.8.prom").read_bytes()
        with serving(lambda path, *_: (200, page) if path == "/good" else None) as server:
            good = Command(EXPORTERS, [f"{server.url}/good"])
            await reader.read(good)
            first = reader.pid
            assert first is not None
            reader.max_s = 0.5
            with pytest.raises(ReaderError, match="did not finish"):
                await reader.read(Command(PROMETHEUS, [server.url], access=Access(timeout_s=50)))
            await wait_until_gone(first)
            reader.max_s = 60
            assert len((await reader.read(good)).inventory.hosts) == 1
            second = reader.pid
            assert second is not None
            os.kill(second, 9)
            os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead already
            try:
                reading = await reader.read(good)
            except ReaderError:  # its end was not noticed before the command was sent
                reading = await reader.read(good)
            assert reader.pid not in (first, second)
            assert len(reading.inventory.hosts) == 1
        await reader.close()

    asyncio.run(read())


@pytest.mark.slow
def test_more_series_than_fit_into_the_readers_memory_are_a_fault_and_the_next_is_asked() -> None:
    """One that an author could make: millions of series, in answers that each are small enough."""
    series = b",".join(
        b'{"metric":{"gpu":"%d","UUID":"GPU-%d","Hostname":"n%d"},"value":[1,"1"]}' % (at, at, at)
        for at in range(600_000)
    )
    counted = b'{"data":{"result":[{"metric":{"__name__":"DCGM_FI_DEV_GPU_UTIL"},"value":[1,"1"]}]}}'

    def answer(of: bytes) -> Answer:
        def told(path: str, query: Mapping[str, str], _: Mapping[str, str]) -> Page:
            asked = query.get("query", "")
            if path == "/api/v1/labels":
                return 200, b'{"data":["gpu","UUID","Hostname"]}'
            if asked.startswith("count"):
                return 200, counted
            return 200, of if "DCGM" in asked else b'{"data":{"result":[{"metric":{},"value":[1,"1"]}]}}'

        return told

    async def read() -> None:
        reader = ReaderProcess(300)
        huge, small = (
            answer(b'{"data":{"result":[' + of + b"]}}")
            for of in (series, b'{"metric":{"gpu":"0","Hostname":"n"},"value":[1,"50"]}')
        )
        with serving(huge) as first, serving(small) as second:
            reading = await reader.read(Command(PROMETHEUS, [first.url, second.url], Access(timeout_s=60)))
            assert reading.report.source == second.url
            assert "more memory" in reading.report.given_up[first.url]
            assert reading.values[Gauge.LOAD].tolist() == [0.5]
            assert reading.report.rss_mib < 700  # it may have 512 more than it begins with
            with pytest.raises(SourceError, match="more memory"):
                await reader.read(Command(PROMETHEUS, [first.url], Access(timeout_s=60)))
        await reader.close()

    asyncio.run(read())
