"""Expected run times."""

import math

import pytest

from extender.core.durations import _BEFORE_ANY_S, _KEPT, _PRIOR_WEIGHT, Durations


def drawn(known_s: float, weight: float, wider_s: float) -> float:
    return (known_s + _PRIOR_WEIGHT * wider_s) / (weight + _PRIOR_WEIGHT)


def test_means_are_drawn_towards_those_of_wider_owners() -> None:
    durations = Durations()
    assert durations.expected_s(("ns/job", "ns")) == _BEFORE_ANY_S
    durations.finished(("ns/job", "ns"), 10.0)
    durations.finished(("ns/other", "ns"), 100.0)
    everything = (10.0 * _KEPT + 100.0) / (_KEPT + 1)
    namespace = drawn(10.0 * _KEPT + 100.0, _KEPT + 1, everything)
    assert durations.expected_s(("else",)) == durations.expected_s(()) == pytest.approx(everything)
    assert durations.expected_s(("ns/never", "ns")) == pytest.approx(namespace)
    assert durations.expected_s(("ns/job", "ns")) == pytest.approx(drawn(10.0, 1, namespace))


def test_what_is_no_duration_is_not_learned_from() -> None:
    durations = Durations()
    for seconds in (-1.0, math.nan, math.inf):
        durations.finished(("job",), seconds)
    assert durations.expected_s(("job",)) == _BEFORE_ANY_S
    assert durations == Durations()


def test_many_runs_outweigh_what_was_before_and_the_number_of_owners_stays_bounded() -> None:
    durations = Durations()
    for seconds in [100.0] * 500 + [7.0] * 500:
        durations.finished(("job",), seconds)
    assert durations.expected_s(("job",)) == pytest.approx(7.0, abs=1.0)
    for number in range(10_050):
        durations.finished((f"o{number}",), 1.0)
    assert durations.num_owners == 10_000
    assert durations.expected_s(("job",)) == durations.expected_s(())  # forgotten: the one not heard of for longest
