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
from extender.telemetry.owners import Usage
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
        "/fqdn": dcgm_page(Node("n2.example.com", gpus("fqdn", 0.25, 100)), V4_8),
    }
    exporter = {"namespace": "monitoring", "pod": "dcgm-exporter-x"}
    with serving(lambda path, *_: (200, pages[path].encode())) as exporters:
        address = exporters.url.removeprefix("http://")
        jobs = [
            Job("ours", f"{address}/ours", labels={"cluster": "ours", **exporter}),
            Job("theirs", f"{address}/theirs", labels={"cluster": "theirs", **exporter}),
            Job("first", f"{address}/twice", labels={"cluster": "ours", "instance": "a", **exporter}),
            Job("second", f"{address}/twice", True, {"cluster": "ours", "instance": "b", **exporter}),
            Job("fqdn", f"{address}/fqdn", labels={"cluster": "ours", **exporter}),
        ]
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs) as process:
            settings = {"telemetry.url": process.url}

            def all_there() -> bool:
                told, _ = asyncio.run(_examine(load_settings(flags=settings), MemoryCluster([node("n0", 2)])))
                return bool(told.get("series", {}).get("DCGM_FI_DEV_FB_USED") == 10)

            wait_until(all_there, 60, "all exporters are scraped", interval_s=0.3)
            yield process.url


def with_uuids(name: str, of: str) -> Manifest:
    """A node whose GPUs' UUIDs are known."""
    manifest = node(name, 2)
    listed = [{"index": at, "uuid": f"GPU-{of}-{at}"} for at in range(2)]
    manifest["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(listed)}
    return manifest


def told_by_doctor(url: str, *nodes: Manifest, **settings: Any) -> dict[str, Any]:
    flags = {"telemetry.url": url} | {name.replace("__", "."): value for name, value in settings.items()}
    told, _ = asyncio.run(_examine(load_settings(flags=flags), MemoryCluster(list(nodes))))
    _print(told, Console(file=io.StringIO()))
    return told


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
    ("manifest", "settings"),
    [
        pytest.param(node("n0", 2), {"telemetry__matchers": OURS}, id="by telemetry.matchers"),
        pytest.param(with_uuids("n0", "ours"), {}, id="by UUIDs that are known"),
        pytest.param(with_uuids("n0", "ours"), {"telemetry__matchers": f"{OURS}, "}, id="by both"),
    ],
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
    told = told_by_doctor(url, node("n0", 2))
    (finding,) = [text for text in told["findings"] if "GPU 0 has samples under several UUIDs" in text]
    assert finding.startswith("node n0:")
    assert "telemetry.matchers" in finding
    assert told["findings"] != told_by_doctor(url, node("n0", 2), telemetry__matchers=OURS)["findings"]


def test_two_exporters_of_a_node_count_once_and_no_exporter_has_gpus(url: str) -> None:
    """One of them with honorLabels, the other without; the pod has one GPU."""
    held, exporter = pod("train-twice", 1, node_name="n1"), pod("dcgm-exporter-x", node_name="n1")
    held["metadata"]["namespace"], exporter["metadata"]["namespace"] = "team-a", "monitoring"
    for item, kind, name in ((held, "StatefulSet", "train"), (exporter, "DaemonSet", "dcgm-exporter")):
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
        item["metadata"]["ownerReferences"] = [owner]
    only = 'cluster="ours", job=~"first|second"'
    cluster = MemoryCluster([node("n1", 2), held, exporter])
    with running(cluster, telemetry__url=url, telemetry__interval_s=3600, telemetry__matchers=only) as kerf:
        assert observed(kerf, Gauge.MEMORY_USED, "n1") == [30_000, 30_000]
        owners: dict[str, Usage] = kerf.get("/telemetry").json()["owners"]
        assert [name for name in owners if "exporter" in name] == []
        (usage,) = owners.values()
        assert usage["memory_mean_mib"] == 30_000  # type: ignore[index]
        assert usage["load_mean"] == 0.5  # type: ignore[index]


def test_a_fully_qualified_host_name_is_its_nodes(url: str) -> None:
    with running([node("n2", 2)], telemetry__url=url, telemetry__interval_s=3600) as kerf:
        assert observed(kerf, Gauge.LOAD, "n2") == [0.25, 0.25]
    told = told_by_doctor(url, node("n2", 2), telemetry__matchers='job="fqdn"')
    assert (told["gpusMatched"], told["findings"]) == (2, [])


def test_matchers_that_match_nothing_are_told(url: str) -> None:
    told = told_by_doctor(url, node("n0", 2), telemetry__matchers='cluster="elsewhere"')
    assert told["findings"][0] == f'{url} has no GPU metrics that match cluster="elsewhere" (telemetry.matchers)'
