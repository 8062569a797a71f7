"""Usage over time, step by step, from this process's timeline or from Prometheus."""

from collections.abc import Sequence
from typing import Final, Literal

from extender.parts.usage.answers import Source, UsageOverTime
from extender.parts.usage.budgets import HOUR_S
from extender.parts.usage.questions import PastError, Step
from extender.parts.usage.report import NO_PROMETHEUS, Usage, totals_of
from extender.parts.usage.steps import Span, by_names, names_told

_DIGITS: Final = 6
"""Of GPU-hours; enough for a thousandth of a GPU for some seconds."""
_WHOLE: Final = 0.98
"""Fraction of the time that must be counted."""
_LATE_S: Final = 60.0
"""Delay with which the last counts may appear."""


async def over_time(usage: Usage, span: Span, source: Source) -> UsageOverTime:
    """The counts of each step: from this process if it has counted for all of the time, else from Prometheus, and if
    that has no answer from this process since it began.

    With `source` `prometheus` or `kerf` there is no fallback to the other. Raises PastError.
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
                return _answer("prometheus", usage, span.step_s, steps)
    if own is None:
        raise PastError(note if source == "prometheus" else standby)
    answer = _answer("kerf", usage, *own)
    if note:
        answer["note"] = note
    return answer


def _own(usage: Usage, span: Span, wall_s: float) -> tuple[int, list[Step]]:
    """The length of a step, which may be longer than requested, and the steps."""
    meter = usage.meter
    meter.cut()
    return meter.timeline.steps_since(span.first(wall_s), span.step_s, meter.now_ms, wall_s)


def _is_whole(own: tuple[int, Sequence[Step]], span: Span, wall_s: float) -> bool:
    """Whether this process has counted all of the time."""
    return sum(step.seconds for step in own[1]) >= _WHOLE * (wall_s - span.first(wall_s)) - _LATE_S


def _answer(source: Literal["kerf", "prometheus"], usage: Usage, step_s: int, steps: Sequence[Step]) -> UsageOverTime:
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
