"""Samples from a Prometheus, or what speaks its API: asked in few aggregated queries."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.observations import Gauge
from extender.telemetry.aliases import Alias, known_names
from extender.telemetry.errors import SourceError
from extender.telemetry.sources import queries
from extender.telemetry.sources.prometheus_client import Prometheus, to_float
from extender.telemetry.sources.source import Access, PodUsage, Report, Samples, add_pod_sample, grow, merge
from extender.telemetry.tables import DeviceTable

_SURVEY_EVERY_S: Final = 300.0
_NUM_SPARE: Final = 1000
"""Devices no more heard of that are carried along before everything is numbered afresh."""


class PrometheusSource:
    """Samples from one Prometheus."""

    def __init__(self, url: str, access: Access) -> None:
        self._prometheus = Prometheus(url, access)
        self._table = DeviceTable()
        self._version = ""
        self._names: dict[str, int] = {}
        self._labels: set[str] = set()
        self._surveyed_at = float("-inf")

    def close(self) -> None:
        self._prometheus.close()

    def survey(self) -> Mapping[str, int]:
        """Which known names it has, with the number of their series. Raises SourceError."""
        self._version = self._prometheus.build_info()
        counted = self._prometheus.counted(queries.present_names())
        self._names = {item.metric.get("__name__", ""): int(to_float(item.value[1])) for item in counted}
        self._labels = self._prometheus.label_names(queries.every_name()) if self._names else set()
        self._surveyed_at = time.monotonic() if self._names else float("-inf")
        return self._names

    def read(self) -> Samples:
        began, used = time.monotonic(), time.process_time()
        if began - self._surveyed_at > _SURVEY_EVERY_S:
            self.survey()
        report = Report(source=self._prometheus.url, version=self._version)
        aliases = known_names(self._names)
        report.skew_s, report.skew_uncertainty_s = self._prometheus.skew()
        kept = queries.kept_labels(self._labels)
        values: dict[Gauge, Floats] = {}
        for alias in aliases:
            for shard in queries.shards(self._names[alias.name], kept):
                self._add(values, alias, queries.samples(alias, kept, shard), report)
        age_s = self._ages(aliases, kept) if aliases else np.empty(0)
        pods = self._pods(aliases)
        samples = Samples(self._table, values, age_s, report, pods)
        grow(samples)
        heard_of = np.zeros(len(self._table.devices), np.bool_)
        for plane in values.values():
            heard_of |= ~np.isnan(plane)
        if not heard_of.any():
            self._surveyed_at = float("-inf")  # whatever was there is gone or renamed: look again
        if len(heard_of) - int(heard_of.sum()) > _NUM_SPARE + len(heard_of) // 4:
            self._table = DeviceTable()
        report.read_s, report.cpu_s = time.monotonic() - began, time.process_time() - used
        return samples

    def _add(self, values: dict[Gauge, Floats], alias: Alias, query: str, report: Report) -> None:
        """Put the answer to one query beside what is known."""
        series = self._prometheus.series(query)
        report.series[alias.name] = report.series.get(alias.name, 0) + len(series)
        raw = np.fromiter((to_float(item.value[1]) for item in series), np.float64, len(series))
        merge(values, alias, *self._table.fold(alias, [item.metric for item in series], raw), report)

    def _ages(self, aliases: Sequence[Alias], kept: Sequence[str]) -> Floats:
        """(H,) ages, by one name after another until every host has one; memory, which all exporters tell, first."""
        age_s = np.full(len(self._table.hosts), np.nan)
        for alias in sorted(aliases, key=lambda alias: alias.gauge is not Gauge.MEMORY_USED):
            if not np.isnan(age_s).any():
                break
            for item in self._prometheus.series(queries.sample_times(alias, kept)):
                host = self._table.host(item.metric)
                if host < len(age_s) and np.isnan(age_s[host]):
                    age_s[host] = item.value[0] - to_float(item.value[1])
        return age_s

    def _pods(self, aliases: Sequence[Alias]) -> PodUsage:
        pods: PodUsage = {}
        asked: set[Gauge] = set()
        for alias in aliases:
            if alias.gauge not in (Gauge.LOAD, Gauge.MEMORY_USED) or alias.gauge in asked:
                continue
            query = queries.pod_usage(alias, self._labels)
            if not query:
                continue
            asked.add(alias.gauge)
            for item in self._prometheus.counted(query):
                namespace = item.metric.get("exported_namespace") or item.metric.get("namespace", "")
                pod = item.metric.get("exported_pod") or item.metric.get("pod", "")
                add_pod_sample(pods, namespace, pod, alias, to_float(item.value[1]))
        return pods


def choose_source(urls: Sequence[str], access: Access) -> PrometheusSource:
    """The first Prometheus that has series of GPUs, else the first that answers. Raises SourceError."""
    faults: list[str] = []
    answering: PrometheusSource | None = None
    for url in urls:
        source = PrometheusSource(url, access)
        try:
            if source.survey():
                if answering is not None:
                    answering.close()
                return source
        except SourceError as error:
            faults.append(str(error))
            source.close()
            continue
        if answering is None:
            answering = source
        else:
            source.close()
    if answering is None:
        raise SourceError("; ".join(faults) or "no address of a Prometheus is known")
    return answering
