"""Telemetry as the service reports it."""

from collections.abc import Iterator

import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError
from tests.api.bodies import pod
from tests.api.services import Clock, Kerf, running
from tests.telemetry.feeds import FakeFeed


@pytest.fixture
def feed() -> FakeFeed:
    return FakeFeed(Clock())


@pytest.fixture
def kerf(feed: FakeFeed) -> Iterator[Kerf]:
    with running(feed=feed, telemetry__url="http://prometheus:9090", telemetry__interval_s=3600) as service:
        feed.clock = service.clock
        yield service


def observe(kerf: Kerf) -> None:
    assert kerf.service.observer is not None
    kerf.run(kerf.service.observer.round())


def test_telemetry_is_described(kerf: Kerf, feed: FakeFeed) -> None:
    name = next(iter(kerf.service.placer.snapshot().row_of))
    feed.gauges = {name: {Gauge.LOAD: [0.5]}, "elsewhere": {Gauge.LOAD: [0.5]}}
    observe(kerf)
    expected = {"state": "ok", "source": "a test", "unmatched": ["elsewhere"], "gpusMatched": 1, "ageSeconds": 0}
    described = kerf.get("/telemetry").json()
    assert {key: described[key] for key in expected} == expected
    kerf.clock.now += 30
    assert kerf.get("/telemetry").json()["ageSeconds"] == 30
    assert kerf.metric("kerf_telemetry_age_seconds") == 30
    assert kerf.metric("kerf_telemetry_up") == 1
    assert kerf.metric("kerf_telemetry_hosts_unmatched") == 1


def test_a_dead_source_degrades_and_nothing_more(kerf: Kerf, feed: FakeFeed) -> None:
    observe(kerf)
    feed.fault = SourceError("refused")
    observe(kerf)
    answer = kerf.get("/readyz")
    assert (answer.status, answer.json()) == (200, {"status": "ok", "degraded": ["telemetry: refused"]})
    assert kerf.metric("kerf_telemetry_up") == 0
    assert kerf.metric("kerf_telemetry_failures_total") == 1


def test_telemetry_can_be_off() -> None:
    with running(telemetry__source="off") as kerf:
        assert kerf.get("/telemetry").json() == {"state": "off"}
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_a_cluster_without_prometheus_is_not_degraded() -> None:
    with running() as kerf:
        observe(kerf)
        assert kerf.get("/telemetry").json()["state"] == "absent"
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_booked_beside_used(kerf: Kerf, feed: FakeFeed) -> None:
    name = next(iter(kerf.service.placer.snapshot().row_of))
    feed.gauges = {name: {Gauge.LOAD: [0.5, 0.25], Gauge.MEMORY_USED: [3000.0, 1000.0]}}
    observe(kerf)
    assert kerf.metric("kerf_gpus_sampled") == 2
    assert kerf.metric("kerf_gpus_used") == 0.75
    assert kerf.metric("kerf_gpu_memory_mib", state="used") == 4000


def test_usage_is_that_of_owners_whose_pods_have_gpus(kerf: Kerf, feed: FakeFeed) -> None:
    """Series of idle GPUs name the exporter's own pod."""
    for kind, manifest in (
        ("StatefulSet", pod("train-0", 1, node_name="a100-0")),
        ("DaemonSet", pod("exporter", node_name="a100-0")),
    ):
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": kind.lower(), "uid": kind, "controller": True}
        manifest["metadata"]["ownerReferences"] = [owner]
        kerf.create(manifest)
        feed.pods["default", manifest["metadata"]["name"]] = 0.5, 30_000.0
    observe(kerf)
    ((name, usage),) = kerf.get("/telemetry").json()["owners"].items()
    assert "statefulset" in name
    assert (usage["load_mean"], usage["memory_mean_mib"]) == (0.5, 30_000)
