"""Parts that settings may leave out, or that need little."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from extender.api.webhooks.node_affinity import AffinityWriter
from extender.core.resources.requests import NO_REQUEST
from extender.explain.what_if.answers import WhatIfAnswers
from extender.explain.what_if.standing import MissingNodes
from extender.kube.background import Background
from extender.kube.client import Transport
from extender.queueing.pods.batches import gang_of
from extender.ranking.demands import Kind, gpu_mix
from extender.recording.pod_rows import PodRows
from extender.recording.recorder import Recorder
from extender.recording.writer import Writer
from extender.scheduling.build import (
    Foundation,
)
from extender.scheduling.cpu_pods import CpuPods
from extender.scheduling.placer import Placer
from extender.scheduling.waking.unbound_pods import UnboundPods
from extender.server.certificates import CertificateError, CertificateFiles
from extender.settings.tree import Settings
from extender.telemetry.service import wanted_of
from extender.telemetry.sources.source import PROMETHEUS
from extender.usage.budgets import DAY_S, Budgets
from extender.usage.meter import Meter, Sight
from extender.usage.past import Past
from extender.usage.report import BudgetWatch, IdleRecall, Usage

if TYPE_CHECKING:
    from extender.server.certificate_keeper import CertificateKeeper


def certificate_metrics_of(path: Path) -> Callable[[], Iterable[Metric]]:
    """Metrics of the certificate in a file."""
    from extender.metrics.certificates import certificate_metrics  # and with it the same library

    return partial(certificate_metrics, path)


def keeper_of(settings: Settings, transport: Transport) -> "CertificateKeeper | None":
    """What makes certificates, where none are given. Raises CertificateError."""
    if not settings.certificates.secret:
        return None
    from extender.server.certificate_keeper import CertificateKeeper  # and with it a library of 10 MB

    server = settings.server
    if server.tls_cert_file is None or server.tls_key_file is None:
        raise CertificateError("certificates.secret needs server.tls_cert_file and server.tls_key_file, to write them")
    files = CertificateFiles(
        certificate=server.tls_cert_file, key=server.tls_key_file, client_ca=server.tls_client_ca_file
    )
    return CertificateKeeper(transport, settings.certificates, files, lambda: datetime.now(UTC))


def recorder_of(settings: Settings, base: Foundation) -> Recorder | None:
    """What keeps the history, where there is to be one."""
    wanted, ledger, clock = settings.history, base.ledger, base.clock
    if wanted.path is None:
        return None

    def rows_by(salt: bytes | None) -> PodRows:
        return PodRows(ledger.read_request, gang_of, lambda: ledger.snapshot(clock()).models, salt)

    writer = Writer(wanted.path, wanted, time.time)
    snapshot, standby = lambda: ledger.snapshot(clock()), base.fence.standby
    return Recorder(writer, wanted.flush_s, base.mirror.hub, rows_by, snapshot, standby, time.time)


def cpu_pods_of(settings: Settings, placer: Placer) -> CpuPods:
    """What ranks nodes for pods without GPUs."""
    wanted = settings.decisions
    policy = partial(placer.policy_of, NO_REQUEST)
    return CpuPods(policy, placer.snapshot, near_best_nodes=wanted.near_best_nodes, enabled=wanted.rank_cpu_pods)


def affinity_writer(settings: Settings, base: Foundation, placer: Placer) -> AffinityWriter:
    """What the webhooks write of nodes on pods."""
    rows = base.ledger.rows

    def labels_of(name: str) -> Mapping[str, str]:
        node = rows.manifest(name)
        return (node.metadata.labels or {}) if node is not None else {}

    return AffinityWriter(
        placer if settings.webhook.write_affinity else None,
        labels_of=labels_of,
        products=tuple(settings.webhook.products),
        aliases=settings.models.aliases,
        memory_tolerance_frac=settings.decisions.memory_tolerance_frac,
        clock=base.clock,
    )


def usage_of(
    settings: Settings, base: Foundation, mix: Callable[[], Mapping[Kind, float]]
) -> tuple[Usage | None, Sequence[Background]]:
    """What counts GPU-hours, where that is wanted, and what of it works in the background; `mix` is of the pods that
    are expected."""
    wanted, telemetry, ledger = settings.usage, settings.telemetry, base.ledger
    if not wanted.enabled or settings.webhook.alone:
        return None, ()
    sight = Sight(
        ledger=ledger,
        led=base.fence.led,
        standby=base.fence.standby,
        fault=lambda: base.fence.fault() or base.mirror.fault(),
        mix=lambda cluster: gpu_mix(cluster, mix()),
        clock=base.clock,
        wall_clock=time.time,
    )
    meter = Meter(wanted, sight)
    meter.holders.subscribe(base.mirror.hub)
    budgets = Budgets(wanted.budgets, wanted.budget_days * DAY_S)
    asked = wanted_of(telemetry)
    url = next(iter(asked.addresses), "") if asked.kind == PROMETHEUS and telemetry.source != "off" else ""
    past = Past(url, asked.access, wanted.matchers, base.clock, tuple(wanted.budgets)) if url else None
    usage = Usage(meter, budgets, past, base.fence.standby, base.clock, time.time)
    watches = [BudgetWatch(usage, base.events)] if wanted.budgets else []
    return usage, (meter, *watches, *([IdleRecall(usage, past)] if past is not None else []))


def missing_nodes_of(
    settings: Settings, base: Foundation, what_if: WhatIfAnswers, unbound: UnboundPods
) -> MissingNodes | None:
    """What works out which nodes are missing, where that is wanted."""
    wanted = settings.missing
    if not wanted.after_s:
        return None

    def oldest() -> float:
        return min((pod.created for pod in unbound.all()), default=float("inf"))

    def standby() -> str:
        return base.fence.standby() or base.mirror.fault()

    return MissingNodes(
        what_if.answer, oldest, standby, after_s=wanted.after_s, every_s=wanted.every_s, clock=base.clock
    )
