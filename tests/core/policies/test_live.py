"""Live scores: what GPUs are really doing moves decisions, and only while it is fresh."""

from collections.abc import Mapping

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.decisions import decide
from extender.core.evaluations import Memo, evaluate
from extender.core.fit.fits import fit
from extender.core.gauges import Gauge
from extender.core.policies.alnair import _AlnairScore
from extender.core.policies.interference import interference
from extender.core.policies.live import _WEIGHTS, LiveScore
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node
from tests.core.observing import Samples, observe, observed_cluster

A100 = ("NVIDIA-A100-SXM4-40GB", 40960)
ONE = GpuRequest(1)
LIVE = POLICIES["live"]
NODES = {"a": node(A100, A100), "b": node(A100, A100)}


def best(cluster: Cluster, policy: Policy = LIVE, request: GpuRequest = ONE) -> str:
    decision = decide(cluster, request, policy, all_rows(cluster), Memo())
    assert decision.best is not None
    return cluster.node_names[decision.best]


def live(cluster: Cluster, weights: Mapping[str, float] | None = None) -> list[float]:
    rows = all_rows(cluster)
    scores: list[float] = LiveScore(weights)(cluster, ONE, rows, fit(cluster, ONE, rows)).tolist()
    return scores


def busy(*loads: float) -> dict[Gauge, list[float]]:
    return {Gauge.LOAD: list(loads)}


def test_worked_example() -> None:
    samples: Samples = {
        "a": {
            Gauge.LOAD: [0.5, 0.5],
            Gauge.POWER: [200, 200],
            Gauge.TEMPERATURE: [70, 70],
            Gauge.BANDWIDTH: [0.25, 0.25],
            Gauge.TENSOR: [0.75, 0.75],
        }
    }
    cluster = observed_cluster({"a": node(A100, A100)}, samples)
    # 4*(1-.5) + 2*1 + 1*(1-200/400) + 1*(90-70)/40 + 1*(1-.25) + 1*(1-.75), of 10
    assert live(cluster) == pytest.approx([(2 + 2 + 0.5 + 0.5 + 0.75 + 0.25) / 10])


@pytest.mark.parametrize(
    ("gauge", "good", "bad"),
    [
        (Gauge.LOAD, 0.1, 0.9),
        (Gauge.POWER, 60.0, 390.0),
        (Gauge.TEMPERATURE, 55.0, 85.0),
        (Gauge.BANDWIDTH, 0.1, 0.9),
        (Gauge.TENSOR, 0.1, 0.9),
        (Gauge.XID, 0.0, 79.0),
        (Gauge.ROW_REMAP_FAILED, 0.0, 1.0),
    ],
)
def test_decisions_follow_each_gauge(gauge: Gauge, good: float, bad: float) -> None:
    assert best(observed_cluster(NODES, {"a": {gauge: [bad] * 2}, "b": {gauge: [good] * 2}})) == "b"
    assert best(observed_cluster(NODES, {"a": {gauge: [good] * 2}, "b": {gauge: [bad] * 2}})) == "a"


@pytest.mark.parametrize("policy", ["live", "genius", "alnair"])
def test_the_same_cluster_and_pod_go_elsewhere_when_metrics_shift(policy: str) -> None:
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
    assert best(observed_cluster(NODES, samples)) == "b"
    stale = observed_cluster(NODES, samples, age_s=91)
    assert best(stale) == "a"  # equal again: the first by name
    assert len(set(live(stale))) == 1


def alone(term: str, weight: float = 1.0) -> dict[str, float]:
    """Weights of one term."""
    return {name: 0.0 for name in _WEIGHTS if name != "own_gpus"} | {term: weight}


