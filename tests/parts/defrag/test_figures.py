"""What moves make usable, in GPUs."""

from dataclasses import replace

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.parts.defrag.targets import gpus_of_use
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import Problem, Target
from tests.planning.moves.cases import asking, empty_view, in_use, runs


def test_pods_of_the_target_count_as_what_they_ask_a_share_as_its_part() -> None:
    view, running = in_use(empty_view(2, 4), [])
    share = replace(asking("default/s", 1), gpus=GpuRequest(1, AskedUnit.PART, milli=250))
    pods = (asking("default/a", 2), asking("default/cpu", 0), share)
    asked = Problem(view, running, Target(0, pods))
    assert gpus_of_use(asked, plan_moves(asked)) == 2.25


def test_of_nodes_that_are_emptied_those_count_that_moves_empty() -> None:
    view, running = in_use(empty_view(3, 4), [(0, runs("default/a")), (1, runs("default/b"))])
    asked = Problem(view, running, Target(0, num_empty=2))
    plan = plan_moves(asked)
    assert (len(plan.moves), len(plan.emptied)) == (1, 2)
    assert gpus_of_use(asked, plan) == 4, "the other one was empty already"
