"""What a plan's copy of the cluster counts: room for pods with and without GPUs, what is put and taken off, why not.

Figures are worked out by hand from nodes of a few CPU, MiB and GPUs.
"""

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
from extender.planning.plans import Plan, PlanPod, View
from tests.core.builders import NodeState, cluster_of, node
from tests.queueing.builders import A100, gpu_pod, gpu_view, plain_view, reasons, view_of

Sizes = tuple[int, int, int, int]
"""Allocatable CPU and memory of a node, then what of them is free."""


def plain(*nodes: Sizes, gpus: Sequence[int] = ()) -> View:
    """Nodes n0, n1, ... of such sizes; `gpus` are the rows of those that have a GPU."""
    states = {f"n{row}": node((A100, 40_960)) if row in gpus else node() for row in range(len(nodes))}
    columns = np.array(nodes, np.int64).T
    made = view_of(states, cpu_milli=columns[0].tolist(), memory_mib=columns[1].tolist())
    return replace(made, cpu_free_milli=columns[2].copy(), memory_free_mib=columns[3].copy())


def sliced_view() -> View:
    """A node whose plugin gives time slices under the name of GPUs: 2 GPUs of 4 slices."""
    return view_of({"s": node(*[(A100, 40_960)] * 2, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4)})


def greedy(view: View, *pods: PlanPod) -> Plan:
    return PLANNERS["greedy"].make(view, pods)


@pytest.mark.parametrize(
    ("view", "pod", "expected"),
    [
        pytest.param(
            plain((8000, 8000, 1000, 1000), (8000, 8000, 8000, 8000), gpus=[0]),
            PlanPod("p", 1000, 1000),
            1,
            id="an empty node without GPUs before one with GPUs that it would fill",
        ),
        pytest.param(
            plain((64_000, 8000, 8000, 8000), (8000, 8000, 8000, 8000)),
            PlanPod("p", 1000),
            0,
            id="7 of 64 CPU left before 7 of 8",
        ),
        pytest.param(
            plain((10_000, 8000, 8000, 8000), (4000, 8000, 3100, 8000)),
            PlanPod("p", 3000),
            1,
            id="a fortieth of the CPU left before a half",
        ),
        pytest.param(
            plain((8000, 64_000, 8000, 8000), (8000, 8000, 8000, 8000)),
            PlanPod("p", 0, 1000),
            0,
            id="7 of 64 GB left before 7 of 8",
        ),
        pytest.param(
            plain((8000, 10_000, 8000, 8000), (8000, 4000, 8000, 3100)),
            PlanPod("p", 0, 3000),
            1,
            id="a fortieth of the memory left before a half",
        ),
        pytest.param(
            plain((8000, 8000, 4000, 8000), (8000, 8000, 6000, 4000)),
            PlanPod("p", 1000, 1000),
            1,
            id="5 of 8 CPU and 3 of 8 GB left before 3 and 7",
        ),
    ],
)
def test_a_pod_without_gpus_goes_where_least_is_left(view: View, pod: PlanPod, expected: int) -> None:
    assert PlanState(view, [pod]).best_row(0) == expected


def beside_gpus(*cpu_free_milli: int, others: int = 0) -> View:
    """Nodes of 4 GPUs of which 4, 1 and 1 are free, then `others` without any, with so much of 64 CPU free."""
    states = {f"n{row}": node(*[(A100, 40_960)] * 4, held=range(held)) for row, held in enumerate((0, 3, 3))}
    view = view_of(states | {f"other{number}": node() for number in range(others)})
    return replace(view, cpu_free_milli=np.array(cpu_free_milli, np.int64))


@pytest.mark.parametrize(
    ("view", "policy", "expected"),
    [
        pytest.param(beside_gpus(4000, 64_000, 32_000), "tightest", 2, id="fewest free GPUs, then least CPU left"),
        pytest.param(beside_gpus(4000, 64_000, 1000), "tightest", 1, id="of the nodes that have room"),
        pytest.param(beside_gpus(4000, 64_000, 32_000, 64_000, others=1), "freest", 3, id="a node without GPUs"),
        pytest.param(beside_gpus(4000, 64_000, 32_000, 1000, others=1), "tightest", 2, id="that one has no room"),
        pytest.param(beside_gpus(64_000, 4000, 32_000), "spread", 1, id="a policy that knows no such pods: least CPU"),
    ],
)
def test_a_pod_without_gpus_goes_where_those_who_ask_for_them_lose_least(
    view: View, policy: str, expected: int
) -> None:
    freest = Policy("freest", lambda cluster, request, rows, fit: fit.free_units.astype(float), "", without_gpus=True)
    view = replace(view, policies={**view.policies, "freest": freest})
    assert PlanState(view, [PlanPod("p", 2000, policy=policy)]).best_row(0) == expected


def test_what_pods_without_gpus_take_counts_for_those_that_follow() -> None:
    """The node with the fewest free GPUs has 2 CPU: the first takes them."""
    assert greedy(beside_gpus(64_000, 2000, 1000), PlanPod("a", 2000), PlanPod("b", 2000)).rows == (1, 0)


