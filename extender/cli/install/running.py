"""Checks how Kerf works: what its settings let it read, what has silently stopped, and what it reports itself."""

import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from extender.cli.client.kerf import AnswerError, Kerf
from extender.cli.consoles import names
from extender.cli.install.devices import learn
from extender.cli.install.findings import KERF, Finding, broken, listed, note
from extender.cli.install.kerf import DEPLOYMENTS
from extender.kube.cache import Cache
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.leadership import Lease, LeaseName
from extender.kube.objects import Node, Pod, unix_time
from extender.kube.transport import NAMESPACES_PATH, NODES_PATH, PODS_PATH
from extender.kube.watches import PENDING_PODS, Lister
from extender.ledger.ledger import Ledger
from extender.queueing.passed_pods import PassedPods
from extender.queueing.pods.objects import Namespaces, is_gated
from extender.scheduling.reporters import AGENT_LABELS, Reporters
from extender.scheduling.skips import SKIPPED
from extender.settings.tree import Settings
from extender.telemetry.observer import Observer
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.service import describe, observe
from extender.telemetry.status import State, passed_over_reason, unmatched_reason

_MAX_NAMED: Final = 3
_MAX_SILENT: Final = 20
_SAID_WITHIN_S: Final = 60.0
"""Time within which the queue annotates a pod with why it waits, in seconds."""
_LEADS_WITHIN_S: Final = 30.0
"""Time within which a standby takes over, including clock skew, in seconds."""
_NOT_FOUND, _UNAVAILABLE = 404, 503
_NO_CONNECTION: Final = "no connection"
_RANK: Final = ("mode", "served", "reason", "auto", "evidence")
_lease_decoder: Final = Decoder(Lease)


@dataclass(frozen=True, slots=True)
class KerfView:
    """What a Kerf with some settings can read."""

    settings: Settings
    transport: Transport
    now: datetime
    ledger: Ledger = field(default_factory=lambda: Ledger(reservation_ttl_s=0.0))
    observer: Observer | None = None
    """The observer after one refresh of telemetry, None if telemetry is off."""
    unread: Sequence[str] = ()
    """Sentences about nodes that can't be read."""
    said: Sequence[str] = ()
    """Faults that a running Kerf reports."""

    @property
    def telemetry(self) -> dict[str, Any]:
        """The state of telemetry, as in `GET /telemetry`."""
        return describe(self.observer, OwnerUsage(self.ledger)) | ({} if self.observer else {"nodes": {}})


async def site_of(settings: Settings, transport: Transport, said: Sequence[str] = ()) -> KerfView:
    """Read nodes and telemetry once."""
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        model_aliases=settings.models.aliases,
    )
    observer, unread = observe(settings, transport, ledger, time.monotonic), list[str]()
    if observer is not None:
        try:
            ledger.arrays.observe(observer.wanted.times)
            try:
                nodes = await learn(transport, ledger)
                unread += [f"node {node.name} can't be read" for node in nodes.unread]
                for node in nodes.items:
                    observer.node_changed(None, node)
            except (ClusterError, msgspec.DecodeError) as error:
                unread.append(f"nodes can't be listed: {error}")
            await observer.round()
        finally:
            await observer.stop()
    return KerfView(settings, transport, datetime.now(UTC), ledger, observer, unread, said)


def _faults(site: KerfView) -> Iterator[str]:
    """A sentence for each fault of telemetry."""
    if site.observer is None:
        yield "telemetry is off (setting telemetry.source)"
        return
    status = site.observer.status
    yield from site.unread
    yield from filter(None, (status.fault, status.withheld))
    if status.state is State.ABSENT:
        yield (
            "no Prometheus: none is configured (telemetry.url), and no Service of the cluster looks like one in "
            "telemetry.namespaces; exporters can be read directly (telemetry.exporters)"
        )
        yield from passed_over_reason(status)
    yield from (f"{fault}; trying the next" for fault in status.report.given_up.values())
    yield from status.doubts
    yield from unmatched_reason(status)
    if status.num_gpus > status.num_gpus_matched and not status.unmatched:
        yield f"{status.num_gpus - status.num_gpus_matched} GPUs have neither a known UUID nor an index"
    cluster = site.ledger.snapshot(time.monotonic())
    if cluster.observed is not None and status.num_refreshes:
        silent = np.flatnonzero((cluster.gpu_model >= 0).any(axis=1) & ~np.isfinite(cluster.observed.sampled_at))
        yield from (f"node {cluster.node_names[row]}: no series" for row in silent[:_MAX_SILENT].tolist())
        if len(silent) > _MAX_SILENT:
            yield f"and {len(silent) - _MAX_SILENT} more nodes without series"
    yield from (f"{name}: {count} invalid samples" for name, count in status.report.refused.items())


async def reading(site: KerfView) -> AsyncIterator[Finding]:
    """Check telemetry; if Services can't be reached from here, suggest the command to run in the cluster."""
    faults = list(_faults(site))
    for fault in faults:
        yield broken(fault)
    if "KUBERNETES_SERVICE_HOST" in os.environ or not any(_NO_CONNECTION in fault for fault in faults):
        return
    namespace, name = "NAMESPACE", "kerf"
    try:
        for deployment in (await listed(site.transport, DEPLOYMENTS, KERF))[:1]:
            namespace, name = (str(deployment["metadata"][key])[:253] for key in ("namespace", "name"))
    except (ClusterError, msgspec.DecodeError):
        pass  # the hint then has placeholders
    command = f"kubectl -n {namespace} exec deploy/{name} -c kerf -- kerf doctor"
    yield note(f"Services can rarely be reached from outside the cluster; from inside: {command}")


