"""Accounts: rates times time, summed line by line in exact integers.

Time is in milliseconds and GPUs in thousandths, so sums are in millionths of a GPU-second.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Longs, Rows
from extender.explain.rates import NUM_OF_HOLDERS, NUM_OF_NODES
from extender.parts.usage.lines import Key, Lines

MICRO: Final = 1_000_000
"""Units of a sum in a GPU-second."""
_SHOWN_AFTER_MS: Final = 60_000
"""A new series is 0 for this long, so that Prometheus scrapes its start and `increase` counts all of it."""
_KEPT_MS: Final = 3_600_000
"""A series is kept for this long after the last of its GPUs was released."""
_NAMESPACE_DIVISOR: Final = 10
"""A namespace gets at most one in this many lines."""
_MAX_AHEAD: Final = 64
"""Rates that wait to be counted."""


class Rate(NamedTuple):
    """GPU milli by line, from a moment on. Immutable."""

    of_reports: Longs
    """(4, L) by line of the report, in the order of `Rates.of_groups`."""
    of_series: Longs
    """(4, S) by line of the series, in the same order."""
    of_models: Longs
    """(4, M) by GPU model, in the order of `Rates.of_nodes`."""
    live: Rows
    """Lines of the series that have holders."""


class Sums(NamedTuple):
    """Everything counted since the start."""

    counted_ms: int
    amounts: tuple[int, ...]
    """Totals of all models: capacity, free, stranded, sick; and of all holders: booked, used, measured, idle."""
    booked: Mapping[str, int]
    """By namespace."""

    @classmethod
    def none(cls) -> "Sums":
        """All zero."""
        return cls(0, (0,) * (NUM_OF_NODES + NUM_OF_HOLDERS), {})


@dataclass(eq=False)
class _Sums:
    """(K, L) sums of K kinds; grows with the number of lines."""

    num_kinds: int
    sums: Longs = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros((self.num_kinds, 0), np.int64)

    def widen(self, width: int) -> None:
        if width > self.sums.shape[1]:
            more = np.zeros((self.num_kinds, max(width, 2 * self.sums.shape[1]) - self.sums.shape[1]), np.int64)
            self.sums = np.concatenate([self.sums, more], axis=1)

    def add(self, rate: Longs, for_ms: int) -> None:
        self.widen(rate.shape[1])
        self.sums[:, : rate.shape[1]] += rate * for_ms


class Accounts:
    """Counts since the start of the process. Not thread-safe."""

    def __init__(self, max_series: int, max_report: int, models: Sequence[str], always: frozenset[str]) -> None:
        """`models` are the GPU models of `Rate.of_models`, a list that grows; `always` is as in `Lines`."""
        self.report = Lines(max_report, max(max_report // _NAMESPACE_DIVISOR, 1), always)
        self.series = Lines(max_series, max(max_series // _NAMESPACE_DIVISOR, 1), always)
        self._models = models
        self._of_reports, self._of_series = _Sums(NUM_OF_HOLDERS), _Sums(NUM_OF_HOLDERS)
        self._of_models = _Sums(NUM_OF_NODES)
        self.until_ms: int | None = None
        """Time up to which everything is counted."""
        self._ahead: deque[tuple[int, Rate]] = deque()
        """Rates in order of the time from which each applies; the first applies from `until_ms` or before."""
        self._opened_ms: dict[int, int] = {}
        """By series: when it began."""
        self._models_shown_ms: list[int] = []
        self._shown_ms: int | None = None
        """When the first series began."""
        self._held_ms: dict[int, int] = {}
        """By series: when it last had GPUs."""
        self.counted_ms = 0

    def begin(self, since_ms: int) -> None:
        """Count from a time on, with the next rates that are given."""
        self.until_ms = since_ms
        self._ahead.clear()

    def rate(self, at_ms: int, rate: Rate) -> None:
        """Set the rates from a time on; the first rates apply from `until_ms`."""
        if self.until_ms is None:
            return
        at_ms = max(at_ms, self._ahead[-1][0]) if self._ahead else self.until_ms
        if self._ahead and self._ahead[-1][1] is rate:
            return
        if len(self._ahead) >= _MAX_AHEAD:
            self._ahead.pop()  # the lease has not been renewed for long: an approximation
        self._ahead.append((at_ms, rate))

    def count(self, until_ms: int) -> int:
        """Count up to a time; returns the milliseconds counted."""
        if self.until_ms is None or not self._ahead or until_ms <= self.until_ms:
            return 0
        began = self.until_ms
        while True:
            _, rate = self._ahead[0]
            ends = min(self._ahead[1][0], until_ms) if len(self._ahead) > 1 else until_ms
            if (for_ms := ends - self.until_ms) > 0:
                self._of_reports.add(rate.of_reports, for_ms)
                self._of_series.add(rate.of_series, for_ms)
                self._of_models.add(rate.of_models, for_ms)
                self.until_ms = ends
            if len(self._ahead) == 1 or self._ahead[1][0] > until_ms:
                break
            self._ahead.popleft()
        self.counted_ms += until_ms - began
        return until_ms - began

    # Series

    def tend(self, now_ms: int, rate: Rate) -> None:
        """Open new series, note which have holders, and close those without holders for `_KEPT_MS`."""
        for number in self.series.opened:
            self._of_series.widen(number + 1)
            self._of_series.sums[:, number] = 0
            self._opened_ms[number] = self._held_ms[number] = now_ms
        self.series.opened.clear()
        self._shown_ms = now_ms if self._shown_ms is None else self._shown_ms
        self._models_shown_ms += [now_ms] * (len(self._models) - len(self._models_shown_ms))
        for number in set(rate.live.tolist()):
            self._held_ms[number] = now_ms
        for number in [number for number, held in self._held_ms.items() if now_ms - held > _KEPT_MS]:
            self.series.close(number)
            del self._held_ms[number], self._opened_ms[number]

    def shown(self, now_ms: int) -> Iterator[tuple[Key, Sequence[int]]]:
        """The series with their sums; 0 for those that have just begun."""
        for number, key in enumerate(self.series.keys):
            if key is not None and number in self._opened_ms:
                begins = now_ms - self._opened_ms[number] < _SHOWN_AFTER_MS
                yield key, [0] * NUM_OF_HOLDERS if begins else self._of_series.sums[:, number].tolist()

    def models_shown(self, now_ms: int) -> Iterator[tuple[str, Sequence[int]]]:
        """The GPU models with their sums; 0 for those that have just begun."""
        for number, (name, since) in enumerate(zip(self._models, self._models_shown_ms, strict=False)):
            self._of_models.widen(number + 1)
            begins = now_ms - since < _SHOWN_AFTER_MS
            yield name, [0] * NUM_OF_NODES if begins else self._of_models.sums[:, number].tolist()

    def counted_shown(self, now_ms: int) -> int:
        """Milliseconds counted; 0 if counting has just begun."""
        return 0 if self._shown_ms is None or now_ms - self._shown_ms < _SHOWN_AFTER_MS else self.counted_ms

    # The report

    def rows(self) -> Mapping[Key, Sequence[int]]:
        """All lines since the start, with their sums."""
        self._of_reports.widen(len(self.report.keys))
        columns = self._of_reports.sums.T.tolist()
        return {key: columns[number] for number, key in enumerate(self.report.keys) if key is not None}

    def totals(self) -> Sequence[int]:
        """Sums of all models: capacity, free, stranded and sick."""
        found: list[int] = self._of_models.sums.sum(axis=1).tolist()
        return found

    def sums(self) -> Sums:
        """Everything counted since the start."""
        of_holders = self._of_reports.sums
        booked: dict[str, int] = {}
        for key, amount in zip(self.report.keys, of_holders[0].tolist(), strict=False):
            if key is not None and amount:
                booked[key.namespace] = booked.get(key.namespace, 0) + amount
        return Sums(self.counted_ms, (*self.totals(), *of_holders.sum(axis=1).tolist()), booked)