def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    for state in (node(), node((A100, 40_960))):
        view = view_of({"b": state, "a": state, "c": state})
        pod = gpu_pod("p") if state.offer.gpus else PlanPod("p", 1000)
        assert PlanState(view, [pod]).best_row(0) == 1


@pytest.mark.parametrize("gpus", [None, GpuRequest(1)], ids=["without GPUs", "with GPUs"])
@pytest.mark.parametrize(
    ("cpu_milli", "memory_mib", "slots", "placed"),
    [
        pytest.param(4000, 10, 110, 2, id="CPU for two"),
        pytest.param(10, 8192, 110, 2, id="memory for two"),
        pytest.param(10, 10, 3, 3, id="the kubelet takes three more"),
        pytest.param(10, 10, 1, 1, id="the kubelet takes one more"),
        pytest.param(10, 10, 0, 0, id="the kubelet takes no more"),
    ],
)
def test_each_pod_of_a_plan_takes_its_part_of_the_node(
    gpus: GpuRequest | None, cpu_milli: int, memory_mib: int, slots: int, placed: int
) -> None:
    view = view_of({"n": node(*[(A100, 40_960)] * 8)}, cpu_milli=8000, memory_mib=16_384, pods=slots)
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
    quality = state.quality(np.ones(2))
    assert (quality.gpus, quality.fragments) == (3, 5 / 8)  # 5 of 8 slices are free on a node in use


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param({"n": node(*[(A100, 40_960)] * 3, held=[0])}, [2], id="whole GPUs that nobody holds"),
        pytest.param({"n": node(*[(A100, 40_960)] * 3, held=[0, 1, 2])}, [0], id="none"),
        pytest.param({"n": node(*[(A100, 40_960)] * 3, held=[0], untracked=1)}, [1], id="less one of unknown index"),
        pytest.param({"n": node(*[(A100, 40_960)] * 3, held=[0, 1], untracked=2)}, [0], id="never less than none"),
        pytest.param(
            {
                "s": node(*[(A100, 40_960)] * 2, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4, untracked=3),
                "w": node((A100, 40_960)),
            },
            [5, 1],
            id="time slices",
        ),
    ],
)
def test_free_units_are_what_may_be_given(states: dict[str, NodeState], expected: list[int]) -> None:
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


@pytest.mark.parametrize(
    ("view", "pod", "expected"),
    [
        pytest.param(NODES, PlanPod("p", 9500, 10), "needs 9.5 CPU and 10 MiB, no node has that much", id="CPU"),
        pytest.param(NODES, PlanPod("p", 1, 9000), "needs 0.001 CPU and 9000 MiB, no node has that much", id="memory"),
        pytest.param(
            NODES, PlanPod("p", 5000, 5000), "needs 5 CPU and 5000 MiB, no node has that much", id="no node has both"
        ),
        pytest.param(
            BUSY, PlanPod("p", 8000, 10), "needs 8 CPU and 10 MiB, no node has that much free", id="all of the CPU"
        ),
        pytest.param(
            BUSY, PlanPod("p", 10, 8192), "needs 0.01 CPU and 8192 MiB, no node has that much free", id="all memory"
        ),
        pytest.param(
            SOME, PlanPod("p", 8000, 10, kind=1), "needs 8 CPU and 10 MiB, no node has that much", id="none it may use"
        ),
        pytest.param(SOME, PlanPod("p", 1, 1, kind=2), "no node matches its selector and tolerations", id="forbidden"),
        pytest.param(NODES, PlanPod("p", 1, 1), "left out by the planner", id="room is left"),
        pytest.param(NODES, PlanPod("p", 1, 1, gang="g"), "its gang g does not fit as a whole", id="room for a part"),
    ],
)
def test_why_a_pod_gets_no_node(view: View, pod: PlanPod, expected: str) -> None:
    assert reasons(plan_of(view, [pod], [-1], "by hand")) == {0: expected}


def test_the_nearest_miss_is_told_of_the_nodes_that_a_pod_may_use() -> None:
    states = {"none": node(), "one": node((A100, 40_960)), "busy": node(*[(A100, 40_960)] * 4, held=[0, 1, 2])}
    view = replace(view_of(states), allowed=np.array([[True, True, True], [True, True, False], [True, False, False]]))
    pods = [replace(gpu_pod(f"p{kind}", 2), kind=kind) for kind in range(3)]
    assert reasons(greedy(view, *pods)) == {
        0: "needs 2 GPUs, best node: 1 free",
        1: "needs 2 GPUs, best node: 1 installed",
        2: "needs 2 GPUs, no GPUs here",
    }


def test_what_was_left_out_of_a_full_plan_is_told_as_busy() -> None:
    plan = greedy(plain_view(1, 8000, 16_384), *(PlanPod(f"p{number}", 8000, 1024) for number in range(2)))
    assert reasons(plan) == {1: "needs 8 CPU and 1024 MiB, no node has that much free"}
