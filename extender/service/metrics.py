"""Kerf's own Prometheus metrics."""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.cluster.events import EventRecorder
from extender.cluster.fences import Fence
from extender.cluster.ledger import ClaimState, Ledger
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placement
from extender.cluster.takeovers import Leadership
from extender.cluster.tasks import Tasks
from extender.cluster.wakes import Waker
from extender.core.reasons import Reason
from extender.queueing.controllers import QueueController
from extender.queueing.pipelines.controllers import PipelineController
from extender.service.families import counter, gauge
from extender.service.overviews import Figures

_WHYS: Final = ("gang", "gate", "quota", "reservation", "room", "request")
"""What keeps pods of the queue."""
_LATENCIES_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counters and histograms of the verbs; what the cluster looks like is read when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            "kerf_request_seconds", "Time to answer a verb.", ["verb"], buckets=_LATENCIES_S, registry=self.registry
        )
        self.decisions = Counter(
            "kerf_decisions", "Decisions of filter, by verdict.", ["verdict"], registry=self.registry
        )
        self.rejections = Counter(
            "kerf_rejections", "Pods that fit nowhere, by the commonest reason.", ["reason"], registry=self.registry
        )
        self.bad_requests = Counter(
            "kerf_bad_requests", "Pods whose request can't be understood.", registry=self.registry
        )
        self.preemptions = Counter(
            "kerf_preemption_candidates",
            "Nodes proposed for evictions, by verdict.",
            ["verdict"],
            registry=self.registry,
        )
        self.spared_victims = Counter(
            "kerf_spared_victims", "Proposed victims that were not needed.", registry=self.registry
        )
        self.binds = Counter("kerf_binds", "Pods bound.", registry=self.registry)
        self.failed_binds = Counter("kerf_failed_binds", "Bindings that failed.", registry=self.registry)
        # Series that begin at 0: of one that begins with its first event, no rate tells of that.
        for counted, values in (
            (self.decisions, ("placed", "rejected", "skipped")),
            (self.rejections, [reason.name.lower() for reason in Reason if reason is not Reason.FITS]),
            (self.preemptions, ("kept", "dropped", "refused")),
        ):
            for value in values:
                counted.labels(value)

    def count_decision(self, placement: Placement) -> None:
        """Count one decision of filter."""
        if placement.decision.best is not None:
            self.decisions.labels("placed").inc()
            return
        self.decisions.labels("rejected").inc()
        codes = placement.decision.evaluation.reason
        commonest = Reason(int(np.bincount(codes).argmax())) if len(codes) else Reason.UNKNOWN_NODE
        self.rejections.labels(commonest.name.lower()).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Reader(Protocol):
    """Who reads objects of the API server."""

    @property
    def num_unread(self) -> int: ...


class ClusterCollector(Collector):
    """Metrics of the cluster, worked out at scrape time."""

    def __init__(
        self,
        ledger: Ledger,
        mirror: Mirror,
        events: EventRecorder,
        waker: Waker,
        now: Callable[[], float],
        readers: Sequence[QueueController | PipelineController | None] = (),
    ) -> None:
        """`readers` are others, if they are in use, that read objects."""
        self._readers: list[_Reader] = [mirror, *(reader for reader in readers if reader is not None)]
        self._ledger = ledger
        self._mirror = mirror
        self._events = events
        self._waker = waker
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        totals = Figures(self._ledger.snapshot(self._now())).totals()
        yield gauge("kerf_nodes", "Nodes known.", totals["nodes"])
        yield gauge("kerf_gpus", "GPUs installed.", totals["gpus"])
        yield gauge("kerf_gpu_units", "GPU units offered by device plugins or withheld.", totals["units"])
        yield gauge("kerf_gpu_units_free", "GPU units that nobody holds or has reserved.", totals["unitsFree"])
        passing = self._ledger.num_claims(ClaimState.RESERVED) + self._ledger.num_claims(ClaimState.UNDECIDED)
        yield gauge("kerf_reservations", "Pods that GPUs are held for until they are bound or a TTL ends.", passing)
        yield gauge("kerf_bindings_under_way", "Bindings under way.", self._ledger.num_claims(ClaimState.BINDING))
        crowded = self._ledger.num_crowded
        unreadable = self._ledger.num_unreadable + sum(reader.num_unread for reader in self._readers)
        yield gauge("kerf_nodes_overbooked", "Nodes on which more is held than they have.", crowded)
        unreadable_help = (
            "Changes of pods and nodes with values that can't be read; what they are about counts as held."
        )
        yield counter("kerf_unreadable_objects", unreadable_help, unreadable)
        edits_help = "Edits of bound pods' annotations that would have changed what they hold, and did not."
        yield counter("kerf_edits_ignored", edits_help, self._ledger.num_edits_ignored)
        yield gauge("kerf_cache_age_seconds", "Age of the mirror of the cluster.", self._mirror.age_s())
        yield counter("kerf_cache_lists", "Complete lists made since the start.", self._mirror.num_lists)
        yield gauge("kerf_pods_waiting", "Rejected pods that wait for a node.", self._waker.num_waiting)
        yield counter("kerf_skips", "Times that a pod was left pending though it fitted.", self._waker.skips.num_skips)
        yield counter("kerf_pods_woken", "Patches written to wake a pod.", self._waker.num_woken)
        given_back = self._ledger.cycles.num_given_back
        yield counter("kerf_gang_reservations_given_back", "Reservations of gangs that were given up.", given_back)
        yield counter("kerf_events_lost", "Events that were not written.", self._events.num_lost)


