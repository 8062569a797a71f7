"""Kerf's own metrics, as Prometheus reads them."""

import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from extender import __version__
from tests.api import bodies
from tests.api.bodies import NAMES, pod
from tests.api.certificates import Authority
from tests.api.services import Clock, Kerf, Shared, running
from tests.controlplane import wait_until
from tests.telemetry.feeds import FakeFeed


def test_metrics_are_in_prometheus_format(kerf: Kerf) -> None:
    answer = kerf.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.content.decode()))
    assert all(family.documentation.endswith(".") for family in families if family.name.startswith("kerf_"))
    histograms = {family.name for family in families if family.type == "histogram"}
    assert "kerf_request_seconds" in histograms


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


def test_a_standby_requests_and_reports_no_telemetry() -> None:
    """Alerts would take what a former leader read for current."""
    feed = FakeFeed(Clock())
    with running(feed=feed, telemetry__url="http://p", leader_election__mode="never") as kerf:
        wait_until(lambda: kerf.get("/telemetry").json()["state"] == "standby", 10.0, "it stands by")
        text = kerf.get("/metrics").content.decode()
    assert "kerf_leader 0.0" in text
    assert "kerf_telemetry_" not in text and "kerf_unmanaged_" not in text
    assert not feed.asked


def test_counters_move(shared: Shared) -> None:
    kerf = shared([*bodies.CLUSTER, pod("held")])
    for verb, body, moved, labels in (
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
    ):
        before = kerf.metric(moved, **labels)
        kerf.post(f"/{verb}", body)
        assert kerf.metric(moved, **labels) == before + 1, (moved, labels)
    before = kerf.metric("kerf_decisions_total", verdict="placed")
    kerf.filter(pod(), NAMES)
    assert kerf.metric("kerf_decisions_total", verdict="placed") == before, "a pod without GPUs"


def test_gauges_follow_the_cluster(kerf: Kerf) -> None:
    # Eight A100, eight A100, four A100-40, two T4, two T4, and one T4 in four slices.
    assert (kerf.metric("kerf_nodes"), kerf.metric("kerf_gpus")) == (7, 25)
    assert kerf.metric("kerf_gpu_units") == kerf.metric("kerf_gpu_units_free") == 24 + 4
    assert (kerf.metric("kerf_cache_lists_total"), kerf.metric("kerf_cache_age_seconds")) == (2, 0)
    held = kerf.create(pod("held", 3))
    kerf.filter(held, ["a100-40-0"])
    assert (kerf.metric("kerf_reservations"), kerf.metric("kerf_gpu_units_free")) == (1, 25)
    assert (kerf.metric("kerf_gpus_booked"), kerf.metric("kerf_gpu_allocation_ratio")) == (3, 3 / 25)
    # The fourth GPU of that node.
    assert (kerf.metric("kerf_gpu_units_cut"), kerf.metric("kerf_gpu_fragmentation_ratio")) == (1, 1 / 25)
    assert kerf.metric("kerf_gpus_by_model", gpu_model="a100-sxm4-40gb") == 4
    assert kerf.metric("kerf_gpus_booked_by_model", gpu_model="a100-sxm4-40gb") == 3
    assert kerf.metric("kerf_gpu_memory_mib", state="booked") == 3 * 40960
    assert kerf.metric("kerf_info", version=__version__, mode="decisive", policy="tightest") == 1
    assert kerf.bind(held, "a100-40-0") == ""
    assert (kerf.metric("kerf_reservations"), kerf.metric("kerf_gpu_units_free")) == (0, 25)
    kerf.cluster.delete(kerf.cluster.pod("default", "held"))
    kerf.settle()
    assert kerf.metric("kerf_gpu_units_free") == 28
