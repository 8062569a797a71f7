"""A real Prometheus that has the series of two clusters with equal names, and of two exporters of a node: what Kerf
believes, ranks by, warns of and shows is of its own GPUs, once."""

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from extender.cli.doctor import _examine, _print
from extender.core.gauges import Gauge
from extender.kube.memory import Manifest, MemoryCluster
from extender.settings.load import load_settings
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.controlplane.processes import wait_until
from tests.telemetry.exporters import V4_8, Gpu, Node, dcgm_page
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import serving

pytestmark = pytest.mark.slow

OURS = 'cluster="ours"'


def gpus(of: str, load: float, used_mib: int, xid: int = 0) -> list[Gpu]:
    pods = [("main", "team-a", "train-0" if of in ("ours", "theirs") else f"train-{of}"), None]
    return [
        Gpu(at, load=load, used_mib=used_mib, xid=xid, uuid=f"GPU-{of}-{at}", pod=held) for at, held in enumerate(pods)
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Ours is idle, theirs is busy and has a hardware error."""
    pages = {
        "/ours": dcgm_page(Node("n0", gpus("ours", 0.0, 0)), V4_8),
        "/theirs": dcgm_page(Node("n0", gpus("theirs", 0.95, 30_000, xid=79)), V4_8),
        "/twice": dcgm_page(Node("n1", gpus("twice", 0.5, 30_000)), V4_8),
    }
    exporter = {"namespace": "monitoring", "pod": "dcgm-exporter-x"}
    with serving(lambda path, *_: (200, pages[path].encode())) as exporters:
        address = exporters.url.removeprefix("http://")
        jobs = [
            Job("ours", f"{address}/ours", labels={"cluster": "ours", **exporter}),
            Job("theirs", f"{address}/theirs", labels={"cluster": "theirs", **exporter}),
            Job("first", f"{address}/twice", labels={"cluster": "ours", "instance": "a", **exporter}),
            Job("second", f"{address}/twice", True, {"cluster": "ours", "instance": "b", **exporter}),
        ]
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs) as process:
            settings = {"telemetry.url": process.url}

            def all_there() -> bool:
                told, _ = asyncio.run(_examine(load_settings(flags=settings), MemoryCluster([node("n0", 2)])))
                return bool(told.get("series", {}).get("DCGM_FI_DEV_FB_USED") == 8)

            wait_until(all_there, 60, "all exporters are scraped", interval_s=0.3)
            yield process.url


def with_uuids(name: str, of: str) -> Manifest:
    """A node whose GPUs' UUIDs are known."""
    manifest = node(name, 2)
    listed = [{"index": at, "uuid": f"GPU-{of}-{at}"} for at in range(2)]
    manifest["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(listed)}
    return manifest


def findings(url: str, **flags: Any) -> list[str]:
    """The findings of `kerf doctor` with node n0."""
    found, _ = asyncio.run(
        _examine(load_settings(flags={"telemetry.url": url, **flags}), MemoryCluster([node("n0", 2)]))
    )
    _print(found, Console(file=io.StringIO()))
    return list(found["findings"])


def observed(kerf: Kerf, gauge: Gauge, name: str) -> list[float]:
    """Samples of a node's GPUs after a round."""
    observer = kerf.service.observer
    assert observer is not None
    kerf.run(observer.round())
    observer.on_refresh()
    cluster = kerf.service.placer.snapshot()
    assert cluster.observed is not None
    return [float(value) for value in cluster.observed.gauge(gauge)[cluster.row_of[name]][:2]]


def events_of(kerf: Kerf) -> set[str]:
    return {event["reason"] for event in kerf.events()}


@pytest.mark.parametrize(
    ("manifest", "settings"), [(node("n0", 2), {"telemetry__matchers": OURS}), (with_uuids("n0", "ours"), {})]
)
def test_another_clusters_series_of_an_equal_name_are_not_ours(
    url: str, manifest: Manifest, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    held = pod("train-0", 2, node_name="n0")
    held["metadata"]["namespace"] = "team-a"
    cluster = MemoryCluster([manifest, held])
    with running(cluster, telemetry__url=url, telemetry__interval_s=3600, decisions__policy="live", **settings) as kerf:
        assert observed(kerf, Gauge.LOAD, "n0") == [0, 0]
        assert observed(kerf, Gauge.MEMORY_USED, "n0") == [0, 0]
        assert observed(kerf, Gauge.XID, "n0") == [0, 0]
        assert not {"FaultyGPU", "UnmanagedGPUUse"} & events_of(kerf)
        told = kerf.get("/telemetry").json()
        if "telemetry__matchers" in settings:
            assert told["doubts"] == []
            (usage,) = told["owners"].values()
            assert usage["memory_p95_mib"] == 0
        else:
            assert len(told["doubts"]) == 2
            assert "GPU-theirs-0 are not used" in told["doubts"][0]
            # Of the pod nobody can tell which of the two samples are ours: they come under one name.
            assert told["owners"] == {}
            assert sum("GPU-theirs-0" in record.getMessage() for record in caplog.records) == 1


def test_two_uuids_of_one_gpu_are_a_finding_and_nothing_is_acted_on(url: str) -> None:
    with running(
        [node("n0", 2), node("n1", 2)], telemetry__url=url, telemetry__interval_s=3600, decisions__policy="live"
    ) as kerf:
        assert np.isnan(observed(kerf, Gauge.LOAD, "n0")).all()
        assert np.isnan(observed(kerf, Gauge.XID, "n0")).all()
        assert observed(kerf, Gauge.LOAD, "n1") == [0.5, 0.5]  # two exporters, and the same UUIDs
        assert "FaultyGPU" not in events_of(kerf)
        assert kerf.filter(pod(gpus=2), ["n0"])["NodeNames"] == ["n0"]
    (finding,) = [text for text in findings(url) if text.startswith("node n0: GPU 0")]
    assert "telemetry.matchers" in finding
    assert finding not in findings(url, **{"telemetry.matchers": OURS})
    elsewhere = 'cluster="elsewhere"'
    assert elsewhere in findings(url, **{"telemetry.matchers": elsewhere})[0]
