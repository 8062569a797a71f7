"""Pods that have GPUs and do nothing with them: for how long."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.usage.holders import Holders
from extender.usage.rates import Rates

_NEARLY: Final = 0.95
_MOSTLY: Final = 0.8
_ALL: Final = 0.999
"""Parts of what Prometheus tells of all of a time: some seconds are lost when another takes the lead, and no load is
known until telemetry is read anew."""


class IdlePod(NamedTuple):
    """A pod all of whose GPUs have been idle for long."""

    pod: str
    """`namespace/name`."""
    namespace: str
    owner: str
    node: str
    gpus: float
    idle_s: float


@dataclass(eq=False)
class IdleTimes:
    """Since when holders are idle, as far as telemetry tells. Not thread-safe."""

    holders: Holders
    _since_s: Floats
    """(U,) by number, inf where it is not idle."""
    _milli: Longs
    """(U,) booked."""

    @classmethod
    def none(cls, holders: Holders) -> "IdleTimes":
        """Nobody is, as far as is known."""
        return cls(holders, np.zeros(0), np.zeros(0, np.int64))

    def note(self, rates: Rates, fresh: list[int], now: float) -> None:
        """These are the rates from now on; `fresh` are numbers that are other holders' since the last time.

        A pod of which nothing is known for a while begins anew: nobody can say that it did nothing.
        """
        width = len(rates.idles)
        since = np.append(self._since_s, np.full(max(width - len(self._since_s), 0), np.inf))[:width]
        since[fresh] = np.inf
        idles: Mask = rates.idles
        self._since_s = np.where(idles, np.minimum(since, now), np.inf)
        self._milli = rates.booked

    def forget(self) -> None:
        """Others look after it from now on."""
        self._since_s[:] = np.inf

    def recall(self, rows: Mapping[str, Sequence[float]], window_s: float, now: float) -> None:
        """What others saw who led before: rows are GPU-seconds booked, used, measured and idle in a time up to now, by
        `namespace/owner`. An owner who had all the GPUs that it has now for all of that time, and of whose loads nobody
        saw one that was more than idle, has pods that are idle for so long, unless they are at work now."""
        of_owner: dict[str, list[int]] = {}
        for number in np.flatnonzero(self._milli).tolist():
            if (holder := self.holders.at(number)) is not None:
                of_owner.setdefault("/".join(holder.who), []).append(number)
        for name, numbers in of_owner.items():
            booked, _, measured, idle = rows.get(name, (0.0, 0.0, 0.0, 0.0))
            whole = window_s * int(self._milli[numbers].sum()) / WHOLE_MILLI
            if booked >= _NEARLY * whole and measured >= _MOSTLY * whole and idle >= _ALL * measured:
                since = self._since_s[numbers]
                self._since_s[numbers] = np.where(np.isfinite(since), np.minimum(since, now - window_s), since)

    def seconds(self, now: float, width: int) -> Floats:
        """(U,) for how long each of so many holders has been idle; NaN for those that are not, or that were given their
        numbers since the last note."""
        found = np.full(width, np.nan)
        known = min(width, len(self._since_s))
        idle = now - self._since_s[:known]
        found[:known] = np.where(np.isfinite(idle), idle, np.nan)
        found[[number for number in self.holders.fresh if number < width]] = np.nan
        return found

    def pods(self, now: float, after_s: float) -> Iterator[IdlePod]:
        """Those that have been idle for so long, the longest first."""
        numbers = np.flatnonzero(self.seconds(now, len(self._since_s)) >= after_s)
        for number in numbers[np.argsort(self._since_s[numbers], kind="stable")].tolist():
            holder = self.holders.at(number)
            if holder is not None:
                idle_s, gpus = now - float(self._since_s[number]), int(self._milli[number]) / WHOLE_MILLI
                yield IdlePod(holder.name, *holder.who, holder.node, gpus, idle_s)
