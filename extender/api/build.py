"""Builds all parts of a service from the settings, and connects them."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from prometheus_client.core import Metric

from extender.api.contributions import Capabilities, Contribution, Kernel, Work, build_contributions, prepared
from extender.api.evictions import Evictions
from extender.api.readiness import Readiness
from extender.api.service import Service
from extender.api.verbs import Verbs
from extender.core.policies.policy import Policy
from extender.core.resources.requests import NO_REQUEST
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.explain.counting import CountsGpuHours, stranding_in
from extender.explain.explanations import RejectionLog
from extender.explain.failing_nodes import NamesFailingNodes
from extender.explain.fixes import Fixes
from extender.explain.making_room import MakesRoom
from extender.explain.occupants import DeviceViews
from extender.explain.overview import Overviews
from extender.explain.pending import PendingPods, Waitlist
from extender.explain.pod_answers import PodAnswers, UndecidedPods
from extender.explain.processes import QuestionQueue
from extender.explain.what_if import AnswersWhatIf
from extender.explain.workloads import belonging, build_workloads
from extender.kube.background import Tasks
from extender.kube.client import Transport
from extender.kube.objects import Pod
from extender.kube.rights import MissingRights
from extender.kube.watches import BOUND_PODS, NODES, PENDING_PODS, PODS
from extender.metrics import scheduling as of_scheduling
from extender.metrics.queueing import pending_metrics, queue_metrics
from extender.metrics.ranking import rank_metrics
from extender.metrics.registry import Metrics
from extender.metrics.telemetry import telemetry_metrics
from extender.queueing.build import build_queue
from extender.queueing.controller import QueueController
from extender.queueing.devices import AllocatorFactory
from extender.queueing.kept_places import PlaceKeeper
from extender.queueing.roomless import RoomlessReleaser
from extender.ranking.interfaces import DecisionObserver, RankEvaluator
from extender.ranking.service import LearnedRank
from extender.scheduling import build as scheduling
from extender.scheduling.build import Foundation
from extender.scheduling.callers import Callers, UncalledPods
from extender.scheduling.corrections import Corrections
from extender.scheduling.cpu_pods import CpuPods
from extender.scheduling.leader_label import LeaderLabel
from extender.scheduling.placer import Placer
from extender.scheduling.preemption import Preemptor
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.reporters import Reporters
from extender.scheduling.takeover import Leadership
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import Waker
from extender.settings.tree import Settings, alone
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.readings import Feed
from extender.telemetry.service import Telemetry, build_telemetry, interference_of, policies_of, rules_of


def _certificate_metrics_of(path: Path) -> Callable[[], Iterable[Metric]]:
    """Metrics of the certificate in a file."""
    from extender.metrics.certificates import certificate_metrics  # imports a library of 10 MB

    return partial(certificate_metrics, path)


def _cpu_pods_of(settings: Settings, placer: Placer) -> CpuPods:
    decisions = settings.decisions
    policy = partial(placer.policy_of, NO_REQUEST)
    return CpuPods(policy, placer.snapshot, near_best_nodes=decisions.near_best_nodes, enabled=decisions.rank_cpu_pods)


@runtime_checkable
class _Busy(Protocol):
    """Has background tasks."""

    tasks: Tasks


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a service; None for those that are disabled."""

    base: Foundation
    leadership: Leadership
    owners: OwnerUsage
    telemetry: Telemetry | None
    rank: LearnedRank
    contributions: Mapping[str, Contribution]
    """Contributions of parts, by name."""
    capabilities: Capabilities
    placer: Placer
    unbound: UnboundPods
    queue: QueueController | None
    rules: QueueRules
    """The queue's rules, or empty rules without a queue."""
    rejections: RejectionLog
    unasked: UncalledPods
    waker: Waker
    corrections: Corrections
    reporters: Reporters | None
    """Node agents; None if only one part is served."""
    metrics: Metrics
    verbs: Verbs
    label: LeaderLabel | None
    in_background: Sequence[Work]
    """Background work, in starting order."""


