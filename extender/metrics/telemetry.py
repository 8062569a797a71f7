"""Metrics of telemetry."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.core.observations import SampleState
from extender.metrics.registry import by_label, counter, gauge
from extender.telemetry.observer import Observer
from extender.telemetry.status import State
from extender.telemetry.unmanaged_use import UnmanagedWatch


def telemetry_metrics(observer: Observer, unmanaged: UnmanagedWatch) -> Iterator[Metric]:
    """The state of telemetry, and unmanaged use of GPUs; none on a standby, which reads no telemetry."""
    status = observer.status
    if status.state is State.STANDBY:
        return
    nodes = {state.name.lower(): observer.num_nodes(state) for state in SampleState}
    description = "Nodes with GPUs, by the state of their samples."
    yield by_label(GaugeMetricFamily, "kerf_telemetry_nodes", description, "state", nodes)
    yield gauge("kerf_telemetry_up", "1 if the last refresh succeeded.", status.state is State.OK)
    yield gauge("kerf_telemetry_age_seconds", "Seconds since the last successful refresh.", observer.age_s())
    yield counter("kerf_telemetry_refreshes", "Successful refreshes.", status.num_refreshes)
    yield counter("kerf_telemetry_failures", "Failed refreshes.", status.num_failures)
    yield gauge("kerf_telemetry_refresh_seconds", "Duration of the last refresh, in seconds.", status.report.read_s)
    yield gauge("kerf_telemetry_gpus_matched", "GPUs matched to samples.", status.num_gpus_matched)
    yield gauge("kerf_telemetry_hosts_unmatched", "Hosts in samples that match no node.", len(status.unmatched))
    yield gauge(
        "kerf_telemetry_clock_skew_seconds", "How far the source's clock is ahead, in seconds.", status.report.skew_s
    )
    yield gauge("kerf_unmanaged_gpus", "GPUs used by unknown processes.", unmanaged.num_gpus)
    yield gauge("kerf_unmanaged_mib", "Memory used by unknown processes, in MiB.", unmanaged.total_mib)
    yield gauge("kerf_faulty_gpus", "GPUs that report a fault.", unmanaged.num_faulty)
    yield gauge("kerf_telemetry_reader_rss_mib", "Peak memory of the reader process, in MiB.", status.report.rss_mib)
