"""Expected run times of jobs, learned from jobs that have ended."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_BEFORE_ANY_S: Final = 3600.0
"""Expected seconds before any job has ended."""
_PRIOR_WEIGHT: Final = 5.0
"""Weight of the wider group's mean, in jobs, against a group's own mean."""
_KEPT: Final = 0.99
"""Decay of older jobs' weight per ended job: about the last hundred jobs count."""
_MAX_OWNERS: Final = 10_000


@dataclass(slots=True)
class _Runs:
    weight: float = 0.0
    sum_s: float = 0.0


@dataclass
class Durations:
    """Mean run times by owner, each shrunk towards the mean of the next wider owner and finally of all jobs.

    Owners of a job are listed narrowest first: ("ns/Job/train/8 GPUs", "ns/8 GPUs", "ns"). The mean, not the median,
    because shortest-expected-first needs it (Smith's rule): a rare long run does delay the jobs behind it.
    """

    _all: _Runs = field(default_factory=_Runs)
    _owners: OrderedDict[str, _Runs] = field(default_factory=OrderedDict)

    def finished(self, owners: Sequence[str], seconds: float) -> None:
        """Record the run time of an ended job of these owners; negative, infinite and NaN values are ignored."""
        if not 0 <= seconds < float("inf"):
            return
        for owner in owners:
            self._learn(self._owners.setdefault(owner, _Runs()), seconds)
            self._owners.move_to_end(owner)
            if len(self._owners) > _MAX_OWNERS:
                self._owners.popitem(last=False)
        self._learn(self._all, seconds)

    def expected_s(self, owners: Sequence[str]) -> float:
        """The expected run time of a job of these owners."""
        mean = self._all.sum_s / self._all.weight if self._all.weight else _BEFORE_ANY_S
        for owner in reversed(owners):
            known = self._owners.get(owner)
            if known is not None:
                mean = (known.sum_s + _PRIOR_WEIGHT * mean) / (known.weight + _PRIOR_WEIGHT)
        return mean

    def knows(self, owners: Sequence[str]) -> bool:
        """Whether a job of one of these owners has been recorded."""
        return any(owner in self._owners for owner in owners)

    @property
    def num_owners(self) -> int:
        """Number of owners with recorded jobs."""
        return len(self._owners)

    @staticmethod
    def _learn(runs: _Runs, seconds: float) -> None:
        runs.weight = runs.weight * _KEPT + 1
        runs.sum_s = runs.sum_s * _KEPT + seconds
