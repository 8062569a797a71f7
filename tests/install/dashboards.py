"""The Grafana dashboard, panel by panel; `make manifests` writes it into the chart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.install.helm import CHART

DASHBOARD = CHART / "dashboard.json"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_HEIGHT = 8
_JOB = 'job=~"$job"'
_RATE = f"{{{_JOB}}}[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """Queries by legend. All replicas report on the same cluster, so queries take the maximum."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    description: str = ""
    most: float | None = None
    """Upper end of the axis."""


def _now(name: str, labels: str = "") -> str:
    return f"max({name}{{{_JOB}{labels}}})"


def _by(label: str, name: str) -> str:
    return f"max by ({label}) ({name}{{{_JOB}}})"


def _nodes(state: str) -> str:
    return f'topk(20, max by (node) (kerf_node_gpus{{{_JOB}, state="{state}"}}))'


def _rate_by(label: str, name: str) -> str:
    return f"sum by ({label}) (rate({name}{_RATE}))"


def _quantile(quantile: float) -> str:
    """The comparison drops verbs without calls, whose quantile is NaN."""
    return f"histogram_quantile({quantile}, {_rate_by('le, verb', 'kerf_request_seconds_bucket')}) >= 0"


def _stat(title: str, query: str, unit: str = "short", description: str = "") -> Panel:
    return Panel(title, {"": query}, unit, "stat", 4, description)


