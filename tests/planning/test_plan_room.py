"""A plan's working copy of the cluster: room for pods with and without GPUs, adding and removing them, reasons."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.policies.policy import Policy
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest
from extender.planning.plan_state import PlanState, free_units, state_after
from extender.planning.planners import PLANNERS
from extender.planning.planners.problem import plan_of
from extender.planning.plans import Plan, PlanPod, Quality, View
from tests.core.builders import cluster_of, node
from tests.queueing.builders import A100, gpu_pod, gpu_view, reasons, view_of

SLICES = GpuUnit.REPLICA_AS_GPU
Sizes = tuple[int, int, int, int]
"""A node's allocatable CPU and memory, then its free CPU and memory."""


def plain(*nodes: Sizes, gpus: Sequence[int] = ()) -> View:
    """Nodes n0, n1, ... of such sizes; `gpus` are the rows of those that have a GPU."""
    states = {f"n{row}": node((A100, 40_960)) if row in gpus else node() for row in range(len(nodes))}
    columns = np.array(nodes, np.int64).T
    made = view_of(states, cpu_milli=columns[0].tolist(), memory_mib=columns[1].tolist())
    return replace(made, cpu_free_milli=columns[2].copy(), memory_free_mib=columns[3].copy())


def sliced_view() -> View:
    """A node whose plugin gives time slices under the name of GPUs: 2 GPUs of 4 slices."""
    return view_of({"s": node(*[(A100, 40_960)] * 2, unit=SLICES, units_per_gpu=4)})


def greedy(view: View, *pods: PlanPod) -> Plan:
    return PLANNERS["greedy"].make(view, pods)


def test_a_pod_without_gpus_goes_where_least_is_left() -> None:
    for view, pod, expected in (
        (plain((8000, 8000, 1000, 1000), (8000, 8000, 8000, 8000), gpus=[0]), PlanPod("p", 1000, 1000), 1),
        (plain((64_000, 8000, 8000, 8000), (8000, 8000, 8000, 8000)), PlanPod("p", 1000), 0),  # 7 of 64 before 7 of 8
        (plain((10_000, 8000, 8000, 8000), (4000, 8000, 3100, 8000)), PlanPod("p", 3000), 1),  # 0.1 of 4 before 5 of 10
        (plain((8000, 64_000, 8000, 8000), (8000, 8000, 8000, 8000)), PlanPod("p", 0, 1000), 0),
        (plain((8000, 10_000, 8000, 8000), (8000, 4000, 8000, 3100)), PlanPod("p", 0, 3000), 1),
        (plain((8000, 8000, 4000, 8000), (8000, 8000, 6000, 4000)), PlanPod("p", 1000, 1000), 1),  # 5 + 3 before 3 + 7
    ):
        assert PlanState(view, [pod]).best_row(0) == expected, pod


def beside_gpus(*cpu_free_milli: int, others: int = 0) -> View:
    """Nodes of 4 GPUs of which 4, 1 and 1 are free, then `others` without any, by their free CPU of 64."""
    states = {f"n{row}": node(*[(A100, 40_960)] * 4, held=range(held)) for row, held in enumerate((0, 3, 3))}
    view = view_of(states | {f"other{number}": node() for number in range(others)})
    return replace(view, cpu_free_milli=np.array(cpu_free_milli, np.int64))


def test_a_pod_without_gpus_goes_where_gpu_pods_lose_least() -> None:
    freest = Policy("freest", lambda cluster, request, rows, fit: fit.free_units.astype(float), "", without_gpus=True)
    for view, policy, expected in (
        (beside_gpus(4000, 64_000, 32_000), "tightest", 2),  # fewest free GPUs, then least CPU left
        (beside_gpus(4000, 64_000, 1000), "tightest", 1),
        (beside_gpus(4000, 64_000, 32_000, 64_000, others=1), "freest", 3),  # a node without GPUs
        (beside_gpus(4000, 64_000, 32_000, 1000, others=1), "tightest", 2),  # unless it has no room
        (beside_gpus(64_000, 4000, 32_000), "spread", 1),  # a policy that ranks no such pods: least CPU
    ):
        state = PlanState(
            replace(view, policies={**view.policies, "freest": freest}), [PlanPod("p", 2000, policy=policy)]
        )
        assert state.best_row(0) == expected


def test_what_pods_without_gpus_take_counts_for_those_that_follow() -> None:
    assert greedy(beside_gpus(64_000, 2000, 1000), PlanPod("a", 2000), PlanPod("b", 2000)).rows == (1, 0)


def test_ties_break_by_node_name() -> None:
    for state in (node(), node((A100, 40_960))):
        view = view_of({"b": state, "a": state, "c": state})
        pod = gpu_pod("p") if state.offer.gpus else PlanPod("p", 1000)
        assert PlanState(view, [pod]).best_row(0) == 1


def test_each_pod_of_a_plan_takes_its_part_of_the_node() -> None:
    for cpu_milli, memory_mib, slots, placed in (
        (4000, 10, 110, 2),
        (10, 8192, 110, 2),
        (10, 10, 3, 3),
        (10, 10, 0, 0),
    ):
        view = view_of({"n": node(*[(A100, 40_960)] * 8)}, cpu_milli=8000, memory_mib=16_384, pods=slots)
        for gpus in (None, GpuRequest(1)):
            pods = [PlanPod(f"p{number}", cpu_milli, memory_mib, gpus) for number in range(5)]
            assert greedy(view, *pods).rows == (0,) * placed + (-1,) * (5 - placed)


