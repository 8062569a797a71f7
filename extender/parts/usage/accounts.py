"""Accounts: rates times time, added up line by line in whole numbers that lose nothing.

Time is told in whole milliseconds and GPUs in thousandths: sums are millionths of a GPU-second.
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
"""Of a GPU-second."""
_SHOWN_AFTER_MS: Final = 60_000
"""A new series is 0 for so long, so that whoever scrapes it sees it begin: `increase` then counts all of it."""
_KEPT_MS: Final = 3_600_000
"""For so long a series stays after the last of its GPUs was given back."""
_EACH: Final = 10
"""A namespace gets one in so many lines."""
_MAX_AHEAD: Final = 64


class Rate(NamedTuple):
    """GPU milli by line, from a moment on. Never changed."""

    of_reports: Longs
    """(4, L) by line of the report."""
    of_series: Longs
    """(4, S) by line of the series."""
    of_models: Longs
    """(4, M) what there is, as of `Rates.of_nodes`, by GPU model."""
    live: Rows
    """Lines of the series that somebody counts on."""


class Sums(NamedTuple):
    """All that was counted since the start."""

    counted_ms: int
    amounts: tuple[int, ...]
    """Of all models: capacity, free, stranded and sick; of all holders: booked, used, measured and idle."""
    booked: Mapping[str, int]
    """By namespace."""

    @classmethod
    def none(cls) -> "Sums":
        """Nothing yet."""
        return cls(0, (0,) * (NUM_OF_NODES + NUM_OF_HOLDERS), {})


@dataclass(eq=False)
class _Sums:
    """(K, L) sums, as wide as there are lines."""

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
    """What was counted since the start. Not thread-safe."""

    def __init__(self, max_series: int, max_report: int, models: Sequence[str], always: frozenset[str]) -> None:
        """`models` are the names of GPU models, as of `Rate.of_models`: a list that grows; `always` as of `Lines`."""
        self.report = Lines(max_report, max(max_report // _EACH, 1), always)
        self.series = Lines(max_series, max(max_series // _EACH, 1), always)
        self._models = models
        self._of_reports, self._of_series = _Sums(NUM_OF_HOLDERS), _Sums(NUM_OF_HOLDERS)
        self._of_models = _Sums(NUM_OF_NODES)
        self.until_ms: int | None = None
        """Up to when it was counted."""
        self._ahead: deque[tuple[int, Rate]] = deque()
        """Rates, each from its time on, in that order; the first from `until_ms` or before."""
        self._opened_ms: dict[int, int] = {}
        """When a series began."""
        self._models_shown_ms: list[int] = []
        self._shown_ms: int | None = None
        """When the first of all began."""
        self._held_ms: dict[int, int] = {}
        """When a series was last seen to have GPUs."""
        self.counted_ms = 0
        """Time counted."""

    def begin(self, since_ms: int) -> None:
        """Count from a time on: at first by the rates that come next."""
        self.until_ms = since_ms
        self._ahead.clear()

    def rate(self, at_ms: int, rate: Rate) -> None:
        """The rates are these from a time on, or from the beginning, if none is known of before."""
        if self.until_ms is None:
            return
        at_ms = max(at_ms, self._ahead[-1][0]) if self._ahead else self.until_ms
        if self._ahead and self._ahead[-1][1] is rate:
            return
        if len(self._ahead) >= _MAX_AHEAD:
            self._ahead.pop()  # nothing is certain for long: roughly, then
        self._ahead.append((at_ms, rate))

    def count(self, until_ms: int) -> int:
        """Count what was booked up to a time, in order; returns for how many milliseconds."""
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

    # Series come and go

    def tend(self, now_ms: int, rate: Rate) -> None:
        """Note which series are new and which hold something, and close those that have held nothing for long."""
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
        """The series, each with its sums; 0 for those that have just begun."""
        for number, key in enumerate(self.series.keys):
            if key is not None and number in self._opened_ms:
                begins = now_ms - self._opened_ms[number] < _SHOWN_AFTER_MS
                yield key, [0] * NUM_OF_HOLDERS if begins else self._of_series.sums[:, number].tolist()

    def models_shown(self, now_ms: int) -> Iterator[tuple[str, Sequence[int]]]:
        """What there was, by GPU model, in the same way."""
        for number, (name, since) in enumerate(zip(self._models, self._models_shown_ms, strict=False)):
            self._of_models.widen(number + 1)
            begins = now_ms - since < _SHOWN_AFTER_MS
            yield name, [0] * NUM_OF_NODES if begins else self._of_models.sums[:, number].tolist()

    def counted_shown(self, now_ms: int) -> int:
        """Milliseconds counted, in the same way."""
        return 0 if self._shown_ms is None or now_ms - self._shown_ms < _SHOWN_AFTER_MS else self.counted_ms

    # The report

    def rows(self) -> Mapping[Key, Sequence[int]]:
        """All lines since the start, with their sums."""
        self._of_reports.widen(len(self.report.keys))
        columns = self._of_reports.sums.T.tolist()
        return {key: columns[number] for number, key in enumerate(self.report.keys) if key is not None}

    def totals(self) -> Sequence[int]:
        """Of all models: capacity, free, stranded and sick."""
        found: list[int] = self._of_models.sums.sum(axis=1).tolist()
        return found

    def sums(self) -> Sums:
        """All of it."""
        of_holders = self._of_reports.sums
        booked: dict[str, int] = {}
        for key, amount in zip(self.report.keys, of_holders[0].tolist(), strict=False):
            if key is not None and amount:
                booked[key.namespace] = booked.get(key.namespace, 0) + amount
        return Sums(self.counted_ms, (*self.totals(), *of_holders.sum(axis=1).tolist()), booked)
