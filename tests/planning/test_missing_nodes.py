"""The fewest new nodes, compared with trying every number of nodes on small clusters."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from extender.core.resources.requests import GpuRequest
from extender.planning.missing_nodes import Counts, Group, max_copies, missing_nodes
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, units_of
from extender.planning.rounds import place_unit
from tests.core.builders import node
from tests.queueing.builders import A100, T4, gpu_pod, view_of

MIB = {A100: 40_960, T4: 15_360}


def state_of(
    old: int, shapes: Sequence[tuple[str, int, int]], pods: Sequence[PlanPod]
) -> tuple[PlanState, list[Group]]:
    """So many old nodes of 2 A100s, and of each shape (product, GPUs, most nodes) a group of new ones."""
    nodes = {f"old-{number}": node(*[(A100, MIB[A100])] * 2) for number in range(old)}
    for number, (model, gpus, most) in enumerate(shapes):
        nodes |= {f"new-{number}-{copy}": node(*[(model, MIB[model])] * gpus) for copy in range(most)}
    state = PlanState(view_of(nodes), pods)
    row_of = state.view.cluster.row_of
    groups = [
        Group(tuple(row_of[f"new-{number}-{copy}"] for copy in range(most)), (gpus, gpus * MIB[model], 1))
        for number, (model, gpus, most) in enumerate(shapes)
    ]
    return state, groups


def old_of(state: PlanState) -> np.ndarray:
    names = state.view.cluster.node_names
    return np.array([name.startswith("old") for name in names])


def cheapest(state: PlanState, groups: Sequence[Group]) -> tuple[int, ...] | None:
    """The least cost with which all pods are placed, None if that is impossible."""
    costs = []
    for counts in product(*(range(len(group.rows) + 1) for group in groups)):
        allowed = old_of(state)
        for group, count in zip(groups, counts, strict=True):
            allowed[list(group.rows[:count])] = True
        if all(place_unit(state, unit, allowed) for unit in units_of(state.pods)):
            costs.append(cost_of(groups, counts))
        state.undo(0)
    return min(costs, default=None)


def cost_of(groups: Sequence[Group], counts: Counts) -> tuple[int, ...]:
    return tuple(sum(group.cost[at] * count for group, count in zip(groups, counts, strict=True)) for at in range(3))


def big(key: str, gpus: int) -> PlanPod:
    """A pod that no T4 has the memory for."""
    return PlanPod(key, 1000, 1024, GpuRequest(gpus, memory_each_mib=40_000))


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 25), marks=pytest.mark.slow)])
def test_no_numbers_of_nodes_are_cheaper(seeds: range) -> None:
    for seed in seeds:
        random = np.random.default_rng(seed)
        shapes = [(A100, 4, 4), (T4, 2, 4), (A100, 8, 3)]
        sizes = random.integers(1, 5, random.integers(2, 7)).tolist()
        pods = [big(f"p{n}", size) if random.random() < 0.5 else gpu_pod(f"p{n}", size) for n, size in enumerate(sizes)]
        state, groups = state_of(1, shapes, pods)
        found = missing_nodes(state, units_of(pods), old_of(state), groups)
        assert found.proven
        assert not found.unplaced
        assert state.num_steps == len(pods), "they are on the state"
        state.undo(0)
        assert cost_of(groups, found.counts) == cheapest(state, groups), seed


def test_pods_that_no_new_node_helps_are_left_out() -> None:
    pods = [gpu_pod("fits", 4), gpu_pod("huge", 9), gpu_pod("a", 3, gang="g"), gpu_pod("b", 9, gang="g")]
    state, groups = state_of(0, [(A100, 4, 3)], pods)
    found = missing_nodes(state, units_of(pods), old_of(state), groups)
    assert found.counts == (1,)
    assert found.unplaced == ([1], [2, 3])


def test_a_gang_takes_nodes_of_two_shapes() -> None:
    pods = [PlanPod("a", 1, 1, GpuRequest(8), gang="g"), PlanPod("b", 1, 1, GpuRequest(1), gang="g")]
    state, groups = state_of(0, [(T4, 1, 2), (A100, 8, 2)], pods)
    assert missing_nodes(state, units_of(pods), old_of(state), groups).counts == (1, 1)


def test_nothing_is_missing_where_there_is_room() -> None:
    pods = [gpu_pod("a", 2)]
    state, groups = state_of(1, [(A100, 4, 3)], pods)
    assert missing_nodes(state, units_of(pods), old_of(state), groups).counts == (0,)
    state, _ = state_of(1, [], [gpu_pod("a", 3)])
    assert missing_nodes(state, [[0]], old_of(state), []).unplaced == ([0],)


def test_a_search_without_time_returns_the_numbers_known_to_suffice() -> None:
    pods = [gpu_pod(f"p{n}", 4) for n in range(2)]
    state, groups = state_of(0, [(A100, 4, 5)], pods)
    found = missing_nodes(state, units_of(pods), old_of(state), groups, lambda: True)
    assert not found.proven
    assert found.counts == (5,)
    assert state.num_steps == 2


def test_how_many_copies_of_a_pod_a_node_takes() -> None:
    pods = [gpu_pod("a", 3), gpu_pod("b", 1)]
    state, groups = state_of(0, [(A100, 8, 1)], pods)
    row = groups[0].rows[0]
    assert [max_copies(state, position, row, 100) for position in (0, 1)] == [2, 8]
    assert max_copies(state, 1, row, 5) == 5
    assert state.num_steps == 0
