"""The application: everything wired together, started and stopped with the app's lifespan."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import FastAPI

from extender import __version__
from extender.cluster.binds import Binder
from extender.cluster.events import EventRecorder
from extender.cluster.ledger import Ledger
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placer
from extender.cluster.transports import Transport
from extender.cluster.wakes import Waker
from extender.service.metrics import ClusterCollector, Metrics
from extender.service.routes import KerfApp, install_routes
from extender.service.settings import Settings
from extender.service.telemetries import TelemetryCollector, observe
from extender.service.verbs import Verbs
from extender.telemetry.observers import Observer
from extender.telemetry.readings import Feed

logger = logging.getLogger(__name__)


@dataclass
class Service:
    """The parts of a running service that routes speak to."""

    settings: Settings
    mirror: Mirror
    placer: Placer
    verbs: Verbs
    metrics: Metrics
    observer: Observer | None = None
    """None when telemetry is off."""
    draining: bool = field(default=False)
    """Set when the process has been asked to stop: not ready any more, and connections are closed politely."""

    def fault(self) -> str:
        """Why the service is not ready, "" when it is."""
        return "shutting down" if self.draining else self.mirror.fault()

    def degraded(self) -> list[str]:
        """What works less well than it should, while the service is ready all the same."""
        fault = self.observer.fault() if self.observer else ""
        return [f"telemetry: {fault}"] if fault else []


def create_app(
    settings: Settings,
    transport: Transport,
    clock: Callable[[], float] = time.monotonic,
    feed: Feed | None = None,
) -> KerfApp:
    """The service on an API server, or on what stands in for one. Nothing runs before the app's lifespan begins.

    `feed` is where telemetry comes from, a reading process when none is given.
    """
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        memory_tolerance_frac=settings.decisions.memory_tolerance_frac,
        model_aliases=settings.models.aliases,
    )
    observer = observe(settings.telemetry, transport, ledger, clock, feed)
    mirror = Mirror(
        transport,
        ledger,
        clock,
        max_age_s=settings.cluster.max_age_s,
        page_size=settings.cluster.page_size,
        listeners=[observer] if observer else [],
    )
    events = EventRecorder(transport, clock)
    placer = Placer(ledger, default_policy=settings.decisions.policy, clock=clock, wall_clock=time.time)
    binder = Binder(transport, ledger, placer, events, clock)
    waker = Waker(transport, ledger, placer, clock)
    metrics = Metrics()
    metrics.registry.register(ClusterCollector(ledger, mirror, events, waker, clock))
    if observer is not None:
        metrics.registry.register(TelemetryCollector(observer))
    verbs = Verbs(
        placer,
        binder,
        waker,
        mirror,
        metrics,
        mode=settings.decisions.mode,
        near_best_nodes=settings.decisions.near_best_nodes,
    )
    service = Service(settings, mirror, placer, verbs, metrics, observer)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await transport.start()
        mirror.start()
        events.start()
        waker.start()
        if observer is not None:
            observer.start()
        try:
            yield
        finally:
            if observer is not None:
                await observer.stop()
            await waker.stop()
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
