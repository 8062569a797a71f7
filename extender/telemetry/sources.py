"""Where samples come from, asked once for each refresh: a Prometheus, or the exporters themselves."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from extender.core.observations import Gauge
from extender.telemetry import queries
from extender.telemetry.aliases import Alias, known_names
from extender.telemetry.errors import SourceError
from extender.telemetry.prometheus import Access, Prometheus, Series, to_float
from extender.telemetry.tables import DeviceTable

Floats = npt.NDArray[np.float64]

_SURVEY_EVERY_S: Final = 300.0
_NUM_SPARE: Final = 1000
"""Devices no more heard of that are carried along before everything is numbered afresh."""


class Report(msgspec.Struct):
    """What a refresh met, for people."""

    source: str = ""
    version: str = ""
    series: dict[str, int] = {}
    """Series of each metric name."""
    refused: dict[str, int] = {}
    """Samples of each name that were no values."""
    skew_s: float = 0.0
    """How far the source's clock is ahead of ours."""
    skew_uncertainty_s: float = 0.0
    faults: dict[str, str] = {}
    """What went wrong with parts of the source."""
    read_s: float = 0.0
    """Time that the refresh took."""
    cpu_s: float = 0.0
    """CPU time of the reading process in it."""
    rss_mib: float = 0.0
    """Most memory that the reading process has held."""


@dataclass
class Samples:
    """One refresh."""

    table: DeviceTable
    values: dict[Gauge, Floats]
    """Each (D,), NaN where there is none."""
    age_s: Floats
    """(H,) age of each host's oldest sample by the source's own clock, NaN where it is not told."""
    report: Report
    pods: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By namespace and name: load as a fraction and MiB used, NaN where one is not told."""


class Source(Protocol):
    """Something that can be asked for samples."""

    def read(self) -> Samples:
        """All samples now. Raises SourceError."""

    def close(self) -> None:
        """Let go of connections."""


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
        skew = self._prometheus.skew()
        report.skew_s, report.skew_uncertainty_s = skew.seconds, skew.uncertainty_s
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
        merge(values, alias, *_fold(self._table, alias, series), report)

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

    def _pods(self, aliases: Sequence[Alias]) -> dict[tuple[str, str], tuple[float, float]]:
        pods: dict[tuple[str, str], tuple[float, float]] = {}
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


def add_pod_sample(
    pods: dict[tuple[str, str], tuple[float, float]], namespace: str, pod: str, alias: Alias, raw: float
) -> None:
    """Put one sample of a pod beside what is known of it; what is no value is left out."""
    value = raw * alias.scale
    if not 0 <= value < 2**31 or not pod:
        return
    load, memory = pods.get((namespace, pod), (float("nan"), float("nan")))
    pods[namespace, pod] = (load, value) if alias.gauge is Gauge.MEMORY_USED else (min(value, 1.0), memory)


def _fold(table: DeviceTable, alias: Alias, series: Sequence[Series]) -> tuple[Floats, int]:
    raw = np.fromiter((to_float(item.value[1]) for item in series), np.float64, len(series))
    return table.fold(alias, [item.metric for item in series], raw)


def merge(values: dict[Gauge, Floats], alias: Alias, plane: Floats, num_refused: int, report: Report) -> None:
    """Put a name's values beside those of names that are believed more."""
    if num_refused:
        report.refused[alias.name] = report.refused.get(alias.name, 0) + num_refused
    known = values.get(alias.gauge)
    if known is None:
        values[alias.gauge] = plane
        return
    filled = plane.copy()
    filled[: len(known)] = np.where(np.isnan(known), plane[: len(known)], known)
    values[alias.gauge] = filled


def grow(samples: Samples) -> None:
    """Devices that only later names told of are missing in the earlier planes."""
    num_devices, num_hosts = len(samples.table.devices), len(samples.table.hosts)
    for gauge, plane in samples.values.items():
        samples.values[gauge] = np.append(plane, np.full(num_devices - len(plane), np.nan))
    samples.age_s = np.append(samples.age_s, np.full(num_hosts - len(samples.age_s), np.nan))


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