def test_a_pod_taken_off_again_leaves_the_room_that_it_had() -> None:
    view = view_of({"n": node((A100, 40_960))}, cpu_milli=1000, memory_mib=1024, pods=1)
    state = PlanState(view, [gpu_pod("one"), gpu_pod("two")])
    for position in (0, 1, 0):
        assert (state.has_room(0, 0), state.has_room(1, 0)) == (True, True)
        assert state.put(position, 0) == (0,)
        assert (state.has_room(0, 0), state.has_room(1, 0)) == (False, False)
        state.undo(0)
    assert state.num_steps == 0


def test_time_slices_count_as_gpus_of_a_plan() -> None:
    pods = [gpu_pod("two", 2), gpu_pod("one", 1)]
    plan = greedy(sliced_view(), *pods)
    assert plan.rows == (0, 0)
    state = state_after(sliced_view(), plan)
    assert (state.num_gpus(0), state.num_gpus(1)) == (3, 1)
    # 5 of 8 slices are free on a node in use.
    assert state.quality(np.array([1.0, 2.0])) == Quality(2, 3.0, gpus=3, nodes=1, fragments=5 / 8)


def test_free_units_are_those_that_pods_may_get() -> None:
    whole, slices = [(A100, 40_960)] * 3, node(*[(A100, 40_960)] * 2, unit=SLICES, units_per_gpu=4, untracked=3)
    for states, expected in (
        ({"n": node(*whole, held=[0])}, [2]),
        ({"n": node(*whole, held=[0], untracked=1)}, [1]),
        ({"n": node(*whole, held=[0, 1], untracked=2)}, [0]),
        ({"s": slices, "w": node((A100, 40_960))}, [5, 1]),
    ):
        assert free_units(cluster_of(states)).tolist() == expected


def test_a_single_free_gpu_of_a_node_is_a_fragment() -> None:
    view = gpu_view(2, gpus=4)
    for asked, part in ((1, 3 / 8), (3, 1 / 8), (4, 0.0)):
        plan = greedy(view, gpu_pod("p", asked))
        assert state_after(view, plan).quality(np.ones(1)).fragments == part


def test_a_plan_of_another_view_is_refused_by_the_pod_that_has_no_room() -> None:
    plan = greedy(gpu_view(1, gpus=4), gpu_pod("ns/one", 2), gpu_pod("ns/two", 2))
    with pytest.raises(ValueError, match=r"^ns/two has no room at row 0$"):
        state_after(gpu_view(1, gpus=3), plan)


def test_a_policy_that_weighs_cpu_and_memory_is_told_those_of_the_pod() -> None:
    asked: list[tuple[int, int]] = []

    def score(cluster: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> Floats:
        asked.append((request.cpu_milli, request.memory_mib))
        return np.zeros(len(rows))

    for weighs, told in (({"weighs_cpu": True}, (1500, 0)), ({"weighs_memory": True}, (0, 2048)), ({}, (0, 0))):
        policies = {"told": Policy("told", score, "", **weighs)}  # type: ignore[arg-type]
        view = replace(gpu_view(1), policies=policies)
        pod = PlanPod("p", 1500, 2048, GpuRequest(1), policy="told")
        assert PlanState(view, [pod]).best_row(0) == 0
        assert asked[-1] == told


NODES = plain((4000, 8192, 4000, 8192), (8000, 4096, 8000, 4096))
BUSY = replace(NODES, cpu_free_milli=np.array([500, 500]), memory_free_mib=np.array([100, 100]))
SOME = replace(NODES, allowed=np.array([[True, True], [True, False], [False, False]]))


def test_why_a_pod_gets_no_node() -> None:
    for view, pod, expected in (
        (NODES, PlanPod("p", 9500, 10), "needs 9.5 CPU and 10 MiB, no node has that much"),
        (NODES, PlanPod("p", 1, 9000), "needs 0.001 CPU and 9000 MiB, no node has that much"),
        (NODES, PlanPod("p", 5000, 5000), "needs 5 CPU and 5000 MiB, no node has that much"),  # no node has both
        (BUSY, PlanPod("p", 8000, 10), "needs 8 CPU and 10 MiB, no node has that much free"),
        (BUSY, PlanPod("p", 10, 8192), "needs 0.01 CPU and 8192 MiB, no node has that much free"),
        (SOME, PlanPod("p", 8000, 10, kind=1), "needs 8 CPU and 10 MiB, no node has that much"),
        (SOME, PlanPod("p", 1, 1, kind=2), "no node matches its selector and tolerations"),
        (NODES, PlanPod("p", 1, 1), "left out by the planner"),
        (NODES, PlanPod("p", 1, 1, gang="g"), "its gang g does not fit as a whole"),
    ):
        assert reasons(plan_of(view, [pod], [-1], "test")) == {0: expected}


def test_the_nearest_miss_is_told_of_the_nodes_that_a_pod_may_use() -> None:
    states = {"none": node(), "one": node((A100, 40_960)), "busy": node(*[(A100, 40_960)] * 4, held=[0, 1, 2])}
    view = replace(view_of(states), allowed=np.array([[True, True, True], [True, True, False], [True, False, False]]))
    pods = [replace(gpu_pod(f"p{kind}", 2), kind=kind) for kind in range(3)]
    assert reasons(greedy(view, *pods)) == {
        0: "needs 2 GPUs, best node: 1 free",
        1: "needs 2 GPUs, best node: 1 installed",
        2: "needs 2 GPUs, no GPUs here",
    }
