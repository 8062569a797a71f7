"""The application: everything wired together, started and stopped with the app's lifespan."""

import logging
import math
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from fastapi import FastAPI

from extender import __version__
from extender.cluster.binds import Binder
from extender.cluster.events import EventRecorder
from extender.cluster.fences import Fence
from extender.cluster.leases import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes, Spectator, Unelected
from extender.cluster.ledger import Ledger
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placer
from extender.cluster.preemptions import Preemptor
from extender.cluster.skips import Skips
from extender.cluster.takeovers import Leadership, epoch_key
from extender.cluster.tasks import Tasks
from extender.cluster.transports import Transport
from extender.cluster.unbound import UnboundPods, UnboundWatch
from extender.cluster.wakes import Waker
from extender.core.requests import NO_REQUEST
from extender.queueing.controllers import QueueController
from extender.queueing.options import Options
from extender.queueing.pipelines.controllers import PipelineController
from extender.queueing.quotas import Quotas
from extender.service.enquiries import Enquiries
from extender.service.metrics import (
    ClusterCollector,
    LeadershipCollector,
    Metrics,
    PipelineCollector,
    QueueCollector,
    TaskCollector,
)
from extender.service.overviews import Overviews
from extender.service.pages import install_page
from extender.service.rank_metrics import RankCollector
from extender.service.ranks import LearnedRank
from extender.service.remedies import Remedies
from extender.service.routes import KerfApp, install_routes
from extender.service.settings import ElectionMode, LeaderElectionSettings, ModelMode, Settings
from extender.service.shadows import Shadow
from extender.service.sights import Sights
from extender.service.streams import Streams
from extender.service.telemetries import TelemetryCollector, observe, policies_of, rules_of
from extender.service.traces import Traces
from extender.service.trials import Trials
from extender.service.usages import UsageCollector
from extender.service.verbs import Verbs
from extender.service.waitlists import Waitlist
from extender.telemetry.observers import Observer, State
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.readings import Feed
from extender.telemetry.unmanaged import UnmanagedWatch

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
    owners: OwnerUsage
    remedies: Remedies
    trials: Trials
    overviews: Overviews
    enquiries: Enquiries
    rank: LearnedRank
    observer: Observer | None = None
    """None when telemetry is off."""
    shadow: Shadow | None = None
    """None but in shadow mode."""
    tasks: Sequence[Tasks] = ()
    """What works in the background."""
    draining: bool = field(default=False)
    """Set when the process has been asked to stop: not ready any more, and connections are closed politely."""

    def fault(self) -> str:
        """Why the service is not ready, "" when it is."""
        return "shutting down" if self.draining else self.fence.fault() or self.mirror.fault()

    def degraded(self) -> list[str]:
        """What works less well than it should, while the service is ready all the same."""
        faults = {"telemetry": self.observer.fault() if self.observer else "", "model": self.rank.fault()}
        lacking = [fault for tasks in self.tasks for fault in tasks.lacking()]
        return [f"{what}: {fault}" for what, fault in faults.items() if fault] + lacking

    def hopeless(self) -> str:
        """Why the process had better end and begin anew, "" for nothing."""
        return next((fault for tasks in self.tasks if (fault := tasks.hopeless())), "")

    def status(self) -> dict[str, Any]:
        """What the service says of itself to people; ages in whole seconds."""
        policy, observer = self.placer.policy_of(NO_REQUEST), self.observer
        age_s = observer.age_s() if observer else math.inf
        return {
            "version": __version__,
            "mode": self.settings.decisions.mode.value,
            "policy": policy.name,
            "ranking": policy.description,
            "model": self.rank.summary(),
            "fault": self.fault(),
            "degraded": self.degraded(),
            "queue": self.settings.queue.enabled,
            "telemetry": {
                "state": observer.status.state if observer else State.OFF,
                "ageSeconds": int(age_s) if math.isfinite(age_s) else None,
            },
        }


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
    owners = OwnerUsage()
    policies = policies_of(settings)
    rank = LearnedRank(settings, policies, lambda: ledger.snapshot(clock()), lambda: not mirror.fault(), clock)
    placer = Placer(
        ledger,
        default_policy=settings.decisions.policy,
        clock=clock,
        wall_clock=time.time,
        policies=policies,
        load_of=owners.expected_load,
        canary=rank.canary,
        on_request=rank.mix.asked,
    )
    mirror = Mirror(
        transport,
        ledger,
        clock,
        max_age_s=settings.cluster.max_age_s,
        page_size=settings.cluster.page_size,
        listeners=[placer, rank.mix, observer, owners] if observer else [placer, rank.mix],
    )
    events = EventRecorder(transport, clock)
    fence, leadership = _leadership(settings, transport, mirror, clock)
    waker = Waker(
        transport,
        ledger,
        placer,
        clock,
        fence,
        max_skip_s=settings.decisions.skip_s,
        max_skips=settings.decisions.max_skips,
        explain_after_s=settings.decisions.explain_after_s,
    )
    unbound = UnboundPods(placer.read_request, time.time, waker.placed)
    waker.overlooked.pods = unbound.all
    queue = (
        _queue(settings, transport, ledger, placer, fence, mirror, clock, unbound) if settings.queue.enabled else None
    )
    watch = None if queue else UnboundWatch(transport, unbound, clock, fence, settings.cluster.page_size)
    pipelines = _pipelines(settings, transport, fence, clock) if settings.queue.pipelines else None
    binder = Binder(transport, ledger, placer, events, clock, fence, time.time, partial(_notes, waker.skips, queue))
    metrics = Metrics()
    metrics.registry.register(ClusterCollector(ledger, mirror, events, waker, clock, (queue, pipelines)))
    metrics.registry.register(LeadershipCollector(fence, leadership))
    if pipelines is not None:
        metrics.registry.register(PipelineCollector(pipelines))
    if observer is not None:
        unmanaged = UnmanagedWatch(ledger, events, rules_of(settings.telemetry), clock)
        observer.on_pods, observer.on_refresh = owners.add, unmanaged.check
        metrics.registry.register(TelemetryCollector(observer, unmanaged))
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
    waker.why = verbs.rejections.last
    if queue is not None:
        metrics.registry.register(QueueCollector(queue))
        _connect(queue, rank, waker, verbs)
    shadow = Shadow(lambda: rank.score, settings.model.shadow_frac) if rank.mode is ModelMode.SHADOW else None
    if shadow is not None:
        verbs.on_decision = shadow.offer
    metrics.registry.register(RankCollector(rank, shadow))
    traces = Traces(settings.traces)
    parts: tuple[_Part | None, ...] = (
        *(traces, events, leadership, waker, binder.settler),
        *(queue, watch, pipelines, observer, rank, shadow),
    )
    remedies = Remedies(placer, ledger, rules_of(settings.telemetry), time.time)
    trials = Trials(
        *(transport, ledger, mirror, clock, settings.decisions.policy, placer.policies_apart),
        max_s=settings.access.what_if_s,
    )
    waitlist = Waitlist(unbound, waker, verbs.rejections, queue.backlog if queue else None, clock, time.time)
    overviews = Overviews(ledger, clock, lambda: waker.num_waiting, waitlist.num_pods, rules_of(settings.telemetry))
    service = Service(
        *(settings, mirror, fence, placer, verbs, metrics, owners),
        *(remedies, trials, overviews, Enquiries(transport, placer), rank, observer, shadow),
        tasks=_tasks_of(mirror, *parts, queue and queue.remnants),
    )

    app = KerfApp(
        title="Kerf",
        summary="A kube-scheduler extender that stops GPU clusters from wasting GPUs.",
        version=__version__,
        docs_url=None,  # FastAPI's pages load their scripts from a CDN; ours is in pages.py
        redoc_url=None,
        lifespan=_lifespan(transport, mirror, [part for part in parts if part is not None]),
    )
    app.state.service = service
    metrics.registry.register(TaskCollector(service.tasks))
    install_routes(app, service)
    app.verbs = traces.around(app.verbs)
    sights = Sights(
        ledger,
        placer,
        overviews,
        verbs.rejections,
        waitlist,
        rules_of(settings.telemetry),
        service.status,
        clock,
    )
    _show(app, service, sights)
    return app


