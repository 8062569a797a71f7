"""Pods leave sick GPUs, as many as can, and for the others it is said why they stay."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules, sick
from extender.parts.defrag.part import _trusted_rules
from extender.parts.defrag.targets import by_node, on_sick, plan_healing, without_sick
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import NOBODY_ABOVE, MovePlan, Problem, Running, Target
from extender.settings.telemetry import TelemetrySettings
from tests.core.builders import node
from tests.core.observing import observed_cluster
from tests.planning.moves.cases import empty_view, in_use, runs
from tests.planning.moves.replay import check
from tests.queueing.builders import A100


def problem(
    nodes: int, pods: list[tuple[int, Running]], sick_gpus: dict[int, tuple[int, ...]], **other: Any
) -> Problem:
    """Nodes of four GPUs; GPUs of these rows have become unhealthy after pods were put on them."""
    view, running = in_use(empty_view(nodes, 4), pods)
    assert len(running) == len(pods)
    cluster = view.cluster
    healthy = cluster.gpu_healthy.copy()
    for row, gpus in sick_gpus.items():
        healthy[row, list(gpus)] = False
    milli, mib = cluster.gpu_free_milli * healthy, cluster.gpu_free_mib * healthy
    cluster = replace(cluster, gpu_healthy=healthy, gpu_free_milli=milli, gpu_free_mib=mib)
    named = {cluster.node_names[row]: gpus for row, gpus in sick_gpus.items()}
    target = Target(NOBODY_ABOVE, leave=on_sick(cluster, running, named))
    return Problem(without_sick(replace(view, cluster=cluster), named), running, target, **other)


def healed(asked: Problem) -> MovePlan:
    plan = plan_healing(asked, plan_moves, lambda: False)
    if plan.fits and asked.target.leave:
        uids = {move.pod.uid for move in plan.moves}
        leave = frozenset(number for number in asked.target.leave if asked.running[number].uid in uids)
        check(replace(asked, target=replace(asked.target, leave=leave)), replace(plan, impossible=()))
    return plan


def moved(plan: MovePlan) -> dict[str, int]:
    return {move.pod.key: move.row for move in plan.moves}


def test_who_is_on_a_sick_gpu_goes_elsewhere_and_nobody_else_does() -> None:
    asked = problem(2, [(0, runs("default/a", 2)), (0, runs("default/b", 1))], {0: (1,)})
    plan = healed(asked)
    assert (plan.fits, moved(plan), plan.impossible) == (True, {"default/a": 1}, ())


def test_nobody_is_on_a_sick_gpu_then_nobody_moves() -> None:
    plan = healed(problem(2, [(0, runs("default/a", 1))], {0: (3,)}))
    assert (plan.fits, plan.moves, plan.impossible) == (True, (), ())


def test_others_make_room_where_that_takes_it() -> None:
    pods = [(0, runs("default/a", 4)), (1, runs("default/b", 1)), (2, runs("default/c", 3, 500.0))]
    plan = healed(problem(3, pods, {0: (0,)}))
    assert moved(plan) == {"default/b": 2, "default/a": 1}


def test_a_node_with_a_gpu_that_nobody_is_given_takes_them_all_the_same() -> None:
    assert moved(healed(problem(2, [(0, runs("default/a", 2))], {0: (0,), 1: (3,)}))) == {"default/a": 1}


def test_a_gang_leaves_whole() -> None:
    pods = [(0, runs("default/g0", 2, gang="default/g")), (1, runs("default/g1", 2, gang="default/g"))]
    plan = healed(problem(3, pods, {0: (0,)}))
    assert moved(plan).keys() == {"default/g0", "default/g1"}
    assert moved(plan)["default/g0"] != 0


def test_who_may_not_move_stays_and_keeps_no_other_from_it() -> None:
    pods = [(0, runs("default/a", 1)), (0, runs("default/b", 1, stays="it has no controller"))]
    plan = healed(problem(2, pods, {0: (0, 1)}))
    assert (plan.fits, moved(plan)) == (True, {"default/a": 1})
    assert plan.impossible == ("default/b stays on an unhealthy GPU: it has no controller",)


def test_who_has_no_place_stays_and_the_highest_priority_goes_first() -> None:
    pods = [
        (0, runs("default/low", 2)),
        (0, runs("default/high", 2, priority=5)),
        (1, runs("default/c", 2, stays="it stays")),
    ]
    plan = healed(problem(2, pods, {0: (0, 1, 2, 3)}))
    assert (plan.fits, moved(plan)) == (True, {"default/high": 1})
    (why,) = plan.impossible
    assert why.startswith("default/low stays on an unhealthy GPU, no room is left for it: no place elsewhere for ")


def test_where_nobody_can_leave_it_does_not_fit() -> None:
    plan = healed(problem(1, [(0, runs("default/a", 1))], {0: (0,)}))
    assert (plan.fits, plan.moves) == (False, ())
    assert plan.impossible[0].startswith("default/a stays on an unhealthy GPU, no room is left for it: ")


def test_as_many_leave_as_may_be_moved() -> None:
    pods = [(0, runs(f"default/p{number}", 1)) for number in range(4)]
    plan = healed(problem(2, pods, {0: (0, 1, 2, 3)}, max_moves=2))
    assert (plan.fits, len(plan.moves), len(plan.impossible)) == (True, 2, 2)


def test_where_time_is_over_it_says_how_many_were_not_tried() -> None:
    pods = [(0, runs(f"default/p{number}", 2)) for number in range(2)]
    plan = plan_healing(problem(1, pods, {0: (0, 1, 2, 3)}), plan_moves, lambda: True)
    assert (plan.fits, plan.impossible) == (False, ("2 more were not tried: the search ran out of time",))


def test_a_sick_gpu_that_its_plugin_takes_for_healthy_closes_its_node_to_those_who_move() -> None:
    view, running = in_use(empty_view(3, 4), [(0, runs("default/a", 1)), (1, runs("default/b", 1))])
    named = {"n000": (0,), "n001": (3,)}
    open_to = without_sick(view, named).allowed
    assert open_to.all(axis=0).tolist() == [False, False, True]
    assert view.allowed.all(), "nothing of the view is changed"
    target = Target(NOBODY_ABOVE, leave=on_sick(view.cluster, running, named))
    plan = healed(Problem(without_sick(view, named), running, target))
    assert moved(plan) == {"default/a": 2}


@pytest.mark.parametrize("seed", range(20))
def test_who_is_on_a_sick_gpu_as_loops_tell(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pods = [(int(rng.integers(4)), runs(f"default/p{number}", int(rng.integers(0, 3)))) for number in range(9)]
    view, running = in_use(empty_view(4, 4), pods)
    mask = rng.random((4, view.cluster.gpu_model.shape[1])) < 0.3
    mask &= view.cluster.gpu_model >= 0
    named = by_node(view.cluster, mask)
    expected = set()
    for number, pod in enumerate(running):
        for gpu in pod.booked.gpus:
            if mask[pod.row, gpu]:
                expected.add(number)
    assert on_sick(view.cluster, running, named) == expected


def test_pods_on_gpus_of_unknown_index_count_where_all_of_the_node_are_sick() -> None:
    view, (pod, other) = in_use(empty_view(2, 4), [(0, runs("default/a", 2)), (1, runs("default/b", 2))])
    running = [replace(one, booked=replace(one.booked, gpus=(), mib_each=(), unknown=2)) for one in (pod, other)]
    named = {"n000": (0, 1, 2, 3), "n001": (0, 1, 2)}
    assert on_sick(view.cluster, running, named) == {0}


TWO_NODES = {
    "a": node((A100, 40_960), (A100, 40_960), (A100, 40_960)),
    "b": node((A100, 40_960), (A100, 40_960), broken=[1]),
}
SAMPLES = {"a": {Gauge.XID: [0, 79, 31], Gauge.ROW_REMAP_FAILED: [1, 0, 0]}}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (None, {"b": (1,)}),
        (ObservedRules(), {"a": (0, 1), "b": (1,)}),  # XID 31 is an application's
        (ObservedRules(excludes_faulty=False), {"b": (1,)}),
    ],
)
def test_what_is_sick_is_what_the_plugin_says_and_by_the_rules_what_samples_tell(
    rules: ObservedRules | None, expected: dict[str, tuple[int, ...]]
) -> None:
    cluster = observed_cluster(TWO_NODES, SAMPLES)
    assert by_node(cluster, sick(cluster, rules)) == expected


@pytest.mark.parametrize(
    ("settings", "trusted"),
    [
        ({}, False),
        ({"source": "off"}, False),
        ({"url": "http://prometheus:9090"}, True),
        ({"exporters": ["http://node:9400/metrics"]}, True),
        ({"source": "prometheus", "addresses": ["http://prometheus:9090"]}, True),
    ],
)
def test_samples_of_a_source_that_nobody_has_named_make_no_gpu_sick(settings: dict[str, Any], trusted: bool) -> None:
    assert (_trusted_rules(TelemetrySettings(**settings)) is not None) is trusted
