"""Assembles the autoscaling part: releases of queued pods that fit no node, and a metric."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel
from extender.metrics.registry import counter
from extender.parts.autoscaling.releases import AutoscalerReleases
from extender.parts.autoscaling.settings import AutoscalingSettings
from extender.queueing.roomless import RoomlessReleaser


def build(kernel: Kernel, wanted: AutoscalingSettings) -> Contribution:
    """The releases for the queue; nothing without a queue."""
    queue = kernel.queue
    if queue is None:
        return Contribution()
    releases = AutoscalerReleases(queue.backlog, queue.dispatcher, kernel.base.clock, after_s=wanted.after_s)

    def metrics() -> Iterator[Metric]:
        yield counter("kerf_queue_released", "Pods released without a node, for autoscalers.", releases.num)

    return Contribution(offers={RoomlessReleaser: releases}, metrics=metrics)
