"""Metrics of GPU-hours: counters that only the leader advances, idle pods and budgets."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from extender.metrics.registry import by_label
from extender.parts.usage.accounts import MICRO
from extender.parts.usage.lines import OTHER
from extender.parts.usage.meter import Meter
from extender.parts.usage.questions import OF_HOLDERS, OF_MODELS
from extender.parts.usage.report import Usage

_HELP_OF_HOLDERS: Final = {
    "booked": "GPU-seconds booked by pods with a node.",
    "used": "Booked GPU-seconds times the load of the GPUs, if known.",
    "measured": "Booked GPU-seconds of GPUs with known load.",
    "idle": "Booked GPU-seconds of GPUs with hardly any load.",
}
_HELP_OF_MODELS: Final = {
    "capacity": "GPU-seconds of all GPUs.",
    "free": "Unbooked GPU-seconds that expected pods could have used.",
    "stranded": "Unbooked GPU-seconds that the next pod was expected not to be able to use.",
    "sick": "Unbooked GPU-seconds of GPUs out of use.",
}
_MS: Final = 1000
_MAX_NAMESPACES: Final = 100
"""Namespaces with separate series of idle pods."""
_MAX_NODES: Final = 100
"""Nodes with series: first those with GPUs out of use, then by name."""


def gpu_hour_metrics(usage: Usage) -> Iterator[Metric]:
    """The counters, and while this process leads the gauges."""
    yield from _counters(usage.meter)
    leads = usage.meter.rates is not None
    pods, gpus = defaultdict[str, float](float), defaultdict[str, float](float)
    for one in usage.meter.idle.pods(usage.clock(), usage.meter.wanted.idle_after_s) if leads else ():
        namespace = one.namespace if one.namespace in pods or len(pods) < _MAX_NAMESPACES else OTHER
        pods[namespace] += 1
        gpus[namespace] += one.gpus
    yield by_label(
        GaugeMetricFamily, "kerf_idle_pods", "Pods whose GPUs have all been idle for long.", "namespace", pods
    )
    yield by_label(GaugeMetricFamily, "kerf_idle_gpus", "GPUs that these pods have booked.", "namespace", gpus)
    spent = usage.budgets.spent() if leads else {}
    limits = {name: one.budget for name, one in spent.items()}
    yield by_label(
        GaugeMetricFamily, "kerf_budget_gpu_hours", "Soft budget of GPU-hours for the window.", "namespace", limits
    )
    parts = {name: one.frac for name, one in spent.items()}
    text = "Spent fraction of the budget; above 1 if exceeded, +Inf if anything is spent of a budget of 0."
    yield by_label(GaugeMetricFamily, "kerf_budget_spent_ratio", text, "namespace", parts)
    yield from _nodes(usage.meter)


def _counters(meter: Meter) -> Iterator[Metric]:
    names = ["namespace", "owner", "gpu_model"]
    of_holders = [
        CounterMetricFamily(f"kerf_{what}_gpu_seconds", _HELP_OF_HOLDERS[what], labels=names) for what in OF_HOLDERS
    ]
    for key, sums in meter.accounts.shown(meter.now_ms):
        for family, amount in zip(of_holders, sums, strict=True):
            family.add_metric(list(key), amount / MICRO)
    yield from of_holders
    of_models = [
        CounterMetricFamily(f"kerf_{what}_gpu_seconds", _HELP_OF_MODELS[what], labels=["gpu_model"])
        for what in OF_MODELS
    ]
    for model, sums in meter.accounts.models_shown(meter.now_ms):
        for family, amount in zip(of_models, sums, strict=True):
            family.add_metric([model], amount / MICRO)
    yield from of_models
    counted = CounterMetricFamily("kerf_counted_seconds", "Time for which GPU-seconds were counted.")
    counted.add_metric([], meter.accounts.counted_shown(meter.now_ms) / _MS)
    yield counted


def _nodes(meter: Meter) -> Iterator[Metric]:
    """GPUs by state of up to `_MAX_NODES` nodes."""
    family = GaugeMetricFamily("kerf_node_gpus", "GPUs of a node, by state.", labels=["node", "state"])
    for name, figures in meter.nodes(_MAX_NODES):
        for state, gpus in figures.items():
            family.add_metric([name, state], gpus)
    yield family
