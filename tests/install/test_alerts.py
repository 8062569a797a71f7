"""The alerts, by Prometheus' own rule tests: each fires on the series that it is about, and none when all is well."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.install.helm import CHART
from tests.telemetry.prometheuses import find_promtool

ALERTS = CHART / "alerts.yaml"
ALERTS_PAGE = CHART.parents[2] / "docs" / "reference" / "alerts.md"
PAGE = CHART.parents[2] / "extender" / "page" / "static"
PARTS = CHART.parents[2] / "extender" / "parts"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

WELL = {
    "kerf_nodes": "38x60",
    'kerf_leader{instance="a"}': "1x60",
    'kerf_leader{instance="b"}': "0x60",
    "kerf_cache_age_seconds": "5x60",
    "kerf_binds_total": "0+60x60",
    "kerf_failed_binds_total": "0+1x60",
    "kerf_bad_requests_total": "3x60",
    "kerf_unreadable_objects_total": "3x60",
    'kerf_pods_unasked{instance="a"}': "0x60",
    'kerf_pods_unasked{instance="b"}': "0x60",
    "kerf_nodes_overbooked": "0x60",
    'kerf_nodes_set_aside{instance="a"}': "0x60",
    'kerf_nodes_failing{instance="a"}': "0x60",
    'kerf_nodes_failing{instance="b"}': "0x60",
    "kerf_queue_errors_total": "7x60",
    "kerf_queue_passed_total": "2x60",
    "kerf_unattended_gates": "0x60",
    "kerf_agents_silent": "0x60",
    "kerf_certificate_left_seconds": "2592000-60x60",
    "kerf_certificate_valid_seconds": "7776000x60",
    "kerf_model_refused": "0x60",
    "kerf_history_fault": "0x60",
    "kerf_learning_fault": "0x60",
    "kerf_telemetry_up": "1x60",
    "kerf_telemetry_refreshes_total": "0+4x60",
    'kerf_telemetry_nodes{state="stale"}': "0x60",
    "kerf_unmanaged_gpus": "0x60",
    "kerf_faulty_gpus": "0x60",
    'kerf_pending_longest_seconds{namespace="a"}': "600x60",
    'kerf_idle_gpus{namespace="a"}': "0x60",
    'kerf_budget_spent_ratio{namespace="a"}': "0.9x60",
    'kerf_node_gpus{node="n", state="sick"}': "0x60",
    'kerf_request_seconds_bucket{verb="filter", le="0.005"}': "0+60x60",
    'kerf_request_seconds_bucket{verb="filter", le="+Inf"}': "0+60x60",
}
"""Series by name, each as its first value, what is added a minute, and for how many minutes."""


@pytest.mark.parametrize(
    ("alert", "series", "calm_at", "fires_at"),
    [
        ("KerfDown", {"kerf_nodes": "38x10 _x50"}, "10m", "18m"),  # five minutes pass until a series counts as gone
        ("KerfMirrorStale", {"kerf_cache_age_seconds": "5x10 65+60x50"}, "10m", "13m"),
        ("KerfBindingsFail", {"kerf_failed_binds_total": "0+1x20 20+20x40"}, "20m", "40m"),
        ("KerfSlow", {'kerf_request_seconds_bucket{verb="filter", le="0.005"}': "0+60x20 1200x40"}, "20m", "45m"),
        ("KerfBadRequests", {"kerf_bad_requests_total": "3x20 5x40"}, "20m", "22m"),
        ("KerfNoLeader", {'kerf_leader{instance="a"}': "1x20 0x40"}, "20m", "23m"),
        ("KerfNotAsked", {'kerf_pods_unasked{instance="a"}': "0x20 2x40"}, "20m", "27m"),
        ("KerfOverbooked", {"kerf_nodes_overbooked": "0x20 1x40"}, "20m", "27m"),
        ("KerfNodesFail", {'kerf_nodes_failing{instance="a"}': "0x20 1x40"}, "20m", "23m"),
        ("KerfUnreadable", {"kerf_unreadable_objects_total": "3x20 4x40"}, "20m", "22m"),
        ("KerfQueueFails", {"kerf_queue_errors_total": "7x20 7+1x40"}, "20m", "30m"),
        ("KerfQueuePassed", {"kerf_queue_passed_total": "2x20 3x40"}, "20m", "22m"),
        ("KerfGatesStay", {"kerf_unattended_gates": "0x20 1x40"}, "20m", "32m"),
        ("KerfAgentStopped", {"kerf_agents_silent": "0x20 2x40"}, "20m", "37m"),
        # Made for 90 days, of which 14 are left after 20 minutes.
        ("KerfCertificateEnds", {"kerf_certificate_left_seconds": "1210800-60x60"}, "20m", "32m"),
        ("KerfMovesStopped", {"kerf_defrag_plans_stopped_total": "2x20 2+1x40"}, "20m", "30m"),
        ("KerfModelRefused", {"kerf_model_refused": "0x20 1x40"}, "20m", "27m"),
        ("KerfHistoryFails", {"kerf_history_fault": "0x20 1x40"}, "20m", "37m"),
        ("KerfLearningFails", {"kerf_learning_fault": "0x20 1x40"}, "20m", "37m"),
        ("KerfTelemetryDown", {"kerf_telemetry_up": "1x20 0x40"}, "20m", "27m"),
        ("KerfSamplesStale", {'kerf_telemetry_nodes{state="stale"}': "0x20 3x40"}, "20m", "37m"),
        ("KerfUnmanagedGPUs", {"kerf_unmanaged_gpus": "0x20 1x40"}, "20m", "37m"),
        ("KerfFaultyGPUs", {"kerf_faulty_gpus": "0x20 1x40"}, "20m", "27m"),
        ("KerfPodsPendLong", {'kerf_pending_longest_seconds{namespace="a"}': "600x20 7300+60x40"}, "20m", "32m"),
        ("KerfIdleGPUs", {'kerf_idle_gpus{namespace="a"}': "0x20 4x40"}, "20m", "37m"),
        ("KerfBudgetSpent", {'kerf_budget_spent_ratio{namespace="a"}': "0.9x20 1.1x40"}, "20m", "27m"),
        ("KerfGPUsOutOfUse", {'kerf_node_gpus{node="n", state="sick"}': "0x20 1x40"}, "20m", "52m"),
    ],
)
def test_fires_when_it_has_to(tmp_path: Path, alert: str, series: dict[str, str], calm_at: str, fires_at: str) -> None:
    if alert == "KerfSlow":
        series = series | {'kerf_request_seconds_bucket{verb="filter", le="1.0"}': "0+60x60"}
    others = f'count(ALERTS{{alertstate="firing", alertname!="{alert}"}})'
    firing = f'count(ALERTS{{alertstate="firing", alertname="{alert}"}})'
    check(tmp_path, WELL | series, [(firing, calm_at, None), (firing, fires_at, 1), (others, fires_at, None)])


def test_telemetry_that_never_was_is_no_alert(tmp_path: Path) -> None:
    never = {"kerf_telemetry_up": "0x60", "kerf_telemetry_refreshes_total": "0x60"}
    check(tmp_path, WELL | never, [("count(ALERTS)", "1h", None)])


def test_nothing_fires_when_all_is_well(tmp_path: Path) -> None:
    check(tmp_path, WELL, [("count(ALERTS)", when, None) for when in ("5m", "30m", "1h")])


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_its_page_has_its_severity_duration_and_expression(rule: dict[str, Any]) -> None:
    holds = f"after {rule['for']}" if "for" in rule else "at once"
    text = f"## {rule['alert']}\n{rule['labels']['severity']}, {holds}: `{rule['expr']}`\n"
    assert text in ALERTS_PAGE.read_text(), f"write into {ALERTS_PAGE.name}:\n{text}"


LINKS = {rule["alert"]: link for rule in RULES if (link := rule["annotations"].get("dashboard_url"))}
"""To the page, as they are without its address."""


def test_a_link_names_what_is_alerted_on(tmp_path: Path) -> None:
    told = {"node": "gpu-1", "alertname": "KerfGPUsOutOfUse", "severity": "warning"}
    annotations = next(rule["annotations"] for rule in RULES if rule["alert"] == "KerfGPUsOutOfUse")
    expected = {
        name: text.replace("{{ $labels.node }}", "gpu-1").replace("{{ $value }}", "3")
        for name, text in annotations.items()
    }
    assert expected["dashboard_url"] == "#node/gpu-1"
    fires = [{"exp_labels": told, "exp_annotations": expected}]
    alert = {"eval_time": "55m", "alertname": "KerfGPUsOutOfUse", "exp_alerts": fires}
    run(tmp_path, {'kerf_node_gpus{node="gpu-1", state="sick"}': "3x60"}, alert_rule_test=[alert])


def test_links_use_only_labels_that_the_alert_has() -> None:
    for rule in RULES:
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"].get("dashboard_url", "")):
            assert f"by ({label})" in rule["expr"], rule["alert"]


def test_every_link_opens_something_that_the_page_knows() -> None:
    scripts = [*(PAGE / "panels").glob("[!i]*.js"), *PARTS.glob("*/page/panel.js")]
    panels = {re.findall(r"id: '([a-z-]+)'", path.read_text())[0] for path in scripts}
    kinds = re.findall(r"#\(([a-z|]+)\)", (PAGE / "address.js").read_text())[0].split("|")
    assert len(LINKS) > 10
    for alert, link in LINKS.items():
        target = re.match(r"#([a-z-]+)(/|\?|$)", link)
        assert target is not None, alert
        assert target[1] in (kinds if target[2] == "/" else panels), alert


def test_every_alert_is_tested() -> None:
    (marks,) = (mark for mark in test_fires_when_it_has_to.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert [row[0] for row in marks.args[1]] == [rule["alert"] for rule in RULES]


def check(folder: Path, series: dict[str, str], expected: list[tuple[str, str, int | None]]) -> None:
    """Run promtool on series; each expectation is an expression, a time, and its value or None for no sample."""
    queries = [
        {
            "expr": expression,
            "eval_time": when,
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for expression, when, value in expected
    ]
    run(folder, series, promql_expr_test=queries)


def run(folder: Path, series: dict[str, str], **wanted: Any) -> None:
    """Run promtool on series."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "1m", "input_series": inputs, **wanted}]
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    result = subprocess.run([find_promtool(), "test", "rules", path], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
