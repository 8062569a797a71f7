"""Metrics of the queue."""

from collections import Counter as Counts
from collections.abc import Iterator
from heapq import nlargest
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.explain.pending import Waitlist
from extender.metrics.registry import by_label, counter, gauge
from extender.planning.wait_reasons import Cause
from extender.queueing.controller import QueueController

_MAX_NAMESPACES: Final = 100


def queue_metrics(queue: QueueController) -> Iterator[Metric]:
    """Waiting pods, and the outcomes of released ones."""
    counts, waiting = queue.counts, queue.backlog.waiting()
    yield gauge("kerf_queue_waiting", "Pods waiting behind the gate.", len(waiting))
    yield gauge("kerf_queue_opened", "Released pods without a node yet.", len(queue.backlog.opened()))
    yield counter("kerf_queue_rounds", "Planning rounds.", counts.rounds)
    yield gauge("kerf_queue_round_seconds", "Duration of the last planning round, in seconds.", counts.round_s)
    yield counter("kerf_queue_let_go", "Pods released.", counts.opened)
    yield counter("kerf_queue_honoured", "Released pods bound to their nominated node.", counts.honoured)
    yield counter("kerf_queue_fallbacks", "Released pods bound to another node.", counts.fallbacks)
    yield counter("kerf_queue_nominated_anew", "Released pods nominated again.", counts.nominated_anew)
    yield counter("kerf_queue_outdated", "Pods that no longer fitted their node at release.", counts.outdated)
    yield counter("kerf_queue_reassigned", "Pods bound elsewhere and given GPUs there.", counts.reassigned)
    yield counter("kerf_queue_unassigned", "Pods bound elsewhere, where no GPUs were free.", counts.unassigned)
    yield counter("kerf_queue_failed_open", "Gates opened because the pod had waited too long.", counts.failed_open)
    evicted = queue.gang_eviction.num_evicted + queue.preempted_gangs.num_evicted
    yield counter("kerf_queue_evicted", "Pods evicted because their gang was incomplete.", evicted)
    description = "Pods that opted in to the queue but have no gate, because the webhook was not called in time."
    yield counter("kerf_queue_passed", description, queue.passed.num_passed)
    yield counter("kerf_queue_errors", "Failed rounds and writes.", counts.errors)
    skipped = Counts(reason.code.cause for entry in waiting if (reason := entry.skips.reason) is not None)
    values = {cause.value: skipped[cause] for cause in Cause}
    yield by_label(GaugeMetricFamily, "kerf_queue_skipped", "Pods skipped, by reason.", "why", values)


def pending_metrics(waitlist: Waitlist) -> Iterator[Metric]:
    """The age of pending GPU pods, in the namespaces with the oldest."""
    longest = dict(nlargest(_MAX_NAMESPACES, waitlist.longest().items(), key=lambda item: item[1]))
    description = "Age of the oldest pending GPU pod, in seconds."
    yield by_label(GaugeMetricFamily, "kerf_pending_longest_seconds", description, "namespace", longest)
    description = "GPU pods held by the queue's gate while the queue is off."
    yield gauge("kerf_unattended_gates", description, waitlist.num_unattended())
