"""Settings of the usage part."""

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
    """Count GPU-hours; only the leader does."""
    every_s: float = Field(default=5.0, ge=1, le=60)
    """Interval at which bookings are sampled, in seconds; shorter bookings may be missed."""
    idle_after_s: float = Field(default=1800.0, ge=60)
    """Pods whose GPUs have all been idle for this many seconds are listed, counted and alerted on."""
    max_series: int = Field(default=200, ge=10, le=5000)
    """Most series of each counter of GPU-seconds: pairs of owner and GPU model, at most a tenth of them for each
    namespace. Other owners count as `(other)` of their namespace. These are at most half as many series more; beyond
    that, owners count under namespace `(other)`."""
    budgets: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Soft budgets by namespace, in GPU-hours booked in 30 days: `{team-a: 5000}`. Kerf warns if one is exceeded and
    refuses no pod."""
    matchers: Matchers = ""
    """Label matchers of Kerf's series in the Prometheus of `telemetry.url`, needed if it has several clusters':
    `cluster="a"`."""


_OFF: Final = "no GPU-hours are counted (setting usage.enabled)"

PART: Final = Part(
    name="usage",
    settings=UsageSettings,
    wanted=lambda usage: usage.enabled,
    module="extender.parts.usage.part",
    off={"/usage": _OFF, "/usage/over-time": _OFF},
)
