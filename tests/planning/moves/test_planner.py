"""Which pods move, where to and in which order; an independent implementation replays and checks each plan."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from extender.core.bookings import Booking
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.moves.constructions import _NO_TIME
from extender.planning.moves.evictions import Prices
from extender.planning.moves.placements import Placing
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import MovePlan, Problem, RunningPod, Target, gain_gpu_s, is_worth
from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import units_of
from tests.core.builders import node
from tests.golden import Golden
from tests.planning.moves.cases import asking, drawn, empty_view, in_use, runs
from tests.planning.moves.optimum import optimum
from tests.planning.moves.replay import check
from tests.queueing.builders import A100, view_of

NIGHTLY = pytest.mark.nightly(of=("extender/core/", "extender/planning/", "tests/planning/"))
WHOLE = Target(0, (asking("default/t", 8),))
FIRST = Target(0, empty=frozenset({0}))


def problem(nodes: int, pods: list[tuple[int, RunningPod]], target: Target, *, gpus: int = 8, **other: Any) -> Problem:
    """Equal nodes, and pods with their rows."""
    view, running = in_use(empty_view(nodes, gpus, other.pop("domains", None)), pods)
    assert len(running) == len(pods)
    return Problem(view, running, target, **other)


def planned(asked: Problem, seed: int = 0) -> MovePlan:
    plan = plan_moves(asked, seed)
    check(asked, plan)
    return plan


def moved(plan: MovePlan) -> dict[str, int]:
    return {move.pod.key: move.row for move in plan.moves}


def test_the_node_is_freed_whose_pods_lose_least() -> None:
    pods = [(0, runs("default/dear", 1, 500.0)), (1, runs("default/a", 2, 100.0)), (1, runs("default/b", 2, 150.0))]
    plan = planned(problem(2, pods, WHOLE))
    assert (moved(plan), plan.rows, plan.cost_gpu_s) == ({"default/a": 0, "default/b": 0}, (1,), 250.0)


def test_of_equal_costs_the_fewest_pods_move() -> None:
    pods = [(0, runs("default/one", 2, 100.0)), (1, runs("default/a", 1, 50.0)), (1, runs("default/b", 1, 50.0))]
    assert moved(planned(problem(2, pods, WHOLE))) == {"default/one": 1}


def test_a_moved_pod_may_make_another_one_move_first() -> None:
    # 4 GPUs have to leave node 0; node 1 has room for them once its pod of 2 has gone to node 2.
    pods = [(0, runs("default/big", 4, 1.0)), (1, runs("default/small", 2, 1.0)), (1, runs("default/rest", 4, 1e6))]
    pods += [(2, runs("default/other", 6, 1e6))]
    plan = planned(problem(3, pods, WHOLE))
    assert [(move.pod.key, move.pod.row, move.row, move.step) for move in plan.moves] == [
        ("default/small", 1, 2, 0),
        ("default/big", 0, 1, 1),
    ]


def test_why_no_room_can_be_made(golden: Golden) -> None:
    one, alone = runs("default/a", 1), runs("default/a", 1, stays="has no controller")
    exempt = runs("default/b", 1, stays="is exempt")
    covered = runs("default/p", 2, budgets=("default/web",))
    gang = [runs(f"default/g{row}", 2, gang="default/g") for row in (0, 1)]
    four = Target(0, tuple(asking(f"default/t{n}", 8) for n in range(4)))
    two = problem(2, [(0, one), (1, runs("default/b", 1))], WHOLE)
    claims, mig = two.running
    claims = replace(claims, pod=replace(claims.pod, claims=("claim",)))
    mig = replace(mig, pod=replace(mig.pod, gpus=GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),))))
    candidates = np.array([False, True, True, True])
    problems = [
        problem(2, [(0, runs("default/a", 5)), (1, runs("default/b", 5))], WHOLE),
        problem(2, [(0, replace(one, priority=5))], replace(FIRST, priority=4)),
        problem(2, [(0, alone), (0, exempt), (1, replace(exempt, key="default/c", uid="c"))], WHOLE),
        problem(2, [(0, one)], Target(0, (asking("default/t", 9),))),
        problem(4, [(0, one), (1, runs("default/b", stays="has no controller"))], four),
        problem(2, [(0, covered)], FIRST, budgets={"default/web": 0}),
        problem(2, [(0, covered)], FIRST),
        problem(3, [(n, replace(gang[n], budgets=covered.budgets)) for n in (0, 1)], FIRST, budgets={"default/web": 1}),
        problem(3, [(0, gang[0]), (1, replace(gang[1], stays="is exempt"))], FIRST),
        problem(4, [(0, one)], Target(0, num_empty=4, may_empty=candidates)),
        problem(2, [(0, alone), (0, runs("default/b"))], Target(0, leave=frozenset({0, 1}))),
        replace(two, max_moves=0),
        replace(two, running=(claims, mig)),
    ]
    golden("planning/impossible_moves.txt", ["; ".join(planned(asked).impossible) for asked in problems])


def test_budgets_allow_as_many_moves_of_one_step() -> None:
    """Single pods move one after another, the members of a gang together."""
    single = [(0, runs(f"default/p{n}", 2, budgets=("default/web",))) for n in range(3)]
    assert len(planned(problem(2, single, FIRST, budgets={"default/web": 1})).moves) == 3
    gang = [(row, runs(f"default/g{row}", 2, gang="default/g", budgets=("default/web",))) for row in (0, 1)]
    assert len(planned(problem(3, gang, FIRST, budgets={"default/web": 2})).moves) == 2


def test_a_pod_of_equal_priority_may_move_but_not_one_above() -> None:
    pods = [(0, runs("default/a", 2, 1.0, priority=5)), (1, runs("default/b", 6, 1e6, priority=6))]
    for priority, expected in ((4, {}), (5, {"default/a": 1})):
        assert moved(planned(problem(2, pods, replace(WHOLE, priority=priority)))) == expected


def test_a_gang_moves_whole_and_members_that_need_not_leave_return() -> None:
    pods = [(row, runs(f"default/g{row}", 2, 10.0, gang="default/g")) for row in (0, 1)]
    pods += [(1, runs("default/x", 2, 1e6)), (2, runs("default/y", 2, 1e6))]
    plan = planned(problem(3, pods, WHOLE))
    assert plan.rows == (0,)
    assert {move.pod.key for move in plan.moves} == {"default/g0", "default/g1"}
    assert {move.step for move in plan.moves} == {0}
    assert moved(plan)["default/g1"] == 1
    assert moved(plan)["default/g0"] in (1, 2)


def test_a_single_pod_with_a_topology_may_go_to_any_domain() -> None:
    racks = {"rack": np.array([0, 1], np.int32)}
    pods = [(0, runs("default/a", 4, 1.0, topology="rack"))]
    assert moved(planned(problem(2, pods, FIRST, domains=racks))) == {"default/a": 1}


def test_the_cheapest_candidate_nodes_are_emptied() -> None:
    pods = [(row, runs(f"default/p{row}", 2, cost)) for row, cost in enumerate((1.0, 2.0, 3.0, 9.0))]
    may = np.array([False, True, True, True])
    plan = planned(problem(4, pods, Target(0, num_empty=2, may_empty=may)))
    assert (plan.emptied, plan.cost_gpu_s) == ((1, 2), 5.0)


def test_shares_of_gpus_are_gathered_so_that_a_whole_one_is_free() -> None:
    half = GpuRequest(1, AskedUnit.WHOLE, milli=600)
    view = view_of({name: node((A100, 40_960)) for name in ("n0", "n1", "n2")})
    pods = [(0, runs("default/a", 1, 5.0)), (1, runs("default/b", 1, 6.0)), (2, runs("default/c", 1, 7.0))]
    sizes = (300, 600, 600)
    pods = [
        (row, replace(pod, pod=replace(pod.pod, gpus=replace(half, milli=milli))))
        for (row, pod), milli in zip(pods, sizes, strict=True)
    ]
    view, running = in_use(view, pods)
    asked = Problem(view, running, Target(0, (asking("default/t", 1),)))
    plan = planned(asked)
    assert (set(moved(plan)), plan.rows) == ({"default/a"}, (0,))


def test_pods_without_gpus_move_to_free_cpu() -> None:
    pods = [(0, runs("default/a", 0, 5.0, 60_000)), (1, runs("default/b", 0, 6.0, 60_000))]
    target = Target(0, (asking("default/t", 8, 32_000),))
    plan = planned(problem(3, [*pods, (2, runs("default/c", 2, 1e6))], target))
    assert (moved(plan), plan.rows) == ({"default/a": 2}, (0,))


def test_a_pod_that_leaves_frees_no_unhealthy_gpu() -> None:
    view = view_of({f"n{n}": node(*[(A100, 40_960)] * 2, broken=[0] if n == 0 else []) for n in range(2)})
    # On node 0 a pod is on the unhealthy GPU: once it has left there is one GPU, not two.
    one, two = runs("default/sick", 1, 1.0), runs("default/b", 1, 5.0)
    view, running = in_use(view, [(1, two)])
    sick = replace(one, row=0, booked=Booking(gpus=(0,), cpu_milli=1000, memory_mib=1024))
    plan = planned(Problem(view, (sick, *running), Target(0, (asking("default/t", 2),))))
    assert moved(plan) == {"default/b": 0}


def test_an_overbooked_node_frees_what_is_left_of_it() -> None:
    full = runs("default/b", 8, 9.0, 64_000, stays="is exempt")
    pods = [(0, runs("default/a", 1, 1.0, 60_000)), (1, full), (2, runs("default/c", 7, 9.0, stays="is exempt"))]
    asked = problem(3, pods, WHOLE)
    over = runs("default/over", 0, 1.0, 30_000)
    over = replace(over, row=0, booked=Booking(cpu_milli=30_000, memory_mib=1024), stays="is exempt")
    # 64 CPU, of which `over` holds 30: 34 are left once `a` has gone to node 2, not 60 and what is free.
    for cpu_milli, fits in ((34_000, True), (35_000, False)):
        target = Target(0, (asking("default/t", 8, cpu_milli),))
        assert planned(replace(asked, running=(*asked.running, over), target=target)).fits == fits


def test_inconsistent_problems_are_refused() -> None:
    asked = problem(2, [(0, runs("default/a"))], WHOLE)
    (pod,) = asked.running
    changes: list[tuple[dict[str, Any], str]] = [
        ({"target": Target(0)}, "neither pods nor nodes"),
        ({"target": Target(0, num_empty=-1)}, "-1 nodes can't be emptied"),
        ({"target": Target(0, empty=frozenset({7}))}, "no node at row 7"),
        ({"running": (replace(pod, row=7),)}, "runs on row 7"),
        ({"running": (pod, pod)}, "two pods of UID"),
        ({"running": (replace(pod, cost_gpu_s=float("nan")),)}, "cost nan"),
        ({"running": (replace(pod, cost_gpu_s=-1.0),)}, "cost -1.0"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            plan_moves(replace(asked, **change))


def test_pods_that_have_to_leave_do_and_others_move_only_for_them() -> None:
    pods = [(0, runs("default/a", 4, 100.0)), (0, runs("default/b", 4, 1.0)), (1, runs("default/c", 5, 50.0))]
    pods.append((2, runs("default/d", 3, 70.0)))  # leaves 5 GPUs free, as many as `a` needs
    assert moved(planned(problem(3, pods, Target(0, leave=frozenset({0}))))) == {"default/a": 2}


def test_a_member_that_has_to_leave_does_not_return_to_its_node() -> None:
    pods = [(0, runs("default/g0", 2, gang="default/g")), (1, runs("default/g1", 2, gang="default/g"))]
    rows = moved(planned(problem(3, pods, Target(0, leave=frozenset({0})))))
    assert rows["default/g0"] != 0
    assert rows["default/g1"] == 1


@pytest.mark.parametrize("seeds", [range(16), pytest.param(range(16, 40), marks=pytest.mark.slow)])
def test_pods_that_have_to_leave_random_clusters_have_left(seeds: range) -> None:
    for seed in seeds:
        asked = drawn(seed)
        rng = np.random.default_rng(seed)
        leave = frozenset(rng.choice(len(asked.running), min(2, len(asked.running)), replace=False).tolist())
        planned(replace(asked, target=Target(5, leave=leave)))


def test_plans_are_deterministic_and_leave_the_problem_unchanged() -> None:
    asked = drawn(8)
    view, cluster = asked.view, asked.view.cluster
    arrays: list[npt.NDArray[Any]] = [
        *(view.cpu_free_milli, view.memory_free_mib, view.pods_free, cluster.gpu_free_milli, cluster.gpu_free_mib)
    ]
    before = [array.copy() for array in arrays]
    assert plan_moves(asked, 3) == plan_moves(asked, 3)
    assert all((now == then).all() for now, then in zip(arrays, before, strict=True))


def test_a_search_without_time_returns_what_it_has_and_never_claims_that_there_is_no_room() -> None:
    asked = drawn(8)
    plan = plan_moves(asked, 0, lambda: True)
    check(asked, plan)
    assert plan.fits
    pods = [(0, runs("default/a", 6)), (1, runs("default/b", 5)), (2, runs("default/c", 4))]
    asked = problem(3, pods, WHOLE)
    assert "no place" in plan_moves(asked).impossible[0]
    assert plan_moves(asked, 0, lambda: True).impossible == (_NO_TIME,)


def compared(seeds: Iterable[int]) -> list[float]:
    """Relative excess over the least cost, for each problem whose moves cost something."""
    gaps = []
    for seed in seeds:
        asked = drawn(seed)
        plan = planned(asked)
        least = optimum(asked)
        assert plan.fits == (least is not None), seed
        if least:
            assert plan.cost_gpu_s >= least * (1 - 1e-9), seed
            gaps.append(plan.cost_gpu_s / least - 1)
        elif plan.fits:
            assert plan.cost_gpu_s == 0, seed
    return gaps


def test_moves_cost_hardly_more_than_the_optimum() -> None:
    gaps = compared([0, 3, 5, 6, 8, 9, 10, 11, 13, 15, 18, 20, 22])
    assert len(gaps) >= 8
    assert np.mean(gaps) <= 0.01


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(2000, 2030), marks=pytest.mark.slow),
        pytest.param(range(1000, 1100), marks=NIGHTLY),
        pytest.param(range(2000, 2100), marks=NIGHTLY),
        pytest.param(range(3000, 3100), marks=NIGHTLY),
    ],
    ids=str,
)
def test_moves_of_hundreds_of_problems_cost_hardly_more_than_the_optimum(seeds: range) -> None:
    gaps = compared(seeds)
    assert len(gaps) > len(seeds) / 4
    assert np.mean(gaps) <= 0.05


def test_the_wait_ahead_is_taken_to_be_as_long_as_the_wait_so_far_at_most_a_day() -> None:
    assert gain_gpu_s(8, 1800) == 8 * 1800
    assert gain_gpu_s(0.5, 1800) == 900
    assert gain_gpu_s(8, 0) == gain_gpu_s(0, float("inf")) == 0
    assert gain_gpu_s(8, float("inf")) == 8 * 86_400
    for gpus, waited_s, why in ((-1, 10, "-1 GPUs"), (1, -5, "-5 seconds waited"), (1, float("nan"), "nan seconds")):
        with pytest.raises(ValueError, match=why):
            gain_gpu_s(gpus, waited_s)


def test_moves_are_worth_it_from_the_least_gain_on_and_never_without_gain() -> None:
    assert is_worth(200, 100, 2)
    assert not is_worth(199, 100, 2)
    assert is_worth(1, 0, 2)
    assert not is_worth(0, 0, 2)


def test_an_evicted_pod_goes_to_another_node_even_if_its_own_is_the_tightest() -> None:
    view, running = in_use(empty_view(2), [(0, runs("default/a", 1)), (0, runs("default/b", 5))])
    asked = Problem(view, running, Target(0, (asking("default/t", 8),)))
    trial = MoveTrial(asked, units_of(asked))
    leaves = trial.position(0)
    trial.evict(int(trial.units.unit_of[0]))
    assert trial.state.best_row(leaves) == 0
    assert Placing(trial, Prices(trial.units.cost)).settle()
    assert trial.row(leaves) == 1
