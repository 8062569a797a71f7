"""The pipelines, as the settings want them."""

import time

from extender.pipelines.controller import PipelineController
from extender.scheduling.build import Foundation
from extender.settings.tree import Settings


def build_pipelines(settings: Settings, base: Foundation) -> PipelineController | None:
    """What runs them, None where they are not wanted."""
    if not settings.queue.pipelines:
        return None
    return PipelineController(
        base.transport,
        clock=base.clock,
        wall_clock=time.time,
        standby=base.fence.fault,
        page_size=settings.cluster.page_size,
        mlflows=settings.queue.mlflows,
    )