def build_parts(
    settings: Settings, transport: Transport, clock: Callable[[], float], feed: Feed | None = None
) -> Parts:
    """Build the parts; `feed` as in `observe`."""
    base = scheduling.build_foundation(settings, transport, clock)
    ledger, mirror = base.ledger, base.mirror
    owners, metrics, rejections = OwnerUsage(ledger), Metrics(), RejectionLog()
    telemetry, policies = build_telemetry(settings, base, owners, feed), policies_of(settings)
    rank = LearnedRank(settings, policies, lambda: ledger.snapshot(clock()), lambda: not mirror.fault(), clock)
    placer = _placer(settings, base, policies, rank, owners)
    unbound = UnboundPods(placer.read_request, time.time, belonging=belonging)
    capabilities = prepared(settings, base)
    queue = build_queue(
        settings,
        base,
        placer,
        rank.wastes_gpu,
        rejections.last,
        kept_places=partial(capabilities.get, PlaceKeeper),
        roomless_releaser=partial(capabilities.get, RoomlessReleaser),
        keeper=capabilities.get(AllocatorFactory),
    )
    rules = queue or QueueRules()
    waker = scheduling.build_waker(settings, base, placer, unbound, rules, rejections.last, rank.wastes_gpu)
    binder = scheduling.build_binder(base, placer, waker, rules)
    corrections = scheduling.build_corrections(base)
    readiness, callers = Readiness(placer, mirror, base.fence), Callers(clock)
    unasked = UncalledPods(callers, unbound, base.fence, clock, time.time, extender=settings.queue.extender)
    preemptor = Preemptor(ledger, mirror.bound_pods, clock, time.time)
    evictions = Evictions(preemptor, placer, readiness, metrics, rules)
    verbs = Verbs(
        placer=placer,
        cpu_pods=_cpu_pods_of(settings, placer),
        binder=binder,
        waker=waker,
        fence=base.fence,
        readiness=readiness,
        evictions=evictions,
        metrics=metrics,
        rejections=rejections,
        queue=rules,
        mode=settings.decisions.mode,
        near_best_nodes=settings.decisions.near_best_nodes,
        sees_decisions=partial(capabilities.get, DecisionObserver),
        callers=callers,
    )
    mirror.hub.group(PENDING_PODS).subscribe(unbound.changed)
    mirror.hub.group(PENDING_PODS).subscribe(waker.pod_changed)
    label = scheduling.build_label(settings, base)
    kernel = Kernel(
        settings=settings,
        base=base,
        capabilities=capabilities,
        placer=placer,
        queue=queue,
        rank=rank,
        unbound=unbound,
        turns=QuestionQueue(settings.access.what_if_s),
    )
    contributions = build_contributions(kernel)
    catch_ups: list[Callable[[], Awaitable[None]]] = [queue.catch_up] if queue is not None else []
    catch_ups += [part.catch_up for part in contributions.values() if part.catch_up is not None]
    leadership = scheduling.build_leadership(settings, base, catch_ups)
    work_of_parts = [work for contribution in contributions.values() for work in contribution.work]
    in_background: tuple[Work | None, ...] = (
        base.events,
        leadership,
        label,
        waker,
        base.resolver,
        corrections,
        queue,
        telemetry.observer if telemetry else None,
        rank,
        *work_of_parts,
    )
    if alone(settings) is not None:
        in_background = (*work_of_parts, leadership)
    return Parts(
        base=base,
        leadership=leadership,
        owners=owners,
        telemetry=telemetry,
        rank=rank,
        contributions=contributions,
        capabilities=capabilities,
        placer=placer,
        unbound=unbound,
        queue=queue,
        rules=rules,
        rejections=rejections,
        unasked=unasked,
        waker=waker,
        corrections=corrections,
        reporters=None if alone(settings) else Reporters(mirror.hub.cache(NODES), mirror.hub.cache(PODS)),
        metrics=metrics,
        verbs=verbs,
        label=label,
        in_background=[work for work in in_background if work is not None],
    )


def _placer(
    settings: Settings, base: Foundation, policies: Mapping[str, Policy], rank: LearnedRank, owners: OwnerUsage
) -> Placer:
    placer = Placer(
        base.ledger,
        default_policy=settings.decisions.policy,
        clock=base.clock,
        wall_clock=time.time,
        policies=policies,
        load_of=owners.expected_load,
        canary=rank.canary,
        on_request=rank.mix.asked,
        watched=base.mirror.hub.cache(PODS).get,
    )
    base.mirror.hub.group(BOUND_PODS).subscribe(placer.pod_changed)
    base.mirror.hub.cache(PODS).subscribe(rank.mix.pod_changed)
    return placer


