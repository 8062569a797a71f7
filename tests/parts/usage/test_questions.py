"""Questions to Prometheus, and lengths of time."""

import pytest

from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import PrometheusQuery, Step, query, seconds_of
from extender.parts.usage.steps import _MOST_STEPS, AMOUNTS, Span, by_names, grouped, names_told, span_of
from extender.telemetry.sources.source import Access


def test_a_length_of_time() -> None:
    for text, seconds in (("7d", 604_800), ("36h", 129_600), ("1m", 60), ("2w", 1_209_600), ("60s", 60)):
        assert seconds_of(text) == seconds
    assert seconds_of("366d") == 366 * 86_400
    for text in ("", "7", "d", "-7d", "0d", "1.5d", "7D", "7 d", "59s", "367d", "9" * 40 + "d", "7d7d", "７d"):
        with pytest.raises(ValueError, match="is not a duration"):
            seconds_of(text)


def test_what_prometheus_is_asked() -> None:
    for by, what, matchers, expected in (
        ("namespace", "booked", "", "sum by (namespace) (increase(kerf_booked_gpu_seconds_total[3600s]))"),
        ("owner", "used", "", "sum by (namespace, owner) (increase(kerf_used_gpu_seconds_total[3600s]))"),
        ("model", "idle", 'a="b"', 'sum by (gpu_model) (increase(kerf_idle_gpu_seconds_total{a="b"}[3600s]))'),
        ("model", "sick", "", "sum (increase(kerf_sick_gpu_seconds_total[3600s]))"),
    ):
        found = query(PrometheusQuery("http://p", Access(), 3600, by, matchers), what)
        assert found.replace("sum(", "sum (") == expected


def test_a_span() -> None:
    for since, step, span in (
        ("1h", "", Span(3600, 60)),
        ("24h", "", Span(86_400, 900)),
        ("7d", "", Span(604_800, 7200)),
        ("366d", "", Span(31_622_400, 604_800)),
        ("7d", "1d", Span(604_800, 86_400)),
        ("2h", "2m", Span(7200, 120)),
    ):
        assert span_of(since, step) == span


def test_what_is_none_is_refused_with_what_would_be_right() -> None:
    for since, step, said in (
        ("7", "1d", "since: '7' is not a duration from 1m to 366d: write 7d, 36h or 90m"),
        ("7d", "-1d", "step: '-1d' is not a duration"),
        ("7d", "90s", "step: 90s is not a whole number of minutes"),
        ("1h", "2h", "step: 2h is longer than 1h"),
        ("7d", "1m", "step: 7d in steps of 1m is 10080 steps, more than 750: use 15m or more"),
        ("366d", "1h", "step: 366d in steps of 1h is 8784 steps, more than 750: use 720m or more"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            span_of(since, step)


def test_a_step_that_nobody_asked_for_is_never_too_short() -> None:
    for since in ("1m", "59m", "1h", "13h", "24h", "7d", "30d", "366d"):
        span = span_of(since, "")
        assert span.window_s / span.step_s <= 100 < _MOST_STEPS
        assert span_of(since, f"{span.step_s}s") == span


def test_the_first_step_is_the_one_in_which_the_time_begins() -> None:
    assert Span(86_400, 3600).first(1_000_000_000.0) == 1_000_000_000 - 86_400 - 2800  # 02:46:40 in steps of hours


def step(at: int, booked: dict[str, float], seconds: float = 60.0) -> Step:
    return Step(at, seconds, [sum(booked.values())] * len(AMOUNTS), booked)


def test_longer_steps_are_sums_and_begin_where_those_of_the_clock_do() -> None:
    steps = [step(540, {"x": 1.0}), step(600, {"x": 2.0, "y": 4.0}, 30.0), step(1140, {"y": 8.0})]
    assert grouped(steps, 600) == [
        Step(0, 60.0, [1.0] * 8, {"x": 1.0}),
        Step(600, 90.0, [14.0] * 8, {"x": 2.0, "y": 12.0}),
    ]
    assert steps[0].amounts == [1.0] * 8, "what was given stays as it was"


def test_those_that_booked_most_are_told_and_all_others_are_one() -> None:
    steps = [step(0, {name: float(amount) for amount, name in enumerate("abcdefgh")}), step(60, {"b": 100.0, OTHER: 1})]
    names = names_told(steps)
    assert names == ["b", "h", "g", "f", "e", OTHER]
    assert by_names(steps[0], names) == [1.0, 7.0, 6.0, 5.0, 4.0, 3.0 + 2.0]
    assert by_names(steps[1], names) == [100.0, 0, 0, 0, 0, 1]
    assert (names_told([step(0, {"a": 1.0, "idle": 0.0})]), names_told([])) == (["a"], [])