class TaskCollector(Collector):
    """Whether what works in the background stays alive."""

    def __init__(self, tasks: Sequence[Tasks]) -> None:
        self._tasks = tasks

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        deaths = sum(tasks.num_deaths for tasks in self._tasks)
        yield counter("kerf_task_deaths", "Times that work in the background died and began anew.", deaths)


class LeadershipCollector(Collector):
    """Whether this process leads, and how it came to."""

    def __init__(self, fence: Fence, leadership: Leadership) -> None:
        self._fence = fence
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        yield gauge("kerf_leader", "1 where GPUs may be given away, 0 on a standby.", int(not self._fence.fault()))
        yield counter("kerf_terms", "How often this process has begun to lead.", self._leadership.num_terms)
        yield counter("kerf_pods_marked", "Unbound pods marked at the begin of a term.", self._leadership.num_marked)
        told = "Unbound pods that could not be marked at the begin of a term."
        yield counter("kerf_pods_unmarkable", told, self._leadership.num_unmarkable)


class QueueCollector(Collector):
    """What waits, and what became of what was let go."""

    def __init__(self, queue: QueueController) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        counts, waiting = self._queue.counts, self._queue.backlog.waiting()
        yield gauge("kerf_queue_waiting", "Pods behind the gate.", len(waiting))
        yield gauge("kerf_queue_opened", "Pods let go that have no node yet.", len(self._queue.backlog.opened()))
        yield counter("kerf_queue_rounds", "Rounds planned.", counts.rounds)
        yield gauge("kerf_queue_round_seconds", "Time that planning the last round took.", counts.round_s)
        yield counter("kerf_queue_let_go", "Pods nominated and opened.", counts.opened)
        yield counter("kerf_queue_honoured", "Pods that got the node nominated.", counts.honoured)
        yield counter("kerf_queue_fallbacks", "Pods let go that went another way.", counts.fallbacks)
        yield counter("kerf_queue_nominated_anew", "Pods let go that were nominated again.", counts.nominated_anew)
        yield counter("kerf_queue_outdated", "Pods whose node no longer fitted when its turn came.", counts.outdated)
        yield counter("kerf_queue_failed_open", "Gates opened since the pod had waited too long.", counts.failed_open)
        evicted = self._queue.remnants.num_evicted
        yield counter("kerf_queue_evicted", "Pods evicted because their gang had lost a member.", evicted)
        yield counter("kerf_queue_errors", "Rounds and writes that failed.", counts.errors)
        skipped = GaugeMetricFamily("kerf_queue_skipped", "Pods passed over, by what keeps them.", labels=["why"])
        counted = Counts(_why(entry.reason) for entry in waiting if entry.reason)
        for why in _WHYS:
            skipped.add_metric([why], counted[why])
        yield skipped


class PipelineCollector(Collector):
    """How pipelines stand."""

    def __init__(self, pipelines: PipelineController) -> None:
        self._pipelines = pipelines

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        family = GaugeMetricFamily("kerf_pipelines", "Pipelines by phase.", labels=["phase"])
        for phase, number in self._pipelines.num_by_phase().items():
            family.add_metric([phase], number)
        yield family


def _why(reason: str) -> str:
    """The kind of a reason: its first words, without names and numbers."""
    kinds = {
        "gang ": "gang",
        "its gang": "gang",
        "another gate": "gate",
        "quota": "quota",
        "room is kept": "reservation",
    }
    for start, kind in kinds.items():
        if reason.startswith(start):
            return kind
    return "room" if reason.startswith(("needs", "no node")) else "request"
