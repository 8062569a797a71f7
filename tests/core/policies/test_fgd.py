"""Policy `fgd` on a cluster's columns, against the simulator's rules for the same nodes."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Nodes, PodClasses, TypicalPod, mix_of
from extender.core.policies import fgd
from extender.core.policies.fgd import DEFAULT_MIX, _FragmentScore
from extender.core.policies.policy import Expected
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from model.engine.ranks import Rank
from tests.core.builders import T4, NodeState, cluster_of, decided, fit_all, node, scores_of
from tests.model.builders import twin_scores

A10 = ("NVIDIA-A10", 24576)
BARE = AskedUnit.WHOLE
MIX = (Expected(1000, 1, 500, 20), Expected(8000, 2, 1000, 10), Expected(4000, 0, 1000, 10))
WHOLE, IN_T4, IN_A10 = (Expected(1000, 1, 1000, 1, models) for models in ((), ("Tesla-T4",), ("NVIDIA A10",)))


def free_cpu(states: dict[str, NodeState], cpu_free: list[int] | None = None) -> Cluster:
    """Nodes with 9 cores each, or this CPU."""
    return dataclasses.replace(cluster_of(states), cpu_free_milli=np.array(cpu_free or [9000] * len(states)))


def cluster_with(free_milli: list[list[int]], cpu_free: list[int] | None = None) -> Cluster:
    """Nodes of T4s with this compute left."""
    cluster = free_cpu({f"n{i:02d}": node(*[T4] * len(free)) for i, free in enumerate(free_milli)}, cpu_free)
    milli = np.zeros_like(cluster.gpu_free_milli)
    for row, left in enumerate(free_milli):
        milli[row, : len(left)] = left
    mib = np.where(milli == 1000, cluster.gpu_memory_mib, cluster.gpu_memory_mib // 2)
    return dataclasses.replace(cluster, gpu_free_milli=milli, gpu_free_mib=mib.astype(np.int32))


NODES = st.lists(
    st.tuples(
        st.sampled_from([0, 3000, 9000, 40000]), st.lists(st.sampled_from([0, 190, 500, 1000]), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


@given(NODES, st.sampled_from([(1, 500), (1, 190), (1, 1000), (2, 1000)]), st.sampled_from([0, 2000, 8000]))
def test_it_decides_like_the_simulator(nodes: list[tuple[int, list[int]]], asked: tuple[int, int], cpu: int) -> None:
    num, milli = asked
    cluster = cluster_with([free for _, free in nodes], [cpu_free for cpu_free, _ in nodes])
    request = GpuRequest(num, BARE, milli=milli if milli < 1000 else 0, cpu_milli=cpu)
    decision = decided(cluster, request, fgd.expecting(MIX))

    width = cluster.gpu_free_milli.shape[1]
    free = np.array([left + [0] * (width - len(left)) for _, left in nodes], dtype=np.int32)
    # Kerf leaves CPU and memory to kube-scheduler's own filter.
    plenty = np.full(len(nodes), 10**6)
    simulated = Nodes(
        plenty, plenty, np.array([len(f) for _, f in nodes]), np.zeros(len(nodes), np.int64),
        cluster.cpu_free_milli, plenty, free,
    )  # fmt: skip
    asks = PodClasses(*(np.array([value]) for value in (cpu, 0, num, milli, ANY_MODEL)))
    mix = mix_of([TypicalPod(p.cpu_milli, p.gpus, p.gpu_milli if p.gpus else 0, ANY_MODEL, p.count) for p in MIX], 40)
    fits = np.flatnonzero(fit_all(cluster, request).fits)
    enough_cpu = fits[simulated.cpu_free_milli[fits] >= cpu]
    score, gpu = twin_scores(simulated, asks, 0, Rank.FGD, mix)
    assert np.flatnonzero(score > -np.inf).tolist() == enough_cpu.tolist()
    assert decision.evaluation.score[enough_cpu].tolist() == score[enough_cpu].tolist()
    if decision.best is not None and decision.best in enough_cpu and milli < 1000:
        assert decision.gpus == (int(gpu[decision.best]),)


def test_the_default_mix_is_that_of_the_public_trace() -> None:
    # 35 classes cover 95 % of the 8152 pods of openb's trace "default".
    assert len(DEFAULT_MIX) == 35
    covered = sum(pod.count for pod in DEFAULT_MIX)
    assert covered >= 0.95 * 8152 > covered - DEFAULT_MIX[-1].count


def percent(gain: float) -> int:
    """The score for this many GPUs less that expected pods can't use."""
    return int(100 / (1 + np.exp(-gain)))


