"""What stops without a word: gates that nobody opens, a webhook that pods pass, agents, a certificate that ends."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from extender.kube.cache import Cache
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.leadership.leases import Lease, LeaseName
from extender.kube.objects import Node, Pod, unix_time
from extender.kube.paths import NAMESPACES_PATH, NODES_PATH, PODS_PATH
from extender.kube.watches.feeds import PENDING_PODS
from extender.kube.watches.lists import Lister
from extender.queueing.opt_in import Namespaces
from extender.queueing.passed_pods import PassedPods
from extender.queueing.pods.objects import is_gated
from extender.scheduling.reporters import AGENT_LABELS, Reporters
from extender.scheduling.waking.skips import SKIPPED
from extender.settings.tree import Settings

_MAX_NAMED: Final = 3
_SAID_WITHIN_S: Final = 60.0
"""A queue writes on a pod that waits why it does."""
_LEADS_WITHIN_S: Final = 30.0
"""Somebody else has begun to lead by then, and clocks differ."""
_NOT_FOUND: Final = 404
_lease_decoder: Final = Decoder(Lease)


async def silent_faults(settings: Settings, transport: Transport, now: datetime) -> list[str]:
    """A sentence for each; none where the API server does not let it be seen."""
    found = _certificate(settings, now)
    try:
        query = {"fieldSelector": PENDING_PODS.field_selector}
        pods = (await Lister(transport, PODS_PATH, Pod, query).all()).items
        pods = [pod for pod in pods if not pod.spec.node_name and not pod.finished]
        if gated := [pod for pod in pods if is_gated(pod)]:
            found += await _gates(settings, transport, gated, now)
        found += await _passed(transport, pods)
        found += await _reporters(transport)
    except (ClusterError, msgspec.DecodeError) as error:
        if isinstance(error, ApiError) and error.status == _NOT_FOUND:
            return found  # no API server that has pods
        found.append(f"whether the queue's gate, its webhook and node agents are at work can't be seen: {error}")
    return found


async def _gates(settings: Settings, transport: Transport, gated: Sequence[Pod], now: datetime) -> list[str]:
    old = [pod for pod in gated if now.timestamp() - unix_time(pod.metadata.creation_timestamp) > _SAID_WITHIN_S]
    if unsaid := [pod for pod in old if SKIPPED not in (pod.metadata.annotations or {})]:
        held = f"{_named(unsaid)} behind the gate kerf.dev/queue"
        return [f"{held}, and no queue says why: it is off (queue.enabled), or nothing of Kerf runs"]
    election, held = settings.leader_election, f"{_named(gated)} behind the gate kerf.dev/queue"
    if not election.lease_name:
        return []
    lease = LeaseName(election.namespace, election.lease_name)
    try:
        spec = _lease_decoder.decode(await transport.get(lease.path)).spec
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return [f"{held}, and nobody leads: there is no Lease {lease}"]
    age_s = now.timestamp() - unix_time(spec.renew_time)
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


async def _reporters(transport: Transport) -> list[str]:
    nodes, pods = Cache[Node, Node](lambda node: node), Cache[Pod, Pod](lambda pod: pod)
    reporters, selector = Reporters(nodes, pods), {"labelSelector": "=".join(AGENT_LABELS)}
    for node in (await Lister(transport, NODES_PATH, Node).all()).items:
        nodes.upsert(node)
    if not reporters.any:
        return []
    for pod in (await Lister(transport, PODS_PATH, Pod, selector).all()).items:
        pods.upsert(pod)
    return [f"node {name}: its agent has stopped, and its report is not kept up to date" for name in reporters.silent()]


def _certificate(settings: Settings, now: datetime) -> list[str]:
    path = settings.server.tls_cert_file
    if path is None or not path.exists():
        return []
    from extender.server.validity import Validity  # and with it a library of 10 MB

    try:
        fault = Validity.of(path.read_bytes()).fault(now)
    except (OSError, ValueError) as error:
        fault = f"can't be read: {error}"
    return [f"certificate {path} {fault}"] if fault else []


def _named(pods: Sequence[Pod]) -> str:
    names = ", ".join(pod.key for pod in pods[:_MAX_NAMED])
    more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
    return f"{'pod' if len(pods) == 1 else 'pods'} {names}{more} {'waits' if len(pods) == 1 else 'wait'}"
