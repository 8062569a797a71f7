"""Usage over time: step by step, from the timeline of this process or from Prometheus."""

from collections.abc import Sequence
from typing import Final, Literal

from extender.parts.usage.answers import Source, UsageOverTime
from extender.parts.usage.budgets import HOUR_S
from extender.parts.usage.questions import PastError, Step
from extender.parts.usage.report import NO_PROMETHEUS, Usage, totals_of
from extender.parts.usage.steps import Span, by_names, names_told

_DIGITS: Final = 6
"""Of GPU-hours: a thousandth of a GPU for some seconds is told."""
_WHOLE: Final = 0.98
_LATE_S: Final = 60.0
"""What was counted last may be told so much later."""


async def over_time(usage: Usage, span: Span, source: Source) -> UsageOverTime:
    """What was counted in each step: by this process if it has counted for all of that time, else by Prometheus where
    there is one; and if that has no answer, by this process since it began.

    `source` is `auto`, `prometheus` or `kerf`: the last two take no other. Raises PastError.
    """
    wall_s, standby, note = usage.wall_clock(), usage.standby(), ""
    own = None if standby or source == "prometheus" else _own(usage, span, wall_s)
    if source == "prometheus" or (source == "auto" and not (own and _is_whole(own, span, wall_s))):
        if usage.past is None:
            note = NO_PROMETHEUS
        else:
            try:
                steps = await usage.past.steps(span, wall_s)
            except PastError as error:
                note = str(error)
            else:
                return _told("prometheus", usage, span.step_s, steps)
    if own is None:
        raise PastError(note if source == "prometheus" else standby)
    told = _told("kerf", usage, *own)
    if note:
        told["note"] = note
    return told


def _own(usage: Usage, span: Span, wall_s: float) -> tuple[int, list[Step]]:
    """The length of a step, which may be longer than asked for, and the steps."""
    meter = usage.meter
    meter.cut()
    return meter.timeline.steps_since(span.first(wall_s), span.step_s, meter.now_ms, wall_s)


def _is_whole(own: tuple[int, Sequence[Step]], span: Span, wall_s: float) -> bool:
    """Whether it is all that there was: this process has led all the time."""
    return sum(step.seconds for step in own[1]) >= _WHOLE * (wall_s - span.first(wall_s)) - _LATE_S


def _told(source: Literal["kerf", "prometheus"], usage: Usage, step_s: int, steps: Sequence[Step]) -> UsageOverTime:
    names, now = names_told(steps), usage.wall_clock()
    return {
        "source": source,
        "since": float(steps[0].at) if steps else round(now, 1),
        "until": round(now, 1),
        "stepSeconds": step_s,
        "knownSince": None if source != "kerf" or usage.meter.since is None else round(usage.meter.since, 1),
        "namespaces": names,
        "steps": [
            {
                "at": step.at,
                "seconds": round(step.seconds, 3),
                **totals_of(step.amounts, _DIGITS),
                "bookedByNamespace": [round(amount / HOUR_S, _DIGITS) for amount in by_names(step, names)],
            }
            for step in steps
        ],
    }
