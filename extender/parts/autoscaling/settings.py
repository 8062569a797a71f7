"""Settings of the autoscaling part."""

from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class AutoscalingSettings(Section):
    """Releases queued pods that fit no node, so that autoscalers see them: see docs/guides/autoscaling.md."""

    enabled: bool = False
    """Whether pods that fit no node are released, one pod or gang at a time. Their gates stay open."""
    after_s: float = Field(default=60.0, ge=0)
    """Seconds that a pod waits before it is released."""


PART: Final = Part(
    name="autoscaling",
    settings=AutoscalingSettings,
    wanted=lambda autoscaling: autoscaling.enabled,
    module="extender.parts.autoscaling.part",
    lacks=lambda settings: "" if settings.queue.enabled else "enabled needs queue.enabled, whose pods it releases",
    renamed={
        "queue.release_for_autoscalers": "autoscaling.enabled",
        "queue.release_after_s": "autoscaling.after_s",
    },
)
