"""Genius' score, with its worked vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.policies.genius import _WEIGHTS, _genius_totals, _GeniusScore, _static_of, min_max, neutral
from tests.core.builders import A100_40, T4, UNKNOWN, cluster_of, node, scores_of
from tests.core.observing import Samples, observed_cluster

NAN = np.nan
OWN = {name: default for name, (default, _) in _WEIGHTS.items()}
"""Genius' own weights."""

# Node A has two GPUs of {memory 11000, SMs 28, dec 1, enc 1, bandwidth 484, free 10000, 50 W, utils 0}, node B one of
# {8000, 20, 1, 1, 256, free 4000, 150 W, enc .5, dec .25}.
INSTALLED = np.array([[True, True], [True, False]])


def planes(*pairs: tuple[float, float]) -> Floats:
    """(K, 2, 2) values of A's equal GPUs and B's only one."""
    return np.array([[[a, a], [b, NAN]] for a, b in pairs], float)


STATIC = planes((11000, 8000), (28, 20), (1, 1), (1, 1), (484, 256))
DYNAMIC = planes((10000, 4000), (50, 150), (1, 0.5), (1, 0.75))


def totals(weights: dict[str, float], usage: Floats = DYNAMIC) -> tuple[Floats, Floats, Floats]:
    return _genius_totals(STATIC, usage, INSTALLED, OWN | weights)


def test_worked_vector() -> None:
    """G7, G8: static and dynamic score, and their sum; weights and the sign of power are settings."""
    static, dynamic, total = totals({})
    # A: 3 (2*22000/30000 + 2*56/76 + 2/3 + 2/3 + 2*968/1224) = 17.566
    assert static == pytest.approx([17.566, 6.434], abs=5e-4)
    # A: 3/2 (2*20000/24000 + 100/250 + 2/2.5 + 2/2.75) = 5.391
    assert dynamic == pytest.approx([5.391, 4.218], abs=5e-4)
    assert total == pytest.approx([28.348, 14.870], abs=5e-4)
    assert min_max(total, np.array([True, True])).tolist() == [1, 0]
    # A: 5.391 - 2 * 3/2 * 100/250 = 4.191; B: 4.218 - 2 * 3 * 150/250 = 0.618
    assert totals({"power": -1.0})[1] == pytest.approx([4.191, 0.618], abs=5e-4)
    assert totals({"static": 0, "dynamic": 1})[2] == pytest.approx([5.391, 4.218], abs=5e-4)


def test_zero_metrics_and_missing_nodes_are_finite() -> None:
    """G9: always finite."""
    for usage in (np.zeros_like(DYNAMIC), np.full_like(DYNAMIC, NAN)):
        _, scores, total = totals({}, usage)
        assert scores.tolist() == [0, 0]
        assert np.isfinite(total).all()
    none = _genius_totals(np.zeros((5, 0, 2)), np.zeros((4, 0, 2)), np.zeros((0, 2), np.bool_), OWN)
    assert all(len(part) == 0 for part in none)


def test_unknown_values_are_the_mean_of_known_ones() -> None:
    found = neutral(np.array([[[4, NAN], [NAN, 100]], [[1, 2], [6, NAN]], [[NAN, NAN], [NAN, NAN]]]), INSTALLED)
    assert found[:, INSTALLED].tolist() == [[4, 4, 4], [1, 2, 6], [0, 0, 0]]
    unsampled = DYNAMIC.copy()
    unsampled[:, 1, 0] = NAN
    _, scores, _ = totals({}, unsampled)
    assert scores[0] == pytest.approx(scores[1])


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


def test_scores_are_normalised_over_the_nodes_that_count() -> None:
    among, every = [True, False, True, True, False], [True] * 4
    for scores, counts, right in (
        ([3.0, 1.0, 5.0, 4.0, 99.0], among, [0, 0, 1, 0.5, 0]),
        ([3.0, 1.0, 3.0, 3.0, 99.0], among, [0] * 5),
        ([3.0, 1.0, 5.0, 4.0], [False] * 4, [0] * 4),
        ([0.0, 0.5, 0.5 + 2e-10, 1.0], every, [0, 0.5, 0.5, 1]),  # differences by rounding are ties
    ):
        assert min_max(np.array(scores), np.array(counts)).tolist() == right


def test_unmonitored_and_cpu_only_nodes_are_survived() -> None:
    """G13: Genius panics here."""
    scores = scores_of(
        _GeniusScore(), cluster_of({"a": node(A100_40, A100_40), "b": node(T4), "c": node(), "d": node(UNKNOWN)})
    )
    assert scores[0] == 1
    assert np.isfinite(scores).all()
    assert scores_of(_GeniusScore(), cluster_of({})) == []


STATIC_GAUGES = (Gauge.MEMORY_TOTAL, Gauge.NUM_MULTIPROCESSORS, Gauge.NUM_DECODERS, Gauge.NUM_ENCODERS)


def exported(*values: float) -> dict[Gauge, list[float]]:
    """The capacities that an exporter reports of a node's only GPU."""
    return {gauge: [value] for gauge, value in zip(STATIC_GAUGES, values, strict=True)}


def test_g10_exported_capacities_count_and_the_table_fills_in() -> None:
    nodes = {
        **dict.fromkeys(("exported", "silent", "zeros"), node(T4)),
        **dict.fromkeys(("unheard-of", "unheard-of-zeros"), node(UNKNOWN)),
    }
    samples: Samples = {
        "exported": exported(15109, 41, 3, 0),
        "silent": {Gauge.POWER: [50.0]},
        "zeros": exported(0, 0, 0, 0),  # ObserverWard as it was published
        "unheard-of": exported(24000, 99, 4, 2),
        "unheard-of-zeros": exported(0, 0, 0, 0),
    }
    cluster = observed_cluster(nodes, samples)
    found = {name: _static_of(cluster)[:, row, 0].tolist() for name, row in cluster.row_of.items()}
    assert found["exported"] == [15360, 41, 3, 0, 320]  # memory is the node's, bandwidth the table's
    assert found["silent"] == found["zeros"] == [15360, 40, 2, 1, 320]
    assert found["unheard-of"][:4] == [24000, 99, 4, 2]
    assert np.isnan(found["unheard-of"][4])
    assert np.isnan(found["unheard-of-zeros"]).all()
    stale = observed_cluster({"n": node(T4)}, {"n": exported(15109, 41, 3, 0)}, age_s=500)
    assert _static_of(stale)[:, 0, 0].tolist() == [15360, 40, 2, 1, 320]


def test_g7_of_two_unknown_models_the_larger_is_better() -> None:
    """Without exported capacities both would count as average, and be equal."""
    nodes = {"less": node(UNKNOWN), "more": node(UNKNOWN)}
    cluster = observed_cluster(nodes, {"less": exported(8000, 20, 1, 1), "more": exported(24000, 80, 2, 2)})
    assert scores_of(_GeniusScore(), cluster) == [0, 1]
