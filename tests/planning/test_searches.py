"""The genetic planner: without any of its operators, weights and terms the result is worse."""

from dataclasses import replace

import numpy as np

from extender.planning.planners import PLANNERS
from extender.planning.planners.genetic import Genetic, _children_of, _Draw, _fitness_of, _placed_pods
from extender.planning.planners.problem import problem_of
from tests.core.builders import node
from tests.queueing.builders import A100, gpu_pod, gpu_view, view_of

SEEDS = range(10)

# Pods that fill nodes of 8 GPUs exactly; greedy in this order leaves one out.
PIECES = (2, 3, 5, 1, 3, 1, 3, 4, 3, 1, 2, 1, 3, 5, 5, 1, 5)
CUT = gpu_view(6)
CUT_PODS = [gpu_pod(f"p{number}", pieces) for number, pieces in enumerate(PIECES)]
SEARCH = Genetic(generations=60)


def found(parameters: Genetic) -> list[int]:
    """How many pods are placed, by seed."""
    return [parameters.make(CUT, CUT_PODS, seed).num_placed for seed in range(4)]


def test_the_search_finds_what_greedy_does_not_and_needs_each_operator_for_it() -> None:
    assert sum(PIECES) == 6 * 8
    assert PLANNERS["greedy"].make(CUT, CUT_PODS).num_placed == len(PIECES) - 1
    assert found(SEARCH) == [len(PIECES)] * 4
    for without in ({"elites": 0}, {"mutation": 0.0}, {"crossover": 0.0}):
        assert min(found(replace(SEARCH, **without))) < len(PIECES), without
    first = replace(SEARCH, generations=0)
    assert min(found(first)) == len(PIECES) - 1  # greedy's plan
    assert min(found(replace(first, warm_start=False))) < len(PIECES) - 1


def test_fitness_is_worth_by_priority_less_fragments() -> None:
    view = gpu_view(2, gpus=4)
    pods = [gpu_pod("low", 3, priority=0), gpu_pod("high", 4, priority=10)]
    problem = problem_of(view, pods)
    assert problem.weight.tolist() == [1.0, 2.0]
    genes = np.array([[0, 1], [0, 0]])
    placed = _placed_pods(problem, genes)
    assert placed.tolist() == [[True, True], [True, False]]
    worth = _fitness_of(problem, genes, placed, Genetic(placed=10, unplaced=-2, fragments=5))
    # Of 8 GPUs one lies free on a node that is cut: both times node 0. Node 1, whole and free, is no fragment.
    assert worth.tolist() == [10 * 1 + 10 * 2 - 5 * 1 / 8, 10 * 1 - 2 * 2 - 5 * 1 / 8]


def test_a_tidier_cluster_is_chosen_whatever_is_drawn_first() -> None:
    view = view_of({"large": node(*[(A100, 40_960)] * 8), "small": node(*[(A100, 40_960)] * 2)})
    pods = [gpu_pod("fits-both", 2), gpu_pod("never", 9)]
    cold = Genetic(generations=0, warm_start=False)
    assert {cold.make(view, pods, seed).rows[0] for seed in SEEDS} == {1}
    careless = replace(cold, fragments=0.0)
    assert {careless.make(view, pods, seed).rows[0] for seed in SEEDS} == {0, 1}


def test_priority_decides_who_is_left_out_whatever_is_drawn_first() -> None:
    view = gpu_view(2, gpus=2)
    pods = [gpu_pod("low-1", 2), gpu_pod("low-2", 2), gpu_pod("high", 2, priority=9)]
    cold = Genetic(generations=0, warm_start=False)
    assert all(cold.make(view, pods, seed).rows[2] >= 0 for seed in SEEDS)


def test_parents_are_drawn_by_their_fitness() -> None:
    problem = problem_of(gpu_view(2, gpus=2), [gpu_pod("one", 2), gpu_pod("two", 2)])
    apart, together = [0, 1], [0, 0]
    genes = np.array([apart, together])
    placed = _placed_pods(problem, genes)
    copies = Genetic(crossover=0.0, mutation=0.0, elites=0)
    fitness = _fitness_of(problem, genes, placed, copies)
    for seed in SEEDS:
        draw = _Draw(problem, np.random.default_rng(seed))
        children = _children_of(genes, placed, fitness, draw, copies)
        assert children.tolist() == [apart, apart]


def test_children_are_cut_at_one_point() -> None:
    P = 12
    pods = [gpu_pod(f"p{number}") for number in range(P)]
    problem = problem_of(gpu_view(2), pods)
    genes = np.array([[0] * P, [1] * P] * 20)
    placed = _placed_pods(problem, genes)
    crossed = Genetic(population=40, crossover=1.0, mutation=0.0, elites=0)
    draw = _Draw(problem, np.random.default_rng(0))
    children = _children_of(genes, placed, np.arange(40.0), draw, crossed)
    changes = np.abs(np.diff(children, axis=1)).sum(axis=1)
    assert set(changes.tolist()) == {0, 1}


def test_only_pods_that_were_left_out_move_by_an_even_chance_beside_the_one_that_mutates() -> None:
    P = 40
    problem = problem_of(gpu_view(10), [gpu_pod(f"p{number}") for number in range(P)])
    genes = np.array([[0] * P, [1] * P] * 20)
    placed = np.array([[True] * P, [False] * P] * 20)
    copies = Genetic(population=40, crossover=0.0, mutation=1.0, elites=0)
    draw = _Draw(problem, np.random.default_rng(0))
    children = _children_of(genes, placed, np.ones(40), draw, copies)
    stayed = np.stack([(children == 0).sum(axis=1), (children == 1).sum(axis=1)], axis=1)  # of either parent's genes
    of_placed = stayed[:, 0] > stayed[:, 1]
    assert 5 < of_placed.sum() < 35
    assert (stayed[of_placed, 0] >= P - 1).all()
    assert (stayed[~of_placed, 1] < P - 5).all()


def test_placed_pods_are_those_that_a_loop_finds() -> None:
    rack = np.array([0, 0, 1, 1, -1], np.int32)
    view = replace(gpu_view(5, gpus=3), domains={"rack": rack})
    gangs = ["pair", "three", "", "pair", "three", "free", "three", "free"]
    asked = [1, 2, 2, 1, 1, 2, 1, 1]
    pods = [
        gpu_pod(f"p{number}", asked[number], gang=gang, topology="rack" if gang in ("pair", "three") else "")
        for number, gang in enumerate(gangs)
    ]
    problem = problem_of(view, pods)
    genes = np.random.default_rng(3).integers(0, 5, (400, len(pods)))
    seen = set()
    for individual, found in zip(genes.tolist(), _placed_pods(problem, genes).tolist(), strict=True):
        left = [3] * 5
        expected = []
        for row, gpus in zip(individual, asked, strict=True):
            expected.append(left[row] >= gpus)
            left[row] -= gpus * expected[-1]
        for gang in ("pair", "three", "free"):
            theirs = [number for number, name in enumerate(gangs) if name == gang]
            racks = {int(rack[individual[number]]) for number in theirs}
            whole = all(expected[number] for number in theirs) and (gang == "free" or racks in ({0}, {1}))
            seen.add((gang, whole))
            for number in theirs:
                expected[number] = whole
        assert found == expected
    assert len(seen) == 6
