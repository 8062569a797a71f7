"""Weights of the policies `live` and `genius`: each weighs its own term and nothing else."""

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.core.policies.genius import _WEIGHTS, _GeniusScore
from extender.core.policies.live import LiveScore
from tests.core.builders import node, scores_of
from tests.core.observing import Samples, observed_cluster

# One GPU a node, with data sheet values. A term alone is its column's share.
PRODUCTS = {"a100": ("NVIDIA-A100-SXM4-40GB", 40_960), "l40s": ("NVIDIA-L40S", 46_068), "t4": ("Tesla-T4", 15_360)}
NODES = {name: node(product) for name, product in PRODUCTS.items()}
HAVE = {
    "memory": (40_960, 46_068, 15_360),
    "multiprocessors": (108, 142, 40),
    "decoders": (5, 3, 2),
    "encoders": (0, 3, 1),
    "bandwidth": (1555, 864, 320),
}
DO = {
    "free_memory": (10_000, 5_000, 12_000),
    "power": (300, 120, 60),
    "encoder_idle": (0.9, 0.2, 0.5),
    "decoder_idle": (0.3, 0.9, 0.4),
}


def scores_by(weights: dict[str, float]) -> list[float]:
    """Genius' scores, with weight 0 for terms that are not named."""
    free, power, encoder, decoder = DO.values()
    samples: Samples = {
        name: {
            Gauge.MEMORY_FREE: [free[number]],
            Gauge.POWER: [power[number]],
            Gauge.ENCODER: [1 - encoder[number]],
            Gauge.DECODER: [1 - decoder[number]],
        }
        for number, name in enumerate(PRODUCTS)
    }
    score = _GeniusScore({name: weights.get(name, 0.0) for name in _WEIGHTS})
    return scores_of(score, observed_cluster(NODES, samples))


def scaled(values: np.ndarray) -> list[float]:
    """Values as a part of the way from the least to the most."""
    parts: list[float] = ((values - values.min()) / (values.max() - values.min())).tolist()
    return parts


def test_each_weight_weighs_its_own_term() -> None:
    """G7, G8."""
    for half, terms in (("static", HAVE), ("dynamic", DO)):
        for term, values in terms.items():
            right = scaled(np.array(values, float))
            assert scores_by({term: 1.0, half: 1.0}) == pytest.approx(right, abs=1e-6), term
            assert scores_by({term: 1.0}) == [0, 0, 0], term  # the other half's weight changes nothing


def test_the_halves_are_weighed_against_each_other() -> None:
    # Memory: 40960 / 102388 * 3 = 1.2001, 1.3498, 0.4500. Power: 300 / 480 * 3 = 1.875, 0.75, 0.375 (one GPU a node).
    mixed = np.array(HAVE["memory"]) / 102_388 * 3 * 1 + np.array(DO["power"]) / 480 * 3 * 2
    scores = scores_by({"memory": 1, "power": 1, "static": 1, "dynamic": 2})
    assert scores == pytest.approx(scaled(mixed), abs=1e-6)


HEADROOM = {
    "load": (Gauge.LOAD, [0.75, 0.25, 0.5], [0.25, 0.75, 0.5]),
    # Of 400, 350 and 70 W.
    "power": (Gauge.POWER, [100.0, 70.0, 63.0], [0.75, 0.8, 0.1]),
    # From 50 degrees, all of it, down to 90.
    "temperature": (Gauge.TEMPERATURE, [50.0, 70.0, 90.0], [1.0, 0.5, 0.0]),
    "bandwidth": (Gauge.BANDWIDTH, [0.5, 0.1, 0.9], [0.5, 0.9, 0.1]),
    "tensor": (Gauge.TENSOR, [0.2, 1.0, 0.4], [0.8, 0.0, 0.6]),
}


def test_each_live_weight_weighs_its_own_term() -> None:
    samples = {
        name: {gauge: [values[number]] for gauge, values, _ in HEADROOM.values()}
        for number, name in enumerate(PRODUCTS)
    }
    none = dict.fromkeys((*HEADROOM, "memory"), 0.0)
    for term, (_, _, headroom) in HEADROOM.items():
        score = LiveScore(none | {term: 2.0})
        assert scores_of(score, observed_cluster(NODES, samples)) == pytest.approx(headroom), term
