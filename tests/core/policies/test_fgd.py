"""Policy `fgd` on a cluster's columns: what the simulator's rules give for the same nodes."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.fit.fits import fit
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Asks, Nodes, TypicalPod, mix_of
from extender.core.policies import fgd
from extender.core.policies.fgd import DEFAULT_MIX, _FragmentScore
from extender.core.policies.policy import Expected
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from model.engine.ranks import Rank
from tests.core.builders import NodeState, all_rows, cluster_of, node
from tests.model.builders import twin_scores

T4 = ("Tesla-T4", 15360)
MIX = (Expected(1000, 1, 500, 20), Expected(8000, 2, 1000, 10), Expected(4000, 0, 1000, 10))


def cluster_with(sizes: list[int], cpu_free: list[int], free_milli: list[list[int]]) -> Cluster:
    """Nodes of T4s in which so much is left."""
    states: dict[str, NodeState] = {f"n{i:02d}": node(*[T4] * size) for i, size in enumerate(sizes)}
    cluster = cluster_of(states)
    milli = np.zeros_like(cluster.gpu_free_milli)
    for row, left in enumerate(free_milli):
        milli[row, : len(left)] = left
    mib = np.where(milli == 1000, cluster.gpu_memory_mib, cluster.gpu_memory_mib // 2)
    return dataclasses.replace(
        cluster, cpu_free_milli=np.array(cpu_free), gpu_free_milli=milli, gpu_free_mib=mib.astype(np.int32)
    )


NODES = st.lists(
    st.tuples(
        st.sampled_from([0, 3000, 9000, 40000]), st.lists(st.sampled_from([0, 190, 500, 1000]), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


@given(NODES, st.sampled_from([(1, 500), (1, 190), (1, 1000), (2, 1000)]), st.sampled_from([0, 2000, 8000]))
def test_it_decides_as_the_simulator_does(nodes: list[tuple[int, list[int]]], asked: tuple[int, int], cpu: int) -> None:
    num, milli = asked
    cluster = cluster_with([len(free) for _, free in nodes], [cpu_free for cpu_free, _ in nodes], [f for _, f in nodes])
    request = GpuRequest(num, AskedUnit.WHOLE, milli=milli if milli < 1000 else 0, cpu_milli=cpu)
    decision = decide(cluster, request, fgd.expecting(MIX), all_rows(cluster), Memo())

    width = cluster.gpu_free_milli.shape[1]
    free = np.array([left + [0] * (width - len(left)) for _, left in nodes], dtype=np.int32)
    # Kerf leaves CPU and memory to kube-scheduler's own filter.
    plenty = np.full(len(nodes), 10**6)
    simulated = Nodes(
        plenty, plenty, np.array([len(f) for _, f in nodes]), np.zeros(len(nodes), np.int64),
        cluster.cpu_free_milli, plenty, free,
    )  # fmt: skip
    asks = Asks(*(np.array([value]) for value in (cpu, 0, num, milli, ANY_MODEL)))
    mix = mix_of([TypicalPod(p.cpu_milli, p.gpus, p.gpu_milli if p.gpus else 0, ANY_MODEL, p.count) for p in MIX], 40)
    fits = np.flatnonzero(fit(cluster, request, all_rows(cluster)).fits)
    enough_cpu = fits[simulated.cpu_free_milli[fits] >= cpu]
    score, gpu = twin_scores(simulated, asks, 0, Rank.FGD, mix)
    assert np.flatnonzero(score > -np.inf).tolist() == enough_cpu.tolist()
    assert decision.evaluation.score[enough_cpu].tolist() == score[enough_cpu].tolist()
    if decision.best is not None and decision.best in enough_cpu and milli < 1000:
        assert decision.gpus == (int(gpu[decision.best]),)


def test_only_this_policy_tells_pods_apart_by_cpu() -> None:
    request = PodRequest(GpuRequest(1), cpu_milli=4000)
    assert POLICIES["bestfit"].asked(request) == GpuRequest(1)
    assert POLICIES["fgd"].asked(request) == GpuRequest(1, cpu_milli=4000)
    assert POLICIES["fgd"].asked(PodRequest()) is None


def test_models_of_the_mix_are_products_in_any_spelling() -> None:
    cluster = cluster_with([2, 2], [40000, 40000], [[1000, 1000], [1000, 500]])
    rows = all_rows(cluster)
    request = GpuRequest(1, cpu_milli=1000)
    t4_only = fgd.expecting([dataclasses.replace(pod, models=("Tesla T4",)) for pod in MIX])
    a100_only = fgd.expecting([dataclasses.replace(pod, models=("A100-SXM4-80GB",)) for pod in MIX])
    checked = fit(cluster, request, rows)
    assert (
        t4_only.score(cluster, request, rows, checked).tolist()
        == fgd.expecting(MIX).score(cluster, request, rows, checked).tolist()
    )
    # Nobody who is expected can use these GPUs: whatever is taken is a gain of as many fragments.
    assert a100_only.score(cluster, request, rows, checked).tolist() == [int(100 / (1 + np.exp(-1)))] * 2


def test_the_default_mix_is_that_of_the_public_trace() -> None:
    # 35 classes cover 95 % of the 8152 pods of openb's trace "default".
    assert len(DEFAULT_MIX) == 35
    covered = sum(pod.count for pod in DEFAULT_MIX)
    assert covered >= 0.95 * 8152 > covered - DEFAULT_MIX[-1].count


A10 = ("NVIDIA-A10", 24576)


def scored(cluster: Cluster, request: GpuRequest, *expected: Expected) -> list[float]:
    rows = all_rows(cluster)
    found = fgd.expecting(expected).score(cluster, request, rows, fit(cluster, request, rows))
    scores: list[float] = found.tolist()
    return scores


def percent(gain: float) -> int:
    return int(100 / (1 + np.exp(-gain)))


def test_each_node_is_judged_by_its_own_model() -> None:
    cluster = dataclasses.replace(cluster_of({"a": node(T4), "b": node(A10)}), cpu_free_milli=np.array([9000, 9000]))
    request = GpuRequest(1, cpu_milli=1000)
    # Taken where nobody else wants it a GPU is a fragment less; where one of two wants it, half of one.
    assert scored(cluster, request, Expected(1000, 1, 1000, 1, ("Tesla-T4",))) == [percent(0), percent(1)]
    assert scored(cluster, request, Expected(1000, 1, 1000, 1, ("NVIDIA A10",))) == [percent(1), percent(0)]
    both = Expected(1000, 1, 1000, 1, ("Tesla-T4",)), Expected(1000, 1, 1000, 1)
    assert scored(cluster, request, *both) == [percent(0), percent(0.5)]
    assert scored(cluster, request, Expected(1000, 1, 1000, 1, ("Tesla-T4", "NVIDIA-A10"))) == [percent(0)] * 2


def test_what_the_pod_leaves_of_the_cpu_is_part_of_the_state_afterwards() -> None:
    cluster = cluster_with([2], [9000], [[1000, 1000]])
    typical = Expected(4000, 1, 1000, 1)
    # With 5000 or more left the other GPU is of use; without, it is a fragment that was none.
    for cpu, gain in ((4000, 0), (5000, 0), (5001, -1)):
        assert scored(cluster, GpuRequest(1, cpu_milli=cpu), typical) == [percent(gain)]


def test_a_share_goes_to_the_first_gpu_that_is_left_with_the_fewest_fragments() -> None:
    cluster = cluster_with([4], [9000], [[1000, 700, 500, 500]])
    typical = Expected(1000, 1, 500, 1)
    request = GpuRequest(1, AskedUnit.WHOLE, milli=500, cpu_milli=1000)
    policy = fgd.expecting([typical])
    room = np.array([True, True, True, True])
    assert policy.share is not None
    assert policy.share(cluster, request, 0, room) == 0  # 1000 leaves 500, 500 leaves 0, 700 leaves 200 that are lost
    assert policy.share(cluster, request, 0, np.array([False, True, False, True])) == 3
    assert policy.share(cluster, request, 0, np.array([False, True, False, False])) == 1
    assert scored(cluster, request, typical) == [percent(0)]


def test_shares_of_several_gpus_are_taken_of_the_first_with_room() -> None:
    cluster = cluster_with([3], [9000], [[200, 1000, 1000]])
    request = GpuRequest(2, AskedUnit.WHOLE, milli=400, cpu_milli=1000)
    # 200 of no use before; afterwards 200, 600 and 600 to pods that want a whole one.
    assert scored(cluster, request, Expected(1000, 1, 1000, 1)) == [percent(0.2 - 1.4)]
    assert scored(cluster, request, Expected(1000, 1, 600, 1)) == [percent(0)]


def test_a_share_that_costs_all_there_is_scores_nothing() -> None:
    cluster = cluster_with([8], [9000], [[1000] * 8])
    request = GpuRequest(1, AskedUnit.WHOLE, milli=500, cpu_milli=6000)
    assert scored(cluster, request, Expected(4000, 1, 1000, 1)) == [0.0]  # 7.5 GPUs without the CPU for a pod


def test_nodes_that_give_whole_gpus_are_judged_beside_those_that_give_shares() -> None:
    states = {"part": node(T4, T4, unit=GpuUnit.PART), "whole": node(T4, T4)}
    cluster = dataclasses.replace(cluster_of(states), cpu_free_milli=np.array([9000, 9000]))
    request = GpuRequest(1, memory_each_mib=1024, cpu_milli=6000)
    # No compute is asked for: a share takes none, a whole GPU all. What is left has no CPU.
    assert scored(cluster, request, Expected(4000, 1, 1000, 1)) == [percent(-2), percent(-1)]


def test_pods_without_gpus_leave_all_that_is_idle_unused() -> None:
    cluster = cluster_with([2], [9000], [[1000, 1000]])
    assert scored(cluster, GpuRequest(1, cpu_milli=1000), Expected(1000, 0, 1000, 1)) == [percent(1)]


def test_a_model_beyond_the_most_that_are_told_apart_is_none_to_the_mix() -> None:
    count = MAX_MODELS + 1
    states = {f"n{number:02}": node((f"GPU-{number}", 1024)) for number in range(count)}
    cluster = dataclasses.replace(cluster_of(states), cpu_free_milli=np.full(count, 9000))
    scores = scored(cluster, GpuRequest(1, cpu_milli=1000), Expected(1000, 1, 1000, 1))
    assert scores == [percent(0)] * MAX_MODELS + [percent(1)]


def test_the_mix_is_read_anew_when_the_cluster_has_another_model() -> None:
    score = _FragmentScore([Expected(1000, 1, 1000, 1, ("NVIDIA-A10",))])
    request = GpuRequest(1, cpu_milli=1000)
    for states, right in (({"a": node(T4)}, [percent(1)]), ({"a": node(T4), "b": node(A10)}, [percent(1), percent(0)])):
        cluster = dataclasses.replace(cluster_of(states), cpu_free_milli=np.full(len(states), 9000))
        rows = all_rows(cluster)
        assert score(cluster, request, rows, fit(cluster, request, rows)).tolist() == right
