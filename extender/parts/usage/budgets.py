"""Soft budgets of GPU-hours by namespace: what was spent of them in a rolling window, and who has to be told.

Nobody is refused anything for it. What was booked before this process counted is known where there is a Prometheus to
be asked; elsewhere the window begins with the process.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.parts.usage.accounts import MICRO

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
_PARTS: Final = 720
"""In which the window is kept: an hour each, of 30 days."""
_WARNED_AT: Final = (0.8, 1.0)
"""Parts of a budget; once each for as long as it stays above."""


class Spent(NamedTuple):
    """A namespace's budget, in GPU-hours."""

    budget: float
    spent: float

    @property
    def frac(self) -> float:
        """Spent part of it; above 1 where it is exceeded, infinite where there was nothing to spend."""
        return self.spent / self.budget if self.budget else math.inf if self.spent > 0 else 0.0


@dataclass(eq=False)
class Budgets:
    """What namespaces with a budget have booked. Not thread-safe."""

    limits: Mapping[str, float]
    """GPU-hours for a window, by namespace."""
    window_s: float
    _parts: dict[str, deque[tuple[int, float]]] = field(default_factory=dict, init=False)
    """GPU-hours by part of the window, as far as this process counted."""
    _own: dict[str, float] = field(default_factory=dict, init=False)
    """Their sums: GPU-hours in the window."""
    _counted: dict[str, float] = field(default_factory=dict, init=False)
    """GPU-hours since the start, as they were noted last."""
    _noted_s: float = field(default=0.0, init=False)
    _told: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """What Prometheus told, and what this process had counted by then."""
    _told_s: float = field(default=0.0, init=False)
    _warned: dict[str, float] = field(default_factory=dict, init=False)

    def note(self, booked: Mapping[str, int], wall_s: float) -> None:
        """So many millionths of GPU-seconds were booked since the start, at this Unix time."""
        self._noted_s, part_s = wall_s, self.window_s / _PARTS
        number = math.ceil(wall_s / part_s) - 1  # what is booked up to its end is a part's
        began = (wall_s - self.window_s) / part_s
        for namespace in self.limits:
            hours = booked.get(namespace, 0) / MICRO / HOUR_S
            more = hours - self._counted.get(namespace, 0.0)
            self._counted[namespace] = hours
            parts = self._parts.setdefault(namespace, deque())
            if parts and parts[-1][0] >= number:
                parts[-1] = parts[-1][0], parts[-1][1] + more
            else:
                parts.append((number, more))
            while parts[0][0] + 1 <= began:
                parts.popleft()
            oldest, amount = parts[0]  # as much of it as is in the window
            self._own[namespace] = sum(one for _, one in parts) - amount * min(max(began - oldest, 0.0), 1.0)

    def told(self, hours: Mapping[str, float]) -> None:
        """Prometheus tells what was booked in the window."""
        self._told_s = self._noted_s
        self._told = {name: (hours.get(name, 0.0), self._counted.get(name, 0.0)) for name in self.limits}

    def spent(self) -> dict[str, Spent]:
        """How the budgets stand."""
        return {name: Spent(limit, self._spent(name)) for name, limit in self.limits.items()}

    def warnings(self) -> dict[str, str]:
        """What is new to be said, by namespace."""
        found: dict[str, str] = {}
        for name, (budget, spent) in self.spent().items():
            frac = Spent(budget, spent).frac
            percent = f" ({100 * frac:.0f} %)" if budget else ""
            reached = max((step for step in _WARNED_AT if frac >= step), default=0.0)
            if reached > self._warned.get(name, 0.0):
                days = f"{self.window_s / DAY_S:g} days"
                found[name] = f"{spent:.1f} of {budget:g} GPU-hours for {days} are booked{percent}"
            self._warned[name] = reached
        return found

    def _spent(self, name: str) -> float:
        own = self._own.get(name, 0.0)
        if name not in self._told:
            return own
        told, counted = self._told[name]
        # What it told leaves the window by and by: evenly, as far as is known, should it answer no more.
        gone = min(max(self._noted_s - self._told_s, 0.0) / self.window_s, 1.0)
        # All that this process counted was booked: a Prometheus that scrapes it for a short time only has told less.
        return max(own, told * (1 - gone) + self._counted.get(name, 0.0) - counted)
