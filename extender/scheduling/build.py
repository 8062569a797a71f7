"""Builds the parts that place pods from the settings."""

import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.resources.requests import GpuRequest
from extender.kube.client import Transport
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.kube.leadership import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes, Spectator, Unelected
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.scheduling.binding import Binder
from extender.scheduling.corrections import Corrections
from extender.scheduling.fence import Fence
from extender.scheduling.leader_label import LeaderLabel
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.takeover import Leadership, epoch_key
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import Waker
from extender.settings.leader_election import ElectionMode, LeaderElectionSettings
from extender.settings.tree import Settings, allocates, alone

_MAX_RETRY_S: Final = 2.0
"""Most seconds between two reads of the Lease: a leader that shuts down waits 10 s for a successor."""


@dataclass(frozen=True, slots=True)
class Foundation:
    """The parts shared by all others: API access, the cluster's state, and leader election."""

    transport: Transport
    clock: Callable[[], float]
    ledger: Ledger
    mirror: Mirror
    events: EventRecorder
    election: Election
    fence: Fence
    resolver: Resolver


def build_foundation(settings: Settings, transport: Transport, clock: Callable[[], float]) -> Foundation:
    """Build the shared parts."""
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        model_aliases=settings.models.aliases,
        allocates=allocates(settings),
        extender=settings.queue.extender,
    )
    nodes_alone = alone(settings) is not None
    mirror = Mirror(
        transport=transport,
        ledger=ledger,
        clock=clock,
        max_age_s=settings.cluster.max_age_s,
        nodes_alone=nodes_alone,
        ignored_resources=settings.cluster.ignored_resources,
    )
    election = Spectator() if nodes_alone else _election(settings.leader_election, transport, clock)
    fence = Fence(clock, election)
    return Foundation(
        transport=transport,
        clock=clock,
        ledger=ledger,
        mirror=mirror,
        events=EventRecorder(transport, clock, placements=settings.events.placements),
        election=election,
        fence=fence,
        resolver=Resolver(fence, clock),
    )


def build_leadership(
    settings: Settings, base: Foundation, catch_ups: Sequence[Callable[[], Awaitable[None]]]
) -> Leadership:
    """Build the part that takes over and opens the fence; `catch_ups` as in `Leadership`."""
    return Leadership(
        base.transport,
        base.election,
        base.fence,
        base.mirror,
        base.clock,
        key=epoch_key(settings.leader_election.lease_name),
        marks_gated=not settings.queue.extender,
        catch_ups=catch_ups,
    )


def build_label(settings: Settings, base: Foundation) -> LeaderLabel | None:
    """Build the part that labels the leader for the Service, None if not needed."""
    election = settings.leader_election
    if election.mode is not ElectionMode.OWN or not election.pod:
        return None
    return LeaderLabel(base.transport, base.fence, election.pod, election.lease_name)


def build_waker(
    settings: Settings,
    base: Foundation,
    placer: Placer,
    unbound: UnboundPods,
    queue: QueueRules,
    why: Callable[[PodIdentity], str],
    wastes_gpu: Callable[[GpuRequest], bool],
) -> Waker:
    """Build the part that wakes pending pods; `why` and `wastes_gpu` as in `Waker`."""
    return Waker(
        transport=base.transport,
        ledger=base.ledger,
        placer=placer,
        unbound=unbound,
        clock=base.clock,
        fence=base.fence,
        queue=queue,
        why=why,
        wastes_gpu=wastes_gpu,
        max_skip_s=settings.decisions.skip_s,
        explain_after_s=settings.decisions.explain_after_s,
    )


def build_binder(base: Foundation, placer: Placer, waker: Waker, queue: QueueRules) -> Binder:
    """Build the part that binds pods."""
    notes = lambda uid: waker.skips.notes(uid) | queue.notes(uid)  # noqa: E731 - one expression
    return Binder(
        transport=base.transport,
        ledger=base.ledger,
        placer=placer,
        events=base.events,
        clock=base.clock,
        fence=base.fence,
        resolver=base.resolver,
        wall_clock=time.time,
        notes=notes,
    )


def build_corrections(base: Foundation) -> Corrections:
    """Build the part that corrects the annotations of pods that got other GPUs."""
    return Corrections(base.transport, base.ledger, base.events, base.fence)


def _election(settings: LeaderElectionSettings, transport: Transport, clock: Callable[[], float]) -> Election:
    identity = settings.identity or socket.gethostname()
    lease = LeaseName(settings.namespace, settings.lease_name)
    retry_s = min(0.25 * settings.duration_s, _MAX_RETRY_S)
    times = LeaseTimes(settings.duration_s, 0.75 * settings.duration_s, retry_s)
    match settings.mode:
        case ElectionMode.OFF:
            return Unelected()
        case ElectionMode.NEVER:
            return Spectator()
        case ElectionMode.OWN:
            # Random, since a restarted process is another holder.
            return HeldLease(transport, lease, f"{identity}_{secrets.token_hex(8)}", times, clock)
        case ElectionMode.SCHEDULER:
            return FollowedLease(transport, lease, identity, times, clock)
