"""Soft budgets of GPU-hours by namespace: what was spent in a rolling window, and warnings.

No pod is refused. With a Prometheus, hours booked before this process counted are included; without one, the window
begins with the process.
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
"""Parts of the window: an hour each for 30 days."""
_WARNED_AT: Final = (0.8, 1.0)
"""Fractions of a budget at which a warning is given, once each time they are reached."""


class Spent(NamedTuple):
    """A namespace's budget, in GPU-hours."""

    budget: float
    spent: float

    @property
    def frac(self) -> float:
        """Spent fraction; above 1 if exceeded, infinite if anything is spent of a budget of 0."""
        return self.spent / self.budget if self.budget else math.inf if self.spent > 0 else 0.0


@dataclass(eq=False)
class Budgets:
    """Tracks what the namespaces with a budget have booked. Not thread-safe."""

    limits: Mapping[str, float]
    """GPU-hours for a window, by namespace."""
    window_s: float
    _parts: dict[str, deque[tuple[int, float]]] = field(default_factory=dict, init=False)
    """GPU-hours counted by this process, by part of the window."""
    _own: dict[str, float] = field(default_factory=dict, init=False)
    """Their sums: GPU-hours in the window."""
    _counted: dict[str, float] = field(default_factory=dict, init=False)
    """GPU-hours since the start, as of the last `note`."""
    _noted_s: float = field(default=0.0, init=False)
    _from_prometheus: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """GPU-hours from Prometheus, and those that this process had counted by then."""
    _from_prometheus_s: float = field(default=0.0, init=False)
    _warned: dict[str, float] = field(default_factory=dict, init=False)

    def note(self, booked: Mapping[str, int], wall_s: float) -> None:
        """Record what was booked since the start, in millionths of GPU-seconds, as of a Unix time."""
        self._noted_s, part_s = wall_s, self.window_s / _PARTS
        number = math.ceil(wall_s / part_s) - 1  # a part includes its end
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
            oldest, amount = parts[0]  # counts by the fraction that is in the window
            self._own[namespace] = sum(one for _, one in parts) - amount * min(max(began - oldest, 0.0), 1.0)

    def record_prometheus(self, hours: Mapping[str, float]) -> None:
        """Record what Prometheus has for the window, in GPU-hours."""
        self._from_prometheus_s = self._noted_s
        self._from_prometheus = {name: (hours.get(name, 0.0), self._counted.get(name, 0.0)) for name in self.limits}

    def spent(self) -> dict[str, Spent]:
        """By namespace: its budget and what it spent in the window."""
        return {name: Spent(limit, self._spent(name)) for name, limit in self.limits.items()}

    def warnings(self) -> dict[str, str]:
        """By namespace, a message if it has newly reached a warning threshold."""
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
        if name not in self._from_prometheus:
            return own
        hours, counted = self._from_prometheus[name]
        # If Prometheus stops answering, its last figure leaves the window evenly.
        expired = min(max(self._noted_s - self._from_prometheus_s, 0.0) / self.window_s, 1.0)
        # A Prometheus that has scraped Kerf for a short time only has less than this process counted.
        return max(own, hours * (1 - expired) + self._counted.get(name, 0.0) - counted)
