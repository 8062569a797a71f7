"""A round: the order of pods, its limit, shares of namespaces, quotas, and when a search may replace it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from extender.core.gauges import Gauge
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from extender.planning import rounds
from extender.planning.planners import PLANNERS
from extender.planning.planners.problem import plan_of, problem_of
from extender.planning.plans import Plan, PlanError, PlanPod, View
from extender.planning.quotas import Quotas
from extender.planning.rounds import RoundRules, greedy_round, searched_round
from extender.planning.wait_reasons import Code
from tests.core.builders import node
from tests.core.observing import observed_cluster
from tests.queueing.builders import A100, check, gpu_pod, gpu_view, plain_view, reasons, view_of

HUGE = gpu_pod("ns/huge", 9)
NO_ROOM = "needs 9 GPUs, best node: 8 installed"


def ones(count: int, namespace: str = "ns", name: str = "p") -> list[PlanPod]:
    return [gpu_pod(f"{namespace}/{name}{number}") for number in range(count)]


def gang(count: int, namespace: str = "ns", gpus: int = 1) -> list[PlanPod]:
    return [gpu_pod(f"{namespace}/g{number}", gpus, gang=f"{namespace}/g") for number in range(count)]


def placed(view: View, pods: Sequence[PlanPod], rules: RoundRules) -> list[int]:
    return [position for position, row in enumerate(greedy_round(view, pods, rules).plan.rows) if row >= 0]


def test_smaller_pods_overtake_one_that_has_no_room() -> None:
    view = view_of({"a": node(*[(A100, 40_960)] * 4, held=[0]), "b": node(*[(A100, 40_960)] * 4, held=[0, 1])})
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/small", 2), gpu_pod("ns/also", 3)]
    made = greedy_round(view, pods, RoundRules())
    check(view, pods, made.plan)
    assert (made.head, made.plan.rows) == (None, (-1, 1, 0))
    assert reasons(made.plan) == {0: "needs 4 GPUs, best node: 0 free"}


def test_a_round_ends_at_its_limit() -> None:
    pods = [*ones(1), HUGE, gpu_pod("ns/after")]
    made = greedy_round(gpu_view(1), pods, RoundRules(limit=1, reserves=frozenset({"ns/huge"})))
    assert made.plan.rows == (0, -1, -1)
    assert reasons(made.plan) == {1: "", 2: ""}
    assert placed(gpu_view(1), pods, RoundRules(limit=2)) == [0, 2]


def test_a_gang_that_exceeds_the_rest_of_the_limit_ends_the_round_unless_it_comes_first() -> None:
    made = greedy_round(gpu_view(1), [HUGE, *ones(1), *gang(3), *ones(1, name="q")], RoundRules(limit=3))
    assert made.plan.rows == (-1, 0, -1, -1, -1, -1)
    assert reasons(made.plan) == {0: NO_ROOM, 2: "", 3: "", 4: "", 5: ""}
    assert placed(gpu_view(1), [*gang(3), *ones(2)], RoundRules(limit=2)) == [0, 1, 2]


def test_a_gang_that_can_t_be_placed_does_not_end_the_round() -> None:
    view = gpu_view(2, gpus=4)
    never, fits = gang(9, "bad", 5), gang(4, "bad")
    made = greedy_round(view, [*ones(1), *never, *ones(3, name="q")], RoundRules(limit=3))
    assert [position for position, row in enumerate(made.plan.rows) if row >= 0] == [0, 10, 11]
    assert reasons(made.plan)[1] == "needs 5 GPUs, best node: 4 installed"
    assert reasons(made.plan)[12] == ""
    pods = [*ones(1), *fits, *ones(3, name="q")]
    assert len(placed(view, pods, RoundRules(Quotas({"bad": 3.0}), limit=3))) == 3
    assert len(placed(view, pods, RoundRules(limit=3, most={"bad": 0}))) == 3


def test_equal_pods_that_have_no_room_are_tried_once_and_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    place, tried = rounds.place_unit, list[int]()

    def counting(state: object, unit: Sequence[int], **options: object) -> bool:
        tried.extend(unit)
        return place(state, unit, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "place_unit", counting)
    made = greedy_round(gpu_view(1), [HUGE, replace(HUGE, key="ns/alike"), *ones(2)], RoundRules())
    assert made.plan.rows == (-1, -1, 0, 0)
    assert reasons(made.plan) == {0: NO_ROOM, 1: NO_ROOM}
    assert tried == [0, 2, 3]


def test_a_namespace_takes_no_more_than_its_share() -> None:
    for pods, most, expected in (
        (ones(4), 2, [0, 1]),
        (ones(4), 0, []),
        (gang(3), 2, [0, 1, 2]),  # the first gang may be larger
        ([*ones(1), *gang(2)], 3, [0, 1, 2]),
        ([*ones(1), *gang(3), *ones(1, name="q")], 3, [0, 4]),
        ([*gang(2), *ones(3)], 3, [0, 1, 2]),
        ([*ones(2, "other"), *ones(3)], 2, [0, 1, 2, 3]),
    ):
        made = greedy_round(gpu_view(1), pods, RoundRules(most={"ns": most}))
        assert [position for position, row in enumerate(made.plan.rows) if row >= 0] == expected
        assert set(reasons(made.plan).values()) <= {""}  # their turn is to come


def test_quotas_count_what_is_in_use_and_what_the_round_places() -> None:
    pods = [gpu_pod(f"team/p{n}", 2) for n in range(3)] + [gpu_pod("free/p", 2), PlanPod("team/cpu", 100, 10)]
    made = greedy_round(gpu_view(2), pods, RoundRules(Quotas({"team": 6.0}), {"team": 2.0}))
    assert [row >= 0 for row in made.plan.rows] == [True, True, False, True, True]
    assert reasons(made.plan) == {2: "quota of namespace team: 6 GPUs, 6 in use, 2 more requested"}
    pods = [*ones(2, "a"), *ones(2, "b"), *ones(2, "team")]
    assert placed(gpu_view(1), pods, RoundRules(Quotas({"*": 1.0, "team": 2.0}))) == [0, 2, 4, 5]


def test_a_pod_over_its_quota_gets_that_reason_also_without_room() -> None:
    pods = [gpu_pod("team/huge", 9), gpu_pod("other/huge", 9), gpu_pod("team/p", 1)]
    rules = RoundRules(Quotas({"team": 4.0}), {"team": 3.0}, reserves=frozenset({"team/huge"}))
    made = greedy_round(gpu_view(1), pods, rules)
    assert (made.head, made.plan.rows) == (None, (-1, -1, 0))
    assert reasons(made.plan) == {0: "quota of namespace team: 4 GPUs, 3 in use, 9 more requested", 1: NO_ROOM}
    busy = replace(gpu_view(1), pods_free=gpu_view(1).pods_free * 0)
    assert "2 more requested" in reasons(greedy_round(busy, [gpu_pod("team/two", 2)], rules).plan)[0]


def test_a_request_by_total_memory_counts_as_the_gpus_that_hold_it() -> None:
    total = [replace(gpu_pod(f"team/p{n}"), gpus=GpuRequest(0, memory_total_mib=4 * 40_960)) for n in range(2)]
    made = greedy_round(gpu_view(2), [*total, gpu_pod("team/one")], RoundRules(Quotas({"team": 6.0})))
    assert [len(gpus) for gpus in made.plan.gpus] == [4, 0, 1]
    assert reasons(made.plan) == {1: "quota of namespace team: 6 GPUs, 4 in use, 4 more requested"}


def test_pods_without_gpus_are_limited_but_have_no_quota() -> None:
    pods = [PlanPod(f"ns/p{number}", 4000, 10) for number in range(5)]
    assert placed(plain_view(2), pods, RoundRules(Quotas({"ns": 0.0}), limit=3)) == [0, 1, 2]


def test_a_pod_has_room_by_its_own_policy() -> None:
    """A GPU without a booking is in use: `live` avoids it, `tightest` goes by bookings."""
    nodes = {"n": node((A100, 40960))}
    view = replace(view_of(nodes), cluster=observed_cluster(nodes, {"n": {Gauge.MEMORY_USED: [20000.0]}}))
    live, tight = (replace(gpu_pod(f"ns/{policy}"), policy=policy) for policy in ("live", "tightest"))
    for planner in PLANNERS.values():
        assert searched_round(view, [live, tight], RoundRules(), planner).plan.rows == (-1, 0)
    assert problem_of(view, [live, tight]).eligible.tolist() == [[False], [True]]


@dataclass
class Fixed:
    """A planner with a fixed result, which records its arguments."""

    rows: tuple[int, ...] | None
    """None: it does not support the batch."""
    asked: list[tuple[list[str], int]] = field(default_factory=list)
    """Policies of the pods, and the seed."""
    name: str = "fixed"
    description: str = ""

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 1) -> Plan:
        self.asked.append(([pod.policy for pod in pods], seed))
        if self.rows is None:
            raise PlanError("not this batch")
        return plan_of(view, pods, self.rows, self.name)


# Greedy places both pods of 1 on one node and then a pod of 3 on the other; 3 and 1 on both would place all.
VIEW = gpu_view(2, gpus=4)
PODS = [gpu_pod(f"ns/p{number}", count) for number, count in enumerate((1, 1, 3, 3))]


def test_a_search_replaces_the_round_only_if_it_places_more() -> None:
    assert greedy_round(VIEW, PODS, RoundRules()).plan.num_placed == 3
    pods = [replace(PODS[0], policy="binpack"), *PODS[1:]]
    for rows, by in (((0, 1, 0, 1), "fixed"), ((0, 0, -1, 1), "greedy"), ((0, -1, -1, -1), "greedy"), (None, "greedy")):
        planner = Fixed(rows)
        assert searched_round(VIEW, pods, RoundRules(policy="tightest"), planner).plan.planner == by
        assert planner.asked == [(["binpack", "tightest", "tightest", "tightest"], 0)]  # always the same seed


def test_nothing_is_searched_with_quotas_or_shares() -> None:
    planner = Fixed((0, 1, 0, 1))
    for rules in (RoundRules(Quotas({"other": 1.0})), RoundRules(most={"other": 1})):
        assert searched_round(VIEW, PODS, rules, planner).plan.planner == "greedy"
    assert planner.asked == []


def test_the_greedy_planner_is_not_asked_again() -> None:
    assert searched_round(VIEW, PODS, RoundRules(limit=1), PLANNERS["greedy"]).plan.num_placed == 1


def test_a_searched_plan_ranks_by_the_default_policy() -> None:
    view = replace(gpu_view(2, gpus=4), policies={"spread": POLICIES["spread"]})  # there is no other
    made = searched_round(view, ones(2), RoundRules(policy="spread"), PLANNERS["genetic"])
    assert made.plan.num_placed == 2


def test_a_request_beyond_the_quota_is_refused() -> None:
    quotas = Quotas({"team": 8, "*": 1})
    for namespace, used, asked, refused in (
        ("team", 6, 2, False),
        ("team", 7, 2, True),
        ("team", 9, 0, False),
        ("other", 1, 1, True),
    ):
        excess = quotas.excess(namespace, used, asked)
        assert (excess is not None) == refused
        assert excess is None or excess.code is Code.OVER_QUOTA
        assert Quotas().excess(namespace, used, asked) is None
    why = str(quotas.excess("team", 7, 2))
    assert why == "quota of namespace team: 8 GPUs, 7 in use, 2 more requested"


def test_shares_are_by_weight() -> None:
    quotas = Quotas(weights={"a": 2.0})
    assert (quotas.share("a", 8.0), quotas.share("b", 3.0)) == (4.0, 3.0)
