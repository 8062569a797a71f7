"""The mix of arriving pods: decay, bounds, and the distance between mixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import ANY_MODEL, Arrivals, PodClasses, drift, typical_mix

CLASSES = st.lists(st.sampled_from("abc"), max_size=60)


@given(CLASSES, st.sampled_from([0.5, 3.0, 40.0]), st.dictionaries(st.sampled_from("abd"), st.integers(1, 9)))
def test_counts_sum_what_is_left_of_each_pod(seen: str, half_life: float, prior: dict[str, float]) -> None:
    arrivals: Arrivals[str] = Arrivals(half_life)
    for asked in seen:
        arrivals.add(asked)
    right: dict[str, float] = {}
    for age, asked in enumerate(reversed(seen)):
        right[asked] = right.get(asked, 0.0) + 0.5 ** (age / half_life)
    assert arrivals.counts() == pytest.approx(right)
    for asked, pods in prior.items():
        right[asked] = right.get(asked, 0.0) + pods * 0.5 ** (len(seen) / half_life)
    assert arrivals.after(prior) == pytest.approx(right)


def test_counts_keep_their_precision_and_drop_the_rarest_classes() -> None:
    arrivals: Arrivals[str] = Arrivals(2.0)
    for number in range(5000):  # 2 ** 2500 is no float
        arrivals.add("ab"[number % 2])
    # 1 + 1/2 + 1/4 + ... of "b", the newest, and half as many of "a" by its age of one pod: 1/sqrt(2).
    assert arrivals.counts() == pytest.approx({"b": 2.0, "a": 2.0 * 0.5**0.5})
    bounded: Arrivals[int] = Arrivals(1000.0, max_classes=10)
    for number in range(200):
        bounded.add(0)
        bounded.add(number)
    counts = bounded.counts()
    assert len(counts) <= 10
    assert max(counts, key=counts.__getitem__) == 0
    with pytest.raises(ValueError, match="half-life"):
        Arrivals(0.0)


def test_drift_is_the_fraction_of_pods_that_differ() -> None:
    for one, other, fraction in (
        ({"a": 1, "b": 1}, {"a": 30, "b": 30}, 0),
        ({"a": 3, "b": 1}, {"a": 1, "b": 1}, 0.25),  # 75 and 50 %
        ({"a": 1}, {"b": 1}, 1),
        ({"a": 1}, {}, 1),
        ({}, {"b": 1}, 1),
        ({}, {}, 0),
    ):
        assert drift(one, other) == fraction


def test_typical_pods_cover_most_and_ignore_memory() -> None:
    rows = [(4000, 1, 1, 1000), (4000, 2, 1, 1000), (8000, 1, 1, 500), (1000, 1, 0, 0), (9000, 1, 8, 1000)]
    cpu, memory, num, milli = (np.array(column) for column in zip(*rows, strict=True))
    asks = PodClasses(cpu, memory, num, milli, np.full(5, ANY_MODEL))
    mix = typical_mix(asks, np.array([30.0, 30.0, 20.5, 15.0, 4.5]))
    assert mix.cpu_milli.tolist() == [4000, 8000, 1000]  # 60, 20.5 and 15 of 100: more than 95 %
    assert mix.frequency == pytest.approx(np.array([60, 20.5, 15]) / 95.5)
    assert len(typical_mix(asks, np.zeros(5)).frequency) == 0
