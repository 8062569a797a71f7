"""Metrics with one value, worked out when Prometheus asks."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    """What may go up and down."""
    return GaugeMetricFamily(name, documentation, value=float(value))


def counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    """What only grows while the process runs; Prometheus knows it as `NAME_total`."""
    return CounterMetricFamily(name, documentation, value=float(value))
