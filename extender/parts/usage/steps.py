"""Steps of usage over time: how a length of time is cut into them, and what was counted in each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import OF_HOLDERS, OF_MODELS, Step, seconds_of

AMOUNTS: Final = (*OF_MODELS, *OF_HOLDERS)
"""What each step has of GPU-seconds, in this order."""
MINUTE_S: Final = 60
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800)
"""Taken where nobody asks for another: they begin with the minutes, hours, days and weeks of UTC."""
_MOST_UNASKED: Final = 100
_MOST_STEPS: Final = 750
"""Of an answer."""
_NUM_TOLD: Final = 5
"""Namespaces that are told apart; all others are one."""
AmountT = TypeVar("AmountT", int, float)


class Span(NamedTuple):
    """A length of time up to now, in steps; both in seconds."""

    window_s: int
    step_s: int

    def first(self, now: float) -> int:
        """Unix time at which the step begins in which the length of time does."""
        return int((now - self.window_s) // self.step_s) * self.step_s


class SpanError(ValueError):
    """A length of time that can't be understood, or not as a step; says why, the name of the parameter first."""


def length_of(name: str, text: str) -> int:
    """Seconds of what a person writes for a parameter, such as `24h`. Raises SpanError."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise SpanError(f"{name}: {error}") from None


def span_of(since: str, step: str) -> Span:
    """Of what a person writes: `24h` and `15m`, or "" for a step that suits. Raises SpanError."""
    window_s = length_of("since", since)
    if not step:
        return Span(window_s, _suitable(window_s, _MOST_UNASKED))
    step_s = length_of("step", step)
    if step_s % MINUTE_S:
        raise SpanError(f"step: {step} is no number of whole minutes")
    if step_s > window_s:
        raise SpanError(f"step: {step} is longer than {since}")
    if window_s // step_s > _MOST_STEPS:
        enough = _suitable(window_s, _MOST_STEPS) // MINUTE_S
        raise SpanError(
            f"step: {since} in steps of {step} are {window_s // step_s}, and {_MOST_STEPS} is the most: "
            f"take {enough}m or more"
        )
    return Span(window_s, step_s)


def _suitable(window_s: int, most: int) -> int:
    return next((step for step in _STEPS_S if window_s <= step * most), _STEPS_S[-1])


def grouped(steps: Iterable[Step], step_s: int) -> list[Step]:
    """Steps, in their order, as longer ones."""
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
    """The namespaces that booked most in all of these steps, and OTHER last where there are more."""
    sums: dict[str, float] = {}
    for step in steps:
        sums = added(sums, step.booked)
    named = sorted((name for name in sums if name != OTHER and sums[name]), key=lambda name: (-sums[name], name))
    more = len(named) > _NUM_TOLD or sums.get(OTHER, 0) > 0
    return [*named[:_NUM_TOLD], *([OTHER] if more else [])]


def by_names(step: Step, names: Sequence[str]) -> list[float]:
    """GPU-seconds that these booked; those that are not among them are OTHER's."""
    rest = sum(amount for name, amount in step.booked.items() if name not in names)
    return [step.booked.get(name, 0) + (rest if name == OTHER else 0) for name in names]
