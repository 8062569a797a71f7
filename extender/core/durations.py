"""How long a job is expected to run: learned from jobs that ended before it, never from its own future."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_BEFORE_ANY_S: Final = 3600.0
"""Expected while nothing has ended yet."""
_PRIOR_WEIGHT: Final = 5.0
"""Jobs' worth of belief in the wider group's mean against a group's own."""
_KEPT: Final = 0.99
"""Of the weight of what is known, with each job that ends: about the last hundred count."""
_MAX_OWNERS: Final = 10_000


@dataclass(slots=True)
class _Runs:
    weight: float = 0.0
    sum_s: float = 0.0


@dataclass
class Durations:
    """Mean run times by owner, each drawn towards that of the next wider owner, and in the end of all.

    Owners of a job are named narrowest first, as ("ns/Job/train/8 GPUs", "ns/8 GPUs", "ns"). The mean, and not the
    median: it is what shortest-expected-first orders by (Smith's rule for expected times), and a rare long run does
    delay those behind it.
    """

    _all: _Runs = field(default_factory=_Runs)
    _owners: OrderedDict[str, _Runs] = field(default_factory=OrderedDict)

    def finished(self, owners: Sequence[str], seconds: float) -> None:
        """A job of these owners has run so long; what is no duration is not learned from."""
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
        """Whether a job of one of these owners has ended before."""
        return any(owner in self._owners for owner in owners)

    @property
    def num_owners(self) -> int:
        """Owners of whom something is known."""
        return len(self._owners)

    @staticmethod
    def _learn(runs: _Runs, seconds: float) -> None:
        runs.weight = runs.weight * _KEPT + 1
        runs.sum_s = runs.sum_s * _KEPT + seconds
