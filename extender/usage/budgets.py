"""Soft budgets of GPU-hours by namespace: what was spent of them in a rolling window, and who has to be told.

Nobody is refused anything for it. What was booked before this process counted is known where there is a Prometheus to
be asked; elsewhere the window begins with the process.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.usage.accounts import MICRO

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
_WARNED_AT: Final = (0.8, 1.0)
"""Parts of a budget; once each for as long as it stays above."""


class Spent(NamedTuple):
    """A namespace's budget, in GPU-hours."""

    budget: float
    spent: float

    @property
    def frac(self) -> float:
        """Spent part of it; above 1 where it is exceeded."""
        return self.spent / self.budget if self.budget else float(self.spent > 0)


@dataclass(eq=False)
class Budgets:
    """What namespaces with a budget have booked. Not thread-safe."""

    limits: Mapping[str, float]
    """GPU-hours for a window, by namespace."""
    window_s: float
    _days: dict[str, deque[tuple[int, float]]] = field(default_factory=dict, init=False)
    """GPU-hours by day, as far as this process counted."""
    _counted: dict[str, float] = field(default_factory=dict, init=False)
    """GPU-hours since the start, as they were noted last."""
    _told: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """What Prometheus told, and what this process had counted by then."""
    _warned: dict[str, float] = field(default_factory=dict, init=False)

    def note(self, booked: Mapping[str, int], wall_s: float) -> None:
        """So many millionths of GPU-seconds were booked since the start, at this Unix time."""
        today, first = int(wall_s // DAY_S), int((wall_s - self.window_s) // DAY_S)
        for namespace in self.limits:
            hours = booked.get(namespace, 0) / MICRO / HOUR_S
            more = hours - self._counted.get(namespace, 0.0)
            self._counted[namespace] = hours
            days = self._days.setdefault(namespace, deque())
            if days and days[-1][0] >= today:
                days[-1] = days[-1][0], days[-1][1] + more
            else:
                days.append((today, more))
            while days[0][0] < first:
                days.popleft()

    def told(self, hours: Mapping[str, float]) -> None:
        """Prometheus tells what was booked in the window."""
        self._told = {name: (hours.get(name, 0.0), self._counted.get(name, 0.0)) for name in self.limits}

    def spent(self) -> dict[str, Spent]:
        """How the budgets stand."""
        return {name: Spent(limit, self._spent(name)) for name, limit in self.limits.items()}

    def warnings(self) -> dict[str, str]:
        """What is new to be said, by namespace."""
        found: dict[str, str] = {}
        for name, (budget, spent) in self.spent().items():
            frac = Spent(budget, spent).frac
            reached = max((step for step in _WARNED_AT if frac >= step), default=0.0)
            if reached > self._warned.get(name, 0.0):
                days = f"{self.window_s / DAY_S:g} days"
                found[name] = f"{spent:.1f} of {budget:g} GPU-hours for {days} are booked ({100 * frac:.0f} %)"
            self._warned[name] = reached
        return found

    def _spent(self, name: str) -> float:
        own = sum(hours for _, hours in self._days.get(name, ()))
        if name not in self._told:
            return own
        before, counted = self._told[name]
        return max(own, before + self._counted.get(name, 0.0) - counted)
