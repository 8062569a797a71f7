"""Policies `live` and `alnair`: observed usage moves decisions, only while it is fresh."""

from collections.abc import Mapping

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.gauges import Gauge
from extender.core.policies.alnair import _AlnairScore
from extender.core.policies.interference import interference
from extender.core.policies.live import _WEIGHTS, LiveScore
from extender.core.policies.registry import POLICIES
from tests.core.builders import A100_40, ONE, T4, NodeState, all_rows, arrays_of, best_of, cluster_of, node, scores_of
from tests.core.observing import Samples, observe, observed_cluster

PAIR = node(A100_40, A100_40)
NODES = {"a": PAIR, "b": PAIR}


def live(cluster: Cluster, weights: Mapping[str, float] | None = None) -> list[float]:
    return scores_of(LiveScore(weights), cluster)


def busy(*loads: float) -> dict[Gauge, list[float]]:
    return {Gauge.LOAD: list(loads)}


def alone(term: str) -> dict[str, float]:
    """Weights of one term."""
    return {name: 0.0 for name in _WEIGHTS if name != "own_gpus"} | {term: 1.0}


def test_worked_example() -> None:
    sample = {Gauge.LOAD: 0.5, Gauge.POWER: 200, Gauge.TEMPERATURE: 70, Gauge.BANDWIDTH: 0.25, Gauge.TENSOR: 0.75}
    cluster = observed_cluster({"a": PAIR}, {"a": {gauge: [value, value] for gauge, value in sample.items()}})
    # 4*(1-.5) + 2*1 + 1*(1-200/400) + 1*(90-70)/40 + 1*(1-.25) + 1*(1-.75), of 10
    assert live(cluster) == pytest.approx([(2 + 2 + 0.5 + 0.5 + 0.75 + 0.25) / 10])


def test_headroom_has_bounds() -> None:
    for term, gauge, sample, headroom in (
        ("power", Gauge.POWER, 0.0, 1.0),
        ("power", Gauge.POWER, 400.0, 0.0),
        ("power", Gauge.POWER, 500.0, 0.0),  # a peak beyond the limit
        ("temperature", Gauge.TEMPERATURE, 20.0, 1.0),
        ("temperature", Gauge.TEMPERATURE, 60.0, 0.75),
        ("temperature", Gauge.TEMPERATURE, 99.0, 0.0),
    ):
        cluster = observed_cluster({"a": PAIR}, {"a": {gauge: [sample] * 2}})
        assert live(cluster, alone(term)) == pytest.approx([headroom])
    cluster = cluster_of({"a": node(A100_40, used={0: (500, 10240)}), "b": node(A100_40, A100_40, held=[0])})
    assert live(cluster, {**alone("memory"), "own_gpus": 0.0}) == pytest.approx([0.75, 0.5])


@pytest.mark.parametrize("policy", ["live", "genius", "alnair"])
def test_decisions_change_when_metrics_shift(policy: str) -> None:
    """A2: decisions change with feedback."""
    gauge = {"live": Gauge.LOAD, "genius": Gauge.ENCODER, "alnair": Gauge.MEMORY_FREE}[policy]
    rest = {Gauge.MEMORY_USED: [500.0] * 2, Gauge.MEMORY_FREE: [40000.0] * 2} if policy == "alnair" else {}
    low, high = (5000.0, 40000.0) if policy == "alnair" else (0.1, 0.9)
    arrays, memo = arrays_of(NODES), Memo()

    def chosen(a: float, b: float, now: float) -> str:
        cluster = observe(arrays, {"a": {**rest, gauge: [a] * 2}, "b": {**rest, gauge: [b] * 2}}, now)
        decision = decide(cluster, ONE, POLICIES[policy], all_rows(cluster), memo)
        assert decision.best is not None
        return cluster.node_names[decision.best]

    assert chosen(low, high, 1000) == "a"
    assert chosen(high, low, 1015) == "b"
    assert chosen(low, high, 1030) == "a"


def test_stale_samples_are_neutral() -> None:
    samples: Samples = {"a": busy(0.9, 0.9), "b": busy(0.1, 0.1)}
    assert best_of(observed_cluster(NODES, samples), ONE, "live") == "b"
    stale = observed_cluster(NODES, samples, age_s=91)
    assert best_of(stale, ONE, "live") == "a"  # equal again: the first by name
    assert len(set(live(stale))) == 1


