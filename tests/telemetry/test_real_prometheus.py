"""A real Prometheus that scrapes exporters of every kind, killed and stalled: Kerf reads it, and goes on without it."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError, TelemetryError
from extender.telemetry.reader.process import ReaderProcess
from extender.telemetry.readings import Reading
from extender.telemetry.sources.prometheus import _PrometheusSource
from extender.telemetry.sources.source import PROMETHEUS, Access, Command, Samples
from tests.controlplane.processes import Process, wait_until
from tests.telemetry.exporters import V4_8, V4_9, Gpu, Node, dcgm_page, observerward_page
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import Server, serving

pytestmark = pytest.mark.slow

EXPORTER = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x7z9k"}
TRAINED = ("main", "team-a", "train-0")


@dataclass
class World:
    """Prometheus, and the exporters that it scrapes."""

    prometheus: Process
    exporters: Server
    pages: dict[str, bytes] = field(default_factory=dict)
    """By path; what is not there is answered with 503."""

    def read(self) -> Samples:
        """A refresh, in this process."""
        source = _PrometheusSource(self.prometheus.url, Access())
        try:
            return source.read()
        finally:
            source.close()

    def wait(self, name: str, gauge: Gauge, value: float) -> Samples:
        """Wait until the first GPU of a node is told to do that."""
        found: list[Samples] = []

        def told() -> bool:
            samples = self.read()
            found[:] = [samples]
            seen = of(samples, gauge).get(name, [float("nan")])
            return bool(np.isclose(seen[0], value, rtol=1e-3))

        wait_until(told, 60, f"{gauge.name} of {name} is {value}", interval_s=0.2)
        return found[0]


def of(samples: Samples, gauge: Gauge) -> dict[str, list[float]]:
    """Values of a gauge by the first name of the host."""
    values: dict[str, list[float]] = {}
    plane = samples.values.get(gauge, np.full(len(samples.table.devices), np.nan))
    for host, value in zip(samples.table.host_idx, plane.tolist(), strict=True):
        values.setdefault(samples.table.hosts[host].names[0], []).append(value)
    return values


def pages() -> dict[str, bytes]:
    """Two GPUs on each node, the first at 87 %."""

    def node(name: str) -> Node:
        first = Gpu(0, load=0.87, used_mib=30000, encoder=0.05, uuid=f"GPU-{name}-0", pod=TRAINED)
        return Node(name, [first, Gpu(1, uuid=f"GPU-{name}-1")])

    mig = [
        Gpu(0, load=0.5, used_mib=2000, total_mib=9856, uuid="GPU-mig", mig=("1g.10gb", 7)),
        Gpu(0, load=0.25, used_mib=10000, total_mib=40448, uuid="GPU-mig", mig=("3g.40gb", 2)),
    ]
    return {
        "/old": dcgm_page(node("old"), V4_8).encode(),
        "/honoured": dcgm_page(node("honoured"), V4_8).encode(),
        "/new": dcgm_page(node("new"), V4_9).encode(),
        "/genius": observerward_page(node("genius")).encode(),
        "/mig": dcgm_page(Node("mig", mig), V4_8).encode(),
        "/odd": (
            b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-odd-0",Hostname="odd"} NaN\n'
            b'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-odd-0",Hostname="odd"} 9223372036854775792\n'
            b'DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-odd-0",Hostname="odd"} 18446744073709551616\n'
            b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-odd-0",Hostname="odd"} +Inf\n'
            b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-odd-0",Hostname="odd"} 44\n'
            b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-odd-0",Hostname="odd",pod="p"} 45\n'
        ),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    told = pages()
    with serving(lambda path, *_: (200, told[path]) if path in told else (503, b"")) as exporters:
        address = exporters.url.removeprefix("http://")
        jobs = [Job(path[1:], f"{address}{path}", honor_labels=path == "/honoured", labels=EXPORTER) for path in told]
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs) as process:
            world = World(process, exporters, told)
            world.wait("old", Gauge.LOAD, 0.87)
            yield world


def test_every_exporter_is_read_through_prometheus(world: World) -> None:
    for name in ("old", "honoured", "new"):
        samples = world.wait(name, Gauge.LOAD, 0.87)
        assert of(samples, Gauge.MEMORY_USED)[name] == [30000, 0]
        assert of(samples, Gauge.ENCODER)[name] == pytest.approx([0.05, 0])
    samples = world.wait("genius", Gauge.MEMORY_USED, 30000)
    assert of(samples, Gauge.ENCODER)["genius"] == pytest.approx([0.05, 0])
    assert of(samples, Gauge.NUM_MULTIPROCESSORS)["genius"] == [108, 108]
    assert of(samples, Gauge.NUM_DECODERS)["genius"] == [5, 5]
    assert np.isnan(of(samples, Gauge.LOAD)["genius"]).all()
    samples = world.wait("mig", Gauge.MEMORY_USED, 12000)
    assert of(samples, Gauge.LOAD)["mig"] == pytest.approx([0.5 / 7 + 0.25 * 3 / 7])
    told: dict[str, float] = {}

    def all_are_told() -> bool:  # a scrape that takes longer than its second makes a node's series stale until the next
        samples = world.read()
        told.update(zip((host.names[0] for host in samples.table.hosts), samples.age_s.tolist(), strict=True))
        return not any(np.isnan(told[name]) for name in names)

    names = ("old", "honoured", "new", "genius", "mig")
    wait_until(all_are_told, 60, "the ages of all", interval_s=0.2)
    assert all(0 <= told[name] < 60 for name in names)
    assert abs(samples.report.skew_s) <= samples.report.skew_uncertainty_s + 1


def test_a_pods_utilisation_is_told_whatever_honor_labels_says(world: World) -> None:
    samples = world.wait("honoured", Gauge.LOAD, 0.87)
    # With honorLabels false the exporter's own labels are `exported_*`, and `pod` is the exporter's pod.
    load, memory = samples.pods["team-a", "train-0"]
    assert load == pytest.approx(0.87)
    assert memory >= 30000


def test_sentinels_infinities_and_duplicates_are_survived(world: World) -> None:
    world.wait("odd", Gauge.TEMPERATURE, 45)  # of two series of one GPU the larger
    samples = world.read()  # the one before may have begun before the first scrape
    for gauge in (Gauge.LOAD, Gauge.MEMORY_USED, Gauge.MEMORY_FREE, Gauge.POWER):
        assert np.isnan(of(samples, gauge)["odd"]).all(), gauge
    assert samples.report.refused.keys() >= {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_POWER_USAGE"}


def test_an_exporter_that_fails_and_comes_back(world: World) -> None:
    page = world.pages.pop("/new")
    try:

        def gone() -> bool:
            return np.isnan(of(world.read(), Gauge.LOAD).get("new", [np.nan])).all().item()

        wait_until(gone, 60, "series of the node gone", interval_s=0.2)
    finally:
        world.pages["/new"] = page
    world.wait("new", Gauge.LOAD, 0.87)


def test_a_stalled_and_a_killed_prometheus_end_in_sentences(world: World, tmp_path: Path) -> None:
    address = world.exporters.url.removeprefix("http://")

    async def come_through(reader: ReaderProcess, command: Command) -> None:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(TelemetryError):
                    if (await reader.read(command)).report.series.get("DCGM_FI_DEV_GPU_UTIL") == 2:
                        return
                await asyncio.sleep(0.2)

    async def play() -> None:
        reader = ReaderProcess(60)
        with prometheus(tmp_path, [Job("old", f"{address}/old")]) as own:
            command = Command(PROMETHEUS, [own.url], access=Access(connect_timeout_s=1, timeout_s=1))
            await come_through(reader, command)
            own.pause()
            try:
                with pytest.raises(SourceError, match="timeout"):
                    await reader.read(command)
            finally:
                own.signal(signal.SIGCONT)
            await come_through(reader, command)
            own.kill()
            with pytest.raises(SourceError, match="no connection"):
                await reader.read(command)
        await reader.close()

    asyncio.run(play())


def test_forty_eight_thousand_series(tmp_path: Path) -> None:
    """750 nodes of 8 GPUs with 8 metrics each, in a process that stays small."""
    nodes = [
        Node(f"n{host:03}", [Gpu(number, load=(host % 100) / 100, uuid=f"GPU-{host}-{number}") for number in range(8)])
        for host in range(750)
    ]
    kept = ("GPU_UTIL{", "FB_USED{", "FB_FREE{", "POWER_USAGE{", "GPU_TEMP{", "ENC_UTIL{", "DEC_UTIL{", "DRAM_ACTIVE{")
    lines = [
        line
        for node in nodes
        for line in dcgm_page(node, V4_8).splitlines(keepends=True)
        if any(k in line for k in kept)
    ]
    page = "".join(sorted(lines)).encode()
    assert len(lines) == 48_000

    async def play(url: str) -> Reading:
        reader = ReaderProcess(120)
        command = Command(PROMETHEUS, [url], access=Access(timeout_s=60))
        began = time.monotonic()
        while True:
            try:
                reading = await reader.read(command)
            except SourceError:
                assert time.monotonic() - began < 120
                await asyncio.sleep(1)
                continue
            if sum(reading.report.series.values()) == 48_000:
                break
            assert time.monotonic() - began < 120
            await reader.close()  # so that names are looked for again
            await asyncio.sleep(1)
        assert reader.pid is not None
        os.kill(reader.pid, 0)
        await reader.close()
        return reading

    with (
        serving(lambda *_: (200, page)) as exporter,
        prometheus(tmp_path, [Job("all", exporter.url.removeprefix("http://") + "/metrics")], "20s") as process,
    ):
        reading = asyncio.run(play(process.url))
    assert len(reading.inventory.hosts) == 750
    assert len(reading.values[Gauge.LOAD]) == 6000
    assert not np.isnan(reading.values[Gauge.LOAD]).any()
    assert reading.report.rss_mib < 150