@pytest.mark.parametrize(
    ("term", "gauge", "sample", "headroom"),
    [
        ("load", Gauge.LOAD, 0.25, 0.75),
        ("power", Gauge.POWER, 0.0, 1.0),
        ("power", Gauge.POWER, 100.0, 0.75),  # of 400 W
        ("power", Gauge.POWER, 400.0, 0.0),
        ("power", Gauge.POWER, 500.0, 0.0),  # a peak beyond the limit
        ("temperature", Gauge.TEMPERATURE, 20.0, 1.0),
        ("temperature", Gauge.TEMPERATURE, 50.0, 1.0),
        ("temperature", Gauge.TEMPERATURE, 60.0, 0.75),
        ("temperature", Gauge.TEMPERATURE, 90.0, 0.0),
        ("temperature", Gauge.TEMPERATURE, 99.0, 0.0),
        ("bandwidth", Gauge.BANDWIDTH, 0.25, 0.75),
        ("tensor", Gauge.TENSOR, 0.75, 0.25),
    ],
)
@pytest.mark.parametrize("weight", [0.25, 1.0, 3.0])
def test_each_term_alone_goes_from_nothing_to_all(
    term: str, gauge: Gauge, sample: float, headroom: float, weight: float
) -> None:
    cluster = observed_cluster({"a": node(A100, A100)}, {"a": {gauge: [sample] * 2}})
    assert live(cluster, alone(term, weight)) == pytest.approx([headroom])


def test_memory_alone_is_what_is_free_of_it() -> None:
    cluster = cluster_of({"a": node(A100, used={0: (500, 10240)}), "b": node(A100, A100, held=[0])})
    assert live(cluster, {**alone("memory"), "own_gpus": 0.0}) == pytest.approx([0.75, 0.5])


def test_what_is_not_told_counts_as_the_mean_of_what_is() -> None:
    nodes = {**NODES, "c": node(A100, A100)}
    samples: Samples = {"a": busy(0.2, 0.2), "b": busy(0.4, np.nan)}
    # Of the three that tell, 0.8, 0.8 and 0.6; b is known by half.
    mean = (0.8 + 0.8 + 0.6) / 3
    assert live(observed_cluster(nodes, samples), alone("load")) == pytest.approx([0.8, (0.6 + mean) / 2, mean])
    assert live(cluster_of(nodes), alone("load")) == pytest.approx([0.5] * 3)


def test_a_faulty_gpu_and_a_place_without_one_have_no_headroom() -> None:
    nodes = {"a": node(A100, A100), "b": node(A100)}
    samples = {"a": {Gauge.LOAD: [0.0, 0.0], Gauge.XID: [0.0, 79.0]}, "b": {Gauge.LOAD: [0.0], Gauge.XID: [31.0]}}
    cluster = observed_cluster(nodes, samples)
    assert live(cluster, alone("load")) == pytest.approx([0.5, 1.0])
    rows, application = all_rows(cluster), LiveScore(alone("load"), frozenset({31}))
    checked = fit(cluster, ONE, rows)
    assert application(cluster, ONE, rows, checked).tolist() == pytest.approx([1.0, 0.0])
    assert application.apart()(cluster, ONE, rows, checked).tolist() == pytest.approx([1.0, 0.0])


def test_the_gpus_of_the_pod_and_those_around_it_count_by_a_weight() -> None:
    cluster = observed_cluster({"a": node(A100, A100, held=[0])}, {"a": busy(0.8, 0.0)})
    for own, right in ((1.0, 1.0), (0.0, 0.6), (0.5, 0.8)):  # the free one idles, the mean of both is 0.6
        assert live(cluster, {**alone("load"), "own_gpus": own}) == pytest.approx([right])


def test_an_unknown_weight_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="no weights of the live score: heat, speed"):
        LiveScore({"speed": 1.0, "load": 1.0, "heat": 1.0})


def test_a_node_without_samples_ranks_between() -> None:
    nodes = {**NODES, "c": node(A100, A100)}
    scores = live(observed_cluster(nodes, {"a": busy(0.9, 0.9), "b": busy(0.1, 0.1)}))
    assert scores[0] < scores[2] < scores[1]
    assert scores[2] == pytest.approx((scores[0] + scores[1]) / 2)


def test_the_score_is_smooth() -> None:
    scores = [live(observed_cluster(NODES, {"a": busy(load, load)}))[0] for load in np.linspace(0, 1, 101)]
    steps = np.diff(scores)
    assert (steps < 0).all()
    assert np.abs(steps).max() < 0.01


def test_expected_load_counts_like_observed_load() -> None:
    arrays = arrays_of(NODES)
    observe(arrays, {"a": busy(0, 0), "b": busy(0, 0)})
    observed = arrays.observed
    assert observed is not None
    observed.expect("pod", arrays.row_of["a"], (0,), 0.7, 1000.0)
    arrays.touch(np.array([arrays.row_of["a"]]))
    assert best(arrays.snapshot()) == "b"


