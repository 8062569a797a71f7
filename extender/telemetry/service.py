"""Builds telemetry from the settings and describes its state."""

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.core.gauges import Gauge
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules
from extender.core.policies import registry
from extender.core.policies.interference import interference
from extender.core.policies.policy import Expected, Options, Policy
from extender.kube.client import Transport
from extender.kube.watches import BOUND_PODS, NODES
from extender.ledger.ledger import Ledger
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placement
from extender.settings.leader_election import ElectionMode
from extender.settings.telemetry import TelemetrySettings
from extender.settings.tree import Settings
from extender.telemetry.observer import Finders, Observer, Wanted
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.reader.process import ReaderProcess
from extender.telemetry.readings import Feed
from extender.telemetry.sources.discovery import find_exporters, find_prometheus
from extender.telemetry.sources.source import EXPORTERS, PROMETHEUS, Access, PodUsage
from extender.telemetry.status import State
from extender.telemetry.unmanaged_use import UnmanagedWatch

logger = logging.getLogger(__name__)


def observe(
    settings: Settings,
    transport: Transport,
    ledger: Ledger,
    clock: Callable[[], float],
    feed: Feed | None = None,
    *,
    on_pods: Callable[[PodUsage], None] = lambda pods: None,
    on_refresh: Callable[[], None] = lambda: None,
    standby: Callable[[], str] = lambda: "",
) -> Observer | None:
    """An observer; None if telemetry is off. `feed` defaults to a reader process; for the others see `Observer`."""
    if settings.telemetry.source == "off":
        return None
    namespaces = {*settings.telemetry.namespaces, settings.leader_election.namespace}
    finders = Finders(
        functools.partial(find_prometheus, transport, namespaces), functools.partial(find_exporters, transport)
    )
    wanted = wanted_of(settings.telemetry)
    if feed is not None and not wanted.addresses:
        wanted = replace(wanted, addresses=("",))  # a given feed ignores addresses, so discovery is skipped
    feed = feed or ReaderProcess(clock=clock)
    return Observer(wanted, feed, finders, ledger, clock, on_pods=on_pods, on_refresh=on_refresh, standby=standby)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The observer, and the watch for unmanaged GPU use."""

    observer: Observer
    unmanaged: UnmanagedWatch


def build_telemetry(
    settings: Settings, base: Foundation, owners: OwnerUsage, feed: Feed | None = None
) -> Telemetry | None:
    """Telemetry; None if it is off. `feed` as in `observe`."""
    unmanaged = UnmanagedWatch(base.ledger, base.events, rules_of(settings.telemetry), base.clock)
    alone = settings.leader_election.mode is ElectionMode.OFF  # a single replica reads from the start
    observer = observe(
        settings=settings,
        transport=base.transport,
        ledger=base.ledger,
        clock=base.clock,
        feed=feed,
        on_pods=owners.add,
        on_refresh=unmanaged.check,
        standby=str if alone else base.fence.standby,
    )
    if observer is None:
        return None
    base.mirror.hub.cache(NODES).subscribe(observer.node_changed)
    base.mirror.hub.group(BOUND_PODS).subscribe(owners.pod_changed)
    return Telemetry(observer, unmanaged)


def wanted_of(settings: TelemetrySettings) -> Wanted:
    """What to read, from the settings."""
    is_named = settings.source != "auto"
    if is_named:
        kind, addresses = settings.source, tuple(settings.addresses)
    elif settings.url:
        kind, addresses = PROMETHEUS, (settings.url,)
    else:
        kind, addresses = EXPORTERS, tuple(settings.exporters)
    return Wanted(
        kind=kind,
        addresses=addresses,
        discover=not is_named,
        access=Access(
            username=settings.username,
            password_file=str(settings.password_file or ""),
            bearer_token_file=str(settings.bearer_token_file or ""),
            ca_file=str(settings.ca_file or ""),
            cert_file=str(settings.cert_file or ""),
            key_file=str(settings.key_file or ""),
            insecure_skip_verify=settings.insecure_skip_verify,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            matchers=settings.matchers,
        ),
        interval_s=settings.interval_s,
    )


def rules_of(settings: TelemetrySettings) -> ObservedRules:
    """How placement takes observations into account."""
    return ObservedRules(excludes_faulty=settings.faulty == "exclude")


def policies_of(settings: Settings) -> dict[str, Policy]:
    """All policies, configured. Logs faults of policies from other packages."""
    options = Options(
        rules_of(settings.telemetry),
        tuple(
            Expected(pod.cpu_milli, pod.gpus, pod.gpu_milli, pod.count, tuple(pod.models), pod.memory_mib)
            for pod in settings.decisions.typical_pods
        ),
    )
    policies = registry.policies_of(options)
    chosen = policies.get(settings.decisions.policy)
    for sentence in (*registry.faults.values(), *filter(None, [chosen and registry.renamed(chosen)])):
        logger.warning("%s", sentence)
    return policies


def describe(observer: Observer | None, owners: OwnerUsage) -> dict[str, Any]:
    """The telemetry state as JSON; non-finite numbers are null."""
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
        "doubts": list(status.doubts),
        "candidates": list(status.candidates),
        "passedOver": list(status.passed_over),
        "refreshes": status.num_refreshes,
        "failures": status.num_failures,
        "foldSeconds": round(status.fold_s, 4),
        "owners": {owner: _finite(msgspec.to_builtins(usage)) for owner, usage in owners.latest().items()},
        **msgspec.to_builtins(status.report),
    }


def interference_of(placement: Placement, owners: OwnerUsage) -> dict[str, float] | None:
    """The expected slowdown and saving from sharing GPUs; None if the pod shares none or their load is unknown.

    Estimated from the owner's expected load and the highest load observed on the pod's GPUs.
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
