"""How long a job will run, from those that ended before it: what an order may know."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

PRIOR_WEIGHT: Final = 5.0
"""Jobs' worth of belief in the wider group's mean against a group's own."""


@dataclass
class _Group:
    count: int = 0
    sum_log: float = 0.0


@dataclass
class History:
    """Means of the logarithm of durations: of a team's jobs of one size, drawn towards the team's, and all jobs'.

    Only jobs that have ended are told of: nothing is known of a job that runs, or waits.
    """

    default_s: float = 3600.0
    """Before anything has ended."""
    _all: _Group = field(default_factory=_Group)
    _teams: dict[str, _Group] = field(default_factory=lambda: defaultdict(_Group))
    _sizes: dict[tuple[str, int], _Group] = field(default_factory=lambda: defaultdict(_Group))

    def ended(self, team: str, num_gpus: int, duration_s: float) -> None:
        """Learn from a job."""
        for group in (self._all, self._teams[team], self._sizes[team, num_gpus]):
            group.count += 1
            group.sum_log += math.log1p(duration_s)

    def estimate_s(self, team: str, num_gpus: int) -> float:
        """The expected duration of a job not seen yet, as a geometric mean."""
        mean = math.log1p(self.default_s)
        for group in (self._all, self._teams[team], self._sizes[team, num_gpus]):
            mean = (group.sum_log + PRIOR_WEIGHT * mean) / (group.count + PRIOR_WEIGHT)
        return math.expm1(mean)
