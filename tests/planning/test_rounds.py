"""A round: order, quotas, passing, and the reservation for the head."""

from dataclasses import replace

import numpy as np

from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from extender.planning.planners import PLANNERS
from extender.planning.plans import PlanPod, View
from extender.planning.quotas import Quotas
from extender.planning.rounds import Head, Round, Rules, greedy_round, searched_round
from tests.core.builders import node
from tests.queueing.builders import A100, check, gpu_pod, gpu_view, plain_view, reasons, view_of


def nodes_of(made: Round, *pods: PlanPod) -> list[int]:
    assert list(made.plan.pods) == list(pods)
    return list(made.plan.rows)


def half_busy() -> View:
    """Two nodes of 4 GPUs: of the first 3 are free, of the second 2."""
    return view_of({"a": node(*[(A100, 40_960)] * 4, held=[0]), "b": node(*[(A100, 40_960)] * 4, held=[0, 1])})


def test_smaller_ones_pass_one_that_has_no_room() -> None:
    view = half_busy()
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/small", 2), gpu_pod("ns/also", 3)]
    made = greedy_round(view, pods, Rules())
    check(view, pods, made.plan)
    assert nodes_of(made, *pods) == [-1, 1, 0]
    assert made.head is None
    assert reasons(made.plan)[0] == "needs 4 GPUs, best node: 0 free"


def test_a_head_that_has_waited_long_keeps_the_node_that_misses_least() -> None:
    view = half_busy()
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/small", 2), gpu_pod("ns/also", 3)]
    made = greedy_round(view, pods, Rules(reserves=frozenset({"ns/big"})))
    assert made.head == Head("ns/big", frozenset({"a"}))
    assert nodes_of(made, *pods) == [-1, 1, -1]
    assert reasons(made.plan)[2] == "room is kept for ns/big"


def test_the_nodes_of_a_head_stay_the_same_while_it_is_the_head() -> None:
    view = half_busy()
    held = Head("ns/big", frozenset({"b"}))
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/small", 2)]
    made = greedy_round(view, pods, Rules(held=held, reserves=frozenset({"ns/big"})))
    assert made.head == held
    assert nodes_of(made, *pods) == [-1, 0]
    gone = Head("ns/big", frozenset({"gone"}))
    made = greedy_round(view, pods, Rules(held=gone, reserves=frozenset({"ns/big"})))
    assert made.head == Head("ns/big", frozenset({"a"}))


def test_higher_priority_goes_before_the_head_on_its_nodes_too() -> None:
    view = half_busy()
    pods = [gpu_pod("ns/urgent", 3, priority=9), gpu_pod("ns/big", 4), gpu_pod("ns/small", 1)]
    made = greedy_round(view, pods, Rules(reserves=frozenset({"ns/big"})))
    assert nodes_of(made, *pods)[0] == 0


def test_nothing_is_kept_for_what_can_never_run() -> None:
    pods = [gpu_pod("ns/never", 5), gpu_pod("ns/small", 3)]
    made = greedy_round(half_busy(), pods, Rules(reserves=frozenset({"ns/never"})))
    assert made.head is None
    assert nodes_of(made, *pods) == [-1, 0]


def test_a_gang_as_head_keeps_a_node_for_each_pod() -> None:
    view = gpu_view(3, gpus=2)
    busy = replace(view, pods_free=np.array([110, 0, 110]))
    pods = [gpu_pod(f"ns/g{n}", 2, gang="ns/g") for n in range(3)] + [gpu_pod("ns/single", 1)]
    made = greedy_round(busy, pods, Rules(reserves=frozenset({"ns/g"})))
    assert made.head == Head("ns/g", frozenset(view.cluster.node_names))
    assert made.plan.num_placed == 0


def test_a_gang_that_keeps_to_a_domain_keeps_nodes_of_one_as_head() -> None:
    # Of node 1 one GPU is taken, of node 2 three: the freest two nodes are of different racks, and rack 0 misses less.
    view = replace(gpu_view(4, gpus=4), pods_free=np.zeros(4, np.int64), domains={"rack": np.array([0, 0, 1, 1])})
    free = view.cluster.gpu_free_milli.copy()
    free[1, 0] = free[2, :3] = 0
    busy = replace(view, cluster=replace(view.cluster, gpu_free_milli=free))
    pods = [gpu_pod(f"ns/g{n}", 4, gang="ns/g", topology="rack") for n in range(2)]
    made = greedy_round(busy, pods, Rules(reserves=frozenset({"ns/g"})))
    names = view.cluster.node_names
    assert made.head == Head("ns/g", frozenset(names[:2]))
    beside = [replace(pod, beside=(names[3],)) for pod in pods]
    made = greedy_round(busy, beside, Rules(reserves=frozenset({"ns/g"})))
    assert made.head == Head("ns/g", frozenset(names[2:]))


