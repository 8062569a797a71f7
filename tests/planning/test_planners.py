"""All planners on the same cases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.plan_state import state_after
from extender.planning.planners import PLANNERS
from extender.planning.planners.genetic import Genetic, _placed_pods
from extender.planning.planners.problem import plan_of, problem_of
from extender.planning.planners.q_learning import QLearning
from extender.planning.plans import Plan, PlanError, Planner, PlanPod, Quality, View, priority_weights
from tests.core.builders import all_rows, node, pattern
from tests.queueing.builders import A100, T4, check, demo_pods, gpu_pod, gpu_view, plain_view, reasons, view_of

names = pytest.mark.parametrize("name", list(PLANNERS))
SHORT: Mapping[str, Planner] = {**PLANNERS, "genetic": Genetic(generations=50), "q-learning": QLearning(episodes=200)}
"""They try as often as most cases here need."""


def made(
    name: str, view: View, pods: Sequence[PlanPod], seed: int = 7, planners: Mapping[str, Planner] = SHORT
) -> Plan:
    plan = planners[name].make(view, pods, seed)
    assert plan.planner == name
    assert plan.version == view.cluster.version
    check(view, pods, plan)
    return plan


def quality(view: View, plan: Plan) -> Quality:
    return state_after(view, plan).quality(priority_weights(plan.pods))


@pytest.mark.slow
@names
def test_m3_demo(name: str) -> None:
    plan = made(name, plain_view(3), demo_pods(), planners=PLANNERS)
    assert plan.num_placed == 19  # 19 CPU of 24; one of 9 CPU fits no node of 8
    assert reasons(plan) == {19: "needs 9 CPU and 1024 MiB, no node has that much"}


@names
@pytest.mark.parametrize(
    ("pods", "placed"),
    [
        pytest.param([], 0, id="no pods"),
        pytest.param([PlanPod("one", 1000, 1024)], 1, id="one pod"),
        pytest.param([PlanPod(f"p{n}", 9000, 1024) for n in range(3)], 0, id="all unfit"),
        pytest.param([PlanPod(f"p{n}", 8000, 1024) for n in range(4)], 3, id="one for each node, one over"),
    ],
)
def test_m3_edges(name: str, pods: list[PlanPod], placed: int) -> None:
    assert made(name, plain_view(3), pods).num_placed == placed


@names
def test_no_nodes(name: str) -> None:
    assert made(name, plain_view(0), demo_pods()[:3]).num_placed == 0


@pytest.mark.slow
@names
def test_equal_seeds_give_equal_plans(name: str) -> None:
    view = plain_view(3)
    assert made(name, view, demo_pods(), 3).rows == made(name, view, demo_pods(), 3).rows


@pytest.mark.parametrize("name", ["greedy", "genetic", "exact"])
def test_a_gang_is_placed_whole_or_not_at_all(name: str) -> None:
    view = gpu_view(2, gpus=4)
    pods = [gpu_pod(f"g{n}", 4, gang="three") for n in range(3)] + [gpu_pod("single", 4)]
    plan = made(name, view, pods)
    assert plan.rows[:3] == (-1, -1, -1)
    assert plan.rows[3] >= 0
    assert "three" in reasons(plan)[0] or "needs 4 GPUs" in reasons(plan)[0]


@names
def test_higher_priority_wins_the_last_room(name: str) -> None:
    view = gpu_view(1, gpus=2)
    pods = [gpu_pod("low", 2, priority=1), gpu_pod("high", 2, priority=9)]
    pods = sorted(pods, key=lambda pod: -pod.priority)  # the order of the batch is the queue's
    assert made(name, view, pods).rows == (0, -1)


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


def test_greedy_is_the_live_decision_pod_by_pod() -> None:
    view = view_of({name: node(*[(A100, 40960)] * gpus) for name, gpus in (("c", 8), ("a", 2), ("b", 4))})
    pods = [gpu_pod(f"p{n}", gpus) for n, gpus in enumerate((1, 4, 1, 2, 1))]
    plan = made("greedy", view, pods)
    cluster = view.cluster
    free_milli = cluster.gpu_free_milli.copy()
    for position, pod in enumerate(pods):
        assert pod.gpus is not None
        now = replace(cluster, gpu_free_milli=free_milli.copy())
        decision = decide(now, pod.gpus, POLICIES["bestfit"], all_rows(now), Memo())
        assert (decision.best, decision.gpus) == (plan.rows[position], plan.gpus[position])
        free_milli[decision.best, list(decision.gpus)] = 0


def test_a_gang_keeps_to_one_domain_of_its_topology() -> None:
    rack = np.array([0, 0, 1, 1, -1], np.int32)
    view = replace(gpu_view(5, gpus=4), domains={"rack": rack})
    pods = [gpu_pod("first", 4), *(gpu_pod(f"g{n}", 4, gang="pair", topology="rack") for n in range(2))]
    for name in ("greedy", "genetic"):
        plan = made(name, view, pods)
        assert plan.num_placed == 3
        assert rack[plan.rows[1]] == rack[plan.rows[2]] >= 0
    assert made("greedy", gpu_view(5, gpus=4), pods).num_placed == 1  # nodes without that label are no domain
    with pytest.raises(PlanError, match="use greedy or genetic"):
        PLANNERS["exact"].make(view, pods)


@pytest.mark.parametrize("name", ["greedy", "genetic"])
def test_a_member_made_again_goes_to_the_domain_of_those_that_run(name: str) -> None:
    view = replace(gpu_view(4, gpus=4), domains={"rack": np.array([0, 1, 1, 0], np.int32)})
    names = view.cluster.node_names
    again = gpu_pod("again", 4, gang="pair", topology="rack")
    for beside, rack in ((("gone", names[1]), 1), ((names[3],), 0)):
        assert view.domains["rack"][made(name, view, [replace(again, beside=beside)]).rows[0]] == rack
    full = replace(view, pods_free=np.array([110, 0, 0, 110]))
    assert made(name, full, [replace(again, beside=(names[1],))]).num_placed == 0
    assert made(name, full, [replace(again, beside=("gone",))]).num_placed == 1


def test_genetic_is_never_worse_than_greedy_and_without_its_help_gets_near() -> None:
    # Greedy in this order cuts both nodes: 3 + 3 of 4 leave no 2 together. 3 + 1 and 3 + 1 is all there is.
    view = gpu_view(2, gpus=4)
    pods = [gpu_pod(f"p{n}", gpus) for n, gpus in enumerate((1, 1, 3, 3))]
    greedy_plan = made("greedy", view, pods)
    assert greedy_plan.num_placed == 3  # 1 + 1 on one node, 3 on the other, and 3 nowhere
    assert made("genetic", view, pods).num_placed == 4
    cold = Genetic(warm_start=False).make(view, pods, 1)
    check(view, pods, cold)
    assert cold.num_placed == 4
    assert made("exact", view, pods).num_placed == 4


def test_fragments_count_once_all_are_placed_alike() -> None:
    view = view_of({"a": node(*[(A100, 40960)] * 8), "b": node(*[(A100, 40960)] * 2)})
    pods = [gpu_pod("p", 2), gpu_pod("never", 9)]
    plan = Genetic(warm_start=False, generations=50).make(view, pods, 0)
    assert plan.rows[0] == 1  # fills b, cuts nothing
    assert quality(view, plan) == Quality(placed=1, placed_priority=1.0, gpus=2, nodes=1, fragments=0.0)
    on_a = plan_of(view, pods, [0, -1], "by hand")
    assert quality(view, on_a).fragments == 6 / 10  # 6 free of a's 8, and 10 in all


def test_placed_pods_is_what_a_loop_finds() -> None:
    rng = np.random.default_rng(5)
    view = gpu_view(3, gpus=4)
    pods = [gpu_pod(f"p{n}", int(rng.integers(1, 4)), gang="g" if n in (2, 5) else "") for n in range(12)]
    problem = problem_of(view, pods)
    genes = rng.integers(0, 3, (20, 12))
    for individual, found in zip(genes, _placed_pods(problem, genes), strict=True):
        left = problem.free.copy()
        expected = np.zeros(12, np.bool_)
        for position, row in enumerate(individual.tolist()):
            if (left[row] >= problem.demand[position]).all():
                left[row] -= problem.demand[position]
                expected[position] = True
        expected[[2, 5]] = expected[2] and expected[5]
        assert found.tolist() == expected.tolist()


def test_q_learning_refuses_what_no_table_holds() -> None:
    with pytest.raises(PlanError, match="100 x 50; use greedy or genetic"):
        PLANNERS["q-learning"].make(gpu_view(50), [gpu_pod(f"p{n}") for n in range(100)])
    with pytest.raises(PlanError, match="does not support gangs"):
        PLANNERS["q-learning"].make(gpu_view(2), [gpu_pod("one", gang="pair"), gpu_pod("two", gang="pair")])


def test_q_learning_learns_from_the_reward() -> None:
    # int(10 * 5/8) for each of CPU and memory is 6; two half-used nodes give int(3.75) + int(3.75) = 6 less than
    # 5 + 3 CPU on one: int(10 * 1.0) = 10. So together beats apart.
    view = plain_view(2, 8000, 8000)
    pods = [PlanPod("a", 3000, 3000), PlanPod("b", 5000, 5000)]
    plan = made("q-learning", view, pods)
    assert plan.rows[0] == plan.rows[1]


def test_q_learning_prefers_nodes_that_have_the_image() -> None:
    view = plain_view(2, 100_000, 100_000)
    pods = [PlanPod("a", 1, 1, image="x"), PlanPod("b", 1, 1, image="x")]
    plan = made("q-learning", view, pods)
    assert plan.rows[0] == plan.rows[1]


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
    for name in ("greedy", "genetic", "exact"):
        plan = PLANNERS[name].make(view, pods, 0) if name != "genetic" else _short_search(view, pods)
        check(view, pods, plan)
        worth[name] = quality(view, plan).placed_priority
    assert worth["exact"] >= worth["greedy"] - 1e-6
    assert worth["exact"] >= worth["genetic"] - 1e-6


def _short_search(view: View, pods: list[PlanPod]) -> Plan:
    return Genetic(generations=30).make(view, pods, 0)


def test_the_view_is_left_as_it_was() -> None:
    view = gpu_view(3)
    before = (view.cluster.gpu_free_milli.tolist(), view.cpu_free_milli.tolist(), view.cluster.row_version.tolist())
    PLANNERS["greedy"].make(view, [gpu_pod(f"p{n}", 4) for n in range(4)])
    after = (view.cluster.gpu_free_milli.tolist(), view.cpu_free_milli.tolist(), view.cluster.row_version.tolist())
    assert after == before


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
