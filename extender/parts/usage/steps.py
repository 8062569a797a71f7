"""Steps of usage over time: how a duration is divided, and how counts are grouped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import OF_HOLDERS, OF_MODELS, Step, seconds_of

AMOUNTS: Final = (*OF_MODELS, *OF_HOLDERS)
"""Order of the GPU-seconds of a step."""
MINUTE_S: Final = 60
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800)
"""Lengths to choose from; steps are aligned to minutes, hours, days and weeks of UTC."""
_DEFAULT_STEPS: Final = 100
"""Most steps if the length is chosen by Kerf."""
_MOST_STEPS: Final = 750
"""Most steps of an answer."""
_NUM_NAMES: Final = 5
"""Namespaces with separate figures; the others are summed as OTHER."""
AmountT = TypeVar("AmountT", int, float)


class Span(NamedTuple):
    """A duration up to now and the length of its steps, in seconds."""

    window_s: int
    step_s: int

    def first(self, now: float) -> int:
        """Unix time at which the first step begins, at or before the start of the window."""
        return int((now - self.window_s) // self.step_s) * self.step_s


class SpanError(ValueError):
    """An invalid duration or step; the message begins with the parameter's name."""


def length_of(name: str, text: str) -> int:
    """Seconds of a parameter's value such as `24h`; `name` is the parameter. Raises SpanError."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise SpanError(f"{name}: {error}") from None


def span_of(since: str, step: str) -> Span:
    """The span of parameters such as `24h` and `15m`; with step "" a length is chosen. Raises SpanError."""
    window_s = length_of("since", since)
    if not step:
        return Span(window_s, _suitable(window_s, _DEFAULT_STEPS))
    step_s = length_of("step", step)
    if step_s % MINUTE_S:
        raise SpanError(f"step: {step} is not a whole number of minutes")
    if step_s > window_s:
        raise SpanError(f"step: {step} is longer than {since}")
    if window_s // step_s > _MOST_STEPS:
        enough = _suitable(window_s, _MOST_STEPS) // MINUTE_S
        raise SpanError(
            f"step: {since} in steps of {step} is {window_s // step_s} steps, more than {_MOST_STEPS}: "
            f"use {enough}m or more"
        )
    return Span(window_s, step_s)


def _suitable(window_s: int, most: int) -> int:
    return next((step for step in _STEPS_S if window_s <= step * most), _STEPS_S[-1])


def grouped(steps: Iterable[Step], step_s: int) -> list[Step]:
    """Consecutive steps merged into steps of `step_s`."""
    found: list[Step] = []
    for step in steps:
        at = step.at // step_s * step_s
        if found and found[-1].at == at:
            last = found[-1]
            last.seconds += step.seconds
            last.amounts = [one + more for one, more in zip(last.amounts, step.amounts, strict=True)]
            last.booked = added(last.booked, step.booked)
        else:
            found.append(Step(at, step.seconds, step.amounts, step.booked))
    return found


def added(one: Mapping[str, AmountT], more: Mapping[str, AmountT]) -> dict[str, AmountT]:
    """Sums by name."""
    found = dict(one)
    for name, amount in more.items():
        found[name] = found[name] + amount if name in found else amount
    return found


def names_told(steps: Iterable[Step]) -> list[str]:
    """The namespaces that booked most in all steps, and OTHER last if there are more."""
    sums: dict[str, float] = {}
    for step in steps:
        sums = added(sums, step.booked)
    named = sorted((name for name in sums if name != OTHER and sums[name]), key=lambda name: (-sums[name], name))
    more = len(named) > _NUM_NAMES or sums.get(OTHER, 0) > 0
    return [*named[:_NUM_NAMES], *([OTHER] if more else [])]


def by_names(step: Step, names: Sequence[str]) -> list[float]:
    """GPU-seconds booked by each of `names`; other namespaces count as OTHER."""
    rest = sum(amount for name, amount in step.booked.items() if name not in names)
    return [step.booked.get(name, 0) + (rest if name == OTHER else 0) for name in names]
