"""Genius' score, with its worked vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.fits import fit
from extender.core.gauges import Gauge
from extender.core.policies.genius import _WEIGHTS, _genius_totals, _GeniusScore, _static_of, min_max, neutral
from extender.core.resources.requests import GpuRequest
from tests.core.builders import all_rows, cluster_of, node
from tests.core.observing import Samples, observed_cluster

NAN = np.nan
OWN = {name: default for name, (default, _) in _WEIGHTS.items()}
"""Genius' own weights."""

# Node A has two GPUs of {memory 11000, SMs 28, dec 1, enc 1, bandwidth 484, free 10000, 50 W, utils 0}, node B one of
# {8000, 20, 1, 1, 256, free 4000, 150 W, enc .5, dec .25}.
INSTALLED = np.array([[True, True], [True, False]])
STATIC = np.array(
    [
        [[11000, 11000], [8000, NAN]],
        [[28, 28], [20, NAN]],
        [[1, 1], [1, NAN]],
        [[1, 1], [1, NAN]],
        [[484, 484], [256, NAN]],
    ],
    float,
)
DYNAMIC = np.array(
    [
        [[10000, 10000], [4000, NAN]],
        [[50, 50], [150, NAN]],
        [[1, 1], [0.5, NAN]],
        [[1, 1], [0.75, NAN]],
    ],
    float,
)


def test_worked_vector() -> None:
    """G7, G8: static and dynamic score, and their sum."""
    static, dynamic, total = _genius_totals(STATIC, DYNAMIC, INSTALLED, OWN)
    # A: 3 (2*22000/30000 + 2*56/76 + 2/3 + 2/3 + 2*968/1224) = 17.566
    assert static == pytest.approx([17.566, 6.434], abs=5e-4)
    # A: 3/2 (2*20000/24000 + 100/250 + 2/2.5 + 2/2.75) = 5.391
    assert dynamic == pytest.approx([5.391, 4.218], abs=5e-4)
    assert total == pytest.approx([28.348, 14.870], abs=5e-4)
    assert min_max(total, np.array([True, True])).tolist() == [1, 0]


def test_weights_and_the_sign_of_power_are_a_choice() -> None:
    """G7, G8: weights are settings."""
    _, dynamic, _ = _genius_totals(STATIC, DYNAMIC, INSTALLED, OWN | {"power": -1.0})
    # A: 5.391 - 2 * 3/2 * 100/250 = 4.191; B: 4.218 - 2 * 3 * 150/250 = 0.618
    assert dynamic == pytest.approx([4.191, 0.618], abs=5e-4)
    _, _, total = _genius_totals(STATIC, DYNAMIC, INSTALLED, OWN | {"static": 0, "dynamic": 1})
    assert total == pytest.approx([5.391, 4.218], abs=5e-4)


def test_zero_metrics_and_missing_nodes_are_finite() -> None:
    """G9: always finite."""
    zeros = np.zeros_like(DYNAMIC)
    _, dynamic, total = _genius_totals(STATIC, zeros, INSTALLED, OWN)
    assert dynamic.tolist() == [0, 0]
    assert np.isfinite(total).all()
    unknown = np.full_like(DYNAMIC, NAN)
    _, dynamic, _ = _genius_totals(STATIC, unknown, INSTALLED, OWN)
    assert dynamic.tolist() == [0, 0]
    none = _genius_totals(np.zeros((5, 0, 2)), np.zeros((4, 0, 2)), np.zeros((0, 2), np.bool_), OWN)
    assert all(len(part) == 0 for part in none)


def test_a_node_without_samples_counts_as_average() -> None:
    dynamic = DYNAMIC.copy()
    dynamic[:, 1, 0] = NAN
    _, scores, _ = _genius_totals(STATIC, dynamic, INSTALLED, OWN)
    assert scores[0] == pytest.approx(scores[1])  # the mean of A's equal GPUs is what A itself has


@given(
    st.lists(st.lists(st.one_of(st.floats(0, 1e6), st.just(NAN)), min_size=16, max_size=16), min_size=1, max_size=6),
    st.floats(-5, 5),
)
def test_the_normalised_score_is_finite_and_in_range(values: list[list[float]], power: float) -> None:
    """G9: always in range."""
    plane = np.array(values)
    installed = np.ones(plane.shape, np.bool_)  # 16-GPU nodes
    *_, total = _genius_totals(np.stack([plane] * 5), np.stack([plane] * 4), installed, OWN | {"power": power})
    scores = min_max(total, np.ones(len(plane), np.bool_))
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()


def test_unmonitored_and_cpu_only_nodes_are_survived() -> None:
    """G13: Genius panics here."""
    a100, t4 = ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)
    cluster = cluster_of({"a": node(a100, a100), "b": node(t4), "c": node(), "d": node(("unheard-of", 0))})
    rows = all_rows(cluster)
    request = GpuRequest(1)
    scores = _GeniusScore()(cluster, request, rows, fit(cluster, request, rows))
    assert scores[0] == 1
    assert np.isfinite(scores).all()
    empty = cluster_of({})
    none = all_rows(empty)
    assert _GeniusScore()(empty, request, none, fit(empty, request, none)).tolist() == []


def test_what_is_not_known_is_the_mean_of_what_is() -> None:
    installed = np.array([[True, True], [True, False]])
    planes = np.array([[[4, NAN], [NAN, 100]], [[1, 2], [6, NAN]], [[NAN, NAN], [NAN, NAN]]])
    filled = neutral(planes, installed)
    assert filled[:, installed].tolist() == [[4, 4, 4], [1, 2, 6], [0, 0, 0]]


