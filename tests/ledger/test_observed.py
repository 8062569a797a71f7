"""The writer's observations alone: how long samples count, and what load is expected of pods just placed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.core.observations import Observations, SampleState
from extender.ledger.arrays import ClusterArrays, HeldAmounts, ObservedArrays, SampleTimes
from tests.core.builders import node

TIMES = SampleTimes(fresh_s=90.0, forget_s=900.0, warmup_s=45.0)
T4 = ("Tesla-T4", 15360)


def observed_of(num_rows: int, num_slots: int = 2) -> ObservedArrays:
    return ObservedArrays(TIMES, num_rows, num_slots)


def sample(observed: ObservedArrays, loads: Mapping[int, Sequence[float]], at: float, now: float = 0.0) -> list[int]:
    """Take loads of some rows at a time; return the rows that changed."""
    raw, sampled_at = observed.begin(), observed.current.sampled_at.copy()
    for row, values in loads.items():
        raw[Gauge.LOAD, row, : len(values)] = values
        sampled_at[row] = at
    changed: list[int] = observed.commit(raw, sampled_at, now or at).tolist()
    return changed


def loads(observed: ObservedArrays) -> list[list[float]]:
    """Loads that count, -1 for none."""
    values: list[list[float]] = np.nan_to_num(observed.current.gauge(Gauge.LOAD), nan=-1.0).tolist()
    return values


def expected(observed: ObservedArrays) -> list[list[float]]:
    values: list[list[float]] = observed.current.expected_load.tolist()
    return values


def copied(observations: Observations) -> tuple[object, ...]:
    values = np.nan_to_num(observations.value, nan=-1.0).tolist()
    return values, observations.state.tolist(), observations.sampled_at.tolist(), observations.expected_load.tolist()


def test_nothing_is_known_at_first() -> None:
    observed = observed_of(2)
    assert observed.current.state.tolist() == [SampleState.MISSING] * 2
    assert (loads(observed), expected(observed)) == ([[-1, -1]] * 2, [[0, 0]] * 2)
    assert observed.current.outdated.tolist() == [[False, False]] * 2
    assert not observed.has_samples
    assert sample(observed, {}, at=100.0) == []
    assert not observed.has_samples
    sample(observed, {0: [0.5]}, at=100.0)
    sample(observed, {}, at=150.0)
    assert observed.has_samples


# How long samples count.


def test_samples_by_age() -> None:
    for age_s, state, counts in (
        (0.0, SampleState.FRESH, True),
        (90.0, SampleState.FRESH, True),
        (90.5, SampleState.STALE, False),
        (900.0, SampleState.STALE, False),
        (900.5, SampleState.MISSING, False),
    ):
        observed = observed_of(1)
        sample(observed, {0: [0.5, 0.25]}, at=1000.0)
        observed.age(1000.0 + age_s)
        assert observed.current.state.tolist() == [state]
        assert loads(observed) == [[0.5, 0.25] if counts else [-1, -1]]


def test_only_rows_that_changed_are_named() -> None:
    observed = observed_of(4)
    assert sample(observed, {0: [0.5], 1: [0.5], 2: [0.5]}, at=100.0) == [0, 1, 2]
    version = observed.current.version
    assert sample(observed, {0: [0.5], 1: [0.75]}, at=150.0) == [1]
    assert observed.current.version > version
    assert observed.age(191.0).tolist() == [2]
    assert observed.expect("u", 3, (0,), 0.5, 191.0).tolist() == [3]
    assert observed.age(191.0 + 90.0 + 45.0).tolist() == [0, 1, 3], "two are stale, one expects no load"


def test_equal_samples_make_a_row_younger_without_changing_it() -> None:
    observed = observed_of(2)
    sample(observed, {0: [0.5], 1: [0.5]}, at=100.0)
    before = observed.current
    assert sample(observed, {0: [0.5]}, at=150.0) == []
    assert (observed.current.sampled_at.tolist(), observed.current.version) == ([150.0, 100.0], before.version)
    assert before.sampled_at.tolist() == [100.0, 100.0]
    assert observed.age(191.0).tolist() == [1]


# What is expected of pods just placed.


def test_load_expected_of_a_pod() -> None:
    for slots, load, of_gpus in (
        ((1,), 0.5, [0.0, 0.5, 0.0, 0.0]),
        ((0, 3), 0.5, [0.5, 0.0, 0.0, 0.5]),
        ((), 0.5, [0.125] * 4),  # on unknown GPUs: spread over all
        ((4,), 0.5, [0.125] * 4),
        ((2, 4), 0.5, [0.0, 0.0, 0.5, 0.0]),
        ((0,), 1.75, [1.0, 0.0, 0.0, 0.0]),
    ):
        observed = observed_of(2, 4)
        assert observed.expect("u", 1, slots, load, 100.0).tolist() == [1]
        assert expected(observed) == [[0.0] * 4, of_gpus]


def test_expected_loads_add_up_and_each_pod_counts_in_one_place() -> None:
    observed = observed_of(3)
    for uid in "abc":
        observed.expect(uid, 2, (0,), 0.375, 100.0)
    assert expected(observed)[2] == [1.0, 0.0]
    assert observed.expect_no_more("a").tolist() == [2]
    assert expected(observed)[2] == [0.75, 0.0]
    assert observed.expect("b", 0, (1,), 0.25, 101.0).tolist() == [0, 2]
    assert expected(observed) == [[0, 0.25], [0, 0], [0.375, 0]]
    assert [observed.expect_no_more("b").tolist() for _ in range(2)] == [[0], []]


def test_a_load_is_expected_until_samples_show_it_or_are_missing_for_too_long() -> None:
    shown, missing = ((144.0, 144.0, True), (145.0, 145.0, False)), ((120.0, 234.0, True), (120.0, 235.0, False))
    for sampled_at, now, still in (*shown, *missing):
        observed = observed_of(1)
        observed.expect("u", 0, (0,), 0.5, 100.0)
        sample(observed, {0: [0.0]}, sampled_at, now)
        assert expected(observed) == [[0.5 if still else 0.0, 0.0]]


# GPUs with more free memory than before.


def test_samples_of_a_released_gpu_are_outdated_until_its_node_is_sampled_again() -> None:
    observed = observed_of(2)
    sample(observed, {0: [0.5], 1: [0.5]}, at=100.0)
    observed.mark_outdated(0, (1,))
    assert observed.current.outdated.tolist() == [[False, True], [False, False]]
    sample(observed, {1: [0.75]}, at=150.0)
    assert observed.current.outdated.tolist() == [[False, True], [False, False]]
    assert sample(observed, {0: [0.5]}, at=151.0) == [0], "what is outdated counts as a change"
    assert not observed.current.outdated.any()


def test_before_samples_come_nothing_of_them_is_outdated() -> None:
    arrays = ClusterArrays()
    arrays.observe(TIMES)
    row = arrays.set_node("n", node(T4, T4).offer)
    arrays.set_held(row, HeldAmounts({0: (1000, 15360)}, 0))
    observed = arrays.observed
    assert observed is not None
    before = observed.current
    arrays.set_held(row, HeldAmounts({}, 0))
    assert observed.current is before
    sample(observed, {row: [0.5, 0.5]}, at=100.0)
    arrays.set_held(row, HeldAmounts({1: (1000, 15360)}, 0))
    assert not observed.current.outdated.any(), "less is free than before"
    arrays.set_held(row, HeldAmounts({}, 0))
    assert observed.current.outdated[row].tolist() == [False, True]
    arrays.remove_node("n")
    arrays.set_node("next", node(T4, T4).offer)
    assert (observed.current.outdated[row].any(), observed.current.state[row]) == (False, SampleState.MISSING)


# Rows that are used again, and growth.


@pytest.mark.parametrize("sampled", [True, False])
def test_the_next_node_of_a_row_inherits_nothing(sampled: bool) -> None:
    observed = observed_of(2)
    if sampled:
        sample(observed, {0: [0.5, 0.5], 1: [0.5, 0.5]}, at=100.0)
    for row, uid in enumerate(("gone", "stays")):
        observed.expect(uid, row, (0,), 0.25, 90.0)
        observed.mark_outdated(row, (1,))
    version = observed.current.version
    observed.forget(0)
    assert observed.current.version > version
    assert expected(observed) == [[0, 0], [0.25, 0]]
    assert observed.current.outdated.tolist() == [[False, False], [False, True]]
    assert observed.current.sampled_at.tolist() == [-np.inf, 100.0 if sampled else -np.inf]
    assert observed.current.state.tolist() == [SampleState.MISSING, SampleState(2 * sampled)]
    assert loads(observed) == [[-1, -1], [0.5, 0.5] if sampled else [-1, -1]]
    observed.age(101.0)
    assert expected(observed) == [[0, 0], [0.25, 0]]
    assert observed.expect_no_more("gone").tolist() == []


def test_new_cells_of_a_larger_cluster_are_missing() -> None:
    observed = observed_of(1, 1)
    sample(observed, {0: [0.5]}, at=100.0)
    observed.expect("u", 0, (0,), 0.25, 90.0)
    observed.mark_outdated(0, (0,))
    version = observed.current.version
    observed.resize(2, 2)
    assert (observed.shape, observed.current.version > version) == ((2, 2), True)
    assert (loads(observed), expected(observed)) == ([[0.5, -1], [-1, -1]], [[0.25, 0], [0, 0]])
    assert observed.current.outdated.tolist() == [[True, False], [False, False]]
    assert observed.current.state.tolist() == [SampleState.FRESH, SampleState.MISSING]
    before = observed.current
    observed.resize(2, 2)
    assert observed.current is before
    assert sample(observed, {1: [0.5, 0.75]}, at=101.0) == [1]


def test_no_later_change_reaches_what_was_published_and_each_is_a_new_version() -> None:
    observed = observed_of(2)
    published = []
    for change in (
        lambda: sample(observed, {0: [0.5, 0.5]}, at=100.0),
        lambda: observed.expect("u", 0, (0,), 0.25, 100.0),
        lambda: sample(observed, {0: [0.75, 0.5], 1: [0.25, 0.25]}, at=110.0),
        lambda: observed.mark_outdated(0, (0,)),
        lambda: observed.age(205.0),
        lambda: observed.forget(0),
        lambda: observed.expect("v", 1, (1,), 0.25, 205.0),
        lambda: observed.expect_no_more("v"),
    ):
        change()
        published.append((observed.current, copied(observed.current)))
    for observations, state in published:
        assert copied(observations) == state
        for array in (observations.value, observations.state, observations.sampled_at, observations.expected_load):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    versions = [observations.version for observations, _ in published]
    assert versions == sorted(set(versions))
