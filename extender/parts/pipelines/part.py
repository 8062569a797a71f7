"""Assembles the pipelines part: the controller and its metrics."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.api.contributions import Contribution, Kernel
from extender.metrics.registry import by_label
from extender.parts.pipelines.controller import PipelineController
from extender.parts.pipelines.settings import PipelineSettings


def build(kernel: Kernel, wanted: PipelineSettings) -> Contribution:
    """The pipeline controller; it writes only while this process leads."""
    base = kernel.base
    controller = PipelineController(
        base.transport,
        clock=base.clock,
        wall_clock=time.time,
        standby=base.fence.fault,
        mlflows=wanted.mlflows,
    )

    def metrics() -> Iterator[Metric]:
        yield by_label(GaugeMetricFamily, "kerf_pipelines", "Pipelines by phase.", "phase", controller.num_by_phase())

    return Contribution(work=[controller], metrics=metrics, num_unread=lambda: controller.num_unread)
