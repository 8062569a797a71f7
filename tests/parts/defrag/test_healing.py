"""Moving pods off unhealthy GPUs, why others stay, and the GPUs that moves make usable."""

from dataclasses import replace
from typing import Any

import numpy as np

from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules, unhealthy_gpus
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.parts.defrag.part import _trusted_rules
from extender.parts.defrag.targets import by_node, gpus_of_use, on_sick, plan_healing, without_sick
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import NOBODY_ABOVE, MovePlan, Problem, RunningPod, Target
from extender.settings.telemetry import TelemetrySettings
from tests.core.builders import node
from tests.core.observing import observed_cluster
from tests.planning.moves.cases import asking, empty_view, in_use, runs
from tests.planning.moves.replay import check
from tests.queueing.builders import A100


def problem(
    nodes: int, pods: list[tuple[int, RunningPod]], sick_gpus: dict[int, tuple[int, ...]], **other: Any
) -> Problem:
    """Nodes of four GPUs, some of which became unhealthy after the pods were placed; `sick_gpus` by row."""
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


def test_pods_on_unhealthy_gpus_move_and_others_only_for_them() -> None:
    cases: list[tuple[int, list[tuple[int, RunningPod]], dict[int, tuple[int, ...]], dict[str, int]]] = [
        (2, [(0, runs("default/a", 2)), (0, runs("default/b", 1))], {0: (1,)}, {"default/a": 1}),
        (2, [(0, runs("default/a", 1))], {0: (3,)}, {}),
        (2, [(0, runs("default/a", 2))], {0: (0,), 1: (3,)}, {"default/a": 1}),
        (
            3,
            [(0, runs("default/a", 4)), (1, runs("default/b", 1)), (2, runs("default/c", 3, 500.0))],
            {0: (0,)},
            {"default/b": 2, "default/a": 1},
        ),
    ]
    for nodes, pods, unhealthy, expected in cases:
        plan = healed(problem(nodes, pods, unhealthy))
        assert (plan.fits, moved(plan), plan.impossible) == (True, expected, ())


def test_a_gang_leaves_whole() -> None:
    pods = [(0, runs("default/g0", 2, gang="default/g")), (1, runs("default/g1", 2, gang="default/g"))]
    plan = healed(problem(3, pods, {0: (0,)}))
    assert moved(plan).keys() == {"default/g0", "default/g1"}
    assert moved(plan)["default/g0"] != 0


def test_pods_that_can_t_leave_stay_and_hold_up_no_others() -> None:
    stays = runs("default/b", 1, stays="it has no controller")
    plan = healed(problem(2, [(0, runs("default/a", 1)), (0, stays)], {0: (0, 1)}))
    assert (plan.fits, moved(plan)) == (True, {"default/a": 1})
    assert plan.impossible == ("default/b stays on an unhealthy GPU: it has no controller",)
    low, high = runs("default/low", 2), runs("default/high", 2, priority=5)
    plan = healed(problem(2, [(0, low), (0, high), (1, runs("default/c", 2, stays="x"))], {0: (0, 1, 2, 3)}))
    assert (plan.fits, moved(plan)) == (True, {"default/high": 1})
    (why,) = plan.impossible
    assert why.startswith("default/low stays on an unhealthy GPU, no room is left for it: no place elsewhere for ")
    plan = healed(problem(1, [(0, runs("default/a", 1))], {0: (0,)}))
    assert (plan.fits, plan.moves, len(plan.impossible)) == (False, (), 1)
    four = [(0, runs(f"default/p{number}", 1)) for number in range(4)]
    plan = healed(problem(2, four, {0: (0, 1, 2, 3)}, max_moves=2))
    assert (plan.fits, len(plan.moves), len(plan.impossible)) == (True, 2, 2)


def test_without_time_it_reports_how_many_were_not_tried() -> None:
    pods = [(0, runs(f"default/p{number}", 2)) for number in range(2)]
    plan = plan_healing(problem(1, pods, {0: (0, 1, 2, 3)}), plan_moves, lambda: True)
    assert (plan.fits, plan.impossible) == (False, ("2 more were not tried: the search ran out of time",))


