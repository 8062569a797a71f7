"""Period of a history, its slices for queries, and the times with data."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from extender.core.clusters import Floats
from model.workloads.prometheus.client import Prometheus, PrometheusError, TooMuchError

DAY_S: Final = 86_400
_HOUR_S: Final = 3600
_MOST_DAYS: Final = 366
_UNITS_S: Final = {"m": 60, "h": _HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_LEAST_STEP_S, _MOST_STEP_S = 60, 300
"""Prometheus' lookback is five minutes."""
_LOST_FRAC: Final = 0.1
"""Tolerated fraction of lost or late scrapes, so that they don't lengthen the step."""
_MOST_SAMPLES: Final = 10_000_000
"""Samples that a query may load; Prometheus refuses more than 50 million."""
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Slice:
    """A part of a period, excluding its start; both ends are Unix times in seconds and multiples of the step."""

    since_s: int
    until_s: int

    @property
    def window(self) -> str:
        """Length in PromQL."""
        return f"{self.until_s - self.since_s}s"

    @property
    def day(self) -> str:
        """ISO date of its end."""
        return datetime.fromtimestamp(self.until_s, UTC).date().isoformat()


@dataclass(frozen=True)
class Period:
    """Times with data about the cluster."""

    slices: tuple[Slice, ...]
    step_s: int
    """Resolution of times that no series has."""
    scrape_interval_s: int
    known_s: Floats
    """(T,) ascending times, a step apart, with a scrape of kube-state-metrics."""

    @property
    def since_s(self) -> float:
        return float(self.known_s[0])

    @property
    def until_s(self) -> float:
        return float(self.known_s[-1])

    def steps_between(self, from_s: float, until_s: float) -> int:
        """Return the number of known times between two times, exclusive."""
        first, last = np.searchsorted(self.known_s, from_s, "right"), np.searchsorted(self.known_s, until_s, "left")
        return int(last - first)


def seconds_of(text: str) -> int:
    """Parse a duration such as 30d or 12h. Raises ValueError."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text.strip())
    if not found:
        raise ValueError(f"--since {text}: write a duration such as 30d or 12h")
    seconds = int(found[1]) * _UNITS_S[found[2]]
    if seconds > _MOST_DAYS * DAY_S:
        raise ValueError(f"--since {text}: write {_MOST_DAYS}d at most")
    return seconds


def read_period(prometheus: Prometheus, since: str, nodes: str, pods: str) -> Period:
    """Return the part of the last `since` that has data.

    `nodes` and `pods` select one series for each node and pod. Raises PrometheusError if there is no data.
    """
    now_s, span_s = int(prometheus.time_s()), seconds_of(since)
    until_s = now_s // _LEAST_STEP_S * _LEAST_STEP_S
    since_s = until_s - span_s
    times: list[float] = []
    for start in range(since_s, until_s, DAY_S):
        end = min(start + DAY_S, until_s)
        for _, values in prometheus.ranged(f"count({nodes})", start + _LEAST_STEP_S, end, _LEAST_STEP_S):
            times += values
    if not times:
        raise PrometheusError(
            f"{prometheus.url}: no {nodes} in the last {since}: check that it scrapes kube-state-metrics, "
            "or use a longer --since or another --match"
        )
    first_s, last_s = int(min(times)), int(max(times))
    interval_s = _scrape_interval_s(prometheus, nodes, first_s, last_s)
    minutes = math.ceil(interval_s / _LEAST_STEP_S * (1 - _LOST_FRAC))
    step_s = int(np.clip(minutes * _LEAST_STEP_S, _LEAST_STEP_S, _MOST_STEP_S))
    known_s = np.array(sorted(time for time in times if time % step_s == 0) or sorted(times))
    slice_s = _slice_s(prometheus, pods, known_s, step_s)
    edges = [*range(first_s // step_s * step_s - step_s, last_s, slice_s), -(-last_s // step_s) * step_s]
    slices = tuple(Slice(*ends) for ends in pairwise(edges))
    return Period(slices, step_s, interval_s, known_s)


def by_slice(period: Period, ask: Callable[[Slice], AnswerT]) -> Iterator[tuple[Slice, AnswerT]]:
    """Yield the answer for each slice, in order; a slice that is too large is halved. Raises PrometheusError."""
    waiting = list(reversed(period.slices))
    while waiting:
        part = waiting.pop()
        try:
            answer = ask(part)
        except TooMuchError:
            half_s = (part.until_s - part.since_s) // 2 // period.step_s * period.step_s
            if half_s < _HOUR_S:
                raise
            middle = part.since_s + half_s
            waiting += [Slice(middle, part.until_s), Slice(part.since_s, middle)]
        else:
            yield part, answer


def _scrape_interval_s(prometheus: Prometheus, nodes: str, first_s: int, last_s: int) -> int:
    """Return the interval of the node with most scrapes in the hour before the last scrape."""
    ((_, end_s),) = prometheus.instant(f"max(timestamp({nodes}))", last_s)
    window_s = min(_HOUR_S, int(end_s) - first_s + _LEAST_STEP_S)
    ((_, num_scrapes),) = prometheus.instant(f"max(count_over_time({nodes}[{window_s}s]))", end_s)
    return round(window_s / num_scrapes)


def _slice_s(prometheus: Prometheus, pods: str, known_s: Floats, step_s: int) -> int:
    """Return a day, or fewer hours so that a query stays below the sample limit; sampled at about ten times."""
    times = known_s[:: max(len(known_s) // 10, 1)].tolist()
    counts = [value for at_s in times for _, value in prometheus.instant(f"count({pods})", at_s)]
    hours = _MOST_SAMPLES * step_s / max(counts, default=1.0) // _HOUR_S
    return int(np.clip(hours * _HOUR_S, _HOUR_S, DAY_S))