def test_quotas_are_kept_and_counted_within_the_round() -> None:
    view = gpu_view(2)
    pods = [gpu_pod(f"team/p{n}", 2) for n in range(3)] + [gpu_pod("free/p", 2), PlanPod("team/cpu", 100, 10)]
    made = greedy_round(view, pods, Rules(Quotas({"team": 6.0}), {"team": 2.0}))
    assert [row >= 0 for row in made.plan.rows] == [True, True, False, True, True]
    assert reasons(made.plan)[2] == "quota of namespace team: 6 GPUs, 6 in use, 2 more requested"


def test_memory_in_total_counts_as_the_gpus_that_hold_it() -> None:
    view = gpu_view(2)
    total = [replace(gpu_pod(f"team/p{n}"), gpus=GpuRequest(0, memory_total_mib=4 * 40_960)) for n in range(2)]
    pods = [*total, gpu_pod("team/one")]
    made = greedy_round(view, pods, Rules(Quotas({"team": 6.0})))
    assert [len(gpus) for gpus in made.plan.gpus] == [4, 0, 1]
    assert reasons(made.plan) == {1: "quota of namespace team: 6 GPUs, 4 in use, 4 more requested"}


def test_no_more_than_the_limit_and_gangs_whole() -> None:
    view = gpu_view(4)
    pods = [gpu_pod(f"ns/p{n}", 1) for n in range(6)]
    made = greedy_round(view, pods, Rules(limit=2))
    assert made.plan.num_placed == 2
    assert reasons(made.plan) == dict.fromkeys(range(2, 6), "")
    gang = [gpu_pod(f"ns/g{n}", 1, gang="ns/g") for n in range(3)]
    made = greedy_round(view, [*gang, *pods], Rules(limit=2))
    assert made.plan.num_placed == 3  # the gang is first: larger than the limit, and whole
    made = greedy_round(view, [pods[0], *gang], Rules(limit=2))
    assert made.plan.num_placed == 1


def test_a_gang_that_never_goes_holds_up_nobody_however_large() -> None:
    view = gpu_view(2, gpus=4)
    one, small = gpu_pod("ns/one", 1), [gpu_pod(f"ns/small{n}", 1) for n in range(3)]
    never = [gpu_pod(f"bad/g{n}", 5, gang="bad/g") for n in range(9)]
    made = greedy_round(view, [one, *never, *small], Rules(limit=3))
    assert [row >= 0 for row in made.plan.rows] == [True, *[False] * 9, True, True, False]
    assert reasons(made.plan)[1] == "needs 5 GPUs, best node: 4 installed"
    assert reasons(made.plan)[12] == ""
    fits = [replace(pod, gpus=GpuRequest(1)) for pod in never[:4]]
    made = greedy_round(view, [one, *fits, *small], Rules(Quotas({"bad": 3.0}), limit=3))
    assert made.plan.num_placed == 3  # nor one over its quota
    made = greedy_round(view, [one, *fits, *small], Rules(limit=3, most={"bad": 0}))
    assert made.plan.num_placed == 3  # nor one of a namespace that has had its part
    made = greedy_round(view, [one, *fits, *small], Rules(limit=3))
    assert made.plan.num_placed == 1  # that has room: its turn is next
    assert reasons(made.plan) == dict.fromkeys(range(1, 8), "")


def test_equal_pods_without_room_are_not_looked_at_one_by_one() -> None:
    view = plain_view(3)
    pods = [PlanPod(f"ns/p{n}", 8000, 1) for n in range(5000)]
    made = greedy_round(view, pods, Rules())
    assert made.plan.num_placed == 3
    assert len(reasons(made.plan)) == 4997


def test_a_searched_plan_ranks_by_the_deployments_policy() -> None:
    view = replace(gpu_view(2, gpus=4), policies={"spread": POLICIES["spread"]})  # there is no other
    pods = [gpu_pod("ns/a", 1), gpu_pod("ns/b", 1)]
    made = searched_round(view, pods, Rules(policy="spread"), PLANNERS["genetic"])
    assert made.plan.num_placed == 2
