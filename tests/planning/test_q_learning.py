"""Q-learning: what an episode learns, and which of the episodes becomes the plan."""

from dataclasses import replace

import numpy as np
import pytest

from extender.planning.planners.problem import problem_of
from extender.planning.planners.q_learning import QLearning, _Episodes
from extender.planning.plans import PlanPod, View
from tests.core.builders import node
from tests.queueing.builders import plain_view, view_of

SEEDS = range(10)


@pytest.mark.slow
def test_it_finds_what_an_untaught_table_and_fewer_parameters_miss() -> None:
    sizes = [(5, 4), (5, 4), (3, 2), (4, 5), (5, 1), (4, 3), (5, 4)]
    pods = [PlanPod(f"p{number}", 1000 * cpu, 1000 * memory) for number, (cpu, memory) in enumerate(sizes)]
    view = plain_view(2, 8000, 8000)

    def found(**without: float) -> list[int]:
        planner = replace(QLearning(), **without)  # type: ignore[arg-type]
        return [planner.make(view, pods, seed).num_placed for seed in range(3)]

    assert found() == [4, 4, 4]
    assert min(found(episodes=0)) < 4
    assert min(found(alpha=0)) < 4
    assert min(found(epsilon=0)) < 4


def episodes(view: View, pods: list[PlanPod], **parameters: float) -> _Episodes:
    """Walks without chance, on a table that takes each lesson whole."""
    chosen = replace(QLearning(alpha=1.0, epsilon=0.0), **parameters)  # type: ignore[arg-type]
    return _Episodes(view, pods, problem_of(view, pods), 0, chosen)


def test_an_action_that_places_the_last_pod_is_worth_30_more() -> None:
    # 3 and 5 of 8: int(10 * .375) = 3 of CPU; 8 of 8 are 10. Of memory a thousandth: 0.
    walk = episodes(plain_view(1, 8000, 8_000_000), [PlanPod("a", 3000, 1), PlanPod("b", 5000, 1)])
    nowhere, first = np.array([-1, -1]), np.array([0, -1])
    walk.run(learning=True)
    assert walk.values(first).tolist() == [0.0, 10 + 30.0]
    assert walk.values(nowhere).tolist() == [3.0, 0.0]  # what may come after was not known yet
    walk.run(learning=True)
    assert walk.values(nowhere).tolist() == [3 + 0.9 * 40.0, 0.0]


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


def test_what_was_learned_moves_by_alpha_towards_the_last_lesson() -> None:
    pods = [PlanPod("large", 6000, 1), PlanPod("too", 6000, 1), PlanPod("small", 1000, 1)]
    walk = episodes(plain_view(1, 8000, 8_000_000), pods, alpha=0.5)
    after_one = np.array([0, -1, -1])
    walk.values(after_one)[1] = 20.0
    walk.run(learning=True)
    assert walk.values(after_one).tolist() == [0.0, 20 + 0.5 * (-99 - 20), 0.0]
    # 6 of 8 CPU: int(10 * .75) = 7; what may come after the first was worth 20.
    assert walk.values(np.array([-1, -1, -1])).tolist() == [0.5 * (7 + 0.9 * 20), 0.0, 0.0]


def test_all_are_placed_when_those_are_that_fit_a_node_at_all() -> None:
    walk = episodes(plain_view(1, 8000, 8_000_000), [PlanPod("fills", 8000, 1), PlanPod("huge", 9000, 1)])
    assert walk.run(learning=True)[1].tolist() == [0, -1]
    assert walk.values(np.array([-1, -1])).tolist() == [10 + 30.0, 0.0]


def test_images_are_counted_on_each_node_by_pods_that_have_one() -> None:
    images = ("x", "y", "y", "", "z", "z", "z", "z")
    pods = [PlanPod(f"p{number}", 1, 1, image=image) for number, image in enumerate(images)]
    walk = episodes(plain_view(1, 8_000_000, 8_000_000), pods, all_placed=0.0)
    walk.run(learning=True)
    worth = [walk.values(np.array([0] * number + [-1] * (8 - number)))[number] for number in range(8)]
    # Different images over pods: 1/1, 2/2, 2/3, the same with a pod that has none, 3/4, 3/5, 3/6, 3/7.
    assert worth == [0, 0, 3, 3, 2, 4, 5, 5]
    # Both nodes filled; 3 different images of 4 pods on the one, 1 of 2 on the other.
    apart = episodes(plain_view(2, 2, 2_000_000), [replace(pod, cpu_milli=0) for pod in pods[:2]] + pods[4:8])
    reward, where = apart.run(learning=False)
    assert (reward, where.tolist()) == (10 + 10 + 2 + 5 + 30, [0, 0, 0, 0, 1, 1])


def test_most_pods_win_and_then_the_reward() -> None:
    # Alone on the node the large one is worth 10 + 10; the small ones together int(2.5) + int(2.5) each, 10 in all.
    view = plain_view(1, 8000, 8000)
    pods = [PlanPod("large", 8000, 8000), PlanPod("small", 2000, 2000), PlanPod("also", 2000, 2000)]
    explores = QLearning(episodes=40, epsilon=1.0)
    assert [explores.make(view, pods, seed).rows for seed in SEEDS] == [(-1, 0, 0)] * len(SEEDS)


def test_after_the_last_episode_the_table_is_walked() -> None:
    # The smaller node is worth more. All placed is a penalty here, so that what one episode has tried is not repeated:
    # where it was the larger node, only the walk along the table finds the smaller.
    view = view_of({"large": node(), "small": node()}, cpu_milli=[80_000, 8000], memory_mib=8_000_000)
    once = QLearning(episodes=1, epsilon=1.0, all_placed=-30.0)
    assert {once.make(view, [PlanPod("p", 4000, 1)], seed).rows for seed in range(20)} == {(1,)}
    assert replace(once, epsilon=0.0).make(view, [PlanPod("p", 4000, 1)]).rows == (1,)
    assert replace(once, episodes=0).make(view, [PlanPod("p", 4000, 1)]).rows == (0,)


def test_q_learning_of_equal_seeds_gives_equal_plans() -> None:
    # Any four of the small ones are as good; the first walk begins with the large one.
    view = plain_view(1, 8000, 8_000_000)
    pods = [PlanPod("large", 8000, 1), *(PlanPod(f"p{number}", 2000, 1) for number in range(5))]
    explores = QLearning(episodes=20, epsilon=1.0)
    plans = [[explores.make(view, pods, seed).rows for seed in SEEDS] for _ in range(2)]
    assert plans[0] == plans[1]
    assert len(set(plans[0])) > 1


def test_an_untaught_table_keeps_to_capacity_and_holds_up_to_512_actions() -> None:
    untaught = QLearning(episodes=0)
    pods = [PlanPod(f"p{number}", 6000, 1) for number in range(32)]
    assert untaught.make(plain_view(2, 8000), pods[:3]).rows == (0, 1, -1)
    assert untaught.make(plain_view(16, 12_000), pods).num_placed == 32