def _show(app: FastAPI, service: Service, sights: Sights) -> None:
    """The page, and the stream that fills it."""
    streams = Streams(sights, lambda: service.draining)
    app.state.streams = streams
    install_page(app, streams)
    usage = UsageCollector(service.placer.snapshot, service.status, lambda: streams.num_open)
    service.metrics.registry.register(usage)


def _tasks_of(*parts: object) -> list[Tasks]:
    """The tasks of those parts that have any."""
    return [part.tasks for part in parts if isinstance(part, _Busy)]


@runtime_checkable
class _Busy(Protocol):
    """What has tasks of its own."""

    tasks: Tasks


class _Part(Protocol):
    """What works in the background."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


def _lifespan(
    transport: Transport, mirror: Mirror, parts: Sequence[_Part]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Starts the parts in order, and stops them in reverse: leadership ends before events and the mirror do."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await transport.start()
            stack.push_async_callback(transport.close)
            stack.push_async_callback(mirror.stop)  # whoever leads has started it
            for part in parts:
                part.start()
                stack.push_async_callback(part.stop)
            yield

    return lifespan


def _queue(
    settings: Settings,
    transport: Transport,
    ledger: Ledger,
    placer: Placer,
    fence: Fence,
    mirror: Mirror,
    clock: Callable[[], float],
    unbound: UnboundPods,
) -> QueueController:
    """The queue's controller as the settings want it."""
    given = settings.queue
    options = Options(
        planner=given.planner,
        policy=settings.decisions.policy,
        order=given.order,
        held_most_s=given.held_most_s,
        ageing_s=given.ageing_s,
        batch_pods=given.batch_pods,
        max_open=given.max_open,
        reserve_frac=given.reserve_frac,
        reserve_after_s=given.reserve_after_s,
        skip_s=given.skip_s,
        patience_s=given.patience_s,
        fail_open_s=given.fail_open_s,
        gang_timeout_s=given.gang_timeout_s,
        fair_share=given.fair_share,
        quotas=Quotas(given.quotas, given.weights),
    )
    return QueueController(
        transport,
        ledger,
        placer,
        options,
        clock=clock,
        wall_clock=time.time,
        standby=fence.fault,
        mirror_fault=mirror.fault,
        page_size=settings.cluster.page_size,
        unbound=unbound,
    )


