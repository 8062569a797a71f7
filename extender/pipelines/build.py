"""The pipelines, as the settings want them."""

import time

from extender.pipelines.controller import PipelineController
from extender.pipelines.flows import Flows
from extender.scheduling.build import Foundation
from extender.settings.tree import Settings


def build_pipelines(settings: Settings, base: Foundation) -> PipelineController | None:
    """What runs them, None where they are not wanted."""
    if not settings.queue.pipelines:
        return None
    page_size, flows = settings.cluster.page_size, None
    if settings.queue.mlflows:
        flows = Flows(
            base.transport, clock=base.clock, wall_clock=time.time, standby=base.fence.fault, page_size=page_size
        )
    return PipelineController(
        base.transport,
        clock=base.clock,
        wall_clock=time.time,
        standby=base.fence.fault,
        page_size=page_size,
        flows=flows,
    )
