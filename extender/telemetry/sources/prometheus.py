"""Samples from a Prometheus, or what speaks its API: asked in few aggregated queries."""

import time
from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.vendors.vendor import Metric
from extender.telemetry.aliases import ALIASES, known_names
from extender.telemetry.errors import RefusedError, SourceError, UnreachableError, bare, faults_of
from extender.telemetry.series import EVERY_LABEL
from extender.telemetry.sources import queries
from extender.telemetry.sources.prometheus_client import Counted, Prometheus, to_float
from extender.telemetry.sources.source import Access, PodTable, Report, Samples, grow, merge
from extender.telemetry.tables import DeviceTable

_SURVEY_EVERY_S: Final = 300.0
_BAD_QUERY: Final = (400, 422)
"""Google's server answers so where a name is matched by a regular expression."""
_MOST_SERIES: Final = 10**9
_NUM_SPARE: Final = 1000
"""Devices no more heard of that are carried along before everything is numbered afresh."""


class _PrometheusSource:
    """Samples from one Prometheus."""

    def __init__(self, url: str, access: Access) -> None:
        self._prometheus = Prometheus(url, access)
        self._matchers, self._most = access.matchers, access.bounds.most
        self._table = DeviceTable(self._most)
        self._version = ""
        self._names: dict[str, int] = {}
        self._labels: Set[str] = set()
        self._surveyed_at = float("-inf")

    @property
    def url(self) -> str:
        """Its address."""
        return self._prometheus.url

    def close(self) -> None:
        self._prometheus.close()

    def survey(self) -> Mapping[str, int]:
        """Which known names it has, with the number of their series. Raises SourceError."""
        self._version = self._prometheus.build_info()
        try:
            self._names = {
                item.metric.get("__name__", ""): self._count(item)
                for item in self._prometheus.counted(queries.present_names(self._matchers))
            }
            self._labels = self._prometheus.label_names(queries.every_name(self._matchers)) if self._names else set()
        except RefusedError as error:
            if error.status not in _BAD_QUERY:
                raise
            self._survey_by_name(error)
        self._surveyed_at = time.monotonic() if self._names else float("-inf")
        return self._names

    def _survey_by_name(self, refused: RefusedError) -> None:
        """As `survey`, of a server that takes no regular expression for a name. Raises SourceError."""
        self._names, self._labels = {}, EVERY_LABEL
        for alias in ALIASES:
            try:
                counted = self._prometheus.counted(queries.num_series(alias, self._matchers))
            except RefusedError:
                raise refused from None  # it is something else that it does not take
            if num := sum(map(self._count, counted)):
                self._names[alias.name] = num

    def _count(self, item: Counted) -> int:
        """A number of series, as a server counts them. Raises SourceError."""
        count = to_float(item.value[1])
        if not 0 <= count <= _MOST_SERIES:
            raise SourceError(f"{self.url} counts {item.value[1][:40]!r} series of a name, which is no number of them")
        return int(count)

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
                self._add(values, alias, queries.samples(alias, kept, shard, self._matchers), report)
        age_s = self._ages(aliases, kept) if aliases else np.empty(0)
        pods = self._pods(aliases, kept)
        samples = Samples(self._table, values, age_s, report, pods.usage(), pods.devices())
        grow(samples)
        heard_of = np.zeros(len(self._table.devices), np.bool_)
        for plane in values.values():
            heard_of |= ~np.isnan(plane)
        if not heard_of.any():
            self._surveyed_at = float("-inf")  # whatever was there is gone or renamed: look again
        if len(heard_of) - int(heard_of.sum()) > _NUM_SPARE + len(heard_of) // 4:
            self._table = DeviceTable(self._most)
        report.read_s, report.cpu_s = time.monotonic() - began, time.process_time() - used
        return samples

    def _add(self, values: dict[Gauge, Floats], alias: Metric, query: str, report: Report) -> None:
        """Put the answer to one query beside what is known."""
        series = self._prometheus.series(query)
        report.series[alias.name] = report.series.get(alias.name, 0) + len(series)
        raw = np.fromiter((to_float(item.value[1]) for item in series), np.float64, len(series))
        merge(values, alias, *self._table.fold(alias, [item.metric for item in series], raw), report)

    def _ages(self, aliases: Sequence[Metric], kept: Sequence[str]) -> Floats:
        """(H,) ages, by one name after another until every host has one; memory, which all exporters tell, first."""
        age_s = np.full(len(self._table.hosts), np.nan)
        for alias in sorted(aliases, key=lambda alias: alias.gauge is not Gauge.MEMORY_USED):
            if not np.isnan(age_s).any():
                break
            for item in self._prometheus.series(queries.sample_times(alias, kept, self._matchers)):
                host = self._table.host(item.metric)
                if host < len(age_s) and np.isnan(age_s[host]):
                    age_s[host] = item.value[0] - to_float(item.value[1])
        return age_s

    def _pods(self, aliases: Sequence[Metric], kept: Sequence[str]) -> PodTable:
        pods = PodTable()
        asked: set[Gauge] = set()
        for alias in aliases:
            if alias.gauge not in (Gauge.LOAD, Gauge.MEMORY_USED) or alias.gauge in asked:
                continue
            for shard in queries.shards(self._names[alias.name], kept):
                query = queries.pod_usage(alias, self._labels, shard, self._matchers)
                if not query:
                    break
                asked.add(alias.gauge)
                for item in self._prometheus.series(query):
                    pods.add(alias, item.metric, self._table.device(item.metric), to_float(item.value[1]))
        return pods


def _choose_source(
    urls: Sequence[str], access: Access, given_up: dict[str, SourceError] | None = None
) -> _PrometheusSource:
    """The first Prometheus that has series of GPUs, else the first that answers; those that can't be read are added to
    `given_up`. Raises SourceError."""
    faults: dict[str, SourceError] = {} if given_up is None else given_up
    answering: _PrometheusSource | None = None
    for url in urls:
        source = _PrometheusSource(url, access)
        try:
            with faults_of(source.url):
                has_gpus = bool(source.survey())
        except SourceError as error:
            faults[url] = bare(error)
            source.close()
            continue
        if has_gpus:
            if answering is not None:
                answering.close()
            return source
        if answering is None:
            answering = source
        else:
            source.close()
    if answering is None:
        raise SourceError("; ".join(map(str, faults.values())) or "no address of a Prometheus is known")
    return answering


class Candidates:
    """The first of several that has series of GPUs and can be read; whatever one answers, the next is asked."""

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        self._urls, self._access = [url.rstrip("/") for url in urls], access
        self._source: _PrometheusSource | None = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    def read(self) -> Samples:
        """All samples now. Raises SourceError with what is wrong with each."""
        given_up: dict[str, SourceError] = {}
        while left := [url for url in self._urls if url not in given_up]:
            if self._source is None:
                try:
                    self._source = _choose_source(left, self._access, given_up)
                except SourceError:
                    break
            try:
                with faults_of(self._source.url):
                    samples = self._source.read()
            except SourceError as error:
                given_up[self._source.url] = bare(error)
                self.close()
            else:
                answered = {url: error for url, error in given_up.items() if not isinstance(error, UnreachableError)}
                samples.report.given_up = {url: str(error) for url, error in answered.items()}
                return samples
        raise SourceError("; ".join(map(str, given_up.values())) or "no address of a Prometheus is known")
