"""What each operator, weight and term of the searching planners is for: taken away, the result is another one.

In these cases neither greedy nor the first draw has the answer already.
"""

from dataclasses import replace

import numpy as np
import pytest

from extender.planning.planners import PLANNERS, genetic, q_learning
from extender.planning.planners.genetic import Genetic
from extender.planning.planners.problem import problem_of
from extender.planning.planners.q_learning import QLearning
from extender.planning.plans import PlanPod, View
from tests.core.builders import node
from tests.queueing.builders import A100, gpu_pod, gpu_view, plain_view, view_of

SEEDS = range(10)

# Genetic: pieces that fill nodes of 8 GPUs without a remainder; greedy in this order leaves one out.

PIECES = (2, 3, 5, 1, 3, 1, 3, 4, 3, 1, 2, 1, 3, 5, 5, 1, 5)
CUT = gpu_view(6)
CUT_PODS = [gpu_pod(f"p{number}", pieces) for number, pieces in enumerate(PIECES)]
SEARCH = Genetic(generations=60)


def found(parameters: Genetic) -> list[int]:
    """How many pods are placed, by seed."""
    return [parameters.make(CUT, CUT_PODS, seed).num_placed for seed in range(4)]


def test_genetic_finds_what_neither_greedy_nor_a_first_draw_finds() -> None:
    assert sum(PIECES) == 6 * 8
    assert PLANNERS["greedy"].make(CUT, CUT_PODS).num_placed == len(PIECES) - 1
    assert found(SEARCH) == [len(PIECES)] * 4


@pytest.mark.parametrize(
    "without",
    [
        pytest.param({"generations": 0}, id="generations"),
        pytest.param({"elites": 0}, id="elites"),
        pytest.param({"mutation": 0.0}, id="mutation"),
        pytest.param({"crossover": 0.0}, id="crossover"),
    ],
)
def test_genetic_misses_it_without_each_operator(without: dict[str, float]) -> None:
    assert min(found(replace(SEARCH, **without))) < len(PIECES)  # type: ignore[arg-type]


def test_a_first_draw_begins_with_greedys_plan() -> None:
    warm, cold = replace(SEARCH, generations=0), replace(SEARCH, generations=0, warm_start=False)
    assert min(found(warm)) == len(PIECES) - 1
    assert min(found(cold)) < len(PIECES) - 1


def test_fitness_is_worth_by_priority_less_fragments() -> None:
    view = gpu_view(2, gpus=4)
    pods = [gpu_pod("low", 3, priority=0), gpu_pod("high", 4, priority=10)]
    problem = problem_of(view, pods)
    assert problem.weight.tolist() == [1.0, 2.0]
    genes = np.array([[0, 1], [0, 0]])
    placed = genetic.placed_pods(problem, genes)
    assert placed.tolist() == [[True, True], [True, False]]
    worth = genetic.fitness_of(problem, genes, placed, Genetic(placed=10, unplaced=-2, fragments=5))
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
    placed = genetic.placed_pods(problem, genes)
    copies = Genetic(crossover=0.0, mutation=0.0, elites=0)
    fitness = genetic.fitness_of(problem, genes, placed, copies)
    for seed in SEEDS:
        draw = genetic.Draw(problem, np.random.default_rng(seed))
        children = genetic.children_of(genes, placed, fitness, draw, copies)
        assert children.tolist() == [apart, apart]


def test_children_are_cut_at_one_point() -> None:
    P = 12
    pods = [gpu_pod(f"p{number}") for number in range(P)]
    problem = problem_of(gpu_view(2), pods)
    genes = np.array([[0] * P, [1] * P] * 20)
    placed = genetic.placed_pods(problem, genes)
    crossed = Genetic(population=40, crossover=1.0, mutation=0.0, elites=0)
    draw = genetic.Draw(problem, np.random.default_rng(0))
    children = genetic.children_of(genes, placed, np.arange(40.0), draw, crossed)
    changes = np.abs(np.diff(children, axis=1)).sum(axis=1)
    assert set(changes.tolist()) == {0, 1}


