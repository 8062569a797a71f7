"""The timeline: what was counted minute by minute for a day and an hour, and by quarters of an hour for eight days.

It is made of differences between the accounts' own sums, so that each point adds up as they do. It is kept in memory,
and begins with the process.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.parts.usage.accounts import MICRO, Sums
from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import Step
from extender.parts.usage.steps import MINUTE_S, added, grouped

_COARSE_S: Final = 900
_DAY_S: Final = 86_400
_FINE_FOR_S: Final = _DAY_S + 3600
_COARSE_FOR_S: Final = 8 * _DAY_S
_MS: Final = 1000
_MOST_NAMES: Final = 20
"""Namespaces that a point tells apart; the others that booked less in it count as OTHER."""


@dataclass(slots=True)
class _Counted:
    """What was counted in a step, in whole numbers as of `Sums`."""

    number: int
    counted_ms: int
    amounts: list[int]
    booked: dict[str, int]


@dataclass(eq=False)
class _Ring:
    """The newest steps of a length."""

    step_s: int
    most: int
    steps: deque[_Counted] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = deque(maxlen=self.most)

    def add(self, ended_ms: int, counted_ms: int, amounts: list[int], booked: Mapping[str, int]) -> None:
        """Something was counted up to a time; none of it in steps before the last that is known."""
        number = (ended_ms - 1) // (self.step_s * _MS)
        if self.steps and self.steps[-1].number >= number:
            last = self.steps[-1]
            last.counted_ms += counted_ms
            last.amounts = [one + more for one, more in zip(last.amounts, amounts, strict=True)]
            last.booked = _few(added(last.booked, booked))
        else:
            self.steps.append(_Counted(number, counted_ms, amounts, _few(booked)))


class Timeline:
    """Times are monotonic, in milliseconds, moved so that steps begin where those of the wall clock do.

    Should that clock be set, the times told of all points move with it. Not thread-safe.
    """

    def __init__(self) -> None:
        self.fine = _Ring(MINUTE_S, _FINE_FOR_S // MINUTE_S)
        self.coarse = _Ring(_COARSE_S, _COARSE_FOR_S // _COARSE_S)
        self._moved_ms: int | None = None
        """To be added to a time."""
        self._told = Sums.none()
        """What was counted up to the last cut."""

    def align(self, now_ms: int, wall_s: float) -> None:
        """It is this time by either clock; the first call counts."""
        if self._moved_ms is None:
            self._moved_ms = int(wall_s * _MS) - now_ms

    def bounds(self, from_ms: int | None, until_ms: int) -> Iterator[int]:
        """Times after one and up to another at which a minute ends."""
        if from_ms is None or self._moved_ms is None:
            return
        step = MINUTE_S * _MS
        first = ((from_ms + self._moved_ms) // step + 1) * step - self._moved_ms
        yield from range(first, until_ms + 1, step)

    def cut(self, at_ms: int | None, sums: Sums) -> None:
        """So much was counted up to this time: what was not told yet belongs to the minute that it ends, or is in."""
        counted_ms = sums.counted_ms - self._told.counted_ms
        if at_ms is None or self._moved_ms is None or not counted_ms:
            return
        amounts = [now - before for now, before in zip(sums.amounts, self._told.amounts, strict=True)]
        booked = {name: more for name, now in sums.booked.items() if (more := now - self._told.booked.get(name, 0))}
        self._told = sums
        for ring in (self.fine, self.coarse):
            ring.add(at_ms + self._moved_ms, counted_ms, amounts, booked)

    def steps_since(self, since_s: float, step_s: int, now_ms: int, wall_s: float) -> tuple[int, list[Step]]:
        """From a Unix time on: the length of a step, and the steps.

        It is the length asked for, or the next of whole quarters of an hour where no minutes are kept for so long.
        """
        if since_s < wall_s - _FINE_FOR_S:
            step_s = -(-step_s // _COARSE_S) * _COARSE_S
        ring = self.fine if step_s % _COARSE_S else self.coarse
        moved_s = 0 if self._moved_ms is None else round(wall_s - (now_ms + self._moved_ms) / _MS)
        found = (
            Step(
                at,
                one.counted_ms / _MS,
                [amount / MICRO for amount in one.amounts],
                {name: amount / MICRO for name, amount in one.booked.items()},
            )
            for one in ring.steps
            if (at := one.number * ring.step_s + moved_s) >= since_s
        )
        return step_s, grouped(found, step_s)


def _few(booked: Mapping[str, int]) -> dict[str, int]:
    """Not too many namespaces, whoever makes them."""
    if len(booked) <= _MOST_NAMES:
        return dict(booked)
    most = sorted((name for name in booked if name != OTHER), key=lambda name: (-booked[name], name))
    kept = {name: booked[name] for name in most[: _MOST_NAMES - 1]}
    return kept | {OTHER: sum(booked.values()) - sum(kept.values())}