def test_remembered_scores_are_those_of_a_fresh_look() -> None:
    rng = np.random.default_rng(20261121)
    arrays, memo = arrays_of({f"n{i}": node(A100, A100) for i in range(20)}), Memo()
    for step in range(30):
        some = rng.choice(20, 5, replace=False)
        samples = {f"n{i}": {gauge: rng.random(2).tolist() for gauge in (Gauge.LOAD, Gauge.ENCODER)} for i in some}
        cluster = observe(arrays, samples, now=1000.0 + 10 * step)
        observed = arrays.observed
        assert observed is not None
        observed.expect(f"pod-{step}", int(some[0]), (0,), 0.7, 1000.0 + 10 * step)
        arrays.touch(some[:1])
        cluster = arrays.snapshot()
        for name in ("live", "genius", "alnair"):
            plain = evaluate(cluster, ONE, POLICIES[name], all_rows(cluster))
            remembered = memo.evaluate(cluster, ONE, POLICIES[name]).evaluation
            assert remembered.score.tolist() == plain.score.tolist()
            assert remembered.reason.tolist() == plain.reason.tolist()


def test_alnair_prefers_large_and_full_nodes() -> None:
    t4 = ("Tesla-T4", 15360)
    nodes = {"a": node(A100, A100), "b": node(A100), "c": node(t4)}
    half, empty = (
        {Gauge.MEMORY_USED: [20480.0], Gauge.MEMORY_FREE: [20480.0]},
        {
            Gauge.MEMORY_USED: [0.0],
            Gauge.MEMORY_FREE: [15360.0],
        },
    )
    cluster = observed_cluster(nodes, {"b": half, "c": empty})
    rows = all_rows(cluster)
    scores = _AlnairScore()(cluster, ONE, rows, fit(cluster, ONE, rows))
    # a: 5*(40*10*2/12) + 10*(2*.25) (unobserved: the mean of .5 and 0), b: 5*(40*10/12) + 10*.5, c: 5*(15*10/12) + 0
    raw = [5 * 40 * 10 * 2 / 12 + 10 * 0.5, 5 * 40 * 10 / 12 + 10 * 0.5, 5 * 15 * 10 / 12]
    assert scores == pytest.approx([100, 100 * (raw[1] - raw[2]) / (raw[0] - raw[2]), 0])


def alnair(nodes: Mapping[str, NodeState], samples: Samples) -> list[float]:
    cluster = observed_cluster(nodes, samples)
    rows = all_rows(cluster)
    scores: list[float] = _AlnairScore()(cluster, ONE, rows, fit(cluster, ONE, rows)).tolist()
    return scores


def test_alnair_weighs_old_models_less() -> None:
    gib = 16 * 1024
    models = ("Tesla-K80", "TITAN-X", "TITAN-X-(Pascal)", "Tesla-V100-SXM2-16GB", "NVIDIA-L4")
    scores = alnair({name: node((name, gib)) for name in models}, {})
    assert scores == pytest.approx([0, 25, 25, 100, 100])  # of weights 6, 7, 7, 10 and 10


def test_alnair_ranks_nodes_with_gpus_among_themselves() -> None:
    scores = alnair({"none": node(), "one": node(A100), "two": node(A100, A100), "three": node(A100, A100, A100)}, {})
    assert scores == pytest.approx([0, 0, 50, 100])


def test_alnair_takes_a_gpu_that_tells_of_no_memory_for_one_that_tells_nothing() -> None:
    def memory(used: float, free: float) -> dict[Gauge, list[float]]:
        return {Gauge.MEMORY_USED: [used], Gauge.MEMORY_FREE: [free]}

    nodes = {name: node(A100) for name in "abc"}
    samples = {"a": memory(0, 40000), "b": memory(30000, 10000), "c": memory(0, 0)}
    assert alnair(nodes, samples) == pytest.approx([0, 100, 50])  # 0, 0.75 and their mean


def test_interference_of_pods_on_one_gpu() -> None:
    light = interference([0.3, 0.4])
    assert (light.slowdown, light.saving) == (1.0, 0.5)  # two on one, neither slower
    heavy = interference([0.9, 0.9])
    assert heavy.slowdown == pytest.approx(1.8)
    assert heavy.saving == pytest.approx(1 - 1.8 / 2)
    assert interference([0.2, 0.2], [0.8, 0.7]).slowdown == pytest.approx(1.5)
    nobody = interference([])
    assert (nobody.slowdown, nobody.saving) == (1.0, 0.0)
