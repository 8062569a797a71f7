"""A batch as planners see it: its units, worth and domains, its arrays, and the plan that rows come to."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from extender.core.resources.requests import GpuRequest
from extender.planning.planners.problem import plan_of, problem_of
from extender.planning.plans import PlanPod, View, priority_weights, units_of
from tests.queueing.builders import gpu_pod, gpu_view, plain_view, reasons

RACKS = [1, 0, 1, 0, -1]


def racked(gpus: int = 4) -> View:
    """Five nodes of equal GPUs, two in each rack and one in none."""
    return replace(gpu_view(5, gpus=gpus), domains={"rack": np.array(RACKS, np.int32)})


def members(count: int, topology: str = "rack", *, beside: Sequence[int] = (), gpus: int = 1) -> list[PlanPod]:
    """Pods of one gang; beside pods of it that run on such nodes."""
    names = tuple(racked().cluster.node_names[row] for row in beside)
    pods = [gpu_pod(f"ns/g{number}", gpus, gang="ns/g", topology=topology) for number in range(count)]
    return [replace(pod, beside=names) for pod in pods]


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(members(2, ""), None, id="no topology"),
        pytest.param(members(2, "zone"), [-1] * 5, id="a label that no node has"),
        pytest.param(members(2), RACKS, id="any rack"),
        pytest.param([*members(1, ""), *members(1)], RACKS, id="one member says it for all"),
        pytest.param(members(2, beside=[1]), [-1, 0, -1, 0, -1], id="beside one in rack 0"),
        pytest.param(members(2, beside=[2]), [1, -1, 1, -1, -1], id="beside one in rack 1"),
        pytest.param(members(2, beside=[4, 3]), [-1, 0, -1, 0, -1], id="beside one in no rack, and one in rack 0"),
        pytest.param(members(2, beside=[4]), RACKS, id="beside one in no rack"),
        pytest.param([replace(pod, beside=("gone",)) for pod in members(2)], RACKS, id="beside one on a node now gone"),
    ],
)
def test_the_domains_that_a_gang_may_go_to(gang: list[PlanPod], expected: list[int] | None) -> None:
    found = racked().domains_of(gang)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ([], []),
        ([7], [1.0]),
        ([7, 7], [1.0, 1.0]),
        ([5, 10, 15], [1.0, 1.5, 2.0]),
        ([-10, 30, 0], [1.0, 2.0, 1.25]),
    ],
)
def test_what_a_pod_is_worth_grows_from_1_to_2_with_its_priority(priorities: list[int], expected: list[float]) -> None:
    pods = [PlanPod(f"p{number}", priority=priority) for number, priority in enumerate(priorities)]
    assert priority_weights(pods).tolist() == expected


def test_units_come_in_the_order_of_their_first_pods() -> None:
    gangs = ("", "b", "a", "", "b", "a")
    assert units_of([PlanPod(f"p{number}", gang=gang) for number, gang in enumerate(gangs)]) == [
        [0],
        [1, 4],
        [2, 5],
        [3],
    ]


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


@pytest.mark.parametrize(
    ("rows", "placed"),
    [
        pytest.param([0, 2], True, id="both in rack 1"),
        pytest.param([1, 3], True, id="both in rack 0"),
        pytest.param([3, 3], True, id="both on one node"),
        pytest.param([0, 1], False, id="in two racks"),
        pytest.param([4, 4], False, id="on a node of no rack"),
        pytest.param([0, 4], False, id="one in no rack"),
        pytest.param([0, -1], False, id="one nowhere"),
    ],
)
def test_rows_of_a_gang_are_taken_where_they_keep_to_one_domain(rows: list[int], placed: bool) -> None:
    view = racked()
    pods = [gpu_pod("ns/before"), *members(2), gpu_pod("ns/after", 4)]
    after = rows[0]  # has room there only where the gang has none
    plan = plan_of(view, pods, [2, *rows, after], "by hand")
    assert plan.rows == ((2, *rows, -1) if placed else (2, -1, -1, after))
    assert plan.gpus[0] == (0,)


def test_rows_of_a_gang_without_a_topology_are_taken_anywhere() -> None:
    assert plan_of(racked(), members(3, ""), [0, 1, 4], "by hand").rows == (0, 1, 4)
    assert plan_of(racked(), members(2, "zone"), [0, 0], "by hand").rows == (-1, -1)


def test_rows_beside_running_members_are_taken_in_their_domain_alone() -> None:
    again = members(1, beside=[1])
    assert [plan_of(racked(), again, [row], "by hand").rows for row in range(5)] == [(-1,), (1,), (-1,), (3,), (-1,)]


def test_rows_without_room_are_left_out_one_by_one() -> None:
    pods = [PlanPod(f"p{number}", 5000, 10) for number in range(3)]
    plan = plan_of(plain_view(2), pods, [0, 0, 1], "by hand")
    assert (plan.rows, plan.num_placed) == ((0, -1, 1), 2)
    assert reasons(plan) == {1: "needs 5 CPU and 10 MiB, no node has that much free"}