def _connect(queue: QueueController, rank: LearnedRank, waker: Waker, verbs: Verbs) -> None:
    """What the queue hears of decisions, and they of it."""
    queue.takes_more = rank.takes_more
    queue.why_refused = verbs.rejections.last
    verbs.over_quota = queue.over_quota
    waker.will_nominate = queue.will_nominate
    waker.skips.kept_by_queue = queue.kept_from


def _notes(skips: Skips, queue: QueueController | None, uid: str) -> dict[str, str]:
    """What is written on a pod with its Binding."""
    return skips.notes(uid) | (queue.notes(uid) if queue is not None else {})


def _pipelines(
    settings: Settings, transport: Transport, fence: Fence, clock: Callable[[], float]
) -> PipelineController:
    return PipelineController(
        transport, clock=clock, wall_clock=time.time, standby=fence.fault, page_size=settings.cluster.page_size
    )


def _leadership(
    settings: Settings, transport: Transport, mirror: Mirror, clock: Callable[[], float]
) -> tuple[Fence, Leadership]:
    """What leads, and the fence that it opens."""
    election = _election(settings.leader_election, transport, clock)
    fence, key = Fence(clock, election), epoch_key(settings.leader_election.lease_name)
    page_size = settings.cluster.page_size
    return fence, Leadership(transport, election, fence, mirror, clock, key=key, page_size=page_size)


def _election(settings: LeaderElectionSettings, transport: Transport, clock: Callable[[], float]) -> Election:
    """What the settings ask for."""
    identity = settings.identity or socket.gethostname()
    lease = LeaseName(settings.namespace, settings.lease_name)
    times = LeaseTimes(settings.duration_s, settings.renew_deadline_s, settings.retry_s)
    match settings.mode:
        case ElectionMode.OFF:
            return Unelected()
        case ElectionMode.NEVER:
            return Spectator()
        case ElectionMode.OWN:
            # Random, because a process that was killed and started again is another holder.
            return HeldLease(transport, lease, f"{identity}_{secrets.token_hex(8)}", times, clock)
        case ElectionMode.SCHEDULER:
            return FollowedLease(transport, lease, identity, times, clock)
