"""A real Prometheus that scrapes exporters of every kind."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.telemetry.sources.prometheus import _PrometheusSource
from extender.telemetry.sources.source import Access, Samples
from tests.controlplane.processes import wait_until
from tests.telemetry.exporters import V4_8, V4_9, Gpu, Node, dcgm_page, observerward_page
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import serving

pytestmark = pytest.mark.slow


def pages() -> dict[str, bytes]:
    """Pages by host: two GPUs each, the first at 87 %, and one in MIG mode."""

    def node(name: str) -> Node:
        pod = "main", "team-a", "train-0"
        first = Gpu(0, load=0.87, used_mib=30000, encoder=0.05, uuid=f"GPU-{name}-0", pod=pod)
        return Node(name, [first, Gpu(1, uuid=f"GPU-{name}-1")])

    mig = [
        Gpu(0, load=0.5, used_mib=2000, total_mib=9856, uuid="GPU-mig", mig=("1g.10gb", 7)),
        Gpu(0, load=0.25, used_mib=10000, total_mib=40448, uuid="GPU-mig", mig=("3g.40gb", 2)),
    ]
    texts = {
        "old": dcgm_page(node("old"), V4_8),
        "honoured": dcgm_page(node("honoured"), V4_8),
        "new": dcgm_page(node("new"), V4_9),
        "genius": observerward_page(node("genius")),
        "mig": dcgm_page(Node("mig", mig), V4_8),
    }
    return {name: text.encode() for name, text in texts.items()}


def by_host(samples: Samples, gauge: Gauge) -> dict[str, list[float]]:
    """Values of a gauge by the first name of the host."""
    values: dict[str, list[float]] = {}
    plane = samples.values.get(gauge, np.full(len(samples.table.devices), np.nan))
    for host, value in zip(samples.table.host_idx, plane.tolist(), strict=True):
        values.setdefault(samples.table.hosts[host].names[0], []).append(value)
    return values


def test_every_exporter_is_read_through_prometheus(tmp_path: Path) -> None:
    content, found = pages(), list[Samples]()
    exporter = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x7z9k"}

    def all_are_read(url: str) -> bool:
        """A scrape that takes longer than its second makes a node's series stale for a while."""
        source = _PrometheusSource(url, Access())
        try:
            found[:] = [source.read()]
        finally:
            source.close()
        used = by_host(found[0], Gauge.MEMORY_USED)
        return used.keys() == content.keys() and not np.isnan(np.concatenate([*used.values(), found[0].age_s])).any()

    with serving(lambda path, *_: (200, content[path[1:]])) as exporters:
        address = exporters.url.removeprefix("http://")
        jobs = [Job(name, f"{address}/{name}", name == "honoured", exporter) for name in content]
        with prometheus(tmp_path, jobs) as process:
            wait_until(lambda: all_are_read(process.url), 60, "all exporters are read", interval_s=0.2)
    (samples,) = found
    used, load, encoder = (by_host(samples, gauge) for gauge in (Gauge.MEMORY_USED, Gauge.LOAD, Gauge.ENCODER))
    for name in ("old", "honoured", "new", "genius"):
        assert used[name] == [30000, 0]
        assert encoder[name] == pytest.approx([0.05, 0])
    for name in ("old", "honoured", "new"):
        assert load[name] == pytest.approx([0.87, 0])
    assert np.isnan(load["genius"]).all()
    assert by_host(samples, Gauge.NUM_MULTIPROCESSORS)["genius"] == [108, 108]
    assert used["mig"] == [12000]
    assert load["mig"] == pytest.approx([0.5 / 7 + 0.25 * 3 / 7])
    # With honorLabels false the exporter's own labels are `exported_*`, and `pod` is the exporter's pod.
    assert samples.pods["team-a", "train-0"][0] == pytest.approx(0.87)
    assert all(0 <= age_s < 60 for age_s in samples.age_s)
    assert abs(samples.report.skew_s) <= samples.report.skew_uncertainty_s + 1
