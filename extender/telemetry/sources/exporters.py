"""Scrapes exporters directly, for clusters of dozens of nodes without a Prometheus."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

import numpy as np
import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError, faults_of
from extender.telemetry.series import ALIAS_OF, Labels, known_names, labels_of
from extender.telemetry.sources.prometheus import describe, open_session
from extender.telemetry.sources.source import Access, PodTable, Report, Samples, grow, merge
from extender.telemetry.tables import DeviceTable

_NUM_THREADS: Final = 16


class ExporterSource:
    """Samples scraped from exporters."""

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        self._urls = tuple(urls)
        self._access = access
        self._table = DeviceTable()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="scrape")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self) -> Samples:
        began = time.monotonic()
        report = Report(source=f"{len(self._urls)} exporters")
        scraped: list[tuple[str, list[Sample]]] = []
        for url, result in zip(self._urls, self._threads.map(self._scrape, self._urls), strict=True):
            if isinstance(result, str):
                report.faults[url] = result
            else:
                scraped.append((urlsplit(url).netloc, result))
        if not scraped:
            url, fault = next(iter(report.faults.items()), ("", "none is configured"))
            raise SourceError(f"no exporter responds; {url}: {fault}")
        samples = Samples(self._table, {}, np.empty(0), report)
        by_name: dict[str, tuple[list[Labels], list[float]]] = {}
        ages: dict[int, float] = {}
        pods = PodTable()
        now = time.time()
        for instance, page in scraped:
            for sample in page:
                labels = labels_of({"instance": instance, **sample.labels})
                series, values = by_name.setdefault(sample.name, ([], []))
                series.append(labels.of_gpu())
                values.append(sample.value)
                age = 0.0 if sample.timestamp is None else now - float(sample.timestamp)
                host = self._table.host(labels)
                ages[host] = max(age, ages.get(host, age))
                alias = ALIAS_OF[sample.name]
                if alias.rank == 0 and alias.gauge in (Gauge.LOAD, Gauge.MEMORY_USED):
                    pods.add(alias, labels, self._table.device(labels), sample.value)
        for alias in known_names(by_name):
            series, values = by_name[alias.name]
            report.series[alias.name] = len(series)
            merge(samples.values, alias, *self._table.fold(alias, series, np.array(values)), report)
        samples.age_s = np.full(len(self._table.hosts), np.nan)
        samples.age_s[list(ages)] = list(ages.values())
        samples.pods, samples.pod_devices = pods.usage(), pods.devices()
        grow(samples)
        report.read_s = time.monotonic() - began
        return samples

    def _scrape(self, url: str) -> list[Sample] | str:
        """The relevant samples of one exporter, or its fault."""
        try:
            with faults_of(url), open_session(self._access) as session:
                try:
                    response = session.request("GET", url)
                except requests.RequestException as error:
                    return describe(error)
                if response.status_code != 200:
                    return f"HTTP status {response.status_code}"
                families = text_string_to_metric_families(response.content.decode())
                return [sample for family in families for sample in family.samples if sample.name in ALIAS_OF]
        except SourceError as error:
            return str(error).removeprefix(f"{url}: ")
