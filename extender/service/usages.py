"""Metrics of what is booked, used and cut up, worked out at scrape time: they cost a decision nothing."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.core.clusters import Cluster
from extender.core.observations import Gauge
from extender.service.families import gauge
from extender.service.overviews import Figures

_UNKNOWN_MODEL: Final = "unknown"


class UsageCollector(Collector):
    """Gauges of the cluster's GPUs, and of who ranks them."""

    def __init__(
        self, snapshot: Callable[[], Cluster], status: Callable[[], dict[str, Any]], num_live_views: Callable[[], int]
    ) -> None:
        self._snapshot = snapshot
        self._status = status
        self._num_live_views = num_live_views

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        status = self._status()
        info = {name: str(status[name]) for name in ("version", "mode", "policy")}
        yield InfoMetricFamily("kerf", "Version, mode, and the policy that ranks by default.", info)
        yield gauge("kerf_live_views", "Pages that are open.", self._num_live_views())
        cluster = self._snapshot()
        figures = Figures(cluster)
        totals = figures.totals()
        gpus, free, cut = totals["gpus"], totals["unitsFree"], totals["fragments"]
        yield gauge("kerf_gpus_booked", "GPUs booked; half of a GPU counts as 0.5.", totals["gpusBooked"])
        ratio = totals["gpusBooked"] / gpus if gpus else 0.0
        yield gauge("kerf_gpu_allocation_ratio", "Part of the GPUs that is booked.", ratio)
        yield gauge("kerf_gpu_units_cut", "Units free on nodes of which others are in use.", cut)
        ratio = cut / free if free else 0.0
        yield gauge("kerf_gpu_fragmentation_ratio", "Part of the free units that is on such nodes.", ratio)
        yield gauge("kerf_gpus_unhealthy", "GPUs that are given to nobody.", totals["unhealthy"])
        yield from _of_models(cluster, figures)
        yield from _used(cluster)


def _of_models(cluster: Cluster, figures: Figures) -> Iterator[Metric]:
    """GPUs by model; a node of several counts as its first."""
    installed = (cluster.gpu_model >= 0).sum(axis=1)
    names = [model.name or _UNKNOWN_MODEL for model in cluster.models]
    first = cluster.gpu_model[:, 0]
    help_of = {
        "kerf_gpus_by_model": "GPUs of a model.",
        "kerf_gpus_booked_by_model": "GPUs of a model that are booked.",
    }
    for (metric, documentation), counts in zip(help_of.items(), (installed, figures.booked), strict=True):
        family = GaugeMetricFamily(metric, documentation, labels=["gpu_model"])
        for name in sorted(set(names)):
            of_name = np.isin(first, [index for index, other in enumerate(names) if other == name])
            if installed[of_name].any():
                family.add_metric([name], float(counts[of_name].sum()))
        yield family


def _used(cluster: Cluster) -> Iterator[Metric]:
    """What samples tell, beside what is booked of the same."""
    installed = cluster.gpu_model >= 0
    memory = GaugeMetricFamily("kerf_gpu_memory_mib", "GPU memory by what is made of it.", labels=["state"])
    memory.add_metric(["installed"], int(cluster.gpu_memory_mib[installed].sum()))
    memory.add_metric(["booked"], int((cluster.gpu_memory_mib - cluster.gpu_free_mib)[installed].sum()))
    observed = cluster.observed
    if observed is not None:
        load, in_use = observed.gauge(Gauge.LOAD)[installed], observed.gauge(Gauge.MEMORY_USED)[installed]
        memory.add_metric(["used"], float(np.nansum(in_use)))
        yield gauge("kerf_gpus_sampled", "GPUs whose load is known.", int(np.isfinite(load).sum()))
        yield gauge("kerf_gpus_used", "Load of those GPUs, added up.", float(np.nansum(load)))
    yield memory
