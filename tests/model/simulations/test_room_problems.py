"""A simulated cluster as a problem of the planner."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from extender.core.clusters import WHOLE_MILLI
from extender.core.fragmentation import ANY_MODEL, Nodes, PodClasses, mix_of
from extender.planning.moves.planner import plan_moves
from model.engine.node_scores import book
from model.simulations.room_problems import Part, RoomProblems, Runner, _gpus_of, bits_of_gpus, job_and_part
from model.simulations.simulated_jobs import Kind, Tasks, whole_gpu_nodes

SIZES = (1, 2, 4, 8)
SHARE = len(SIZES)
"""The class of half a GPU."""
KINDS: tuple[Kind, ...] = (*(((c, 1),) for c in range(len(SIZES))), ((3, 2),), ((3, 1), (2, 1)))


def filled(seed: int, num_nodes: int = 5) -> tuple[RoomProblems, Nodes, list[Runner]]:
    """Nodes of 8 GPUs on which jobs of one or two parts run; every sixth stays."""
    rng = np.random.default_rng(seed)
    num = np.array([*SIZES, 1])
    milli = np.array([*[WHOLE_MILLI] * len(SIZES), 500])
    asks = PodClasses(num * 1000, num * 1024, num, milli, np.full(len(num), ANY_MODEL))
    nodes = whole_gpu_nodes(8 * num_nodes, 8)
    none = np.zeros(100)
    tasks = Tasks(none, none, (), none.astype(np.int64), none.astype(np.int64), asks, mix_of([], 1))
    problems = RoomProblems(nodes, tasks, ("GPU",))
    runners: list[Runner] = []
    while nodes.gpu_free_milli.sum() > 8000 * num_nodes * rng.uniform(0.25, 0.6):
        parts: list[Part] = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            c = int(rng.choice([0, 0, 1, 1, 2, SHARE]))
            enough = (nodes.gpu_free_milli >= milli[c]).sum(axis=1) >= num[c]
            if enough.any():
                row = int(rng.choice(np.flatnonzero(enough)))
                gpu = int(np.argmax(nodes.gpu_free_milli[row] >= asks.gpu_milli[c]))
                parts.append((c, row, book(nodes, asks, c, row, gpu)))
        if not parts:
            break
        stays = "" if rng.random() < 5 / 6 else "has no controller"
        runners.append(Runner(len(runners), parts, float(rng.integers(1, 1000)), stays))
    return problems, nodes, runners


def oracle_least_cost(nodes: Nodes, kind: Kind, runners: Sequence[Runner]) -> float:
    """Node by node: who leaves, the cheapest by GPU first, the last one in part."""
    size_of = [*SIZES, 1]
    num_parts = sum(count for _, count in kind)
    least = 0.0
    for c, count in kind:
        costs = []
        for row in range(len(nodes.num_gpus)):
            missing = max(size_of[c] - int((nodes.gpu_free_milli[row] == WHOLE_MILLI).sum()), 0)
            movable: list[tuple[float, int]] = []
            for runner in runners:
                held = sum(size_of[part] for part, node, _ in runner.parts if node == row)
                gpus = sum(0.5 if part == SHARE else size_of[part] for part, *_ in runner.parts)
                over = 1 if num_parts == 1 else len({node for _, node, _ in runner.parts})
                if held and not runner.stays:
                    movable.append((gpus * runner.loses_s / over / held, held))
            cost = 0.0
            for per_gpu, held in sorted(movable):
                cost += min(missing, held) * per_gpu
                missing -= min(missing, held)
            costs.append(math.inf if missing else cost)
        num_nodes = count if size_of[c] > 4 else 1
        least = max(least, sum(sorted(costs)[:num_nodes]))
    return least


def test_the_least_cost_equals_a_loop_over_nodes() -> None:
    for seed in range(20):
        problems, nodes, runners = filled(seed)
        for kind in KINDS:
            found = problems.least_cost_gpu_s(kind, runners)
            assert found == pytest.approx(oracle_least_cost(nodes, kind, runners), abs=1e-9)


@pytest.mark.parametrize("seed", [0, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 4, 5))])
def test_no_plan_costs_less_and_each_is_of_this_cluster(seed: int) -> None:
    problems, nodes, runners = filled(seed)
    for kind in KINDS[2:]:
        plan = plan_moves(problems.problem(kind, 0, runners, 100))
        if plan.fits:
            assert plan.cost_gpu_s >= problems.least_cost_gpu_s(kind, runners) - 1e-6
            assert problems.is_enough(kind)
        for move in plan.moves:
            job, part = job_and_part(move.pod)
            c, row, bits = runners[job].parts[part]
            assert (move.pod.row, move.pod.booked.gpus) == (row, _gpus_of(bits))
            assert len(move.gpus) == [*SIZES, 1][c]
            assert not runners[job].stays
    assert (nodes.gpu_free_milli >= 0).all()


def test_pods_lose_their_part_of_what_their_job_loses() -> None:
    problems, _, _ = filled(0)
    problem = problems.problem(((3, 1),), 0, [Runner(7, [(1, 0, bits_of_gpus((0, 1))), (SHARE, 2, 0b1)], 100.0)], 5)
    pods = [(pod.key, pod.row, pod.gang, pod.cost_gpu_s) for pod in problem.running]
    assert pods == [("7/0", 0, "7", 200.0), ("7/1", 2, "7", 50.0)]
    assert problem.max_moves == 5


def test_as_much_as_is_free_in_all_is_enough() -> None:
    problems, nodes, _ = filled(0)
    nodes.gpu_free_milli[:] = 0
    nodes.gpu_free_milli[0, :3] = nodes.gpu_free_milli[3, :5] = WHOLE_MILLI
    assert problems.is_enough(((3, 1),))
    nodes.gpu_free_milli[0, 0] = 900
    assert not problems.is_enough(((3, 1),))