_ROWS: dict[str, Sequence[Panel]] = {
    "Cluster": (
        _stat("GPUs booked", _now("kerf_gpu_allocation_ratio"), "percentunit"),
        _stat(
            "Load of GPUs with samples",
            f"{_now('kerf_gpus_used')} / {_now('kerf_gpus_sampled')}",
            "percentunit",
            "Mean over the GPUs with known load.",
        ),
        _stat(
            "GPUs stranded",
            f"{_now('kerf_gpus_stranded')} / {_now('kerf_gpus')}",
            "percentunit",
            "Free GPUs that the next pod is not expected to be able to use, as a fraction of all GPUs.",
        ),
        _stat("Pods waiting", _now("kerf_pods_waiting"), description="Rejected and not placed since."),
        _stat("Nodes", _now("kerf_nodes")),
        _stat("Leaders", f"sum(kerf_leader{{{_JOB}}})", description="Should be one, with any number of replicas."),
        Panel(
            "Booked and used",
            {
                "installed": _now("kerf_gpus"),
                "booked": _now("kerf_gpus_booked"),
                "used": _now("kerf_gpus_used"),
                "unhealthy": _now("kerf_gpus_unhealthy"),
            },
            description="In GPUs. Used is the sum of the loads of GPUs with samples.",
        ),
        Panel("GPU memory", {"{{state}}": _by("state", "kerf_gpu_memory_mib")}, "mbytes"),
        Panel(
            "Booked by model",
            {"{{gpu_model}}": " / ".join(_by("gpu_model", f"kerf_gpus_{of}by_model") for of in ("booked_", ""))},
            "percentunit",
            most=1,
        ),
        Panel(
            "Free GPUs or time slices",
            {"free": _now("kerf_gpu_units_free"), "on nodes with GPUs in use": _now("kerf_gpu_units_cut")},
            width=12,
        ),
        Panel(
            "Reservations and bindings",
            {"reservations": _now("kerf_reservations"), "bindings in progress": _now("kerf_bindings_under_way")},
            width=12,
        ),
    ),
    "Decisions": (
        Panel("Decisions per second", {"{{verdict}}": _rate_by("verdict", "kerf_decisions_total")}, "ops"),
        Panel("Rejections per second by reason", {"{{reason}}": _rate_by("reason", "kerf_rejections_total")}, "ops"),
        Panel(
            "Bindings per second",
            {
                "bound": f"sum(rate(kerf_binds_total{_RATE}))",
                "failed": f"sum(rate(kerf_failed_binds_total{_RATE}))",
                "invalid requests": f"sum(rate(kerf_bad_requests_total{_RATE}))",
            },
            "ops",
        ),
        Panel("Request latency, median", {"{{verb}}": _quantile(0.5)}, "s"),
        Panel("Request latency, p99", {"{{verb}}": _quantile(0.99)}, "s"),
        Panel("Requests per second", {"{{verb}}": _rate_by("verb", "kerf_request_seconds_count")}, "ops"),
        Panel(
            "Nodes proposed for preemption",
            {"{{verdict}}": _rate_by("verdict", "kerf_preemption_candidates_total")},
            "ops",
            width=12,
        ),
        Panel(
            "Pods waiting and woken",
            {"waiting": _now("kerf_pods_waiting"), "woken per second": f"sum(rate(kerf_pods_woken_total{_RATE}))"},
            width=12,
        ),
    ),
    "Queue": (
        Panel("Pods in the queue", {"waiting": _now("kerf_queue_waiting"), "released": _now("kerf_queue_opened")}),
        Panel("Pods skipped by reason", {"{{why}}": _by("why", "kerf_queue_skipped")}),
        Panel("Planning time per round", {"last round": _now("kerf_queue_round_seconds")}, "s"),
    ),
    "GPU-hours": (
        Panel("GPUs booked by namespace", {"{{namespace}}": _rate_by("namespace", "kerf_booked_gpu_seconds_total")}),
        Panel("Idle GPUs by namespace", {"{{namespace}}": _rate_by("namespace", "kerf_idle_gpu_seconds_total")}),
        Panel(
            "Load of booked GPUs by namespace",
            {
                "{{namespace}}": f"{_rate_by('namespace', 'kerf_used_gpu_seconds_total')}"
                f" / clamp_min({_rate_by('namespace', 'kerf_measured_gpu_seconds_total')}, 1e-9)"
            },
            "percentunit",
            description="Mean over the GPUs with known load.",
            most=1,
        ),
        Panel(
            "GPUs by state",
            {
                "booked": f"sum(rate(kerf_booked_gpu_seconds_total{_RATE}))",
                "free": f"sum(rate(kerf_free_gpu_seconds_total{_RATE}))",
                "stranded": f"sum(rate(kerf_stranded_gpu_seconds_total{_RATE}))",
                "out of use": f"sum(rate(kerf_sick_gpu_seconds_total{_RATE}))",
            },
            description="The sum is all GPUs. Stranded: free, but the next pod is not expected to be able to use them.",
        ),
        Panel("GPUs booked by model", {"{{gpu_model}}": _rate_by("gpu_model", "kerf_booked_gpu_seconds_total")}),
        Panel(
            "GPUs of idle pods by namespace",
            {"{{namespace}}": f"{_by('namespace', 'kerf_idle_gpus')} or vector(0)"},
            description="GPUs of pods that have not used any of their GPUs for usage.idle_after_s.",
        ),
        Panel(
            "Budgets spent",
            {"{{namespace}}": f"{_by('namespace', 'kerf_budget_spent_ratio')} or vector(0)"},
            "percentunit",
        ),
        Panel("Longest wait by namespace", {"{{namespace}}": _by("namespace", "kerf_pending_longest_seconds")}, "s"),
    ),
    "Nodes": (
        Panel("GPUs booked by node", {"{{node}}": _nodes("booked")}, description="The 20 nodes with the most."),
        Panel("GPUs free by node", {"{{node}}": _nodes("free")}, description="The 20 nodes with the most."),
        Panel("GPUs out of use by node", {"{{node}}": _nodes("sick")}, description="The 20 nodes with the most."),
    ),
    "Learned rank": (
        Panel(
            "Model",
            {
                "loaded": _now("kerf_model_loaded"),
                "serving": _now("kerf_model_serving"),
                "refused": _now("kerf_model_refused"),
            },
        ),
        Panel("Age of the prices", {"age": f"min(kerf_prices_age_seconds{{{_JOB}}})"}, "s"),
        Panel("Change in the pod mix since the last prices", {"drift": _now("kerf_mix_drift")}, "percentunit"),
    ),
    "Telemetry": (
        Panel("Nodes by sample state", {"{{state}}": _by("state", "kerf_telemetry_nodes")}),
        Panel("Age of the last refresh", {"age": f"min(kerf_telemetry_age_seconds{{{_JOB}}})"}, "s"),
        Panel(
            "Unmanaged and faulty GPUs",
            {"used without a booking": _now("kerf_unmanaged_gpus"), "faulty": _now("kerf_faulty_gpus")},
        ),
    ),
    "Health": (
        Panel("Age of the cluster cache", {"{{instance}}": _by("instance", "kerf_cache_age_seconds")}, "s"),
        Panel(
            "Anomalies",
            {
                "nodes overbooked": _now("kerf_nodes_overbooked"),
                "nodes quarantined": _now("kerf_nodes_set_aside"),
                "nodes on which pods fail": _now("kerf_nodes_failing"),
                "unreadable objects": _now("kerf_unreadable_objects_total"),
                "events lost": _now("kerf_events_lost_total"),
            },
        ),
        Panel(
            "Versions",
            {"{{instance}}: {{version}}, {{policy}}, {{mode}}": _by("instance, version, policy, mode", "kerf_info")},
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _ROWS.items():
        panels.append(_of_row(title, y, len(panels) + 1))
        y, x, height = y + 1, 0, 0
        for panel in row:
            if x + panel.width > _COLUMNS:
                y, x = y + height, 0
            height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
            panels.append(_of_panel(panel, {"x": x, "y": y, "w": panel.width, "h": height}, len(panels) + 1))
            x += panel.width
        y += height
    return {
        "uid": "kerf",
        "title": "Kerf",
        "description": "GPUs booked and used, pending pods, and why they are pending.",
        "tags": ["kubernetes", "gpu", "scheduling"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_SOURCES, _JOBS]},
        "panels": panels,
    }


_SOURCES = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_JOBS = {
    "name": "job",
    "label": "Job",
    "type": "query",
    "datasource": _SOURCE,
    "query": "label_values(kerf_nodes, job)",
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "current": {"text": "All", "value": "$__all"},
}


def _of_row(title: str, y: int, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        "panels": [],
    }


def _of_panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def render_dashboard() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"
