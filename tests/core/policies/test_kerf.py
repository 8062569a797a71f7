"""The learned rank on clusters: it decides like the simulator it was trained in, and each of its terms counts."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.decisions import decide
from extender.core.evaluations import Memo, evaluate
from extender.core.fragmentation import ANY_MODEL, Nodes, PodClasses
from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights, LearnedScore, serving
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.valuenet.features import Hosting, Outlook, Worth
from extender.core.valuenet.potentials import Potential, prospect
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from model.engine.node_scores import learned_on
from model.engine.ranks import Rank
from tests.core.builders import (
    A100,
    ONE,
    T4,
    NodeState,
    all_rows,
    arrays_of,
    best_of,
    cluster_of,
    decided,
    fit_all,
    node,
    pattern,
)
from tests.core.learning import kerf_on, only
from tests.core.observing import Samples, observe
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_nodes, twin_scores

PRODUCTS = ("Tesla-T4", "NVIDIA-A10", "Tesla-V100-SXM2-16GB")
PATTERNS = {ANY_MODEL: None, 1: pattern("t4"), 6: pattern("a10|v100")}
MIB = 16000
"""Of each GPU, so that a share's memory is a whole number."""


def twin(nodes: Nodes) -> Cluster:
    """The nodes as a cluster; three rows before them fix the order of the models."""
    states: dict[str, NodeState] = {f"model-{i}": node((name, MIB), held=[0]) for i, name in enumerate(PRODUCTS)}
    for n, (count, model) in enumerate(zip(nodes.num_gpus.tolist(), nodes.model.tolist(), strict=True)):
        states[f"node-{n:02}"] = node(*[(PRODUCTS[model], MIB)] * count)
    cluster = cluster_of(states)
    width = cluster.gpu_model.shape[1]
    before = np.zeros((3, width), np.int32)
    milli = np.concatenate([before, nodes.gpu_free_milli[:, :width]]).astype(np.int32)

    def with_models(column: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros(3, np.int64), column])

    return dataclasses.replace(
        cluster,
        gpu_free_milli=milli,
        gpu_free_mib=(milli * (MIB // 1000)).astype(np.int32),
        cpu_milli=with_models(nodes.cpu_milli),
        memory_mib=with_models(nodes.memory_mib),
        cpu_free_milli=with_models(nodes.cpu_free_milli),
        memory_free_mib=with_models(nodes.memory_free_mib),
    )


def served(potential: Potential, outlook: Outlook) -> LearnedScore:
    """With a row for models that come later, as the service has it."""

    def with_later(table: Hosting) -> Hosting:
        return table._replace(weight=np.insert(table.weight, -1, 0, axis=0))

    left, compute = outlook.worth
    worth = Worth(np.insert(left, -1, np.arange(1001) / 1000, axis=0), np.insert(compute, -1, 0, axis=0))
    wider = outlook._replace(
        worth=worth, wanted=np.insert(outlook.wanted, -1, 0),
        typical=with_later(outlook.typical), one=with_later(outlook.one), many=with_later(outlook.many),
    )  # fmt: skip
    return LearnedScore(prospect(potential, wider), serial=1)


ASKED = st.tuples(
    st.sampled_from([(1, 1000), (2, 1000), (4, 1000), (1, 500), (1, 250), (1, 100), (1, 810)]),
    st.sampled_from([0, 500, 4000, 24000]),
    st.sampled_from([0, 1024, 65536]),
    st.sampled_from(sorted(PATTERNS)),
)


@given(st.integers(0, 2**32), ASKED, st.integers(0, 3))
def test_it_decides_like_the_simulator(
    seed: int, asked: tuple[tuple[int, int], int, int, int], num_hidden: int
) -> None:
    rng = np.random.default_rng(seed)
    nodes, outlook, potential = random_nodes(rng, 8), random_outlook(rng), random_potential(rng, num_hidden)
    (num, milli), cpu, memory, models = asked
    cluster, score = twin(nodes), served(potential, outlook)
    request = GpuRequest(
        num, AskedUnit.WHOLE, include=PATTERNS[models], milli=milli % 1000, cpu_milli=cpu, memory_mib=memory
    )
    decision = decided(cluster, request, serving(score))
    asks = PodClasses(*(np.array([value]) for value in (cpu, memory, num, milli, models)))
    right, gpu = twin_scores(nodes, asks, 0, Rank.NONE, outlook.mix, learned_on(nodes, outlook, potential))
    fits = np.flatnonzero(right > -np.inf)
    assert np.ceil(decision.evaluation.score[3 + fits]).tolist() == right[fits].tolist()  # a hair less, by memory
    if len(fits):
        best = int(right.argmax())
        assert decision.best == 3 + best
        assert decision.gpus if milli == 1000 else decision.gpus == (int(gpu[best]),)
    elif decision.best is not None:  # the simulator counts CPU and memory as fit; here that is kube-scheduler's
        assert decision.evaluation.score.max() == -1e9


@given(st.integers(0, 2**32), ASKED)
def test_the_contributions_of_features_sum_to_the_gain(seed: int, asked: tuple[tuple[int, int], int, int, int]) -> None:
    rng = np.random.default_rng(seed)
    nodes, outlook, potential = random_nodes(rng, 4), random_outlook(rng), random_potential(rng, 3)
    (num, milli), cpu, memory, _ = asked
    cluster, score = twin(nodes), served(potential, outlook)
    request = GpuRequest(num, AskedUnit.WHOLE, milli=milli % 1000, cpu_milli=cpu, memory_mib=memory)
    for row in np.flatnonzero(fit_all(cluster, request).fits).tolist():
        told = score.to_json(cluster, request, row)
        assert told["served"] == "model"
        assert sum(part["movedGPUs"] for part in told["features"]) == pytest.approx(told["gainGPUs"], abs=1e-4)


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 250, 500, 1000]), st.integers(0, 3), st.integers(0, 60000)),
    min_size=1,
    max_size=8,
)


