"""The fewest new nodes: against every number that there is, on small clusters."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from extender.core.resources.requests import GpuRequest
from extender.planning.missing_nodes import Counts, Group, alone, missing_nodes
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
    """The least cost by which all are placed, by trying every number of nodes of every group; None where none does."""
    best = None
    for counts in product(*(range(len(group.rows) + 1) for group in groups)):
        allowed = old_of(state)
        for group, count in zip(groups, counts, strict=True):
            for row in group.rows[:count]:
                allowed[row] = True
        placed = [place_unit(state, unit, allowed) for unit in units_of(state.pods)]
        state.undo(0)
        cost = tuple(
            sum(group.cost[at] * count for group, count in zip(groups, counts, strict=True)) for at in range(3)
        )
        if all(placed) and (best is None or cost < best):
            best = cost
    return best


def cost_of(groups: Sequence[Group], counts: Counts) -> tuple[int, ...]:
    return tuple(sum(group.cost[at] * count for group, count in zip(groups, counts, strict=True)) for at in range(3))


def big(key: str, gpus: int) -> PlanPod:
    """A pod that no T4 has the memory for."""
    return PlanPod(key, 1000, 1024, GpuRequest(gpus, memory_each_mib=40_000))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 25))])
def test_no_numbers_of_nodes_are_cheaper(seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = [(A100, 4, 4), (T4, 2, 4), (A100, 8, 3)]
    sizes = random.integers(1, 5, random.integers(2, 7))
    pods = [
        big(f"p{n}", int(size)) if random.random() < 0.5 else gpu_pod(f"p{n}", int(size))
        for n, size in enumerate(sizes)
    ]
    state, groups = state_of(1, shapes, pods)
    found = missing_nodes(state, units_of(pods), old_of(state), groups)
    assert found.proven
    assert not found.unplaced
    assert state.num_steps == len(pods), "they are on the state"
    state.undo(0)
    assert cost_of(groups, found.counts) == cheapest(state, groups)


def test_what_no_node_helps_is_told_and_the_others_are_helped() -> None:
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


def test_when_time_is_up_what_is_known_to_do_is_told() -> None:
    pods = [gpu_pod(f"p{n}", 4) for n in range(2)]
    state, groups = state_of(0, [(A100, 4, 5)], pods)
    found = missing_nodes(state, units_of(pods), old_of(state), groups, lambda: True)
    assert not found.proven
    assert found.counts == (5,)
    assert state.num_steps == 2


def test_how_many_pods_a_node_takes_is_counted_and_nothing_is_left_on_it() -> None:
    pods = [gpu_pod("a", 3), gpu_pod("b", 1)]
    state, groups = state_of(0, [(A100, 8, 1)], pods)
    row = groups[0].rows[0]
    assert [alone(state, position, row, 100) for position in (0, 1)] == [2, 8]
    assert alone(state, 1, row, 5) == 5
    assert state.num_steps == 0
