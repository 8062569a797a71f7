"""CMA-ES."""

import numpy as np
import pytest

from extender.core.clusters import Floats
from model.training import strategies
from model.training.strategies import State


def searched(seed: int, generations: int, optimum: Floats, stretch: Floats) -> State:
    state = strategies.begin(np.zeros(len(optimum)), 0.5)
    for _ in range(generations):
        tried = strategies.candidates(state, strategies.population_size(len(optimum)), seed)
        state = strategies.updated(state, tried, -(((tried - optimum) * stretch) ** 2).sum(axis=1))
    return state


def test_a_stretched_bowl_is_solved() -> None:
    # Axes that differ by a factor of 100: equal steps in all directions would need some 10,000 generations.
    optimum, stretch = np.array([1.0, -2.0, 3.0, 0.5, -1.0]), np.array([1.0, 3.0, 10.0, 30.0, 100.0])
    state = searched(0, 300, optimum, stretch)
    assert state.mean == pytest.approx(optimum, abs=1e-4)
    assert state.sigma < 1e-3


def test_only_the_order_of_successes_counts() -> None:
    state = strategies.begin(np.zeros(4), 0.5)
    tried = strategies.candidates(state, 8, 0)
    success = tried[:, 0]
    for ours, theirs in zip(
        strategies.updated(state, tried, success), strategies.updated(state, tried, success**3 * 100), strict=True
    ):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
