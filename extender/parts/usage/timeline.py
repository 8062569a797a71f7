"""The timeline: counts by minute for 25 hours, and by quarter of an hour for eight days.

Its points are differences between the accounts' sums, so they add up to these. It is kept in memory and begins with the
process.
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
"""Namespaces with separate figures in a point; those that booked less in it count as OTHER."""


@dataclass(slots=True)
class _Counted:
    """The counts of a step, in the units of `Sums`."""

    number: int
    counted_ms: int
    amounts: list[int]
    booked: dict[str, int]


@dataclass(eq=False)
class _Ring:
    """The newest steps of one length."""

    step_s: int
    most: int
    steps: deque[_Counted] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = deque(maxlen=self.most)

    def add(self, ended_ms: int, counted_ms: int, amounts: list[int], booked: Mapping[str, int]) -> None:
        """Add counts up to a time to its step; counts of earlier steps than the last go to the last."""
        number = (ended_ms - 1) // (self.step_s * _MS)
        if self.steps and self.steps[-1].number >= number:
            last = self.steps[-1]
            last.counted_ms += counted_ms
            last.amounts = [one + more for one, more in zip(last.amounts, amounts, strict=True)]
            last.booked = _limited(added(last.booked, booked))
        else:
            self.steps.append(_Counted(number, counted_ms, amounts, _limited(booked)))


class Timeline:
    """Keeps steps by monotonic time in milliseconds, offset so that steps align with the wall clock.

    If that clock is set, the reported times of all points move with it. Not thread-safe.
    """

    def __init__(self) -> None:
        self.fine = _Ring(MINUTE_S, _FINE_FOR_S // MINUTE_S)
        self.coarse = _Ring(_COARSE_S, _COARSE_FOR_S // _COARSE_S)
        self._offset_ms: int | None = None
        """Wall clock minus monotonic clock."""
        self._counted = Sums.none()
        """The sums at the last cut."""

    def align(self, now_ms: int, wall_s: float) -> None:
        """Set the offset from the same moment by both clocks; only the first call counts."""
        if self._offset_ms is None:
            self._offset_ms = int(wall_s * _MS) - now_ms

    def bounds(self, from_ms: int | None, until_ms: int) -> Iterator[int]:
        """Ends of minutes after `from_ms` and up to `until_ms`."""
        if from_ms is None or self._offset_ms is None:
            return
        step = MINUTE_S * _MS
        first = ((from_ms + self._offset_ms) // step + 1) * step - self._offset_ms
        yield from range(first, until_ms + 1, step)

    def cut(self, at_ms: int | None, sums: Sums) -> None:
        """Add the counts since the last cut to the step that contains or ends at `at_ms`; `sums` are the new totals."""
        counted_ms = sums.counted_ms - self._counted.counted_ms
        if at_ms is None or self._offset_ms is None or not counted_ms:
            return
        amounts = [now - before for now, before in zip(sums.amounts, self._counted.amounts, strict=True)]
        booked = {name: more for name, now in sums.booked.items() if (more := now - self._counted.booked.get(name, 0))}
        self._counted = sums
        for ring in (self.fine, self.coarse):
            ring.add(at_ms + self._offset_ms, counted_ms, amounts, booked)

    def steps_since(self, since_s: float, step_s: int, now_ms: int, wall_s: float) -> tuple[int, list[Step]]:
        """The length of a step, and the steps from a Unix time on.

        The length is `step_s`, rounded up to a multiple of 15 minutes if minutes are not kept for that long.
        """
        if since_s < wall_s - _FINE_FOR_S:
            step_s = -(-step_s // _COARSE_S) * _COARSE_S
        ring = self.fine if step_s % _COARSE_S else self.coarse
        moved_s = 0 if self._offset_ms is None else round(wall_s - (now_ms + self._offset_ms) / _MS)
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


def _limited(booked: Mapping[str, int]) -> dict[str, int]:
    """The `_MOST_NAMES` namespaces that booked most; the others are summed as OTHER."""
    if len(booked) <= _MOST_NAMES:
        return dict(booked)
    most = sorted((name for name in booked if name != OTHER), key=lambda name: (-booked[name], name))
    kept = {name: booked[name] for name in most[: _MOST_NAMES - 1]}
    return kept | {OTHER: sum(booked.values()) - sum(kept.values())}
