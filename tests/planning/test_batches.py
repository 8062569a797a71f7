"""A batch as planners see it: its units, weights and domains, its arrays, and the plan made of the chosen rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from extender.core.resources.requests import GpuRequest
from extender.planning.planners.problem import plan_of, problem_of
from extender.planning.plans import PlanPod, View, priority_weights, units_of
from tests.queueing.builders import gpu_pod, gpu_view, plain_view, reasons

RACKS = [1, 0, 1, 0, -1]


def racked(gpus: int = 4) -> View:
    """Five nodes of equal GPUs, two in each rack and one in none."""
    return replace(gpu_view(5, gpus=gpus), domains={"rack": np.array(RACKS, np.int32)})


def members(count: int, topology: str = "rack", *, beside: Sequence[int] = (), gpus: int = 1) -> list[PlanPod]:
    """Pods of one gang, other pods of which run on the nodes `beside`."""
    names = tuple(racked().cluster.node_names[row] for row in beside)
    pods = [gpu_pod(f"ns/g{number}", gpus, gang="ns/g", topology=topology) for number in range(count)]
    return [replace(pod, beside=names) for pod in pods]


def test_the_domains_that_a_gang_may_use() -> None:
    in_rack_0 = [-1, 0, -1, 0, -1]
    for gang, expected in (
        (members(2, ""), None),
        (members(2, "zone"), [-1] * 5),  # a label that no node has
        ([*members(1, ""), *members(1)], RACKS),
        (members(2, beside=[1]), in_rack_0),
        (members(2, beside=[4, 3]), in_rack_0),
        (members(2, beside=[4]), RACKS),
        ([replace(pod, beside=("gone",)) for pod in members(2)], RACKS),
    ):
        domains = racked().domains_of(gang)
        assert (None if domains is None else domains.tolist()) == expected, gang


def test_weights_grow_from_1_to_2_with_priority() -> None:
    for priorities, expected in (([], []), ([7, 7], [1.0, 1.0]), ([-10, 30, 0], [1.0, 2.0, 1.25])):
        pods = [PlanPod(f"p{number}", priority=priority) for number, priority in enumerate(priorities)]
        assert priority_weights(pods).tolist() == expected


def test_units_come_in_the_order_of_their_first_pods() -> None:
    gangs = ("", "b", "a", "", "b", "a")
    units = units_of([PlanPod(f"p{number}", gang=gang) for number, gang in enumerate(gangs)])
    assert units == [[0], [1, 4], [2, 5], [3]]


def test_a_batch_as_arrays() -> None:
    view = replace(gpu_view(2, gpus=4), pods_free=np.array([3, 1]), cpu_free_milli=np.array([9000, 500]))
    total = PlanPod("total", 10, 20, GpuRequest(0, memory_total_mib=50_000))
    pods = [gpu_pod("one", 3), PlanPod("plain", 250, 30), total, gpu_pod("two", 3), gpu_pod("never", 5)]
    problem = problem_of(view, pods)
    never = problem.demand[4].tolist()
    assert problem.demand[:4].tolist() == [[1000, 1024, 1, 3], [250, 30, 1, 0], [10, 20, 1, 1], [1000, 1024, 1, 3]]
    assert all(asked > free for asked in never for free in problem.free.ravel().tolist())
    assert problem.free.tolist() == [[9000, 262_144, 3, 4], [500, 262_144, 1, 4]]
    assert problem.capacity_gpus.tolist() == [4, 4]
    assert problem.class_of.tolist() == [0, 1, 2, 0, 3]
    assert problem.eligible.tolist() == [[True, False], [True, True], [True, True], [False, False]]


def test_a_gang_is_placed_on_the_chosen_rows_only_within_one_domain() -> None:
    for rows, placed in (
        ([0, 2], True),
        ([1, 3], True),
        ([3, 3], True),
        ([0, 1], False),
        ([4, 4], False),
        ([0, 4], False),
        ([0, -1], False),
    ):
        after = rows[0]  # has room there only if the gang is not placed
        plan = plan_of(racked(), [gpu_pod("ns/before"), *members(2), gpu_pod("ns/after", 4)], [2, *rows, after], "test")
        assert plan.rows == ((2, *rows, -1) if placed else (2, -1, -1, after))
        assert plan.gpus[0] == (0,)
    assert plan_of(racked(), members(3, ""), [0, 1, 4], "test").rows == (0, 1, 4)
    assert plan_of(racked(), members(2, "zone"), [0, 0], "test").rows == (-1, -1)
    again = members(1, beside=[1])
    assert [plan_of(racked(), again, [row], "test").rows[0] for row in range(5)] == [-1, 1, -1, 3, -1]


def test_rows_without_room_are_left_out_one_by_one() -> None:
    pods = [PlanPod(f"p{number}", 5000, 10) for number in range(3)]
    plan = plan_of(plain_view(2), pods, [0, 0, 1], "test")
    assert (plan.rows, plan.num_placed) == ((0, -1, 1), 2)
    assert reasons(plan) == {1: "needs 5 CPU and 10 MiB, no node has that much free"}
