"""Soft budgets: what is spent in the window, and who is told when."""

import random

import pytest

from extender.parts.usage.budgets import DAY_S, Budgets

HOUR = 3_600_000_000
"""Millionths of a GPU-second."""


def budgets(days: int = 30, **limits: float) -> Budgets:
    return Budgets(limits, days * DAY_S)


def test_a_namespace_is_told_once_at_four_fifths_and_once_at_all_of_it() -> None:
    found = budgets(a=100.0, b=100.0)
    told = []
    for hours in (79, 80, 90, 100, 150):
        found.note({"a": hours * HOUR}, 1e9)
        told.append(found.warnings())
    assert told == [
        {},
        {"a": "80.0 of 100 GPU-hours for 30 days are booked (80 %)"},
        {},
        {"a": "100.0 of 100 GPU-hours for 30 days are booked (100 %)"},
        {},
    ]


def booked_for(found: Budgets, hours: int) -> None:
    """One GPU of namespace a, looked at once a minute."""
    for minute in range(1, 60 * hours + 1):
        found.note({"a": minute * HOUR // 60}, minute * 60.0)


def test_what_was_booked_before_the_window_is_spent_no_more() -> None:
    found = budgets(2, a=100.0)
    booked_for(found, 72)
    assert found.spent()["a"].spent == pytest.approx(48, abs=1 / 60)


def test_of_what_was_booked_in_bursts_no_more_than_a_part_of_the_window_is_not_told_apart() -> None:
    """What is cut by the window's begin counts in proportion."""
    chance = random.Random(3)
    for days, at_s in ((1, 0.0), (2, 1e9 + 7.0)):
        found = budgets(days, a=100.0)
        booked: list[tuple[float, int]] = []
        so_far = 0
        for minute in range(1, 4000):
            booked.append((at_s + 60.0 * minute, chance.choice([0, 0, 0, 8, 16]) * HOUR // 60))
            so_far += booked[-1][1]
            found.note({"a": so_far}, booked[-1][0])
            if minute % 37 == 0:
                expected = sum(amount for at, amount in booked if at > booked[-1][0] - days * DAY_S) / HOUR
                assert found.spent()["a"].spent == pytest.approx(expected, abs=days * 16 / 60)


def test_prometheus_knows_what_others_have_counted_unless_it_has_just_begun_to_scrape() -> None:
    for told, spent in ((70.0, 75.0), (0.5, 15.0)):
        found = budgets(a=100.0)
        found.note({"a": 10 * HOUR}, 1e9)
        found.record_prometheus({"a": told})
        found.note({"a": 15 * HOUR}, 1e9)
        assert found.spent()["a"].spent == spent


def test_what_prometheus_tells_is_not_replaced_by_what_is_out_of_the_window() -> None:
    found = budgets(1, a=100.0)
    booked_for(found, 47)
    found.record_prometheus({"a": 24.0})
    assert found.spent()["a"].spent == pytest.approx(24.0)


def test_what_a_prometheus_told_that_answers_no_more_leaves_the_window() -> None:
    found = budgets(2, a=100.0)
    found.note({}, 0.0)
    found.record_prometheus({"a": 40.0})
    spent = []
    for day in (1, 2, 3):
        found.note({}, day * DAY_S)
        spent.append(found.spent()["a"].spent)
    assert spent == [20.0, 0.0, 0.0]


def test_a_budget_of_nothing_is_exceeded_by_anything() -> None:
    found = budgets(a=0.0)
    assert found.spent()["a"].frac == 0
    found.note({"a": HOUR}, 1e9)
    assert found.spent()["a"].frac == float("inf"), "above 1, as the alert asks"
    assert found.warnings() == {"a": "1.0 of 0 GPU-hours for 30 days are booked"}
