"""Whose turn it is within a round: its limit, the parts of namespaces, quotas, and what a search may change."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from extender.planning.planners import PLANNERS
from extender.planning.planners.problem import plan_of
from extender.planning.plans import Plan, PlanError, PlanPod, View
from extender.planning.quotas import Quotas
from extender.planning.rounds import Rules, greedy_round, searched_round
from tests.queueing.builders import gpu_pod, gpu_view, plain_view, reasons

HUGE = gpu_pod("ns/huge", 9)
NO_ROOM = "needs 9 GPUs, best node: 8 installed"


def ones(count: int, namespace: str = "ns", name: str = "p") -> list[PlanPod]:
    return [gpu_pod(f"{namespace}/{name}{number}") for number in range(count)]


def gang(count: int, namespace: str = "ns") -> list[PlanPod]:
    return [gpu_pod(f"{namespace}/g{number}", gang=f"{namespace}/g") for number in range(count)]


def placed(view: View, pods: Sequence[PlanPod], rules: Rules) -> list[int]:
    return [position for position, row in enumerate(greedy_round(view, pods, rules).plan.rows) if row >= 0]


def test_once_the_limit_is_reached_nobody_is_looked_at() -> None:
    pods = [*ones(1), HUGE, gpu_pod("ns/after")]
    made = greedy_round(gpu_view(1), pods, Rules(limit=1, reserves=frozenset({"ns/huge"})))
    assert made.plan.rows == (0, -1, -1)
    assert reasons(made.plan) == {1: "", 2: ""}
    assert greedy_round(gpu_view(1), pods, Rules(limit=2)).plan.rows == (0, -1, 0)


def test_a_gang_that_has_to_wait_for_its_turn_leaves_the_reasons_before_it() -> None:
    made = greedy_round(gpu_view(1), [HUGE, *ones(1), *gang(3)], Rules(limit=3))
    assert made.plan.rows == (-1, 0, -1, -1, -1)
    assert reasons(made.plan) == {0: NO_ROOM, 2: "", 3: "", 4: ""}


def test_pods_alike_that_have_no_room_hold_up_nobody_behind_them() -> None:
    made = greedy_round(gpu_view(1), [HUGE, replace(HUGE, key="ns/alike"), *ones(2)], Rules())
    assert made.plan.rows == (-1, -1, 0, 0)
    assert reasons(made.plan) == {0: NO_ROOM, 1: NO_ROOM}


@pytest.mark.parametrize(
    ("pods", "most", "expected"),
    [
        pytest.param(ones(4), 2, [0, 1], id="single pods up to their part"),
        pytest.param(ones(4), 0, [], id="no part"),
        pytest.param(gang(3), 3, [0, 1, 2], id="a gang as large as the part"),
        pytest.param(gang(3), 2, [0, 1, 2], id="a gang that comes first may be larger"),
        pytest.param([*ones(1), *gang(2)], 3, [0, 1, 2], id="a gang that fills the rest"),
        pytest.param([*ones(1), *gang(3)], 3, [0], id="a gang larger than the rest"),
        pytest.param([*ones(2), *gang(3)], 4, [0, 1], id="a gang larger than the rest, after two"),
        pytest.param([*ones(1), *gang(3), *ones(1, name="q")], 3, [0, 4], id="a single pod after that gang"),
        pytest.param([*gang(2), *ones(3)], 3, [0, 1, 2], id="the pods of a gang count one by one"),
        pytest.param([*ones(2, "other"), *ones(3)], 2, [0, 1, 2, 3], id="other namespaces don't count"),
    ],
)
def test_a_namespace_takes_no_more_than_its_part(pods: list[PlanPod], most: int, expected: list[int]) -> None:
    rules = Rules(most={"ns": most})
    assert placed(gpu_view(1), pods, rules) == expected
    made = greedy_round(gpu_view(1), pods, rules)
    assert set(reasons(made.plan).values()) <= {""}  # their turn is to come: nobody is told


def test_one_over_its_quota_is_told_so_even_where_it_has_no_room() -> None:
    pods = [gpu_pod("team/huge", 9), gpu_pod("other/huge", 9), gpu_pod("team/p", 1)]
    rules = Rules(Quotas({"team": 4.0}), {"team": 3.0}, reserves=frozenset({"team/huge"}))
    made = greedy_round(gpu_view(1), pods, rules)
    assert made.head is None
    assert made.plan.rows == (-1, -1, 0)
    assert reasons(made.plan) == {0: "quota of namespace team: 4 GPUs, 3 in use, 9 more requested", 1: NO_ROOM}
    pods[0] = gpu_pod("team/two", 2)
    busy = replace(gpu_view(1), pods_free=gpu_view(1).pods_free * 0)
    told = reasons(greedy_round(busy, pods, rules).plan)[0]
    assert told == "quota of namespace team: 4 GPUs, 3 in use, 2 more requested"


def test_quotas_of_namespaces_that_are_not_named_are_kept_too() -> None:
    pods = [*ones(2, "a"), *ones(2, "b"), *ones(2, "team")]
    assert placed(gpu_view(1), pods, Rules(Quotas({"*": 1.0, "team": 2.0}))) == [0, 2, 4, 5]


@dataclass
class Told:
    """A planner that does as it is told, and remembers what it was asked."""

    rows: tuple[int, ...] | None
    """None: it does not take the batch."""
    asked: list[tuple[list[str], int]] = field(default_factory=list)
    """Policies of the pods, and the seed."""
    name: str = "told"
    description: str = ""

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 1) -> Plan:
        self.asked.append(([pod.policy for pod in pods], seed))
        if self.rows is None:
            raise PlanError("not this batch")
        return plan_of(view, pods, self.rows, self.name)


# Greedy puts both of 1 on one node and then 3 on the other; 3 and 1 on both is all there is.
VIEW = gpu_view(2, gpus=4)
PODS = [gpu_pod(f"ns/p{number}", count) for number, count in enumerate((1, 1, 3, 3))]


@pytest.mark.parametrize(
    ("rows", "by"),
    [
        pytest.param((0, 1, 0, 1), "told", id="more pods"),
        pytest.param((0, 0, -1, 1), "greedy", id="as many"),
        pytest.param((0, -1, -1, -1), "greedy", id="fewer"),
        pytest.param(None, "greedy", id="a batch that it does not take"),
    ],
)
def test_a_search_is_taken_where_it_places_more(rows: tuple[int, ...] | None, by: str) -> None:
    assert greedy_round(VIEW, PODS, Rules()).plan.num_placed == 3
    planner = Told(rows)
    made = searched_round(VIEW, [replace(PODS[0], policy="binpack"), *PODS[1:]], Rules(policy="tightest"), planner)
    assert made.plan.planner == by
    assert planner.asked == [(["binpack", "tightest", "tightest", "tightest"], 0)]  # the same seed in every round


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Rules(Quotas({"other": 1.0})), id="quotas"),
        pytest.param(Rules(most={"other": 1}), id="parts"),
        pytest.param(Rules(Quotas({"other": 1.0}), most={"other": 1}), id="both"),
    ],
)
def test_where_quotas_or_parts_are_kept_nothing_is_searched(rules: Rules) -> None:
    planner = Told((0, 1, 0, 1))
    assert searched_round(VIEW, PODS, rules, planner).plan.planner == "greedy"
    assert planner.asked == []


def test_the_greedy_planner_is_not_asked_twice() -> None:
    made = searched_round(VIEW, PODS, Rules(limit=1), PLANNERS["greedy"])
    assert made.plan.num_placed == 1


def test_a_round_of_pods_without_gpus_needs_no_gpus() -> None:
    pods = [PlanPod(f"ns/p{number}", 4000, 10) for number in range(5)]
    assert placed(plain_view(2), pods, Rules(Quotas({"ns": 0.0}), limit=3)) == [0, 1, 2]