def test_an_unhealthy_gpu_that_its_plugin_reports_as_healthy_closes_its_node() -> None:
    view, running = in_use(empty_view(3, 4), [(0, runs("default/a", 1)), (1, runs("default/b", 1))])
    named = {"n000": (0,), "n001": (3,)}
    open_to = without_sick(view, named).allowed
    assert open_to.all(axis=0).tolist() == [False, False, True]
    assert view.allowed.all(), "nothing of the view is changed"
    target = Target(NOBODY_ABOVE, leave=on_sick(view.cluster, running, named))
    plan = healed(Problem(without_sick(view, named), running, target))
    assert moved(plan) == {"default/a": 2}


def test_pods_on_unhealthy_gpus_are_those_that_a_loop_finds() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pods = [(int(rng.integers(4)), runs(f"default/p{number}", int(rng.integers(0, 3)))) for number in range(9)]
        view, running = in_use(empty_view(4, 4), pods)
        mask = (rng.random((4, view.cluster.gpu_model.shape[1])) < 0.3) & (view.cluster.gpu_model >= 0)
        expected = {number for number, pod in enumerate(running) if any(mask[pod.row, gpu] for gpu in pod.booked.gpus)}
        assert on_sick(view.cluster, running, by_node(view.cluster, mask)) == expected


def test_pods_on_unknown_gpus_count_if_all_of_their_node_are_unhealthy() -> None:
    view, (pod, other) = in_use(empty_view(2, 4), [(0, runs("default/a", 2)), (1, runs("default/b", 2))])
    running = [replace(one, booked=replace(one.booked, gpus=(), mib_each=(), unknown=2)) for one in (pod, other)]
    named = {"n000": (0, 1, 2, 3), "n001": (0, 1, 2)}
    assert on_sick(view.cluster, running, named) == {0}


def test_gpus_are_unhealthy_by_their_plugin_and_by_samples_with_rules() -> None:
    whole = (A100, 40_960)
    samples = {"a": {Gauge.XID: [0, 79, 31], Gauge.ROW_REMAP_FAILED: [1, 0, 0]}}  # XID 31 is an application's
    cluster = observed_cluster({"a": node(whole, whole, whole), "b": node(whole, whole, broken=[1])}, samples)
    for rules, expected in (
        (None, {"b": (1,)}),
        (ObservedRules(), {"a": (0, 1), "b": (1,)}),
        (ObservedRules(excludes_faulty=False), {"b": (1,)}),
    ):
        assert by_node(cluster, unhealthy_gpus(cluster, rules)) == expected


def test_samples_of_a_source_that_nobody_has_named_make_no_gpu_sick() -> None:
    for settings, trusted in (
        ({}, False),
        ({"source": "off"}, False),
        ({"url": "http://prometheus:9090"}, True),
        ({"exporters": ["http://node:9400/metrics"]}, True),
        ({"source": "prometheus", "addresses": ["http://prometheus:9090"]}, True),
    ):
        assert (_trusted_rules(TelemetrySettings.model_validate(settings)) is not None) is trusted


def test_the_targets_requests_count_shares_as_fractions() -> None:
    view, running = in_use(empty_view(2, 4), [])
    share = replace(asking("default/s", 1), gpus=GpuRequest(1, AskedUnit.PART, milli=250))
    pods = (asking("default/a", 2), asking("default/cpu", 0), share)
    asked = Problem(view, running, Target(0, pods))
    assert gpus_of_use(asked, plan_moves(asked)) == 2.25


def test_nodes_emptied_by_moves_count() -> None:
    view, running = in_use(empty_view(3, 4), [(0, runs("default/a")), (1, runs("default/b"))])
    asked = Problem(view, running, Target(0, num_empty=2))
    plan = plan_moves(asked)
    assert (len(plan.moves), len(plan.emptied)) == (1, 2)
    assert gpus_of_use(asked, plan) == 4, "the other one was empty already"
