"""Telemetry as the service tells of it."""

import asyncio
from collections.abc import Iterator

import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError
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
    """One round of telemetry, now."""
    assert kerf.service.observer is not None
    kerf.run(kerf.service.observer.round())


def test_telemetry_is_described(kerf: Kerf, feed: FakeFeed) -> None:
    names = list(kerf.service.placer.snapshot().row_of)
    feed.gauges = {names[0]: {Gauge.LOAD: [0.5]}, "elsewhere": {Gauge.LOAD: [0.5]}}
    observe(kerf)
    told = kerf.get("/telemetry").json()
    assert told["state"] == "ok"
    assert told["source"] == "a test"
    assert told["unmatched"] == ["elsewhere"]
    assert told["gpusMatched"] == 1
    assert told["ageSeconds"] == 0
    kerf.clock.now += 30
    assert kerf.get("/telemetry").json()["ageSeconds"] == 30
    assert kerf.metric("kerf_telemetry_age_seconds") == 30
    assert kerf.metric("kerf_telemetry_up") == 1
    assert kerf.metric("kerf_telemetry_hosts_unmatched") == 1


def test_a_dead_source_degrades_and_nothing_more(kerf: Kerf, feed: FakeFeed) -> None:
    observe(kerf)
    feed.fault = SourceError("http://prometheus:9090: no connection: refused")
    observe(kerf)
    answer = kerf.get("/readyz")
    assert answer.status == 200
    assert answer.json() == {
        "status": "ok",
        "degraded": ["telemetry: http://prometheus:9090: no connection: refused"],
    }
    assert kerf.metric("kerf_telemetry_up") == 0
    assert kerf.metric("kerf_telemetry_failures_total") == 1


def test_telemetry_can_be_off() -> None:
    with running(telemetry__source="off") as kerf:
        assert kerf.get("/telemetry").json() == {"state": "off"}
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_a_cluster_without_prometheus_is_not_degraded() -> None:
    with running() as kerf:
        assert kerf.service.observer is not None
        asyncio.run(asyncio.sleep(0))
        observe(kerf)
        assert kerf.get("/telemetry").json()["state"] == "absent"
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_booked_beside_used(kerf: Kerf, feed: FakeFeed) -> None:
    names = list(kerf.service.placer.snapshot().row_of)
    samples = {Gauge.LOAD: [0.5, 0.25], Gauge.MEMORY_USED: [3000.0, 1000.0]}
    feed.gauges = {names[0]: samples}
    observe(kerf)
    assert kerf.metric("kerf_gpus_sampled") == 2
    assert kerf.metric("kerf_gpus_used") == 0.75
    assert kerf.metric("kerf_gpu_memory_mib", state="used") == 4000
