"""Pages of real exporters, read directly: every release gives the same arrays."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError
from extender.telemetry.sources.exporters import ExporterSource
from extender.telemetry.sources.source import Access, Samples
from tests.telemetry.exporters import V4_8, V4_9, Gpu, Node, dcgm_page, observerward_page
from tests.telemetry.servers import serving

GOLDEN = Path(__file__).parent / "golden"

NODE = Node(
    "gpu-node-1",
    [
        Gpu(
            0,
            load=0.87,
            used_mib=30000,
            power_w=312.5,
            temperature_c=61,
            encoder=0.05,
            decoder=0.1,
            bandwidth=0.4,
            tensor=0.25,
            pod=("main", "team-a", "train-0"),
        ),
        Gpu(1, power_w=55.25),
    ],
)


def scraped(page: bytes) -> Samples:
    with serving(lambda *_: (200, page)) as server:
        source = ExporterSource([f"{server.url}/metrics"], Access())
        try:
            return source.read()
        finally:
            source.close()


def test_the_pages_that_tests_play_are_the_golden_ones() -> None:
    for name, page in (
        ("dcgm-exporter-4.8", dcgm_page(NODE, V4_8)),
        ("dcgm-exporter-4.9", dcgm_page(NODE, V4_9)),
        ("observerward", observerward_page(NODE)),
    ):
        text = (GOLDEN / f"{name}.prom").read_text()
        assert text[text.index("# HELP") :] == page


@pytest.mark.parametrize("name", ["dcgm-exporter-4.8", "dcgm-exporter-4.9"])
def test_old_and_new_names_tell_the_same(name: str) -> None:
    samples = scraped((GOLDEN / f"{name}.prom").read_bytes())
    assert [host.names for host in samples.table.hosts] == [("gpu-node-1",)]
    assert [device.number for device in samples.table.devices] == [0, 1]
    assert samples.table.devices[0].uuid == "GPU-00000000-0000-0000-0000-000000000000"
    expected = {
        Gauge.LOAD: [0.87, 0],
        Gauge.MEMORY_USED: [30000, 0],
        Gauge.MEMORY_FREE: [40960 - 600 - 30000, 40960 - 600],
        Gauge.POWER: [312.5, 55.25],
        Gauge.TEMPERATURE: [61, 35],
        Gauge.ENCODER: [0.05, 0],
        Gauge.DECODER: [0.1, 0],
        Gauge.BANDWIDTH: [0.4, 0],
        Gauge.TENSOR: [0.25, 0],
        Gauge.XID: [0, 0],
        Gauge.ROW_REMAP_FAILED: [0, 0],
    }
    assert samples.values.keys() == expected.keys()
    for gauge, values in expected.items():
        assert samples.values[gauge].tolist() == pytest.approx(values), gauge
    load, memory = samples.pods["team-a", "train-0"]
    assert (load, memory) == pytest.approx((0.87, 30000))


def test_observerward_is_read_under_its_own_names() -> None:
    """G10: and dcgm-exporter's names above."""
    samples = scraped((GOLDEN / "observerward.prom").read_bytes())
    assert [host.names for host in samples.table.hosts] == [("gpu-node-1",)]
    assert samples.values[Gauge.MEMORY_FREE].tolist() == [10960, 40960]
    assert samples.values[Gauge.ENCODER].tolist() == [0.05, 0]
    assert samples.values[Gauge.POWER].tolist() == [312.5, 55.25]
    assert samples.values[Gauge.MEMORY_TOTAL].tolist() == [40960, 40960]
    assert samples.values[Gauge.NUM_MULTIPROCESSORS].tolist() == [108, 108]
    assert samples.values[Gauge.NUM_DECODERS].tolist() == [5, 5]
    assert samples.values[Gauge.NUM_ENCODERS].tolist() == [0, 0]
    assert Gauge.LOAD not in samples.values


def test_mig_instances_add_up_to_their_gpu() -> None:
    samples = scraped((GOLDEN / "dcgm-exporter-4.8-mig.prom").read_bytes())
    assert len(samples.table.devices) == 1
    assert samples.values[Gauge.MEMORY_USED].tolist() == [2000 + 10000]
    assert samples.values[Gauge.LOAD].tolist() == pytest.approx([0.5 * 1 / 7 + 0.25 * 3 / 7])
    assert samples.values[Gauge.TEMPERATURE].tolist() == [35]  # each instance tells its GPU's own


def test_duplicate_series_count_once() -> None:
    # A shared GPU has a line for each of its pods.
    page = (
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n",pod="p"} 100\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n",pod="q"} 300\n'
    )
    assert scraped(page.encode()).values[Gauge.MEMORY_USED].tolist() == [300]


@pytest.mark.parametrize("page", [b"\xff\xfe garbage", b"<html>no</html>", b'DCGM_FI_DEV_FB_USED{gpu="0" 1\n'])
def test_garbage_is_a_fault_that_is_told(page: bytes) -> None:
    with serving(lambda *_: (200, page)) as server:
        source = ExporterSource([server.url], Access())
        with pytest.raises(SourceError, match=r"no exporter responds.*can't be read"):
            source.read()
        source.close()


def test_one_exporter_of_two_is_better_than_none() -> None:
    page = (GOLDEN / "dcgm-exporter-4.8.prom").read_bytes()
    with serving(lambda path, *_: (200, page) if path == "/good" else (503, b"")) as server:
        source = ExporterSource([f"{server.url}/good", f"{server.url}/bad"], Access())
        samples = source.read()
        source.close()
    assert samples.report.faults == {f"{server.url}/bad": "HTTP status 503"}
    assert not np.isnan(samples.values[Gauge.LOAD]).any()