# Q-learning: the walk along an empty table places 3 of these, one node and then the other; 4 fit.

TABLE = plain_view(2, 8000, 8000)
TABLE_PODS = [
    PlanPod(f"p{number}", 1000 * cpu, 1000 * memory)
    for number, (cpu, memory) in enumerate([(5, 4), (5, 4), (3, 2), (4, 5), (5, 1), (4, 3), (5, 4)])
]


def learned(parameters: QLearning) -> list[int]:
    """How many pods are placed, by seed."""
    return [parameters.make(TABLE, TABLE_PODS, seed).num_placed for seed in range(3)]


@pytest.mark.slow
def test_q_learning_finds_what_an_empty_table_does_not() -> None:
    assert PLANNERS["exact"].make(TABLE, TABLE_PODS).num_placed == 4
    assert learned(QLearning()) == [4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("without", ["episodes", "alpha", "epsilon"])
def test_q_learning_misses_it_without_each_parameter(without: str) -> None:
    assert min(learned(replace(QLearning(), **{without: 0}))) < 4


def episodes(view: View, pods: list[PlanPod], **parameters: float) -> q_learning.Episodes:
    """Walks without chance, on a table that takes each lesson whole."""
    chosen = replace(QLearning(), alpha=1.0, epsilon=0.0, **parameters)  # type: ignore[arg-type]
    return q_learning.Episodes(view, pods, problem_of(view, pods), 0, chosen)


def test_an_action_that_places_the_last_pod_is_worth_30_more() -> None:
    # 3 and 5 of 8: int(10 * .375) = 3 of CPU; 8 of 8 are 10. Of memory a thousandth: 0.
    walk = episodes(plain_view(1, 8000, 8_000_000), [PlanPod("a", 3000, 1), PlanPod("b", 5000, 1)])
    nowhere, first = np.array([-1, -1]), np.array([0, -1])
    walk.run(learning=True)
    assert walk.values(first).tolist() == [0.0, 10 + 30.0]
    assert walk.values(nowhere).tolist() == [3.0, 0.0]  # what may come after was not known yet
    walk.run(learning=True)
    assert walk.values(nowhere).tolist() == [3 + 0.9 * 40.0, 0.0]


def test_pods_that_share_an_image_are_worth_more_on_one_node() -> None:
    pods = [PlanPod("a", 1, 1, image="x"), PlanPod("b", 1, 1, image="x"), PlanPod("c", 1, 1, image="y")]
    walk = episodes(plain_view(2, 8_000_000, 8_000_000), pods, all_placed=0.0)
    walk.run(learning=True)
    # Node 0 has 1 image for 2 pods: int(10 * (1 - 1/2)) = 5; then 2 for 3: int(10 * (1 - 2/3)) = 3.
    assert walk.values(np.array([0, -1, -1])).tolist() == [0, 0, 5.0, 0, 0, 0]
    assert walk.values(np.array([0, 0, -1])).tolist() == [0, 0, 0, 0, 3.0, 0]


def test_an_action_over_capacity_is_worth_99_less_and_ends_the_episode() -> None:
    pods = [PlanPod("large", 6000, 1), PlanPod("too", 6000, 1), PlanPod("small", 1000, 1)]
    walk = episodes(plain_view(1, 8000, 8_000_000), pods)
    walk.run(learning=True)
    after_one = np.array([0, -1, -1])
    assert walk.values(after_one).tolist() == [0.0, -99.0, 0.0]
    assert walk.run(learning=True)[1].tolist() == [0, -1, 0]  # the next walk goes round it
    harmless = episodes(plain_view(1, 8000, 8_000_000), pods, over_capacity=0.0)
    harmless.run(learning=True)
    assert harmless.run(learning=True)[1].tolist() == [0, -1, -1]
