"""Soft budgets: what is spent in the window, and who is told when."""

from extender.usage.budgets import DAY_S, Budgets

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


def test_what_was_booked_before_the_window_is_spent_no_more() -> None:
    found = budgets(2, a=100.0)
    for day in range(6):
        found.note({"a": (day + 1) * 10 * HOUR}, day * DAY_S)
    assert found.spent()["a"].spent == 30.0  # of today, and of the two days before


def test_prometheus_knows_what_others_have_counted() -> None:
    found = budgets(a=100.0)
    found.note({"a": 10 * HOUR}, 1e9)
    found.told({"a": 70.0})
    found.note({"a": 15 * HOUR}, 1e9)
    assert found.spent()["a"].spent == 75.0


def test_a_budget_of_nothing_is_exceeded_by_anything() -> None:
    found = budgets(a=0.0)
    assert found.spent()["a"].frac == 0
    found.note({"a": HOUR}, 1e9)
    assert found.spent()["a"].frac == 1
    assert found.warnings()
