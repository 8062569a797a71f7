"""Metrics of booked, used and fragmented GPUs, computed at scrape time."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from extender.core.clusters import Cluster
from extender.core.gauges import Gauge
from extender.explain.overview import Figures
from extender.explain.stranded import Stranding
from extender.metrics.registry import by_label, gauge

_UNKNOWN_MODEL: Final = "unknown"


def usage_metrics(
    cluster: Cluster, status: Mapping[str, Any], num_live_views: int, stranding: Stranding | None = None
) -> Iterator[Metric]:
    """Gauges of the cluster's GPUs, and the policy; stranded capacity only if this process counts it."""
    info = {name: str(status[name]) for name in ("version", "mode", "policy")}
    yield InfoMetricFamily("kerf", "Version, mode and default policy.", info)
    yield gauge("kerf_live_views", "Open pages.", num_live_views)
    figures = Figures(cluster, stranding)
    totals = figures.sums()
    gpus, free, cut = totals["gpus"], totals["unitsFree"], totals["fragments"]
    yield gauge("kerf_gpus_booked", "GPUs booked or reserved; half of a GPU counts as 0.5.", totals["gpusBooked"])
    ratio = totals["gpusBooked"] / gpus if gpus else 0.0
    yield gauge("kerf_gpu_allocation_ratio", "Booked fraction of the GPUs.", ratio)
    stranded = GaugeMetricFamily("kerf_gpus_stranded", "Free GPUs that the next pod is expected not to be able to use.")
    if totals["gpusStranded"] is not None:
        stranded.add_metric([], totals["gpusStranded"])
    yield stranded
    yield gauge("kerf_gpu_units_cut", "GPUs, or time slices, that are free on partly used nodes.", cut)
    ratio = cut / free if free else 0.0
    description = "kerf_gpu_units_cut as a fraction of all free units; kerf_gpus_stranded counts unusable ones."
    yield gauge("kerf_gpu_fragmentation_ratio", description, ratio)
    yield gauge("kerf_gpus_unhealthy", "GPUs never allocated because they are unhealthy.", totals["unhealthy"])
    yield from _of_models(cluster, figures)
    yield from _used(cluster)


def _of_models(cluster: Cluster, figures: Figures) -> Iterator[Metric]:
    """GPUs by model; a node with several models counts as its first."""
    installed = (cluster.gpu_model >= 0).sum(axis=1)
    names = [model.name or _UNKNOWN_MODEL for model in cluster.models]
    first = cluster.gpu_model[:, 0]
    help_of = {
        "kerf_gpus_by_model": "GPUs by model.",
        "kerf_gpus_booked_by_model": "Booked GPUs by model.",
    }
    for (metric, documentation), counts in zip(help_of.items(), (installed, figures.booked), strict=True):
        of_name = {
            name: np.isin(first, [i for i, other in enumerate(names) if other == name]) for name in sorted(set(names))
        }
        values = {name: float(counts[rows].sum()) for name, rows in of_name.items() if installed[rows].any()}
        yield by_label(GaugeMetricFamily, metric, documentation, "gpu_model", values)


def _used(cluster: Cluster) -> Iterator[Metric]:
    """Memory and load from samples, with booked memory for comparison."""
    installed = cluster.gpu_model >= 0
    memory = GaugeMetricFamily("kerf_gpu_memory_mib", "GPU memory by state, in MiB.", labels=["state"])
    memory.add_metric(["installed"], int(cluster.gpu_memory_mib[installed].sum()))
    memory.add_metric(["booked"], int((cluster.gpu_memory_mib - cluster.gpu_free_mib)[installed].sum()))
    observed = cluster.observed
    if observed is not None:
        load, in_use = observed.gauge(Gauge.LOAD)[installed], observed.gauge(Gauge.MEMORY_USED)[installed]
        memory.add_metric(["used"], float(np.nansum(in_use)))
        yield gauge("kerf_gpus_sampled", "GPUs with known load.", int(np.isfinite(load).sum()))
        yield gauge("kerf_gpus_used", "Sum of the load of GPUs with known load.", float(np.nansum(load)))
    yield memory