def build_service(settings: Settings, parts: Parts, rights: MissingRights) -> Service:
    """Build what routes use; `rights` are those that Kerf lacks."""
    base, placer, queue = parts.base, parts.placer, parts.queue
    ledger, mirror, clock, rules = base.ledger, base.mirror, base.clock, rules_of(settings.telemetry)
    backlog = queue.backlog if queue else None
    devices = DeviceViews(ledger)
    passed = queue.passed.why if queue else lambda uid: ""
    waitlist = Waitlist(
        parts.unbound,
        parts.waker,
        parts.rejections,
        backlog,
        clock,
        time.time,
        unasked=parts.unasked,
        passed=passed,
    )
    left_s = queue.running.left_s if queue else lambda uid: None
    fixes = Fixes(
        placer=placer,
        ledger=ledger,
        rules=rules,
        wall_clock=time.time,
        left_s=left_s,
        waits=lambda uid: parts.unbound.get(uid) is not None,
        makes_room=lambda: parts.capabilities.get(MakesRoom) is not None,
        answers_what_if=lambda: parts.capabilities.get(AnswersWhatIf) is not None,
        silent=parts.reporters.silent if parts.reporters is not None else lambda: (),
    )
    undecided = UndecidedPods(base.transport, placer, _claims_of(queue))
    counts = parts.capabilities.get(CountsGpuHours)
    workloads = build_workloads(base, counts, waitlist)
    costs = partial(interference_of, owners=parts.owners)
    service = Service(
        settings=settings,
        mirror=mirror,
        fence=base.fence,
        leadership=parts.leadership,
        placer=placer,
        verbs=parts.verbs,
        metrics=parts.metrics,
        owners=parts.owners,
        fixes=fixes,
        waitlist=waitlist,
        pending=PendingPods(waitlist, placer, placer.snapshot),
        workloads=workloads,
        overviews=Overviews(
            ledger=ledger,
            clock=clock,
            num_waiting=lambda: parts.waker.num_waiting,
            num_pending=waitlist.num_pods,
            rules=rules,
            devices=devices,
            policy_of=placer.policy_of,
            stranding=stranding_in(lambda: counts),
            failing=parts.capabilities.get(NamesFailingNodes),
        ),
        pods=PodAnswers(placer, fixes, undecided, waitlist, costs, workloads.of_pod),
        rank=parts.rank,
        label=parts.label,
        observer=parts.telemetry.observer if parts.telemetry else None,
        judges=parts.capabilities.get(RankEvaluator),
        contributions=parts.contributions,
        unasked=parts.unasked,
        rights=rights,
        tasks=[part.tasks for part in (mirror, *parts.in_background) if isinstance(part, _Busy)],
    )
    _add_metrics(parts, service)
    return service


def _claims_of(queue: QueueController | None) -> Callable[[Pod], PodClaims]:
    """A function that returns a pod's ResourceClaims that Kerf allocates."""
    return lambda pod: NO_CLAIMS if queue is None or queue.claims is None else queue.claims.read(pod)


def _add_metrics(parts: Parts, service: Service) -> None:
    """Register the metrics of all parts."""
    base, add = parts.base, parts.metrics.add
    contributions = parts.contributions.values()

    def num_unread() -> int:
        own = base.mirror.num_unread + (parts.queue.num_unread if parts.queue is not None else 0)
        return own + sum(contribution.num_unread() for contribution in contributions)

    add(
        lambda: of_scheduling.cluster_metrics(
            base.ledger, base.mirror, base.events, parts.waker, base.clock, num_unread
        )
    )
    add(lambda: of_scheduling.correction_metrics(base.ledger, parts.corrections))
    add(lambda: of_scheduling.leadership_metrics(base.fence, parts.leadership))
    add(lambda: rank_metrics(parts.rank))
    add(lambda: of_scheduling.task_metrics(service.tasks))
    if parts.reporters is not None:
        add(partial(of_scheduling.reporter_metrics, parts.reporters))
    add(lambda: pending_metrics(service.waitlist))
    add(lambda: of_scheduling.caller_metrics(parts.unasked))
    if (certificate := service.settings.server.tls_cert_file) is not None:
        add(_certificate_metrics_of(certificate))
    for contribution in contributions:
        add(contribution.metrics)
    if parts.queue is not None:
        add(partial(queue_metrics, parts.queue))
    if parts.telemetry is not None:
        add(partial(telemetry_metrics, parts.telemetry.observer, parts.telemetry.unmanaged))
