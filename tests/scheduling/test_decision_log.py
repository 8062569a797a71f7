"""Decisions that are kept, and what is told of them."""

from types import SimpleNamespace
from typing import cast

from extender.scheduling.assignments import DecisionLog, Placement
from extender.scheduling.placer import PodIdentity


def placement(name: str, uid: str) -> Placement:
    return cast("Placement", SimpleNamespace(pod=PodIdentity("ns", name, uid)))


def test_what_is_out_of_date_is_not_told_until_the_next_decision() -> None:
    log = DecisionLog(10)
    log.add(placement("p", "1"))
    log.add(other := placement("q", "2"))
    log.outdate("ns", "p")
    assert (log.last("ns", "p"), log.last("ns", "q")) == (None, other)
    log.add(newer := placement("p", "3"))
    assert log.last("ns", "p") is newer


def test_names_without_a_decision_take_no_room() -> None:
    log = DecisionLog(2)
    log.add(placement("p", "1"))
    log.add(placement("q", "2"))
    log.outdate("ns", "p")
    for number in range(10):
        log.outdate("ns", f"unknown-{number}")
    assert log.last("ns", "p") is None
