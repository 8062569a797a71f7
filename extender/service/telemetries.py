"""Telemetry in the service: settings in, metrics and descriptions out."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.cluster.ledger import Ledger
from extender.cluster.observed import SampleTimes
from extender.cluster.placements import Placement
from extender.cluster.transports import Transport
from extender.core.clusters import WHOLE_MILLI
from extender.core.genius import GeniusWeights
from extender.core.interferences import interference
from extender.core.live import LiveWeights
from extender.core.observations import Gauge, SampleState
from extender.core.occupancies import ObservedRules
from extender.core.policies import POLICIES, Policy, fgd, observing
from extender.core.typical import DEFAULT_MIX, Expected
from extender.service.families import counter, gauge
from extender.service.settings import Settings, TelemetrySettings
from extender.telemetry.discovery import find_exporters, find_prometheus
from extender.telemetry.observers import Finders, Observer, State, Wanted
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.processes import ReaderProcess
from extender.telemetry.prometheus import Access
from extender.telemetry.readings import Feed
from extender.telemetry.unmanaged import UnmanagedWatch


def observe(
    settings: TelemetrySettings,
    transport: Transport,
    ledger: Ledger,
    clock: Callable[[], float],
    feed: Feed | None = None,
) -> Observer | None:
    """An observer as the settings want it, None when they want none."""
    if settings.source == "off":
        return None
    finders = Finders(functools.partial(find_prometheus, transport), functools.partial(find_exporters, transport))
    wanted = wanted_of(settings)
    if feed is not None and not wanted.urls:
        wanted = replace(wanted, urls=("",))  # whatever it is asked for, a feed that is given tells what it has
    return Observer(wanted, feed or ReaderProcess(settings.max_refresh_s, clock), finders, ledger, clock)


def wanted_of(settings: TelemetrySettings) -> Wanted:
    """What the settings ask to read."""
    return Wanted(
        urls=(settings.url,) if settings.url else (),
        exporters=tuple(settings.exporters),
        access=Access(
            username=settings.username,
            password_file=str(settings.password_file or ""),
            bearer_token_file=str(settings.bearer_token_file or ""),
            ca_file=str(settings.ca_file or ""),
            cert_file=str(settings.cert_file or ""),
            key_file=str(settings.key_file or ""),
            insecure_skip_verify=settings.insecure_skip_verify,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            connect_timeout_s=min(2.0, settings.timeout_s),
            timeout_s=settings.timeout_s,
        ),
        interval_s=settings.interval_s,
        times=SampleTimes(settings.fresh_s, settings.forget_s, settings.warmup_s),
    )


def rules_of(settings: TelemetrySettings) -> ObservedRules:
    """How fit counts what is observed."""
    return ObservedRules(
        settings.counts_memory, settings.min_unmanaged_mib, settings.faulty == "exclude", frozenset(settings.xids)
    )


def policies_of(settings: Settings) -> dict[str, Policy]:
    """All policies: those that observe with the weights and rules of the settings, `fgd` with the pods expected."""
    live = LiveWeights(**settings.live.model_dump())
    genius = GeniusWeights(**settings.genius.model_dump())
    observing_ones = observing(live, genius, rules_of(settings.telemetry))
    expected = [
        Expected(pod.cpu_milli, pod.gpus, pod.gpu_milli, pod.count, tuple(pod.models))
        for pod in settings.decisions.typical_pods
    ]
    return POLICIES | {policy.name: policy for policy in (*observing_ones, fgd(expected or DEFAULT_MIX))}


def describe(observer: Observer | None, owners: OwnerUsage) -> dict[str, Any]:
    """Telemetry as it is now, as JSON: numbers that are not finite are null."""
    if observer is None:
        return {"state": State.OFF}
    status = observer.status
    age_s = observer.age_s()
    return {
        "state": status.state,
        "fault": status.fault,
        "ageSeconds": round(age_s, 3) if math.isfinite(age_s) else None,
        "nodes": {state.name.lower(): observer.num_nodes(state) for state in SampleState},
        "hosts": status.num_hosts,
        "gpus": status.num_gpus,
        "gpusMatched": status.num_gpus_matched,
        "unmatched": list(status.unmatched),
        "candidates": list(status.candidates),
        "refreshes": status.num_refreshes,
        "failures": status.num_failures,
        "foldSeconds": round(status.fold_s, 4),
        "owners": {owner: _finite(msgspec.to_builtins(usage)) for owner, usage in owners.latest().items()},
        **msgspec.to_builtins(status.report),
    }


def interference_of(placement: Placement, owners: OwnerUsage) -> dict[str, float] | None:
    """What sharing its GPUs is expected to cost and save, None for a pod that shares none or whose GPUs tell nothing.

    Estimated from the load that the pod's owner lets expect and the load observed on the fullest of its GPUs.
    """
    decision, observed = placement.decision, placement.cluster.observed
    if decision.best is None or decision.milli == WHOLE_MILLI or observed is None or not decision.gpus:
        return None
    loads = observed.gauge(Gauge.LOAD)[decision.best, list(decision.gpus)]
    if not np.isfinite(loads).any():
        return None
    expected = owners.expected_load(placement.pod.owner) * decision.milli / WHOLE_MILLI
    estimate = interference([float(np.nanmax(loads)), expected])
    return {"slowdown": round(estimate.slowdown, 4), "saving": round(estimate.saving, 4)}


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


class TelemetryCollector(Collector):
    """Metrics of telemetry, worked out at scrape time."""

    def __init__(self, observer: Observer, unmanaged: UnmanagedWatch) -> None:
        self._observer = observer
        self._unmanaged = unmanaged

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        status = self._observer.status
        nodes = GaugeMetricFamily(
            "kerf_telemetry_nodes", "Nodes with GPUs, by the state of their samples.", labels=["state"]
        )
        for state in SampleState:
            nodes.add_metric([state.name.lower()], self._observer.num_nodes(state))
        yield nodes
        yield gauge("kerf_telemetry_up", "1 when the last refresh succeeded.", status.state is State.OK)
        yield gauge("kerf_telemetry_age_seconds", "Age of the last refresh that succeeded.", self._observer.age_s())
        yield counter("kerf_telemetry_refreshes", "Refreshes that succeeded.", status.num_refreshes)
        yield counter("kerf_telemetry_failures", "Refreshes that failed.", status.num_failures)
        yield gauge("kerf_telemetry_refresh_seconds", "Time of the last refresh.", status.report.read_s)
        yield gauge("kerf_telemetry_gpus_matched", "GPUs whose samples were matched.", status.num_gpus_matched)
        yield gauge("kerf_telemetry_hosts_unmatched", "Hosts whose samples are no node's.", len(status.unmatched))
        yield gauge("kerf_telemetry_clock_skew_seconds", "How far the source's clock is ahead.", status.report.skew_s)
        yield gauge("kerf_unmanaged_gpus", "GPUs used by processes of no known pod.", self._unmanaged.num_gpus)
        yield gauge("kerf_unmanaged_mib", "Memory that they use.", self._unmanaged.total_mib)
        yield gauge("kerf_faulty_gpus", "GPUs whose samples tell of a fault.", self._unmanaged.num_faulty)
        yield gauge("kerf_telemetry_reader_rss_mib", "Most memory of the reading process.", status.report.rss_mib)
