"""Weights of the policies `live` and `genius`: each weighs its own term, and nothing else."""

import numpy as np
import pytest

from extender.core.fit.fits import fit
from extender.core.gauges import Gauge
from extender.core.policies.genius import _WEIGHTS, _GeniusScore
from extender.core.policies.live import LiveScore
from extender.core.resources.requests import GpuRequest
from tests.core.builders import all_rows, node
from tests.core.observing import Samples, observed_cluster

ONE = GpuRequest(1)

# One GPU a node; what they have by their data sheets. A term alone is its column's share.
PRODUCTS = {"a100": ("NVIDIA-A100-SXM4-40GB", 40_960), "l40s": ("NVIDIA-L40S", 46_068), "t4": ("Tesla-T4", 15_360)}
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
    """Scores of Genius', every weight that is not named 0."""
    score = _GeniusScore({name: weights.get(name, 0.0) for name in _WEIGHTS})
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
    cluster = observed_cluster({name: node(product) for name, product in PRODUCTS.items()}, samples)
    rows = all_rows(cluster)
    scores: list[float] = score(cluster, ONE, rows, fit(cluster, ONE, rows)).tolist()
    return scores


@pytest.mark.parametrize("term", [*HAVE, *DO])
def test_each_weight_weighs_its_own_term(term: str) -> None:
    """G7, G8: of the nodes, as a part of the way from the least to the most."""
    values = np.array((HAVE | DO)[term], float)
    part = (values - values.min()) / (values.max() - values.min())
    whole = "static" if term in HAVE else "dynamic"
    assert scores_by({term: 1.0, whole: 1.0}) == pytest.approx(part.tolist(), abs=1e-6)
    assert scores_by({term: 1.0}) == [0, 0, 0]  # the other half's weight changes nothing


def test_the_halves_are_weighed_against_each_other() -> None:
    # Memory: 40960 / 102388 * 3 = 1.2001, 1.3498, 0.4500. Power: 300 / 480 * 3 = 1.875, 0.75, 0.375 (one GPU a node).
    mixed = np.array([40_960, 46_068, 15_360]) / 102_388 * 3 * 1 + np.array([300, 120, 60]) / 480 * 3 * 2
    part = (mixed - mixed.min()) / (mixed.max() - mixed.min())
    assert scores_by({"memory": 1, "power": 1, "static": 1, "dynamic": 2}) == pytest.approx(part.tolist(), abs=1e-6)


HEADROOM = {
    "load": (Gauge.LOAD, [0.75, 0.25, 0.5], [0.25, 0.75, 0.5]),
    # Of 400, 350 and 70 W.
    "power": (Gauge.POWER, [100.0, 70.0, 63.0], [0.75, 0.8, 0.1]),
    # From 50 degrees, all of it, down to 90.
    "temperature": (Gauge.TEMPERATURE, [50.0, 70.0, 90.0], [1.0, 0.5, 0.0]),
    "bandwidth": (Gauge.BANDWIDTH, [0.5, 0.1, 0.9], [0.5, 0.9, 0.1]),
    "tensor": (Gauge.TENSOR, [0.2, 1.0, 0.4], [0.8, 0.0, 0.6]),
}


def live_scores(weights: dict[str, float], samples: Samples) -> list[float]:
    """Scores of the three nodes."""
    cluster = observed_cluster({name: node(product) for name, product in PRODUCTS.items()}, samples)
    rows = all_rows(cluster)
    scores: list[float] = LiveScore(weights)(cluster, ONE, rows, fit(cluster, ONE, rows)).tolist()
    return scores


@pytest.mark.parametrize("term", HEADROOM)
def test_each_live_weight_weighs_its_own_term(term: str) -> None:
    samples: dict[str, dict[Gauge, list[float]]] = {name: {} for name in PRODUCTS}
    for gauge, values, _ in HEADROOM.values():
        for name, value in zip(PRODUCTS, values, strict=True):
            samples[name][gauge] = [value]
    none = dict.fromkeys((*HEADROOM, "memory"), 0.0)
    assert live_scores(none | {term: 2.0}, samples) == pytest.approx(HEADROOM[term][2])


def test_the_live_weight_of_memory_weighs_what_is_left_of_it() -> None:
    none = dict.fromkeys(HEADROOM, 0.0)
    used = {"a": node(("Tesla-T4", 15_360), used={0: (0, 11_520)})}
    cluster = observed_cluster(used, {})
    rows = all_rows(cluster)
    score = LiveScore({**none, "memory": 1.0, "own_gpus": 0.0})
    assert score(cluster, ONE, rows, fit(cluster, ONE, rows)).tolist() == pytest.approx([0.25])
