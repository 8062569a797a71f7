"""Kerf's own Prometheus metrics: counters of the verbs, and functions of other packages called at each scrape."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.core.fit.checks import TABLE
from extender.core.fit.reasons import Reason
from extender.scheduling.placer import Placement

_LATENCIES_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class _Read(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class Metrics:
    """Counters and histograms of the verbs; other metrics are read at each scrape."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter and histogram
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            "kerf_request_seconds",
            "Request latency by verb, in seconds.",
            ["verb"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        count = partial(Counter, registry=self.registry)
        self.decisions = count("kerf_decisions", "Filter decisions by verdict.", ["verdict"])
        self.rejections = count("kerf_rejections", "Pods that fit on no node, by the most common reason.", ["reason"])
        self.bad_requests = count("kerf_bad_requests", "Pods with an invalid GPU request.")
        self.preemptions = count(
            "kerf_preemption_candidates", "Nodes proposed for preemption, by verdict.", ["verdict"]
        )
        self.spared_victims = count("kerf_spared_victims", "Proposed victims that need not be evicted.")
        self.binds = count("kerf_binds", "Pods bound.")
        self.failed_binds = count("kerf_failed_binds", "Bindings that failed.")
        # Series start at 0: if one started with its first event, rates would miss that event.
        for counted, values in (
            (self.decisions, ("placed", "rejected", "skipped")),
            (self.rejections, [name.lower() for name in TABLE.names]),
            (self.preemptions, ("kept", "dropped", "refused")),
        ):
            for value in values:
                counted.labels(value)

    def count_decision(self, placement: Placement) -> None:
        """Count one decision of filter."""
        if placement.decision.best is not None:
            self.decisions.labels("placed").inc()
            return
        self.decisions.labels("rejected").inc()
        codes = placement.decision.evaluation.reason
        commonest = int(np.bincount(codes).argmax()) if len(codes) else Reason.UNKNOWN_NODE
        self.rejections.labels(TABLE[commonest].name.lower()).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def add(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that are computed at each scrape, so that decisions stay fast."""
        self.registry.register(_Read(read))


def gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    """A gauge: a value that may go up and down."""
    return GaugeMetricFamily(name, documentation, value=float(value))


def counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    """A counter, which only grows while the process runs; Prometheus names it `NAME_total`."""
    return CounterMetricFamily(name, documentation, value=float(value))


def by_label(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    documentation: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """A metric with one label and a number for each of its values."""
    family = kind(name, documentation, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family
