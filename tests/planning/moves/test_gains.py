"""When moves pay: waiting spared, by GPUs, against work lost."""

import pytest

from extender.planning.moves.problems import gain_gpu_s, is_worth


def test_who_waits_is_taken_to_have_as_long_ahead_as_behind() -> None:
    assert gain_gpu_s(8, 1800) == 8 * 1800
    assert gain_gpu_s(0.5, 1800) == 900
    assert gain_gpu_s(8, 0) == 0


def test_a_long_wait_counts_no_more_than_the_bound() -> None:
    assert gain_gpu_s(8, 90_000) == 8 * 86_400
    assert gain_gpu_s(8, 90_000, most_ahead_s=600) == 4800
    assert gain_gpu_s(8, float("inf")) == 8 * 86_400


def test_gpus_and_times_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"-1 GPUs"):
        gain_gpu_s(-1, 10)
    with pytest.raises(ValueError, match=r"-5 seconds waited"):
        gain_gpu_s(1, -5)
    with pytest.raises(ValueError, match=r"nan seconds waited"):
        gain_gpu_s(1, float("nan"))


def test_moves_are_worth_it_from_the_least_gain_on() -> None:
    assert is_worth(200, 100, 2)
    assert not is_worth(199, 100, 2)


def test_moves_that_gain_nothing_are_not_worth_it_even_where_they_cost_nothing() -> None:
    assert not is_worth(0, 0, 2)
    assert is_worth(1, 0, 2)
