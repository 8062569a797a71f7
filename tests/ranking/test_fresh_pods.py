"""Pods that came since: no namespace has more say than its part of the GPUs in use."""

import pytest

from extender.core.fragmentation import fair_weights
from extender.ranking.demands import Kind
from extender.ranking.seen_pods import _FreshPods

ONE, ODD = Kind(0, 0, 1, 1000), Kind(0, 0, 1, 130)


def test_who_floods_counts_as_much_as_it_holds() -> None:
    fresh = _FreshPods()
    for _ in range(100):
        fresh.add("research", ONE)
    for _ in range(9900):
        fresh.add("flood", ODD)
    counts = fresh.counts({"research": 95.0, "flood": 5.0})
    assert counts[ODD] / (counts[ODD] + counts[ONE]) == pytest.approx(0.05)
    assert counts[ONE] == 100
    counts = fresh.counts({"research": 95.0})
    assert counts[ODD] / (counts[ODD] + counts[ONE]) == pytest.approx(0.02)


def test_who_is_within_its_part_counts_in_full() -> None:
    assert fair_weights({"a": 50, "b": 50}, {"a": 1.0, "b": 1.0}) == {"a": 1.0, "b": 1.0}
    assert fair_weights({"a": 50}, {}) == {"a": 1.0}
    assert fair_weights({"a": 50}, {"a": 3.0}) == {"a": 1.0}
    assert fair_weights({}, {"a": 3.0}) == {}


def test_several_who_flood_are_all_cut() -> None:
    pods = {"a": 100, "b": 5000, "c": 4000}
    weight = fair_weights(pods, {"a": 80.0, "b": 10.0, "c": 10.0})
    whole = sum(weight[name] * pods[name] for name in pods)
    for name in ("b", "c"):
        assert weight[name] * pods[name] / whole == pytest.approx(0.1, rel=0.01)
    assert weight["a"] == 1.0


def test_a_stage_begins_with_nothing_and_kinds_are_bounded() -> None:
    fresh = _FreshPods()
    for number in range(510):
        fresh.add("a", Kind(number, 0, 1, 1000))
    assert fresh.num == 500
    fresh.add("a", Kind(5, 0, 1, 1000))
    fresh.add("b", Kind(900, 0, 1, 1000))  # one namespace's many kinds are no reason to leave out another's
    assert fresh.num == 502
    fresh.begin()
    assert (fresh.num, fresh.counts({})) == (0, {})