async def certificate(site: KerfView) -> AsyncIterator[Finding]:
    """Check for a certificate that expires and was not renewed."""
    path = site.settings.server.tls_cert_file
    if path is None or not path.exists():
        return
    from extender.server.validity import Validity  # imports a library of 10 MB

    try:
        fault = Validity.of(path.read_bytes()).fault(site.now)
    except (OSError, ValueError) as error:
        fault = f"can't be read: {error}"
    if fault:
        yield broken(f"certificate {path} {fault}")


async def stopped(site: KerfView) -> AsyncIterator[Finding]:
    """Check for what stops silently: gates that are not removed, pods that bypass the webhook, node agents."""
    try:
        pods = (
            await Lister(site.transport, PODS_PATH, Pod, {"fieldSelector": PENDING_PODS.field_selector}).all()
        ).items
        pods = [pod for pod in pods if not pod.spec.node_name and not pod.finished]
        if gated := [pod for pod in pods if is_gated(pod)]:
            for text in await _gates(site, gated):
                yield broken(text)
        for text in await _passed(site.transport, pods):
            yield broken(text)
        for name in await _silent_agents(site.transport):
            yield broken(f"node {name}: its agent has stopped, so its report may be out of date")
    except ApiError as error:
        if error.status != _NOT_FOUND:  # else the server has no pods API
            raise


async def _gates(site: KerfView, gated: Sequence[Pod]) -> list[str]:
    now = site.now.timestamp()
    old = [pod for pod in gated if now - unix_time(pod.metadata.creation_timestamp) > _SAID_WITHIN_S]
    if unexplained := [pod for pod in old if SKIPPED not in (pod.metadata.annotations or {})]:
        held = f"{_named(unexplained)} behind the gate kerf.dev/queue"
        return [f"{held}, and no queue reports why: the queue is off (queue.enabled), or Kerf is not running"]
    election, held = site.settings.leader_election, f"{_named(gated)} behind the gate kerf.dev/queue"
    if not election.lease_name:
        return []
    lease = LeaseName(election.namespace, election.lease_name)
    try:
        spec = _lease_decoder.decode(await site.transport.get(lease.path)).spec
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return [f"{held}, and Kerf has no leader: there is no Lease {lease}"]
    age_s = now - unix_time(spec.renew_time)
    if spec.holder_identity and age_s <= max(2 * election.duration_s, _LEADS_WITHIN_S):
        return []
    return [f"{held}, and Kerf has no leader: Lease {lease} was renewed {age_s:.0f} s ago"]


async def _passed(transport: Transport, pods: Sequence[Pod]) -> list[str]:
    namespaces = Namespaces(lambda: None)
    try:
        for namespace in (await Lister(transport, NAMESPACES_PATH, Node).all()).items:
            namespaces.changed(None, namespace)
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
    passed = PassedPods(namespaces, lambda: True, lambda: "", None)
    for pod in pods:
        passed.changed(None, pod)
    bypassing = list(passed.passed.values())
    return [f"{_named(bypassing)}, and {passed.why(bypassing[0].metadata.uid)}"] if bypassing else []


async def _silent_agents(transport: Transport) -> Sequence[str]:
    """Nodes with an agent's report but no running agent."""
    nodes, pods = Cache[Node, Node](lambda node: node), Cache[Pod, Pod](lambda pod: pod)
    reporters, selector = Reporters(nodes, pods), {"labelSelector": "=".join(AGENT_LABELS)}
    for node in (await Lister(transport, NODES_PATH, Node).all()).items:
        nodes.upsert(node)
    if not reporters.any:
        return []
    for pod in (await Lister(transport, PODS_PATH, Pod, selector).all()).items:
        pods.upsert(pod)
    return reporters.silent()


def _named(pods: Sequence[Pod]) -> str:
    one = len(pods) == 1
    return f"{'pod' if one else 'pods'} {names([pod.key for pod in pods], _MAX_NAMED)} {'waits' if one else 'wait'}"


async def running(site: KerfView) -> AsyncIterator[Finding]:
    """Pass on the faults that a running Kerf reports."""
    for fault in site.said:
        yield broken(fault)


def ask_running(kerf: Kerf) -> tuple[dict[str, Any] | None, list[str]]:
    """The rank of a running Kerf, None if it reports none; and sentences about faults of the rank, why it decides
    nothing, or what is degraded. Exits if no Kerf answers."""
    try:
        model = kerf.ask("/model")
    except AnswerError as error:
        return None, [f"GET /model: {error.detail}"]
    faults = model["fault"], model["evidence"] and model["evidence"]["fault"]
    said = [f"rank: {fault}" for fault in faults if fault]
    try:
        said += [str(fault) for fault in kerf.ask("/readyz").get("degraded", ())]
    except AnswerError as error:
        said += [f"it makes no decisions: {error}"] if error.status == _UNAVAILABLE else []
    return {name: model[name] for name in _RANK}, said