def check(cluster: Cluster, request: GpuRequest, expected: tuple[Expected, ...], *gains: float) -> None:
    """Assert the scores of all nodes."""
    scores = scores_of(fgd.expecting(expected).score, cluster, request)
    assert scores == [percent(gain) for gain in gains], (request, expected)


def test_each_node_counts_by_its_own_model_in_any_spelling() -> None:
    cluster = free_cpu({"a": node(T4), "b": node(A10)})
    request = GpuRequest(1, cpu_milli=1000)
    # A GPU that nobody else wants is a fragment less; one that one of two wants, half of one.
    check(cluster, request, (IN_T4,), 0, 1)
    check(cluster, request, (IN_A10,), 1, 0)
    check(cluster, request, (IN_T4, WHOLE), 0, 0.5)
    check(cluster, request, (Expected(1000, 1, 1000, 1, ("Tesla T4", "NVIDIA-A10")),), 0, 0)
    count = MAX_MODELS + 1
    many = free_cpu({f"n{number:02}": node((f"GPU-{number}", 1024)) for number in range(count)})
    check(many, request, (WHOLE,), *[0.0] * MAX_MODELS, 1)  # the mix does not know more models
    score = _FragmentScore([IN_A10])
    for states, right in (({"a": node(T4)}, [percent(1)]), ({"a": node(T4), "b": node(A10)}, [percent(1), percent(0)])):
        assert scores_of(score, free_cpu(states), request) == right  # also once the cluster has another model


def test_worked_examples() -> None:
    typical = (Expected(4000, 1, 1000, 1),)
    # With 5000 or more left the other GPU is of use; without, it becomes a fragment.
    for cpu, gain in ((4000, 0), (5000, 0), (5001, -1)):
        check(cluster_with([[1000, 1000]]), GpuRequest(1, cpu_milli=cpu), typical, gain)
    # 200 of no use before; afterwards 200, 600 and 600 for pods that want a whole one.
    shares = GpuRequest(2, BARE, milli=400, cpu_milli=1000)
    check(cluster_with([[200, 1000, 1000]]), shares, (WHOLE,), 0.2 - 1.4)
    check(cluster_with([[200, 1000, 1000]]), shares, (Expected(1000, 1, 600, 1),), 0)
    # 7.5 GPUs without the CPU for a pod.
    check(cluster_with([[1000] * 8]), GpuRequest(1, BARE, milli=500, cpu_milli=6000), typical, -np.inf)
    # A share by memory takes no compute, a whole GPU all. What is left has no CPU.
    states = {"part": node(T4, T4, unit=GpuUnit.PART), "whole": node(T4, T4)}
    check(free_cpu(states), GpuRequest(1, memory_each_mib=1024, cpu_milli=6000), typical, -2, -1)
    # Pods without GPUs leave all idle GPUs unused.
    check(cluster_with([[1000, 1000]]), GpuRequest(1, cpu_milli=1000), (Expected(1000, 0, 1000, 1),), 1)


def test_a_share_goes_on_the_first_gpu_that_leaves_the_fewest_fragments() -> None:
    cluster = cluster_with([[1000, 700, 500, 500]])
    request = GpuRequest(1, BARE, milli=500, cpu_milli=1000)
    expected = (Expected(1000, 1, 500, 1),)
    share = fgd.expecting(expected).share
    assert share is not None
    # 1000 leaves 500, 500 leaves 0, 700 leaves 200 that are lost.
    for room, gpu in (([True] * 4, 0), ([False, True, False, True], 3), ([False, True, False, False], 1)):
        assert share(cluster, request, 0, np.array(room)) == gpu
    check(cluster, request, expected, 0)