def test_unknown_values_count_as_the_mean_of_known_ones() -> None:
    nodes = {**NODES, "c": PAIR}
    samples: Samples = {"a": busy(0.2, 0.2), "b": busy(0.4, np.nan)}
    mean = (0.8 + 0.8 + 0.6) / 3
    assert live(observed_cluster(nodes, samples), alone("load")) == pytest.approx([0.8, (0.6 + mean) / 2, mean])
    assert live(cluster_of(nodes), alone("load")) == pytest.approx([0.5] * 3)


def test_faulty_and_missing_gpus_have_no_headroom() -> None:
    samples = {"a": {Gauge.LOAD: [0.0, 0.0], Gauge.XID: [0.0, 79.0]}, "b": {Gauge.LOAD: [0.0], Gauge.XID: [31.0]}}
    cluster = observed_cluster({"a": PAIR, "b": node(A100_40)}, samples)
    assert live(cluster, alone("load")) == pytest.approx([0.5, 1.0])
    application = LiveScore(alone("load"), frozenset({31}))
    for score in (application, application.apart()):
        assert scores_of(score, cluster) == pytest.approx([1.0, 0.0])


def test_the_pods_gpus_and_the_others_count_by_a_weight() -> None:
    cluster = observed_cluster({"a": node(A100_40, A100_40, held=[0])}, {"a": busy(0.8, 0.0)})
    for own, right in ((1.0, 1.0), (0.0, 0.6), (0.5, 0.8)):  # the free one idles, the mean of both is 0.6
        assert live(cluster, {**alone("load"), "own_gpus": own}) == pytest.approx([right])
    with pytest.raises(ValueError, match="no weights of the live score: heat, speed"):
        LiveScore({"speed": 1.0, "load": 1.0, "heat": 1.0})


def test_expected_load_counts_like_observed_load() -> None:
    arrays = arrays_of(NODES)
    observe(arrays, {"a": busy(0, 0), "b": busy(0, 0)})
    assert arrays.observed is not None
    arrays.observed.expect("pod", arrays.row_of["a"], (0,), 0.7, 1000.0)
    arrays.touch(np.array([arrays.row_of["a"]]))
    assert best_of(arrays.snapshot(), ONE, "live") == "b"


def alnair(nodes: Mapping[str, NodeState], samples: Samples) -> list[float]:
    return scores_of(_AlnairScore(), observed_cluster(nodes, samples))


def memory(used: float, free: float) -> dict[Gauge, list[float]]:
    return {Gauge.MEMORY_USED: [used], Gauge.MEMORY_FREE: [free]}


def test_alnair_prefers_large_and_full_nodes() -> None:
    nodes = {"a": PAIR, "b": node(A100_40), "c": node(T4)}
    scores = alnair(nodes, {"b": memory(20480, 20480), "c": memory(0, 15360)})
    # a: 5*(40*10*2/12) + 10*(2*.25) (unobserved: the mean of .5 and 0), b: 5*(40*10/12) + 10*.5, c: 5*(15*10/12) + 0
    raw = [5 * 40 * 10 * 2 / 12 + 10 * 0.5, 5 * 40 * 10 / 12 + 10 * 0.5, 5 * 15 * 10 / 12]
    assert scores == pytest.approx([100, 100 * (raw[1] - raw[2]) / (raw[0] - raw[2]), 0])
    models = ("Tesla-K80", "TITAN-X", "TITAN-X-(Pascal)", "Tesla-V100-SXM2-16GB", "NVIDIA-L4")
    weights = alnair({name: node((name, 16 * 1024)) for name in models}, {})
    assert weights == pytest.approx([0, 25, 25, 100, 100])  # 6, 7, 7, 10 and 10
    sizes = {"none": node(), "one": node(A100_40), "two": PAIR, "three": node(*[A100_40] * 3)}
    assert alnair(sizes, {}) == pytest.approx([0, 0, 50, 100])
    # Without any memory, a sample counts as unknown: the mean of 0 and 0.75.
    equal = {name: node(A100_40) for name in "abc"}
    samples = {"a": memory(0, 40000), "b": memory(30000, 10000), "c": memory(0, 0)}
    assert alnair(equal, samples) == pytest.approx([0, 100, 50])


def test_interference_of_pods_on_one_gpu() -> None:
    light = interference([0.3, 0.4])
    assert (light.slowdown, light.saving) == (1.0, 0.5)  # two on one, neither slower
    heavy = interference([0.9, 0.9])
    assert [heavy.slowdown, heavy.saving] == pytest.approx([1.8, 1 - 1.8 / 2])
    assert interference([0.2, 0.2], [0.8, 0.7]).slowdown == pytest.approx(1.5)
    nobody = interference([])
    assert (nobody.slowdown, nobody.saving) == (1.0, 0.0)
