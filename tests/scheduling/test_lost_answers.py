"""Nodes that something behind Kerf rejects: another one is offered after the second time, and no sooner."""

from collections.abc import Iterator

import pytest

from extender.kube.memory import MemoryCluster
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

P = pod("p", 1)


@pytest.fixture
def kerf() -> Iterator[Kerf]:
    with running(MemoryCluster([node("a", 4), node("b", 4)]), decisions__mode="decisive") as kerf:
        yield kerf


def answer(kerf: Kerf, manifest: dict[str, object] = P, *names: str) -> str:
    (found,) = kerf.filter(manifest, list(names or ("a", "b")))["NodeNames"]
    return str(found)


def test_another_node_is_offered_once_an_answer_was_rejected_twice(kerf: Kerf) -> None:
    first = answer(kerf)
    (other,) = {"a", "b"} - {first}
    assert [answer(kerf) for _ in range(3)] == [first, other, other]
    assert answer(kerf, pod("q", 1), first) == first, "other pods get it"


def test_it_is_offered_again_after_a_while_and_then_later(kerf: Kerf) -> None:
    first = answer(kerf)
    answer(kerf)
    assert answer(kerf) != first
    kerf.clock.now += 61
    assert answer(kerf) == first
    for _ in range(2):
        kerf.clock.now += 61
        assert answer(kerf) != first


def test_where_nothing_else_fits_it_is_offered_all_the_same(kerf: Kerf) -> None:
    first = answer(kerf)
    assert [answer(kerf, P, first, "unknown") for _ in range(4)] == [first] * 4


def test_a_failed_binding_does_not_count_as_a_rejection(kerf: Kerf) -> None:
    first = answer(kerf)
    for _ in range(4):
        kerf.bind(P, "nowhere")
        assert answer(kerf) == first


def test_another_request_and_another_pod_of_the_name_start_over(kerf: Kerf) -> None:
    first = answer(kerf)
    answer(kerf)
    assert [answer(kerf, pod("p", 2)) for _ in range(2)] == [first] * 2
    recreated = pod("p", 1)
    recreated["metadata"]["uid"] = "another"
    assert answer(kerf, recreated) == first


def test_of_many_candidates_the_best_of_the_others_is_offered() -> None:
    names = [f"n{number:03}" for number in range(300)]
    with running(MemoryCluster([node(name, 4) for name in names]), decisions__mode="decisive") as kerf:
        rejected = list[str]()
        for _ in range(3):
            first = answer(kerf, P, *names)
            assert first not in rejected
            assert answer(kerf, P, *names) == first
            rejected.append(first)
        # Where few others are left it is one of these, where there are none a rejected one.
        assert answer(kerf, P, *rejected, "n299") == "n299"
        assert answer(kerf, P, *rejected) in rejected
