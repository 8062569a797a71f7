"""All planners on the same cases, and the exact one against brute force."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.plan_state import state_after
from extender.planning.planners import PLANNERS
from extender.planning.planners.genetic import Genetic
from extender.planning.planners.q_learning import QLearning
from extender.planning.plans import Plan, PlanError, Planner, PlanPod, View, priority_weights
from tests.core.builders import node, pattern
from tests.golden import Golden
from tests.queueing.builders import A100, T4, check, demo_pods, gpu_pod, gpu_view, plain_view, reasons, view_of

names = pytest.mark.parametrize("name", list(PLANNERS))
SHORT: Mapping[str, Planner] = {**PLANNERS, "genetic": Genetic(generations=50), "q-learning": QLearning(episodes=200)}
"""As many tries as these cases need."""


def made(name: str, view: View, pods: Sequence[PlanPod], planners: Mapping[str, Planner] = SHORT) -> Plan:
    plan = planners[name].make(view, pods, 7)
    assert plan.planner == name
    assert plan.version == view.cluster.version
    check(view, pods, plan)
    return plan


@pytest.mark.slow
@names
def test_m3_demo(name: str) -> None:
    plan = made(name, plain_view(3), demo_pods(), PLANNERS)
    assert plan.num_placed == 19  # 19 CPU of 24; one of 9 CPU fits no node of 8
    assert reasons(plan) == {19: "needs 9 CPU and 1024 MiB, no node has that much"}
    assert made(name, plain_view(3), demo_pods(), PLANNERS).rows == plan.rows


@names
def test_m3_edges(name: str) -> None:
    for num_nodes, pods, placed in (
        (3, [], 0),
        (3, [PlanPod("one", 1000, 1024)], 1),
        (3, [PlanPod(f"p{n}", 9000, 1024) for n in range(3)], 0),
        (3, [PlanPod(f"p{n}", 8000, 1024) for n in range(4)], 3),
        (1, [PlanPod("huge", 9000, 1)], 0),
        (0, demo_pods()[:3], 0),
    ):
        assert made(name, plain_view(num_nodes), pods).num_placed == placed


@names
def test_the_first_of_the_batch_gets_the_last_room(name: str) -> None:
    pods = [gpu_pod("high", 2, priority=9), gpu_pod("low", 2, priority=1)]
    assert made(name, gpu_view(1, gpus=2), pods).rows == (0, -1)


@names
def test_model_and_memory_are_honoured(name: str) -> None:
    view = view_of({"small": node((T4, 15360), (T4, 15360)), "large": node((A100, 40960), (A100, 40960))})
    pods = [
        PlanPod("large", gpus=GpuRequest(1, memory_each_mib=20_000)),
        PlanPod("model", gpus=GpuRequest(2, include=pattern("t4"))),
        PlanPod("too-many", gpus=GpuRequest(2, memory_each_mib=20_000)),
    ]
    plan = made(name, view, pods)
    assert plan.rows == (1, 0, -1)
    assert "needs 2 GPUs with 20000 MiB" in reasons(plan)[2]


@names
def test_nodes_that_a_kind_may_not_use_stay_empty(name: str) -> None:
    view = replace(plain_view(3), allowed=np.array([[True] * 3, [False, True, False], [False] * 3]))
    pods = [PlanPod(f"p{n}", 3000, 1024, kind=1) for n in range(4)] + [PlanPod("nowhere", kind=2)]
    plan = made(name, view, pods)
    assert sorted(plan.rows) == [-1, -1, -1, 1, 1]
    assert reasons(plan)[4] == "no node matches its selector and tolerations"


@pytest.mark.parametrize("name", ["greedy", "genetic"])
def test_a_gang_stays_in_one_domain_which_is_that_of_its_running_members(name: str) -> None:
    view = replace(gpu_view(5, gpus=4), domains={"rack": np.array([0, 1, 1, 0, -1], np.int32)})
    names = view.cluster.node_names
    pair = [gpu_pod(f"g{n}", 4, gang="pair", topology="rack") for n in range(2)]
    rows = made(name, view, [gpu_pod("first", 4), *pair]).rows
    assert set(rows[1:]) in ({0, 3}, {1, 2})
    for beside, expected in ((("gone", names[1]), {1, 2}), ((names[3],), {0, 3})):
        assert set(made(name, view, [replace(pod, beside=beside) for pod in pair]).rows) == expected
    full = replace(view, pods_free=np.array([110, 0, 0, 110, 110]))
    assert made(name, full, [replace(pod, beside=(names[1],)) for pod in pair]).num_placed == 0
    assert made(name, full, [replace(pod, beside=("gone",)) for pod in pair]).num_placed == 2


def test_batches_that_a_planner_does_not_support(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    racks = replace(gpu_view(2), domains={"rack": np.zeros(2, np.int32)})
    gang = [gpu_pod(f"g{number}", gang="g", topology="rack") for number in range(2)]
    pods = [PlanPod(f"p{number}", number) for number in range(201)]
    said = []
    for name, view, batch in (
        ("exact", racks, gang),
        ("exact", plain_view(500), pods),
        ("q-learning", racks, gang),
        ("q-learning", plain_view(16), pods[:33]),
    ):
        with pytest.raises(PlanError) as error:
            PLANNERS[name].make(view, batch)
        said.append(str(error.value))
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(PlanError) as error:
        PLANNERS["exact"].make(gpu_view(1), [gpu_pod("p")])
    golden("planning/unsupported_batches.txt", [*said, str(error.value)])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    asked=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(0, 2)), max_size=14),
)
def test_any_batch_keeps_to_capacity(gpus: list[int], asked: list[tuple[int, int, int]]) -> None:
    view = view_of({f"n{n}": node(*[(A100, 40960)] * count) for n, count in enumerate(gpus)})
    pods = [
        gpu_pod(f"p{n}", count, priority=priority, gang=f"g{gang}" if gang else "")
        for n, (count, priority, gang) in enumerate(asked)
    ]
    worth = {}
    for planner in (PLANNERS["greedy"], Genetic(generations=30), PLANNERS["exact"]):
        plan = planner.make(view, pods, 0)
        check(view, pods, plan)
        worth[planner.name] = state_after(view, plan).quality(priority_weights(plan.pods)).placed_priority
    assert worth["exact"] >= max(worth["greedy"], worth["genetic"]) - 1e-6


def test_the_view_is_left_as_it_was() -> None:
    view = gpu_view(3)

    def arrays() -> list[list[int]]:
        cluster = view.cluster
        return [array.tolist() for array in (cluster.gpu_free_milli, view.cpu_free_milli, cluster.row_version)]

    before = arrays()
    assert PLANNERS["greedy"].make(view, [gpu_pod(f"p{n}", 4) for n in range(4)]).num_placed == 4
    assert arrays() == before


def test_shares_of_one_gpu_are_booked_with_their_memory() -> None:
    view = view_of({"n": node((A100, 40_960), (A100, 40_960))})
    share = GpuRequest(1, unit=AskedUnit.WHOLE, milli=400, memory_each_mib=10_240)
    pods = [PlanPod(f"p{n}", gpus=share) for n in range(5)] + [PlanPod("whole", gpus=GpuRequest(1))]
    plan = PLANNERS["greedy"].make(view, pods, 0)
    assert [gpus for gpus in plan.gpus if gpus] == [(0,), (0,), (1,), (1,)]  # two of 400 milli a GPU
    assert plan.unassigned.keys() == {4, 5}
    state = state_after(view, plan)
    assert state.cluster.gpu_free_milli.tolist() == [[200, 200]]
    assert state.cluster.gpu_free_mib.tolist() == [[20_480, 20_480]]
    state.undo(0)
    assert state.cluster.gpu_free_milli.tolist() == [[1000, 1000]]
    assert state.cluster.gpu_free_mib.tolist() == [[40_960, 40_960]]


def placed(view: View, pods: list[PlanPod]) -> list[bool]:
    plan = PLANNERS["exact"].make(view, pods)
    check(view, pods, plan)
    return [row >= 0 for row in plan.rows]


def test_a_gang_that_does_not_fit_takes_no_room_from_others() -> None:
    pods = [*(gpu_pod(f"g{number}", 4, gang="g", priority=9) for number in range(2)), gpu_pod("single", 4)]
    assert placed(gpu_view(1, gpus=4), pods) == [False, False, True]


def test_it_places_as_much_as_brute_force() -> None:
    gangs = ("", "", "a", "a", "b", "b")
    for seed in range(8):
        rng = np.random.default_rng(seed)
        asked = rng.integers(1, 5, 6).tolist()
        priorities = rng.integers(0, 3, 6).tolist()
        pods = [
            gpu_pod(f"p{number}", asked[number], priority=priorities[number], gang=gang)
            for number, gang in enumerate(gangs)
        ]
        worth = priority_weights(pods).tolist()
        best = max(
            sum(value for value, row in zip(worth, rows, strict=True) if row >= 0)
            for rows in product((-1, 0, 1), repeat=6)
            if all(sum(count for count, row in zip(asked, rows, strict=True) if row == node) <= 4 for node in (0, 1))
            and (rows[2] < 0) == (rows[3] < 0)
            and (rows[4] < 0) == (rows[5] < 0)
        )
        found = placed(gpu_view(2, gpus=4), pods)
        assert sum(value for value, chosen in zip(worth, found, strict=True) if chosen) == pytest.approx(best), seed


def test_pods_that_fill_all_nodes_exactly_are_all_placed() -> None:
    counts = (2, 3, 5, 1, 3, 1, 3, 4, 3, 1, 2, 1, 3, 5, 5, 1, 5)
    assert sum(counts) == 6 * 8
    assert all(placed(gpu_view(6), [gpu_pod(f"p{number}", count) for number, count in enumerate(counts)]))


def test_the_fewest_nodes_are_used_among_equally_good_plans() -> None:
    plan = PLANNERS["exact"].make(plain_view(4), [PlanPod(f"p{number}", 2000, 1024) for number in range(4)])
    assert len(set(plan.rows)) == 1
