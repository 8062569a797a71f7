"""The timeline: minutes and quarters of an hour, made of what the accounts have counted."""

import itertools

from extender.kube.leadership import LeadTime
from extender.parts.usage.accounts import Sums
from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import Step
from extender.parts.usage.steps import Span, grouped
from extender.parts.usage.timeline import Timeline
from tests.parts.usage.rigs import Rig

BEGAN = 1_000_001_000
"""Unix time of the rig's clock when it begins: 03:03:20, so that the first minute has 40 s."""


def told(rig: Rig, since_s: float = 0.0, step_s: int = 60) -> list[Step]:
    rig.meter.cut()
    now = rig.clock()
    return rig.meter.timeline.steps_since(since_s or 1e9 + now - 3600, step_s, rig.meter.now_ms, 1e9 + now)[1]


def booked(steps: list[Step]) -> list[tuple[int, float, float]]:
    """When a step begins, from the first second on; for how long it was counted; and what was booked."""
    return [(step.at - BEGAN, step.seconds, step.amounts[4]) for step in steps]


def test_minutes_are_those_of_the_clock_and_hold_what_was_counted_in_them() -> None:
    rig = Rig()
    rig.node("n", 4)
    rig.pod("p", 2, "n")
    rig.passes(35.0)
    rig.gone("p")
    rig.pod("q", 1, "n", "other")
    rig.passes(70.0)  # over the end of a minute, and of another
    steps = told(rig)
    assert booked(steps) == [(-20, 40.0, 2 * 35.0 + 5.0), (40, 60.0, 60.0), (100, 5.0, 5.0)]
    assert [step.booked for step in steps] == [{"default": 70.0, "other": 5.0}, {"other": 60.0}, {"other": 5.0}]
    assert steps[1].amounts[0] == 240.0  # four GPUs


def test_after_another_has_led_there_is_a_gap() -> None:
    rig = Rig(led=LeadTime("1", 1000.0, 1000.0))
    rig.node("n", 4)
    rig.pod("p", 1, "n")
    rig.tick()
    rig.led = LeadTime("1", 1000.0, 1030.0)
    rig.tick(30.0)
    rig.standby = "standby: the lease is held by another"
    rig.tick(600.0)
    rig.standby, rig.led = "", LeadTime("2", 1620.0, 1640.0)
    rig.tick(10.0)
    rig.tick(5.0)
    assert booked(told(rig)) == [(-20, 30.0, 30.0), (580, 20.0, 20.0)]


def test_older_than_a_day_is_told_in_quarters_of_an_hour() -> None:
    rig = Rig()
    rig.node("n", 4)
    rig.pod("p", 1, "n")
    rig.tick()
    for _ in range(30):
        rig.tick(3600.0)  # each minute of a long sleep has its own
    now = 1e9 + rig.clock()
    minutes, quarters = told(rig, now - 86_400), told(rig, now - 2 * 86_400)
    assert {after.at - before.at for before, after in itertools.pairwise(minutes)} == {60}
    assert {(step.seconds, step.amounts[4]) for step in minutes[1:-1]} == {(60.0, 60.0)}
    assert {after.at - before.at for before, after in itertools.pairwise(quarters)} == {900}
    counted = [step.seconds for step in quarters]
    assert (counted[:2], counted[-1], sum(counted)) == ([700.0, 900.0], 200.0, 30 * 3600.0)  # it is 03:03:20
    first = Span(86_400, 3600).first(now)
    assert told(rig, first, 3600) == grouped(told(rig, first), 3600), "whichever they are made of"
    assert len(rig.meter.timeline.fine.steps) == 25 * 60, "no more than a day and an hour of minutes"


def test_where_the_clock_is_set_all_steps_move_with_it() -> None:
    timeline = Timeline()
    timeline.align(5_000, 1e9)
    timeline.cut(25_000, Sums(20_000, (0,) * 8, {}))
    (before,), (after,) = (timeline.steps_since(wall - 3600, 60, 25_000, wall)[1] for wall in (1e9 + 20, 1e9 + 3620))
    assert (before.at, after.at) == (1e9 - 40, 1e9 - 40 + 3600)


def test_masses_of_namespaces_are_not_told_apart_in_a_step() -> None:
    for num in (20, 21):
        timeline = Timeline()
        timeline.align(0, 1e9)
        amounts = {f"n{number:03}": number + 1 for number in range(num)}
        timeline.cut(20_000, Sums(20_000, (0, 0, 0, 0, sum(amounts.values()), 0, 0, 0), amounts))
        (step,) = timeline.fine.steps
        assert len(step.booked) == 20
        assert step.booked[f"n{num - 1:03}"] == num
        assert sum(step.booked.values()) == sum(amounts.values())
        assert (OTHER in step.booked) == (num > 20)
