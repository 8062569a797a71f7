"""The learned rank: its scores beside a loop, and what it refuses."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import Nodes, PodClasses
from extender.core.valuenet import potentials
from extender.core.valuenet.features import FEATURES, FEATURES_VERSION, Outlook, features
from extender.core.valuenet.potentials import Potential, PotentialError, _steps, potential_of, prospect
from model.engine import kernels
from model.engine.node_scores import book, learned_on
from model.engine.ranks import Rank
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_asks, random_nodes, twin_scores

SEEDS = st.integers(0, 2**32)


def oracle_value(nodes: Nodes, n: int, outlook: Outlook, potential: Potential) -> float:
    x = features(Nodes(*(column[n : n + 1] for column in nodes)), outlook)[0]  # type: ignore[arg-type]
    value = math.fsum(x * potential.weights)
    for h in range(len(potential.out)):
        level = potential.bias[h] + math.fsum(x * potential.scale * potential.hidden[:, h])
        value += potential.out[h] * math.tanh(level)
    return value


def oracle_gains(
    nodes: Nodes, asks: PodClasses, c: int, n: int, outlook: Outlook, potential: Potential
) -> dict[int, float]:
    """The gain of V by GPU of a share, or by -1."""
    before = oracle_value(nodes, n, outlook, potential)
    free, milli = nodes.gpu_free_milli[n].tolist(), int(asks.gpu_milli[c])
    share = 0 < milli < 1000
    found = {}
    for gpu in [g for g, left in enumerate(free) if left >= milli] if share else [-1]:
        after = nodes.copy()
        book(after, asks, c, n, gpu)
        found[gpu] = oracle_value(after, n, outlook, potential) - before
    return found


@given(SEEDS, st.integers(0, 3))
def test_scores_equal_a_loop_over_nodes_and_gpus(seed: int, num_hidden: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, outlook = random_nodes(rng, 6), random_asks(rng, 5), random_outlook(rng)
    potential = random_potential(rng, num_hidden)
    untouched = nodes.copy()
    for c in range(5):
        score, gpu = twin_scores(nodes, asks, c, Rank.NONE, outlook.mix, learned_on(nodes, outlook, potential))
        fit = kernels.fitting(nodes, asks, c)
        for n in range(6):
            if not fit[n]:
                assert score[n] == -np.inf and gpu[n] == -1
                continue
            gains = oracle_gains(nodes, asks, c, n, outlook, potential)
            best = max(gains.values())
            # The first of those that gain most, up to the last bits of the sums.
            assert gpu[n] == next(g for g, gain in gains.items() if gain > best - 1e-7)
            assert abs(score[n] - math.floor(best / 0.1 + 1e-6)) <= (abs(best / 0.1 + 1e-6) % 1 < 1e-8)
    assert all(np.array_equal(np.asarray(nodes[i]), np.asarray(untouched[i])) for i in range(len(nodes)))


def test_gains_are_rounded_down_to_quanta() -> None:
    potential = potentials.linear(np.zeros(len(FEATURES)), 0.5)
    gains = np.array([-0.1, 0.0, -1e-9, 0.49, 0.5, 0.4999999999])
    assert _steps(gains, potential).tolist() == [-1, 0, 0, 0, 1, 1]


def arrays(**replaced: np.ndarray) -> dict[str, np.ndarray]:
    return {**random_potential(np.random.default_rng(0))._asdict(), **replaced}


def test_arrays_that_do_not_match_are_refused() -> None:
    wide = len(FEATURES) + 1
    for given_arrays, version, names, reason in (
        (arrays(), FEATURES_VERSION + 1, FEATURES, "features version 4; this program has version 3"),
        (arrays(), FEATURES_VERSION, FEATURES[::-1], "other features"),
        ({}, FEATURES_VERSION, FEATURES, "has arrays none"),
        (arrays(more=np.zeros(1)), FEATURES_VERSION, FEATURES, "has arrays bias, by_context, hidden, more"),
        (arrays(bias=np.zeros(4)), FEATURES_VERSION, FEATURES, r"bias: shape \(4,\)"),
        (arrays(bias=np.array([0, np.nan, 0])), FEATURES_VERSION, FEATURES, "bias: not all numbers are finite"),
        (arrays(bias=np.zeros(3, np.float32)), FEATURES_VERSION, FEATURES, "bias: float32"),
        (arrays(weights=np.full(wide - 1, 1e303)), FEATURES_VERSION, FEATURES, r"of 1e\+06 is not finite"),
        (arrays(by_context=np.ones((1, wide))), FEATURES_VERSION, FEATURES, r"by_context: shape \(1, 20\)"),
        (arrays(by_context=np.full((4, wide), 1e3)), FEATURES_VERSION, FEATURES, r"of 1e\+06 is not finite"),
        (arrays(quantum=np.zeros(1)), FEATURES_VERSION, FEATURES, "quantum is not above 0"),
    ):
        with pytest.raises(PotentialError, match=reason):
            potential_of(given_arrays, version, names)


@given(SEEDS)
def test_a_context_shifts_weights_and_quantum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, outlook = random_nodes(rng, 6), random_asks(rng, 5), random_outlook(rng)
    potential = random_potential(rng, by_context=True)
    weights = potential.weights.copy()
    log_quantum = math.log(potential.quantum[0])
    for number, steps in zip(outlook.context.tolist(), potential.by_context, strict=True):
        weights += number * steps[:-1]
        log_quantum += number * steps[-1]
    plain = potential._replace(
        weights=weights, quantum=np.array([math.exp(log_quantum)]), by_context=potential.by_context[:0]
    )
    for c in range(5):
        ours, same = (
            twin_scores(nodes, asks, c, Rank.NONE, outlook.mix, learned_on(nodes, outlook, of))
            for of in (potential, plain)
        )
        assert np.array_equal(ours[1], same[1])
        fits = np.isfinite(same[0])
        assert np.array_equal(np.isfinite(ours[0]), fits)
        assert np.abs(ours[0][fits] - same[0][fits]).max(initial=0) <= 1  # a hair may be a step
    assert np.allclose(
        potentials.in_context(potential, outlook.context).weights, prospect(plain, outlook).potential.weights
    )


def test_a_potential_survives_its_arrays_and_older_models_depend_on_no_context() -> None:
    for by_context in (False, True):
        right = random_potential(np.random.default_rng(0), by_context=by_context)
        found = potential_of(right._asdict(), FEATURES_VERSION, FEATURES)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, right, strict=True))
    older = {name: array for name, array in arrays().items() if name != "by_context"}
    found = potential_of(older, FEATURES_VERSION, FEATURES)
    assert potentials.in_context(found, np.ones(4)) is found
