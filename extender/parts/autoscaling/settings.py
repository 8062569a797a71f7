"""Whether pods without room are let go for autoscalers."""

from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class AutoscalingSettings(Section):
    """Pods of the queue that are let go for autoscalers to see: see docs/guides/autoscaling.md."""

    enabled: bool = False
    """Whether pods that no node has room for are let go, one pod or gang at a time. Their gates stay open."""
    after_s: float = Field(default=60.0, ge=0)
    """A pod is let go once it has waited this many seconds."""


PART: Final = Part(
    name="autoscaling",
    settings=AutoscalingSettings,
    wanted=lambda autoscaling: autoscaling.enabled,
    module="extender.parts.autoscaling.part",
    lacks=lambda all_of_them: "" if all_of_them.queue.enabled else "enabled needs queue.enabled: its pods are let go",
    renamed={
        "queue.release_for_autoscalers": "autoscaling.enabled",
        "queue.release_after_s": "autoscaling.after_s",
    },
)
