"""CMA-ES: N. Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), with its default constants.

The state is plain arrays, so that runs can be resumed from a file. Package `cmaes` only offers a pickle without the
random state, and has other constants, so that released models could not be reproduced.
"""

import math
from typing import NamedTuple

import numpy as np

from extender.core.clusters import Floats


class State(NamedTuple):
    """State of the search."""

    generation: int
    mean: Floats
    """(D,) mean of the distribution."""
    sigma: float
    covariance: Floats
    """(D, D)."""
    path_sigma: Floats
    """(D,) evolution path of the step size."""
    path_covariance: Floats
    """(D,)."""


def begin(mean: Floats, sigma: float) -> State:
    """Return the initial state around a mean, isotropic."""
    D = len(mean)  # noqa: N806 - the paper's n
    return State(0, np.asarray(mean, np.float64), sigma, np.eye(D), np.zeros(D), np.zeros(D))


def population_size(num_dimensions: int) -> int:
    """Return the tutorial's default."""
    return 4 + int(3 * math.log(num_dimensions))


def candidates(state: State, num: int, seed: int) -> Floats:
    """(num, D) samples of this generation, determined by state and seed."""
    rng = np.random.default_rng([seed, state.generation])
    scale, axes = _eigen(state.covariance)
    sampled: Floats = state.mean + state.sigma * (rng.normal(size=(num, len(state.mean))) * scale) @ axes.T
    return sampled


def updated(state: State, tried: Floats, success: Floats) -> State:
    """Return the state after a generation; `success` (num,) is the fitness of each candidate, higher is better."""
    num, dims = tried.shape
    order = np.argsort(-success, kind="stable")
    weights = np.log((num + 1) / 2) - np.log(np.arange(1, num // 2 + 1))
    weights /= weights.sum()
    mass = 1 / float((weights**2).sum())
    c_sigma = (mass + 2) / (dims + mass + 5)
    damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (dims + 1)) - 1) + c_sigma
    c_path = (4 + mass / dims) / (dims + 4 + 2 * mass / dims)
    c_one = 2 / ((dims + 1.3) ** 2 + mass)
    c_mu = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((dims + 2) ** 2 + mass))
    expected_norm = math.sqrt(dims) * (1 - 1 / (4 * dims) + 1 / (21 * dims**2))

    moves = (tried[order[: len(weights)]] - state.mean) / state.sigma
    move = weights @ moves
    scale, axes = _eigen(state.covariance)
    whitened = axes @ ((axes.T @ move) / scale)
    path_sigma = (1 - c_sigma) * state.path_sigma + math.sqrt(c_sigma * (2 - c_sigma) * mass) * whitened
    norm = float(np.linalg.norm(path_sigma))
    settled = math.sqrt(1 - (1 - c_sigma) ** (2 * (state.generation + 1)))
    steady = norm / settled / expected_norm < 1.4 + 2 / (dims + 1)
    path = (1 - c_path) * state.path_covariance + steady * math.sqrt(c_path * (2 - c_path) * mass) * move
    kept = 1 - c_one - c_mu + (0.0 if steady else c_one * c_path * (2 - c_path))
    covariance = kept * state.covariance + c_one * np.outer(path, path) + c_mu * (moves.T * weights) @ moves
    sigma = state.sigma * math.exp(min(1.0, (c_sigma / damping) * (norm / expected_norm - 1)))
    return State(state.generation + 1, state.mean + state.sigma * move, sigma, covariance, path_sigma, path)


def _eigen(covariance: Floats) -> tuple[Floats, Floats]:
    """Return the standard deviations (D,) along the axes (D, D) of a covariance."""
    variance, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.sqrt(np.maximum(variance, 1e-20)), axes