def test_scores_are_spread_over_the_nodes_that_count() -> None:
    among = np.array([True, False, True, True, False])
    assert min_max(np.array([3.0, 1.0, 5.0, 4.0, 99.0]), among).tolist() == [0, 0, 1, 0.5, 0]
    assert min_max(np.array([3.0, 1.0, 3.0, 3.0, 99.0]), among).tolist() == [0] * 5
    assert min_max(np.array([3.0, 1.0, 5.0]), np.zeros(3, np.bool_)).tolist() == [0] * 3


def test_scores_that_differ_by_next_to_nothing_are_equals() -> None:
    first, second = min_max(np.array([0.0, 0.5, 0.5 + 2e-10, 1.0]), np.ones(4, np.bool_)).tolist()[1:3]
    assert first == second == 0.5


def test_a_cluster_is_read_as_the_worked_vector_is_written() -> None:
    t4, a100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-40GB", 40960)
    nodes = {"a": node(t4, t4), "b": node(a100), "c": node(("unheard-of", 0)), "cpus": node()}
    samples: Samples = {
        "a": {Gauge.MEMORY_FREE: [9000, 15000], Gauge.POWER: [30, 40], Gauge.ENCODER: [0.5, 0], Gauge.DECODER: [0, 0]},
        "b": {Gauge.MEMORY_FREE: [20000], Gauge.POWER: [200], Gauge.ENCODER: [0.25], Gauge.DECODER: [0.75]},
    }
    cluster = observed_cluster(nodes, samples)
    installed = np.array([[True, True], [True, False], [True, False], [False, False]])
    nothing, unknown = [NAN, NAN], [NAN, NAN]
    memory = [[15360, 15360], [40960, NAN], unknown, nothing]
    static = [[[sm, sm], [of_a100, NAN], unknown, nothing] for sm, of_a100 in ((40, 108), (2, 5), (1, 0), (320, 1555))]
    dynamic = [
        [[9000, 15000], [20000, NAN], unknown, nothing],
        [[30, 40], [200, NAN], unknown, nothing],
        [[0.5, 1], [0.75, NAN], unknown, nothing],  # idle encoders
        [[1, 1], [0.25, NAN], unknown, nothing],
    ]
    weights = {"encoder_idle": 3.0, "power": -1.0}
    *_, total = _genius_totals(np.array([memory, *static]), np.array(dynamic), installed, OWN | weights)
    low, high = total[:3].min(), total[:3].max()
    rows = all_rows(cluster)
    request = GpuRequest(1)
    scores = _GeniusScore(weights)(cluster, request, rows, fit(cluster, request, rows))
    assert scores == pytest.approx([*((total[:3] - low) / (high - low)), 0], abs=1e-8)
    assert 0.01 < sorted(scores[:3])[1] < 0.99


STATIC_GAUGES = (Gauge.MEMORY_TOTAL, Gauge.NUM_MULTIPROCESSORS, Gauge.NUM_DECODERS, Gauge.NUM_ENCODERS)


def told(*values: float) -> dict[Gauge, list[float]]:
    """What an exporter says that the one GPU of a node has."""
    return {gauge: [value] for gauge, value in zip(STATIC_GAUGES, values, strict=True)}


def test_g10_what_the_exporter_says_that_gpus_have_counts_and_the_table_fills_in() -> None:
    nodes = {
        "asked": node(("Tesla-T4", 15360)),
        "silent": node(("Tesla-T4", 15360)),
        "zeros": node(("Tesla-T4", 15360)),
        "unheard-of": node(("unheard-of", 0)),
        "unheard-of-zeros": node(("unheard-of", 0)),
    }
    samples: Samples = {
        "asked": told(15109, 41, 3, 0),
        "silent": {Gauge.POWER: [50.0]},
        "zeros": told(0, 0, 0, 0),  # ObserverWard as it was published
        "unheard-of": told(24000, 99, 4, 2),
        "unheard-of-zeros": told(0, 0, 0, 0),
    }
    cluster = observed_cluster(nodes, samples)
    rows = {name: row for row, name in enumerate(cluster.node_names) if name}
    found = {name: _static_of(cluster)[:, row, 0].tolist() for name, row in rows.items()}
    assert found["asked"] == [15360, 41, 3, 0, 320]  # memory is the node's, bandwidth nobody's but the table's
    assert found["silent"] == found["zeros"] == [15360, 40, 2, 1, 320]
    assert found["unheard-of"][:4] == [24000, 99, 4, 2]
    assert np.isnan(found["unheard-of"][4])
    assert np.isnan(found["unheard-of-zeros"]).all()


def test_g7_of_two_unknown_models_the_one_that_has_more_is_better() -> None:
    """Without what is exported both would count as average, and be equal."""
    nodes = {"less": node(("unheard-of", 0)), "more": node(("unknown-too", 0))}
    cluster = observed_cluster(nodes, {"less": told(8000, 20, 1, 1), "more": told(24000, 80, 2, 2)})
    rows, request = all_rows(cluster), GpuRequest(1)
    names = dict(
        zip(cluster.node_names, _GeniusScore()(cluster, request, rows, fit(cluster, request, rows)), strict=True)
    )
    assert (names["less"], names["more"]) == (0, 1)


def test_samples_that_are_too_old_tell_nothing_of_what_gpus_have() -> None:
    cluster = observed_cluster({"node": node(("Tesla-T4", 15360))}, {"node": told(15109, 41, 3, 0)}, age_s=500)
    assert _static_of(cluster)[:, 0, 0].tolist() == [15360, 40, 2, 1, 320]
