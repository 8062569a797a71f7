"""Kerf's own metrics, as Prometheus reads them."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extender import __version__
from tests.api import bodies
from tests.api.bodies import NAMES, pod
from tests.api.certificates import Authority
from tests.api.services import Clock, Kerf, Shared, running
from tests.controlplane import wait_until
from tests.telemetry.feeds import FakeFeed

KINDS = {
    "kerf_request_seconds": "histogram",
    "kerf_decisions": "counter",
    "kerf_rejections": "counter",
    "kerf_bad_requests": "counter",
    "kerf_binds": "counter",
    "kerf_failed_binds": "counter",
    "kerf_nodes": "gauge",
    "kerf_gpus": "gauge",
    "kerf_gpu_units": "gauge",
    "kerf_gpu_units_free": "gauge",
    "kerf_reservations": "gauge",
    "kerf_bindings_under_way": "gauge",
    "kerf_cache_age_seconds": "gauge",
    "kerf_cache_lists": "counter",
    "kerf_events_lost": "counter",
    "kerf_gpus_booked": "gauge",
    "kerf_gpu_allocation_ratio": "gauge",
    "kerf_gpu_units_cut": "gauge",
    "kerf_gpu_fragmentation_ratio": "gauge",
    "kerf_gpus_unhealthy": "gauge",
    "kerf_gpu_memory_mib": "gauge",
    "kerf_gpus_by_model": "gauge",
    "kerf_gpus_booked_by_model": "gauge",
    "kerf_live_views": "gauge",
    "kerf_info": "gauge",
}


def test_metrics_are_in_prometheus_format_and_documented(kerf: Kerf) -> None:
    answer = kerf.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    assert {name: families[name].type for name in KINDS} == KINDS
    assert all(family.documentation.endswith(".") for name, family in families.items() if name in KINDS)


def test_every_metric_is_on_its_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`(kerf_\w+)`", page))
    certificate, key = Authority(tmp_path, "ca").issue("kerf")
    given: dict[str, Any] = {
        "server__tls_cert_file": str(certificate),
        "server__tls_key_file": str(key),
        "telemetry__url": "http://p",
        "queue__enabled": True,
        "model__mode": "shadow",
    }
    with running(feed=FakeFeed(Clock()), **given) as kerf:
        text = kerf.get("/metrics").content.decode()
        of_parts = {family.name for one in kerf.service.contributions.values() for family in one.metrics()}
    families = [one for one in text_string_to_metric_families(text) if one.name not in of_parts]
    assert "_created" not in text, "when a counter began to count doubles the number of series"
    served = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert documented == served  # what ends in _total is a counter, and every counter does


def test_a_standby_asks_for_no_telemetry_and_tells_of_none() -> None:
    """Alerts would take what a former leader read for what is there now."""
    feed = FakeFeed(Clock())
    with running(feed=feed, telemetry__url="http://p", leader_election__mode="never") as kerf:
        wait_until(lambda: kerf.get("/telemetry").json()["state"] == "standby", 10.0, "it stands by")
        text = kerf.get("/metrics").content.decode()
    assert "kerf_leader 0.0" in text
    assert "kerf_telemetry_" not in text and "kerf_unmanaged_" not in text
    assert not feed.asked


@pytest.mark.parametrize(
    ("verb", "body", "moved", "labels"),
    [
        ("filter", bodies.args(pod(gpus=1), NAMES), "kerf_decisions_total", {"verdict": "placed"}),
        ("filter", bodies.args(pod(gpus=9), NAMES), "kerf_decisions_total", {"verdict": "rejected"}),
        ("filter", bodies.args(pod(gpus=9), NAMES), "kerf_rejections_total", {"reason": "too_few_installed"}),
        ("filter", bodies.args(pod(gpus=9), ["x"]), "kerf_rejections_total", {"reason": "unknown_node"}),
        ("filter", bodies.args(pod(gpus="two"), NAMES), "kerf_bad_requests_total", {}),
        ("bind", bodies.binding_args(pod("held"), "cpu-0"), "kerf_binds_total", {}),
        ("bind", bodies.binding_args(pod("nobody"), "cpu-0"), "kerf_failed_binds_total", {}),
        ("bind", b"", "kerf_failed_binds_total", {}),
        ("filter", b"", "kerf_request_seconds_count", {"verb": "filter"}),
        ("prioritize", b"", "kerf_request_seconds_count", {"verb": "prioritize"}),
        ("bind", b"", "kerf_request_seconds_count", {"verb": "bind"}),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value) if isinstance(value, dict) else "",
)
def test_counters_move(shared: Shared, verb: str, body: bytes, moved: str, labels: dict[str, str]) -> None:
    kerf = shared([*bodies.CLUSTER, pod("held")])
    before = kerf.metric(moved, **labels)
    kerf.post(f"/{verb}", body)
    assert kerf.metric(moved, **labels) == before + 1


def test_pods_without_gpus_are_no_decisions(kerf: Kerf) -> None:
    kerf.filter(pod(), NAMES)
    assert kerf.metric("kerf_decisions_total", verdict="placed") == 0


def test_gauges_follow_the_cluster(kerf: Kerf) -> None:
    # Eight A100, eight A100, four A100-40, two T4, two T4, and one T4 in four slices.
    assert (kerf.metric("kerf_nodes"), kerf.metric("kerf_gpus")) == (7, 25)
    assert kerf.metric("kerf_gpu_units") == kerf.metric("kerf_gpu_units_free") == 24 + 4
    assert kerf.metric("kerf_cache_lists_total") == 2
    assert math.isclose(kerf.metric("kerf_cache_age_seconds"), 0)

    held = kerf.create(pod("held", 3))
    kerf.filter(held, NAMES)
    assert (kerf.metric("kerf_reservations"), kerf.metric("kerf_gpu_units_free")) == (1, 25)
    assert kerf.bind(held, "a100-40-0") == ""
    assert (kerf.metric("kerf_reservations"), kerf.metric("kerf_gpu_units_free")) == (0, 25)
    kerf.cluster.delete(kerf.cluster.pod("default", "held"))
    kerf.settle()
    assert kerf.metric("kerf_gpu_units_free") == 28


def test_booked_cut_up_and_by_model(kerf: Kerf) -> None:
    # As above: 25 GPUs, 20 of them A100, in 28 units; 8, 8, 4, 2, 2 whole ones and 4 slices of one GPU.
    held = kerf.create(pod("held", 3))
    kerf.filter(held, ["a100-40-0"])
    assert kerf.metric("kerf_gpus_booked") == 3
    assert kerf.metric("kerf_gpu_allocation_ratio") == 3 / 25
    assert kerf.metric("kerf_gpu_units_cut") == 1  # the fourth of that node
    assert kerf.metric("kerf_gpu_fragmentation_ratio") == 1 / 25
    assert kerf.metric("kerf_gpus_by_model", gpu_model="a100-sxm4-40gb") == 4
    assert kerf.metric("kerf_gpus_booked_by_model", gpu_model="a100-sxm4-40gb") == 3
    assert kerf.metric("kerf_gpu_memory_mib", state="booked") == 3 * 40960
    assert kerf.metric("kerf_info", version=__version__, mode="decisive", policy="tightest") == 1
