"""Nodes that something behind Kerf rejects: another one is offered after the second time, and no sooner."""

from collections.abc import Iterator

import pytest

from extender.kube.memory import MemoryCluster
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

NAMES = ["a", "b"]


@pytest.fixture
def kerf() -> Iterator[Kerf]:
    with running(MemoryCluster([node("a", 4), node("b", 4)]), decisions__mode="decisive") as kerf:
        yield kerf


def answered(kerf: Kerf, manifest: dict[str, object], names: list[str] | None = None) -> list[str]:
    found: list[str] = kerf.filter(manifest, names or NAMES)["NodeNames"]
    return found


def test_another_node_is_offered_once_an_answer_was_rejected_twice(kerf: Kerf) -> None:
    asking = pod("p", 1)
    (first,) = answered(kerf, asking)
    (other,) = set(NAMES) - {first}
    assert answered(kerf, asking) == [first]  # once has honest reasons
    assert answered(kerf, asking) == [other]
    assert answered(kerf, asking) == [other]
    # Nobody else is kept from the first.
    assert answered(kerf, pod("q", 1), [first]) == [first]


def test_it_is_offered_again_after_a_while_and_then_for_longer_not(kerf: Kerf) -> None:
    asking = pod("p", 1)
    (first,) = answered(kerf, asking)
    answered(kerf, asking)
    assert answered(kerf, asking) != [first]
    kerf.clock.now += 61
    assert answered(kerf, asking) == [first]
    kerf.clock.now += 61
    assert answered(kerf, asking) != [first]
    kerf.clock.now += 61
    assert answered(kerf, asking) != [first]


def test_where_nothing_else_fits_it_is_offered_all_the_same(kerf: Kerf) -> None:
    asking = pod("p", 1)
    (first,) = answered(kerf, asking)
    for _ in range(4):
        assert answered(kerf, asking, [first, "unknown"]) == [first]


def test_a_binding_that_fails_is_no_rejection(kerf: Kerf) -> None:
    asking = pod("p", 1)
    (first,) = answered(kerf, asking)
    for _ in range(4):
        kerf.bind(asking, "nowhere")
        assert answered(kerf, asking) == [first]


def test_another_request_and_another_pod_of_the_name_begin_anew(kerf: Kerf) -> None:
    asking = pod("p", 1)
    (first,) = answered(kerf, asking)
    answered(kerf, asking)
    assert answered(kerf, pod("p", 2)) == [first]
    assert answered(kerf, pod("p", 2)) == [first]
    recreated = pod("p", 1)
    recreated["metadata"]["uid"] = "another"
    assert answered(kerf, recreated) == [first]


def test_of_many_candidates_the_best_of_the_others_is_offered() -> None:
    names = [f"n{number:03}" for number in range(300)]
    with running(MemoryCluster([node(name, 4) for name in names]), decisions__mode="decisive") as kerf:
        asking, passed = pod("p", 1), list[str]()
        for _ in range(3):
            (first,) = answered(kerf, asking, names)
            assert first not in passed
            assert answered(kerf, asking, names) == [first]
            passed.append(first)
        # Of candidates that leave few others one of these, and where there are no others one that was passed over.
        assert answered(kerf, asking, [*passed, "n299"]) == ["n299"]
        assert set(answered(kerf, asking, passed)) <= set(passed)
