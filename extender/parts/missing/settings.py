"""From when on it is worked out which nodes are missing, and how often."""

from typing import Any, Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class MissingSettings(Section):
    """Which nodes are missing, worked out while pods wait for long: see docs/guides/autoscaling.md."""

    GONE = {
        "every_s": "always 300",
    }

    after_s: float = Field(default=0.0, ge=0)
    """Once a pod that asks for GPUs has been without a node for this many seconds, the fewest new nodes that would help
    are worked out, for metrics and the page, in a process of its own; 0: never."""


def _lacking(settings: Any) -> str:
    answers = getattr(getattr(settings, "what_if", None), "enabled", False)
    return "" if answers else "after_s needs what_if.enabled: missing nodes are the answer to such a question"


PART: Final = Part(
    name="missing",
    settings=MissingSettings,
    wanted=lambda missing: missing.after_s > 0,
    module="extender.parts.missing.part",
    lacks=_lacking,
)
