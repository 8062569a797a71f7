"""The application: the service's routes and page, started and stopped with the app's lifespan."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import reduce
from typing import Final

from fastapi import FastAPI

from extender import __version__
from extender.api.build import Parts, build_parts, build_service
from extender.api.contributions import Work
from extender.api.openapi import operation_id
from extender.api.routes import KerfApp, Only, endpoints_of, install_routes, verbs_of
from extender.api.service import Service
from extender.core.vendors.registry import VENDORS
from extender.kube.client import Transport
from extender.kube.rights import Grants, MissingRights, RightsRecorder
from extender.ledger.mirror import Mirror
from extender.metrics.usage import usage_metrics
from extender.page.routes import install_page
from extender.page.stream import Streams
from extender.page.view import PageView
from extender.settings.tree import Settings, alone, rights_of
from extender.telemetry.readings import Feed
from extender.telemetry.service import rules_of

_MAX_WAITING_SHOWN: Final = 100


def create_app(
    settings: Settings,
    transport: Transport,
    clock: Callable[[], float] = time.monotonic,
    feed: Feed | None = None,
) -> KerfApp:
    """The service on an API server or a substitute. Nothing runs before the app's lifespan begins.

    `feed` is the source of telemetry; by default a process that reads it.
    """
    rights = MissingRights(clock, Grants(rights_of(settings)))
    transport = RightsRecorder(transport, rights)
    parts = build_parts(settings, transport, clock, feed)
    service = build_service(settings, parts, rights)
    endpoints = endpoints_of(service)
    app = KerfApp(
        reduce(lambda verbs, brought: brought.around(verbs), parts.contributions.values(), verbs_of(endpoints)),
        Only.of(part, parts.contributions.values()) if (part := alone(settings)) is not None else None,
        title="Kerf",
        summary="A kube-scheduler extender that puts GPU pods on the right GPUs.",
        version=__version__,
        docs_url=None,  # FastAPI's pages load scripts from a CDN; Kerf's page is in extender.page.routes
        redoc_url=None,
        generate_unique_id_function=lambda route: operation_id(route.name),
        lifespan=_lifespan(transport, parts.base.mirror, parts.in_background),
    )
    app.state.parts, app.state.service = parts, service
    app.state.plain_verbs = app.plain_verbs
    app.state.reads = install_routes(app, service, endpoints)
    app.state.streams = _install_page(app, service, parts)
    return app


def _install_page(app: FastAPI, service: Service, parts: Parts) -> Streams:
    """Add the page and its event stream."""
    base, rules = parts.base, rules_of(service.settings.telemetry)
    waitlist = service.waitlist
    panels = {
        "totals": lambda: service.overviews.totals(base.ledger.snapshot(base.clock())),
        "status": service.status,
        "waiting": lambda: waitlist.listing(_MAX_WAITING_SHOWN),
        "vendors": lambda: [{"title": vendor.title, "resource": vendor.resource} for vendor in VENDORS],
    }
    for brought in service.contributions.values():
        panels |= brought.shown
    view = PageView(base.ledger, parts.placer, parts.rejections, rules, panels, base.clock, service.overviews.devices)
    streams = Streams(view, lambda: service.draining)
    folders = {name: brought.panel for name, brought in service.contributions.items() if brought.panel is not None}
    install_page(app, streams, folders)
    service.metrics.add(
        lambda: usage_metrics(
            service.placer.snapshot(), service.status(), streams.num_open, service.overviews.stranding()
        )
    )
    return streams


def _lifespan(
    transport: Transport, mirror: Mirror, parts: Sequence[Work]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """A lifespan that starts the parts in order and stops them in reverse: leadership before events and the mirror."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await transport.start()
            stack.push_async_callback(transport.close)
            stack.push_async_callback(mirror.stop)  # leadership starts it
            for part in parts:
                part.start()
                stack.push_async_callback(part.stop)
            yield

    return lifespan
