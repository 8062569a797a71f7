"""Assignments in words, and the decisions that are kept."""

from types import SimpleNamespace
from typing import cast

from extender.scheduling.assignments import Assignment, DecisionLog, Placement
from extender.scheduling.placer import PodIdentity


def test_an_assignment_in_words_names_the_node_and_at_most_eight_devices() -> None:
    def assignment(*devices: str, gpus: tuple[int, ...] = ()) -> str:
        return str(Assignment("n", 2, gpus, (), 1000, (), (), "h100", "2 GPUs", "kerf", False, 3, 9, devices))

    eight = ", ".join("d" * 8)
    assert assignment(gpus=(0, 3)) == "Assigned GPUs 0,3 (h100) on node n by policy kerf"
    assert assignment(*"d" * 8) == f"Allocated {eight} on node n by policy kerf"
    assert assignment(*"d" * 11) == f"Allocated {eight} and 3 more on node n by policy kerf"


def test_outdated_decisions_are_not_returned_and_unknown_names_take_no_room() -> None:
    def placement(name: str, uid: str) -> Placement:
        return cast("Placement", SimpleNamespace(pod=PodIdentity("ns", name, uid)))

    log = DecisionLog(2)
    log.add(placement("p", "1"))
    log.add(other := placement("q", "2"))
    log.outdate("ns", "p")
    for number in range(10):
        log.outdate("ns", f"unknown-{number}")
    assert (log.last("ns", "p"), log.last("ns", "q"), log.last("other", "q")) == (None, other, None)
    log.add(newer := placement("p", "3"))
    assert (log.last("ns", "p"), log.last("ns", "q")) == (newer, other)
    log.add(placement("r", "4"))
    assert (log.last("ns", "p"), log.last("ns", "q")) == (newer, None), "the oldest goes"
