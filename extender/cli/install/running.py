"""How a Kerf works: what it reads by its settings, what has stopped without a word, and what it says itself."""

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
"""A queue writes on a pod that waits why it does."""
_LEADS_WITHIN_S: Final = 30.0
"""Somebody else has begun to lead by then, and clocks differ."""
_NOT_FOUND, _UNAVAILABLE = 404, 503
_NO_CONNECTION: Final = "no connection"
_RANK: Final = ("mode", "served", "reason", "auto", "evidence")
_lease_decoder: Final = Decoder(Lease)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a Kerf with some settings would run."""

    settings: Settings
    transport: Transport
    now: datetime
    ledger: Ledger = field(default_factory=lambda: Ledger(reservation_ttl_s=0.0))
    observer: Observer | None = None
    """What has read telemetry once, None where that is off."""
    unread: Sequence[str] = ()
    """Sentences about nodes that can't be read."""
    said: Sequence[str] = ()
    """What a Kerf that runs has to say of itself."""

    @property
    def telemetry(self) -> dict[str, Any]:
        """What was read, as `GET /telemetry` tells it."""
        return describe(self.observer, OwnerUsage(self.ledger)) | ({} if self.observer else {"nodes": {}})


async def site_of(settings: Settings, transport: Transport, said: Sequence[str] = ()) -> Site:
    """A site where telemetry is read once."""
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        model_aliases=settings.models.aliases,
    )
    observer, unread = observe(settings, transport, ledger, time.monotonic), list[str]()
    if observer is not None:
        try:
            ledger.arrays.observe(observer.wanted.times)
            try:
                found = await learn(transport, ledger)
                unread += [f"node {node.name} can't be read" for node in found.unread]
                for node in found.items:
                    observer.node_changed(None, node)
            except (ClusterError, msgspec.DecodeError) as error:
                unread.append(f"nodes can't be listed: {error}")
            await observer.round()
        finally:
            await observer.stop()
    return Site(settings, transport, datetime.now(UTC), ledger, observer, unread, said)


def _faults(site: Site) -> Iterator[str]:
    """What was not as it should be, one sentence each."""
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
    yield from (f"{fault}; the next is asked" for fault in status.report.given_up.values())
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


async def reading(site: Site) -> AsyncIterator[Finding]:
    """What the refresh met, and where the same can be asked so that Services are reached."""
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
        pass  # who may not list them may still read the rest
    command = f"kubectl -n {namespace} exec deploy/{name} -c kerf -- kerf doctor"
    yield note(f"Services are seldom reached from outside their cluster; from inside: {command}")


async def certificate(site: Site) -> AsyncIterator[Finding]:
    """A certificate that ends and was not renewed."""
    path = site.settings.server.tls_cert_file
    if path is None or not path.exists():
        return
    from extender.server.validity import Validity  # and with it a library of 10 MB

    try:
        fault = Validity.of(path.read_bytes()).fault(site.now)
    except (OSError, ValueError) as error:
        fault = f"can't be read: {error}"
    if fault:
        yield broken(f"certificate {path} {fault}")


async def stopped(site: Site) -> AsyncIterator[Finding]:
    """What stops without a word: gates that nobody opens, a webhook that pods pass, node agents."""
    try:
        pods = (
            await Lister(site.transport, PODS_PATH, Pod, {"fieldSelector": PENDING_PODS.field_selector}).all()
        ).items
        pods = [pod for pod in pods if not pod.spec.node_name and not pod.finished]
        if gated := [pod for pod in pods if is_gated(pod)]:
            for told in await _gates(site, gated):
                yield broken(told)
        for told in await _passed(site.transport, pods):
            yield broken(told)
        for name in await _silent_agents(site.transport):
            yield broken(f"node {name}: its agent has stopped, and its report is not kept up to date")
    except ApiError as error:
        if error.status != _NOT_FOUND:  # else it is no API server that has pods
            raise


async def _gates(site: Site, gated: Sequence[Pod]) -> list[str]:
    now = site.now.timestamp()
    old = [pod for pod in gated if now - unix_time(pod.metadata.creation_timestamp) > _SAID_WITHIN_S]
    if unsaid := [pod for pod in old if SKIPPED not in (pod.metadata.annotations or {})]:
        held = f"{_named(unsaid)} behind the gate kerf.dev/queue"
        return [f"{held}, and no queue says why: it is off (queue.enabled), or nothing of Kerf runs"]
    election, held = site.settings.leader_election, f"{_named(gated)} behind the gate kerf.dev/queue"
    if not election.lease_name:
        return []
    lease = LeaseName(election.namespace, election.lease_name)
    try:
        spec = _lease_decoder.decode(await site.transport.get(lease.path)).spec
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return [f"{held}, and nobody leads: there is no Lease {lease}"]
    age_s = now - unix_time(spec.renew_time)
    if spec.holder_identity and age_s <= max(2 * election.duration_s, _LEADS_WITHIN_S):
        return []
    return [f"{held}, and nobody leads: Lease {lease} was renewed {age_s:.0f} s ago"]


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
    who = list(passed.passed.values())
    return [f"{_named(who)}, and {passed.why(who[0].metadata.uid)}"] if who else []


async def _silent_agents(transport: Transport) -> Sequence[str]:
    """Nodes with a report, and no agent that keeps it up to date."""
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


async def running(site: Site) -> AsyncIterator[Finding]:
    """What a Kerf that runs has to say of itself."""
    for fault in site.said:
        yield broken(fault)


def asked(kerf: Kerf) -> tuple[dict[str, Any] | None, list[str]]:
    """What ranks nodes in a Kerf that runs, None where it does not say; and what is wrong with that, why it decides
    nothing, or what works less well. Ends the command where there is none."""
    try:
        told = kerf.ask("/model")
    except AnswerError as error:
        return None, [f"GET /model: {error.detail}"]
    faults = told["fault"], told["evidence"] and told["evidence"]["fault"]
    said = [f"rank: {fault}" for fault in faults if fault]
    try:
        said += [str(fault) for fault in kerf.ask("/readyz").get("degraded", ())]
    except AnswerError as error:
        said += [f"it decides nothing: {error}"] if error.status == _UNAVAILABLE else []
    return {name: told[name] for name in _RANK}, said
