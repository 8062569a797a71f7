"""Settings: when missing nodes are searched for."""

from typing import Any, Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class MissingSettings(Section):
    """Finds the new nodes that long-pending pods need: see docs/guides/autoscaling.md."""

    GONE = {
        "every_s": "always 300",
    }

    after_s: float = Field(default=0.0, ge=0)
    """Seconds that a GPU pod is pending before Kerf searches for the fewest new nodes that would help; 0: never. The
    search runs in a separate process; metrics and the page show the result."""


def _lacking(settings: Any) -> str:
    answers = getattr(getattr(settings, "what_if", None), "enabled", False)
    return "" if answers else "after_s needs what_if.enabled: a what-if question finds the missing nodes"


PART: Final = Part(
    name="missing",
    settings=MissingSettings,
    wanted=lambda missing: missing.after_s > 0,
    module="extender.parts.missing.part",
    lacks=_lacking,
)
