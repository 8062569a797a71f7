"""What is counted, and of whom."""

from typing import Annotated, Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Matchers, Section


class UsageSettings(Section):
    """GPU-hours: booked, used, idle and stranded, by namespace, owner and GPU model: see docs/guides/usage.md."""

    GONE = {
        "idle_below_frac": "always 0.05",
        "max_nodes": "always 100",
        "budget_days": "always 30",
    }
    EXPERIMENTAL = frozenset({"every_s"})

    enabled: bool = True
    """Count them. Only the leader does."""
    every_s: float = Field(default=5.0, ge=1, le=60)
    """How often it is looked at what is booked, in seconds; what comes and goes in between is not seen."""
    idle_after_s: float = Field(default=1800.0, ge=60)
    """Pods whose GPUs have all been idle for this many seconds are listed, counted and alerted on."""
    max_series: int = Field(default=200, ge=10, le=5000)
    """Most series of each counter of GPU-seconds: pairs of owner and GPU model, a namespace at most a tenth of them.
    The rest counts as owner `(other)` of its namespace; of these there are at most half as many series more, and what
    is over counts as of namespace `(other)`."""
    budgets: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Soft budgets by namespace, in GPU-hours booked in the window: `{team-a: 5000}`. Beyond one a warning is given,
    and no pod is refused."""
    matchers: Matchers = ""
    """Label matchers of Kerf's own series in the Prometheus of `telemetry.url`, where it has those of several clusters:
    `cluster="a"`."""


_OFF: Final = "no GPU-hours are counted (setting usage.enabled)"

PART: Final = Part(
    name="usage",
    settings=UsageSettings,
    wanted=lambda usage: usage.enabled,
    module="extender.parts.usage.part",
    off={"/usage": _OFF, "/usage/over-time": _OFF},
)
