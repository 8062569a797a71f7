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
BUSY = Gpu(
    0, load=0.87, used_mib=30000, power_w=312.5, temperature_c=61, encoder=0.05, decoder=0.1, bandwidth=0.4,
    tensor=0.25, pod=("main", "team-a", "train-0"),
)  # fmt: skip
NODE = Node("gpu-node-1", [BUSY, Gpu(1, power_w=55.25)])


def scraped(page: bytes, *more: str) -> Samples:
    """Samples of one exporter, and of others whose paths are unavailable."""
    with serving(lambda path, *_: (503, b"") if path in more else (200, page)) as server:
        source = ExporterSource([f"{server.url}{path}" for path in ("/metrics", *more)], Access())
        try:
            return source.read()
        finally:
            source.close()


def page_of(name: str) -> bytes:
    return (GOLDEN / f"{name}.prom").read_bytes()


def test_the_pages_that_tests_play_are_the_golden_ones() -> None:
    for name, page in (
        ("dcgm-exporter-4.8", dcgm_page(NODE, V4_8)),
        ("dcgm-exporter-4.9", dcgm_page(NODE, V4_9)),
        ("observerward", observerward_page(NODE)),
    ):
        text = page_of(name).decode()
        assert text[text.index("# HELP") :] == page


def test_old_and_new_names_give_the_same() -> None:
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
    for name in ("dcgm-exporter-4.8", "dcgm-exporter-4.9"):
        samples = scraped(page_of(name))
        assert [host.names for host in samples.table.hosts] == [("gpu-node-1",)]
        assert [device.number for device in samples.table.devices] == [0, 1]
        assert samples.table.devices[0].uuid == "GPU-00000000-0000-0000-0000-000000000000"
        assert samples.values.keys() == expected.keys()
        for gauge, values in expected.items():
            assert samples.values[gauge].tolist() == pytest.approx(values), gauge
        assert samples.pods["team-a", "train-0"] == pytest.approx((0.87, 30000))


def test_observerward_is_read_under_its_own_names() -> None:
    samples = scraped(page_of("observerward"))
    assert [host.names for host in samples.table.hosts] == [("gpu-node-1",)]
    expected = {
        Gauge.MEMORY_FREE: [10960, 40960],
        Gauge.ENCODER: [0.05, 0],
        Gauge.POWER: [312.5, 55.25],
        Gauge.MEMORY_TOTAL: [40960, 40960],
        Gauge.NUM_MULTIPROCESSORS: [108, 108],
        Gauge.NUM_DECODERS: [5, 5],
        Gauge.NUM_ENCODERS: [0, 0],
    }
    assert {gauge: samples.values[gauge].tolist() for gauge in expected} == expected
    assert Gauge.LOAD not in samples.values


def test_mig_instances_add_up_to_their_gpu() -> None:
    samples = scraped(page_of("dcgm-exporter-4.8-mig"))
    assert len(samples.table.devices) == 1
    assert samples.values[Gauge.MEMORY_USED].tolist() == [2000 + 10000]
    assert samples.values[Gauge.LOAD].tolist() == pytest.approx([0.5 * 1 / 7 + 0.25 * 3 / 7])
    assert samples.values[Gauge.TEMPERATURE].tolist() == [35]  # each instance reports its GPU's


def test_a_shared_gpu_with_a_series_for_each_pod_counts_once() -> None:
    page = (
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n",pod="p"} 100\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n",pod="q"} 300\n'
    )
    assert scraped(page.encode()).values[Gauge.MEMORY_USED].tolist() == [300]


def test_garbage_is_a_fault() -> None:
    for page in (b"\xff\xfe garbage", b"<html>no</html>", b'DCGM_FI_DEV_FB_USED{gpu="0" 1\n'):
        with pytest.raises(SourceError, match=r"no exporter responds.*can't be read"):
            scraped(page)


def test_one_exporter_of_two_is_better_than_none() -> None:
    samples = scraped(page_of("dcgm-exporter-4.8"), "/bad")
    ((url, fault),) = samples.report.faults.items()
    assert url.endswith("/bad") and "503" in fault
    assert not np.isnan(samples.values[Gauge.LOAD]).any()
