"""The application: everything wired together, started and stopped with the app's lifespan."""

import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import FastAPI

from extender import __version__
from extender.cluster.binds import Binder
from extender.cluster.events import EventRecorder
from extender.cluster.fences import Fence
from extender.cluster.leases import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes, Unelected
from extender.cluster.ledger import Ledger
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placer
from extender.cluster.preemptions import Preemptor
from extender.cluster.settlements import Settler
from extender.cluster.takeovers import Leadership, epoch_key
from extender.cluster.transports import Transport
from extender.cluster.wakes import Waker
from extender.service.metrics import ClusterCollector, LeadershipCollector, Metrics
from extender.service.routes import KerfApp, install_routes
from extender.service.settings import ElectionMode, LeaderElectionSettings, Settings
from extender.service.verbs import Verbs

logger = logging.getLogger(__name__)


@dataclass
class Service:
    """The parts of a running service that routes speak to."""

    settings: Settings
    mirror: Mirror
    fence: Fence
    placer: Placer
    verbs: Verbs
    metrics: Metrics
    draining: bool = field(default=False)
    """Set when the process has been asked to stop: not ready any more, and connections are closed politely."""

    def fault(self) -> str:
        """Why the service is not ready, "" when it is."""
        return "shutting down" if self.draining else self.fence.fault() or self.mirror.fault()


def create_app(settings: Settings, transport: Transport, clock: Callable[[], float] = time.monotonic) -> KerfApp:
    """The service on an API server, or on what stands in for one. Nothing runs before the app's lifespan begins."""
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        memory_tolerance_frac=settings.decisions.memory_tolerance_frac,
        model_aliases=settings.models.aliases,
    )
    mirror = Mirror(
        transport, ledger, clock, max_age_s=settings.cluster.max_age_s, page_size=settings.cluster.page_size
    )
    events = EventRecorder(transport, clock)
    placer = Placer(ledger, default_policy=settings.decisions.policy, clock=clock, wall_clock=time.time)
    lease = settings.leader_election.lease_name
    fence = Fence(clock, epoch_key(lease) if lease else "")
    leadership = Leadership(
        transport,
        _election(settings.leader_election, transport, clock),
        fence,
        mirror,
        clock,
        key=epoch_key(lease),
        page_size=settings.cluster.page_size,
    )
    settler = Settler(transport, ledger, clock)
    binder = Binder(transport, ledger, placer, events, clock, fence, time.time, settler)
    waker = Waker(transport, ledger, placer, clock, fence)
    metrics = Metrics()
    metrics.registry.register(ClusterCollector(ledger, mirror, events, waker, clock))
    metrics.registry.register(LeadershipCollector(fence, leadership))
    verbs = Verbs(
        placer,
        binder,
        waker,
        mirror,
        fence,
        metrics,
        Preemptor(ledger, mirror.tenants, clock=clock, wall_clock=time.time),
        mode=settings.decisions.mode,
        near_best_nodes=settings.decisions.near_best_nodes,
    )
    service = Service(settings, mirror, fence, placer, verbs, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await transport.start()
        leadership.start()
        events.start()
        waker.start()
        settler.start()
        try:
            yield
        finally:
            await settler.stop()
            await waker.stop()
            await leadership.stop()  # every call is answered: nothing is decided any more
            await events.stop()
            await mirror.stop()
            await transport.close()

    app = KerfApp(
        title="Kerf",
        summary="A kube-scheduler extender that stops GPU clusters from wasting GPUs.",
        version=__version__,
        lifespan=lifespan,
    )
    app.state.service = service
    install_routes(app, service)
    return app


def _election(settings: LeaderElectionSettings, transport: Transport, clock: Callable[[], float]) -> Election:
    """What the settings ask for."""
    identity = settings.identity or socket.gethostname()
    lease = LeaseName(settings.namespace, settings.lease_name)
    times = LeaseTimes(settings.duration_s, settings.renew_deadline_s, settings.retry_s)
    match settings.mode:
        case ElectionMode.OFF:
            return Unelected()
        case ElectionMode.OWN:
            # Random, because a process that was killed and started again is another holder.
            return HeldLease(transport, lease, f"{identity}_{secrets.token_hex(8)}", times, clock)
        case ElectionMode.SCHEDULER:
            return FollowedLease(transport, lease, identity, times, clock)
