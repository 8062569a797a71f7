"""Changes of nodes, and queries by slices."""

import numpy as np
import pytest

from model.workloads.prometheus.client import TooMuchError
from model.workloads.prometheus.nodes import Inventory, Span, _settle
from model.workloads.prometheus.periods import Period, Slice, by_slice, seconds_of

HAD, LESS = Inventory(8, 64_000, 524_288), Inventory(0, 64_000, 524_288)


def period(*unknown: int) -> Period:
    """A hundred minutes, some of which are not known."""
    known = [60.0 * minute for minute in range(101) if minute not in unknown]
    return Period((Slice(-60, 6000),), 60, 30, np.array(known))


def span(first: int, last: int, had: Inventory = HAD) -> Span:
    return Span(60.0 * first, 60.0 * last, had)


def test_hiccups_are_no_changes() -> None:
    for seen, settled in (
        ([span(0, 50), span(51, 100)], [span(0, 100)]),
        ([span(0, 50), span(53, 100)], [span(0, 100)]),  # two minutes
        ([span(0, 50), span(54, 100)], [span(0, 50), span(54, 100)]),
        ([span(0, 50), span(51, 52, LESS), span(53, 100)], [span(0, 100)]),
        ([span(0, 50), span(51, 53, LESS), span(54, 100)], [span(0, 50), span(51, 53, LESS), span(54, 100)]),
        ([span(0, 1, LESS), span(2, 100)], [span(2, 100)]),  # its plugin had to start
        ([span(7, 7)], [span(7, 7)]),  # there for a moment only
        ([], []),
    ):
        assert _settle(seen, period()) == settled
    seen = [span(0, 20), span(41, 100)]
    assert _settle(seen, period(*range(21, 41))) == [span(0, 100)]  # where nothing is known nothing has changed
    assert _settle(seen, period(*range(22, 39))) == seen  # it was not there at 21, 39 and 40


def test_what_is_too_much_is_asked_in_halves() -> None:
    asked = []

    def ask(part: Slice) -> int:
        asked.append((part.since_s, part.until_s))
        if part.until_s - part.since_s > 7200:
            raise TooMuchError("too many samples")
        return part.until_s

    of_days = Period((Slice(0, 14_400), Slice(14_400, 18_000)), 60, 30, np.array([60.0]))
    assert [answer for _, answer in by_slice(of_days, ask)] == [7200, 14_400, 18_000]
    assert asked == [(0, 14_400), (0, 7200), (7200, 14_400), (14_400, 18_000)]

    def never(part: Slice) -> int:
        raise TooMuchError("too many samples")

    with pytest.raises(TooMuchError):
        list(by_slice(of_days, never))


def test_durations() -> None:
    assert [seconds_of(text) for text in ("30d", "12h", "90m", " 2w")] == [2_592_000, 43_200, 5400, 1_209_600]
    for text in ("30", "d", "0d", "-1d", "1y", "1.5d", "30 d"):
        with pytest.raises(ValueError, match=f"--since {text}: write a duration"):
            seconds_of(text)
    with pytest.raises(ValueError, match="--since 53w: write 366d at most"):
        seconds_of("53w")