@given(STEPS, st.integers(0, 2**16))
def test_cached_scores_equal_computed_ones(steps: list[tuple[int, int, int, int]], seed: int) -> None:
    arrays = with_cpu({f"n{i}": node(*[(PRODUCTS[i % 3], MIB)] * 4) for i in range(4)})
    for row in range(4):
        arrays.set_capacity(row, 64000, 262144)
    rng = np.random.default_rng(seed)
    outlook, potential = random_outlook(rng), random_potential(rng)
    policy, memo = serving(served(potential, outlook)), Memo()
    requests = [
        GpuRequest(1, AskedUnit.WHOLE, milli=500, cpu_milli=4000),
        GpuRequest(2, cpu_milli=8000, memory_mib=1024),
    ]
    for row, milli, gpu, cpu in steps:
        arrays.set_held(row, HeldAmounts({gpu: (milli, MIB * milli // 1000)}, 0))
        arrays.set_compute(row, cpu, 100_000)
        cluster = arrays.snapshot()
        for request in requests:
            fresh = evaluate(cluster, request, serving(served(potential, outlook)), all_rows(cluster))
            assert memo.evaluate(cluster, request, policy).evaluation.score.tolist() == fresh.score.tolist()


def with_cpu(states: dict[str, NodeState], *cpu_free: int) -> ClusterArrays:
    """Nodes with this CPU free, or 64 cores each."""
    arrays = arrays_of(states)
    for row in range(len(states)):
        arrays.set_compute(row, cpu_free[row] if cpu_free else 64000, 262144)
    return arrays


def loads(names: str, load: float) -> Samples:
    """Samples of nodes with two GPUs each."""
    return {name: {Gauge.LOAD: [load] * 2, Gauge.MEMORY_USED: [0.0] * 2} for name in names}


def test_each_term_alone_changes_the_winner() -> None:
    arrays = with_cpu({"a": node(T4, T4), "b": node(T4, T4, held=[0])})

    def winner(cluster: Cluster, weights: KerfWeights, **value: float) -> str:
        return best_of(cluster, GpuRequest(1, cpu_milli=1000), kerf_on(cluster, only(**value), weights, live=True))

    cluster, both = observe(arrays, loads("ab", 0.0)), KerfWeights(1.0, 2.0)
    assert winner(cluster, both) == "a"  # all alike: the first by name
    # Value alone: whole nodes are worth keeping, or breaking up.
    assert winner(cluster, both, node_idle=1.0) == "b"
    assert winner(cluster, both, node_idle=-1.0) == "a"
    # Live alone: node a's GPUs are busy.
    shifted = observe(arrays, {**loads("b", 0.0), **loads("a", 0.9)}, now=1010.0)
    assert winner(shifted, both) == "b"
    assert winner(shifted, KerfWeights(1.0, 0.0)) == "a"
    # Both: the value of keeping b's GPU free, in quanta, is more than the headroom, or less.
    assert winner(shifted, both, node_idle=-1.0) == "a"
    assert winner(shifted, KerfWeights(0.1, 5.0), node_idle=-1.0) == "b"


def test_the_smallest_suitable_gpu_wins_among_equals_alone() -> None:
    arrays = with_cpu({"a": node(A100, A100), "b": node(T4, T4), "c": node(T4, T4)})

    def winner(cluster: Cluster, memory_each_mib: int = 0, **value: float) -> str:
        request = GpuRequest(1, memory_each_mib=memory_each_mib, cpu_milli=1000)
        return best_of(cluster, request, kerf_on(cluster, only(**value), live=True))

    cluster = observe(arrays, loads("abc", 0.0))
    assert winner(cluster) == "b"
    assert winner(cluster, 16000) == "a"
    # A quantum is more, and so is a tenth of headroom.
    arrays.set_compute(0, 9000, 262144)
    assert winner(observe(arrays, loads("abc", 0.0)), cpu_log=-5.0) == "a"
    arrays.set_compute(0, 64000, 262144)
    assert winner(observe(arrays, {**loads("a", 0.0), **loads("bc", 0.2)}, now=1010.0)) == "a"


def test_without_samples_the_live_term_is_0() -> None:
    cluster = cluster_of({"a": node(T4, T4, used={0: (500, 8000)}), "b": node(T4, T4)})
    share = GpuRequest(1, AskedUnit.WHOLE, milli=250)
    with_live, without = (
        decided(cluster, share, kerf_on(cluster, only(worth=1.0), live=live)).evaluation.score.tolist()
        for live in (True, False)
    )
    assert with_live == without


def test_best_fit_ranks_where_values_are_not_finite_and_that_is_reported() -> None:
    arrays = arrays_of({"a": node(T4, T4), "b": node(T4, T4, held=[0])})
    cluster = arrays.snapshot()
    policy, memo = kerf_on(cluster, only(cpu_square=1e308)), Memo()
    request = GpuRequest(1, cpu_milli=1000)
    assert decide(cluster, request, policy, all_rows(cluster), memo).best is not None
    arrays.set_capacity(1, 10**9, 1)
    arrays.set_compute(1, 10**9, 10**9)
    broken = arrays.snapshot()
    found = decide(broken, request, policy, all_rows(broken), memo)
    assert found.evaluation.score.tolist() == decided(broken).evaluation.score.tolist()
    assert found.terms is not None and found.best is not None
    assert "not finite" in found.terms(broken, request, found.best)["reason"]


def test_a_node_without_the_cpu_comes_last() -> None:
    cluster = with_cpu({"a": node(T4, T4), "b": node(T4, T4), "c": node(T4)}, 1000, 8000, 500).snapshot()
    score = decided(cluster, GpuRequest(1, cpu_milli=4000), kerf_on(cluster, only(cpu=-1.0))).evaluation.score
    assert score.argmax() == 1
    assert (score[[0, 2]] == -1e9).all()


def test_units_of_unknown_index_count_as_used() -> None:
    """As many of the last idle GPUs."""
    states = {"a": node(T4, T4, T4), "b": node(T4, T4, T4, untracked=1), "c": node(T4, T4, T4, held=[2])}
    cluster = cluster_of(states)
    policy = kerf_on(cluster, only(0.01, gpu_square=-1.0))  # (free / 3)^2 x 3: gains differ by what is free
    # 9 - 4 and 4 - 1 of 3, in hundredths of a GPU
    assert np.ceil(decided(cluster, ONE, policy).evaluation.score).tolist() == [166, 100, 100]
