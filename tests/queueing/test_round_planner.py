"""A round's plan: the queue order, its limits, and the nodes kept for the head."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from extender.core.durations import Durations
from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.planning.plans import PlanPod
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.gangs import Unit
from extender.queueing.options import Options
from extender.queueing.pods.entries import Entry
from extender.queueing.round_planner import RoundPlanner, in_order
from tests.queueing.rigs import Rig
from tests.queueing.watches import pod


class Planned:
    """A round planner on the cluster of a rig."""

    def __init__(self, used: Mapping[str, float] | None = None, **options: Any) -> None:
        self.rig = Rig()
        self.options = Options(**{"reserve_after_s": 10.0, "skip_s": 64.0} | options)
        self.backlog = self.rig.queue.backlog
        self.planner = RoundPlanner(
            self.options,
            self.rig.ledger,
            self.rig.placer,
            self.backlog,
            self.rig.queue.nodes,
            lambda: used or {},
            lambda: self.rig.now,
        )

    def units(self) -> list[Unit]:
        found: dict[str, list[Entry]] = {}
        for entry in self.backlog.waiting():
            if entry.planned is not None:
                found.setdefault(entry.planned.gang or entry.pod.key, []).append(entry)
        return [Unit(key, tuple(entries)) for key, entries in found.items()]

    def plan(self, window: int = 100, **limits: int) -> dict[str, str]:
        """By pod: its node, else its reason."""
        plan, batch, names = asyncio.run(self.planner.plan(self.units(), window, limits))
        assert names[: len(self.rig.ledger.snapshot(0.0).row_of)] == self.rig.ledger.snapshot(0.0).node_names
        told = {at: str(why) for at, why in plan.unassigned.items()}
        named = [entry.pod.metadata.name for entry, _ in batch]
        return {name: told[at] if at in told else names[plan.rows[at]] for at, name in enumerate(named)}

    @property
    def head(self) -> str:
        return self.planner.head.key if self.planner.head else ""


def with_head(**options: Any) -> Planned:
    """One GPU of two is in use, and `large` waits for both."""
    planned = Planned(**options)
    planned.rig.node("n", 2)
    planned.rig.ledger.reserve("runs", "n", Holding(1), 1e9)
    planned.rig.pod("large", 2)
    return planned


KEPT = "room is kept for ns/large"
BUSY = "needs 2 GPUs, best node: 1 free"


def test_nodes_are_kept_for_the_first_once_it_has_waited_for_long_enough() -> None:
    planned = with_head()
    planned.rig.pod("small", 1)
    planned.rig.now += 9.875
    assert planned.plan()["small"] == "n"
    assert planned.head == ""
    planned.rig.now += 0.125
    assert planned.plan() == {"large": BUSY, "small": KEPT}
    assert planned.head == "ns/large"


def test_others_are_kept_off_for_a_bounded_time_and_then_the_first_backs_off_for_as_long() -> None:
    planned = with_head(reserve_after_s=0.0)
    rig = planned.rig
    for later_s in (0.0, 1000.0):
        rig.now += later_s
        assert planned.plan() == {"large": BUSY}, "no pod was kept off"
    rig.pod("small", 1)
    for later_s, expected in ((0.0, KEPT), (32.0, KEPT), (31.875, KEPT), (0.125, "n")):
        rig.now += later_s
        assert planned.plan()["small"] == expected
    assert planned.head == ""
    rig.gone("small")
    rig.pod("new", 1)
    rig.now += 63.875
    assert planned.plan()["new"] == "n"
    assert planned.head == ""
    rig.now += 0.125
    planned.plan()
    assert planned.head == "ns/large", "it is its turn again"


def test_a_pod_that_was_kept_off_for_long_enough_goes_even_if_the_head_has_changed() -> None:
    planned = with_head(reserve_after_s=0.0)
    rig = planned.rig
    rig.pod("small", 1)
    assert planned.plan()["small"] == KEPT
    entry = planned.backlog.entries["small"]
    assert (entry.kept_back, entry.behind_head) == (rig.now, True)
    rig.now += 32.0
    rig.gone("large")
    planned.backlog.remove(entry.pod)
    rig.pod("other", 2)
    planned.backlog.entries["small"] = entry
    rig.pod("later", 1)
    kept = "room is kept for ns/other"
    assert planned.plan() == {"other": BUSY, "small": kept, "later": kept}
    rig.now += 31.875
    assert planned.plan() == {"other": BUSY, "small": kept, "later": kept}
    rig.now += 0.125
    assert planned.plan()["small"] == "n"
    assert entry.kept_back == rig.now - 64.0


def test_a_head_that_has_its_room_and_comes_again_is_kept_room_for_from_then() -> None:
    planned = with_head(reserve_after_s=0.0)
    rig = planned.rig
    rig.pod("small", 1)
    assert planned.plan()["small"] == KEPT
    rig.now += 60.0
    rig.ledger.release("runs")
    assert planned.plan(window=1)["large"] == "n"
    assert planned.head == ""
    rig.gone("small")
    rig.ledger.reserve("runs", "n", Holding(1), 1e9)
    rig.pod("later", 1)
    planned.plan()
    rig.now += 32.0
    assert planned.plan()["later"] == KEPT
    assert planned.head == "ns/large", "it has not been for 64 seconds"


def test_nodes_that_are_kept_stay_the_same_though_others_are_emptier_by_now() -> None:
    planned = Planned(reserve_after_s=0.0)
    ledger = planned.rig.ledger
    for name, used in (("a", 1), ("b", 2)):
        planned.rig.node(name, 2)
        ledger.reserve(f"on {name}", name, Holding(used), 1e9)
    planned.rig.pod("large", 2)
    for _ in range(2):
        planned.plan()
        assert planned.planner.head is not None
        assert planned.planner.head.nodes == {"a"}
        ledger.release("on b")
        for name in "ab":
            ledger.reserve(f"later on {name}", name, Holding(1), 1e9)


def test_a_pod_behind_the_head_that_lost_its_node_leaves_the_heads_nodes_to_it() -> None:
    planned = with_head(reserve_after_s=0.0)
    rig, entries = planned.rig, planned.backlog.entries
    rig.pod("p", 1)
    planned.plan()
    assert (entries["large"].behind_head, entries["p"].behind_head) == (False, True)
    lost = entries["p"]
    assert planned.planner.kept_from(lost) == frozenset(), "it has not lost a node"
    lost.lost = "m: no room"
    assert planned.planner.kept_from(lost) == {"n"}
    assert planned.planner.kept_from(None) == frozenset()
    lost.behind_head = False
    assert planned.planner.kept_from(lost) == frozenset()
    lost.behind_head = True
    asks, lost.planned = lost.planned, PlanPod("ns/p")
    assert planned.planner.kept_from(lost) == {"n"}
    rig.ledger.release("runs")
    assert planned.planner.kept_from(lost) == frozenset(), "without GPUs it takes nothing of what is kept"
    lost.planned = None
    assert planned.planner.kept_from(lost) == {"n"}, "what it takes is not known"
    lost.planned = asks
    rig.now += 63.875
    assert planned.planner.kept_from(lost) == {"n"}
    rig.now += 0.125
    assert planned.planner.kept_from(lost) == frozenset()


def test_nodes_are_kept_by_priority_class_and_age_and_a_label_may_only_lower_that() -> None:
    planned = with_head(reserve_after_s=0.0)
    for name, priority, label, second in (("labelled", 0, "5", 0), ("lowered", 7, "1", 0), ("young", 3, "", 5)):
        labels = {"genius/priority": label} if label else {}
        planned.rig.pod(name, 2, f"2026-01-01T00:00:0{second}Z", labels=labels, spec={"priority": priority})
    planned.rig.pod("first", 2, "2026-01-01T00:00:01Z", spec={"priority": 3})
    planned.plan()
    assert planned.head == "ns/first"


def test_as_many_go_as_a_round_may_release_and_of_each_namespace() -> None:
    planned = Planned()
    planned.rig.node("n", 8)
    for name in "abc":
        planned.rig.pod(name, 1)
    assert list(planned.plan(window=2).values()).count("n") == 2
    assert list(planned.plan(ns=1).values()).count("n") == 1
    assert list(planned.plan().values()).count("n") == 3


def test_plans_keep_to_quotas_and_to_the_part_of_nodes_that_is_left_free() -> None:
    planned = Planned(quotas=Quotas({"ns": 3.0}), used={"ns": 2.0}, reserve_frac=0.5)
    planned.rig.node("n", 8)
    planned.rig.pod("fits", 1)
    planned.rig.pod("exceeds", 2)
    planned.rig.pod("wide", 0, limits={"cpu": 40})
    found = planned.plan()
    assert found["fits"] == "n"
    assert found["exceeds"].startswith("quota of namespace ns: 3 GPUs")
    assert found["wide"].startswith("needs 40 CPU")


def test_nothing_is_planned_onto_closed_nodes_nor_onto_what_pods_on_their_way_take() -> None:
    planned = Planned()
    for name in ("a", "b"):
        planned.rig.node(name, 8)
    planned.rig.pod("cpu", 0, limits={"cpu": 40})
    planned.rig.ledger.rows.close({"a"})
    assert planned.plan() == {"cpu": "b"}
    planned.rig.pod("before", 0, limits={"cpu": 40})
    planned.backlog.entries["before"].reserve("b")
    assert planned.plan()["cpu"].startswith("needs 40 CPU")


@pytest.mark.parametrize(("policy", "node"), [("tightest", "half"), ("spread", "empty")])
def test_nodes_are_ranked_by_the_policy_of_the_queue(policy: str, node: str) -> None:
    planned = Planned(policy=policy)
    for name in ("empty", "half"):
        planned.rig.node(name, 2)
    planned.rig.ledger.reserve("runs", "half", Holding(1), 1e9)
    planned.rig.pod("p", 1)
    assert planned.plan() == {"p": node}


def test_planners_that_search_get_as_many_whole_units_as_they_may_have() -> None:
    for planner, gangs, names in (
        ("exact", {"a": "g", "b": "g", "c": "h", "d": "h", "e": "", "f": ""}, "ab"),
        ("greedy", {"a": "g", "b": "g", "c": "h", "d": "h", "e": "", "f": ""}, "abcdef"),
        ("exact", {"a": "g", "b": "g", "c": "g", "d": "g", "e": ""}, "abcd"),  # larger than a batch, and first
        ("exact", {"a": "", "b": "", "c": ""}, "abc"),
    ):
        planned = Planned(planner=planner, batch_pods=3)
        planned.rig.node("n", 16)
        for name, gang in gangs.items():
            size = str(list(gangs.values()).count(gang))
            planned.rig.pod(name, 1, **({"gang": gang, "gang_size": size} if gang else {}))
        assert "".join(planned.plan()) == names


def test_a_search_finds_room_for_more_than_greedy_does() -> None:
    def placed(planner: str) -> int:
        planned = Planned(planner=planner, reserve_after_s=1e9)
        for name, gpus in (("a", 3), ("b", 2)):
            planned.rig.node(name, gpus)
        for name, gpus in (("one", 1), ("three", 3)):
            planned.rig.pod(name, gpus, policy="spread")
        return sum(node in ("a", "b") for node in planned.plan().values())

    assert (placed("greedy"), placed("exact")) == (1, 2)


@pytest.mark.parametrize(
    ("window", "on_way", "max_open", "leaves_at", "sleeps"),
    [
        (3, 0, 4, 9, 4),  # as many are released as allowed
        (2, 0, 4, 9, 0),  # fewer are released, and none is on its way
        (2, 1, 4, 9, 0),
        (2, 2, 5, 9, 0),  # less than half of `max_open`
        (2, 2, 4, 9, 4),
        (2, 2, 4, 2, 2),  # until one has its node
    ],
)
def test_other_work_has_its_time_after_a_plan_while_pods_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch, window: int, on_way: int, max_open: int, leaves_at: int, sleeps: int
) -> None:
    planned = Planned(interval_s=0.25, max_open=max_open)
    planned.rig.node("n", 8)
    for number in range(2):
        planned.rig.pod(f"p{number}", 1)
    assert list(planned.plan(window=window).values()) == ["n", "n"]
    for number in range(on_way):
        planned.backlog.entries[f"p{number}"].reserve("n")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == leaves_at:
            planned.rig.gone("p0")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        asyncio.run(planned.planner.rest(1.0))
    assert slept == [0.25] * sleeps


def unit(key: str, *members: tuple[int, float], gpus: int = 1, namespace: str = "ns") -> Unit:
    """A pod or a gang, each member with its priority and its time of creation."""
    gang = key if len(members) > 1 else ""
    entries = [
        Entry(
            pod(f"{key.rpartition('/')[2]}-{at}", namespace=namespace),
            created=created,
            seen=0.0,
            planned=PlanPod(f"{namespace}/{key}-{at}", gpus=GpuRequest(gpus), priority=priority, gang=gang),
        )
        for at, (priority, created) in enumerate(members)
    ]
    return Unit(key, tuple(entries))


def turns(
    *units: Unit,
    used: Mapping[str, float] | None = None,
    durations: Durations | None = None,
    most: int = 0,
    now: float = 1000.0,
    **options: Any,
) -> str:
    """Keys in queue order; requests for up to `most` GPUs waste GPUs."""
    wanted: dict[str, Any] = {"order": Order.FIFO, "ageing_s": 0.0} | options
    known = durations or Durations()
    found = in_order(units, now, Options(**wanted), used or {}, known, lambda request: request.count <= most)
    return "".join(one.key for one in found)


def test_units_go_by_the_highest_priority_and_the_oldest_of_their_pods() -> None:
    assert turns(unit("a", (0, 1.0)), unit("b", (5, 2.0)), unit("c", (0, 3.0), (9, 4.0))) == "cba"
    assert turns(unit("a", (0, 2.0)), unit("b", (0, 5.0), (0, 1.0)), unit("c", (0, 0.0))) == "cba"
    assert turns(unit("a", (1, 950.0)), unit("b", (0, 0.0)), ageing_s=500.0) == "ba", "waiting raises a priority"
    alike = unit("ns/x", (0, 1.0)), Unit("ns/x", unit("ns/x", (0, 2.0), (0, 2.0)).entries)
    found = in_order(alike, 0.0, Options(), {}, Durations(), lambda request: False)
    assert found == list(alike), "a gang may be called as a pod is"


def test_of_equals_the_namespace_goes_first_that_uses_least_for_its_weight_where_shares_are_fair() -> None:
    units = (
        unit("a", (0, 1.0), gpus=4, namespace="x"),
        unit("b", (0, 2.0), gpus=4, namespace="x"),
        unit("c", (0, 3.0), gpus=1, namespace="y"),
        unit("d", (0, 4.0), gpus=1, namespace="y"),
    )
    assert turns(*units) == "abcd"
    assert turns(*units, fair_share=True) == "acdb"
    assert turns(*units, fair_share=True, used={"x": 2.0, "y": 1.5}) == "cadb"
    heavy = Quotas({}, {"x": 100.0})
    assert turns(*units, fair_share=True, used={"x": 2.0, "y": 1.5}, quotas=heavy) == "abcd"


def test_units_with_longer_expected_run_times_are_held_back_up_to_the_limit() -> None:
    durations = Durations()
    durations.finished(("ns/Pod/long/1 GPUs", "ns/1 GPUs", "ns"), 100.0)
    durations.finished(("ns/Pod/short/1 GPUs", "ns/1 GPUs", "ns"), 1.0)
    long, short = unit("long", (0, 0.0)), unit("short", (0, 10.0))
    assert turns(long, short, durations=durations) == "longshort"
    assert turns(long, short, durations=durations, order=Order.KERF) == "shortlong"
    assert turns(long, short, durations=durations, order=Order.KERF, held_most_s=9.0) == "longshort"
    gang = Unit("gang", (*unit("short", (0, 0.0)).entries, *unit("long", (0, 0.0)).entries))
    assert turns(gang, short, durations=durations, order=Order.KERF) == "shortgang", "as the longest of its pods"


def test_a_unit_that_wastes_gpus_yields_for_a_while() -> None:
    large, small = unit("large", (0, 0.0), gpus=2), unit("small", (0, 9.0), gpus=4)
    assert turns(large, small, most=2) == "largesmall", "only with patience"
    assert turns(large, small, most=2, patience_s=10.0) == "smalllarge"
    assert turns(large, small, most=2, patience_s=8.0) == "largesmall"
    assert turns(large, unit("soon", (0, 0.5), gpus=4), most=2, patience_s=1.0) == "soonlarge"
    assert turns(large, small, most=1, patience_s=10.0) == "largesmall"
    mixed = Unit("mixed", (*large.entries, *unit("m", (0, 0.0), gpus=8).entries))
    assert turns(mixed, small, most=2, patience_s=10.0) == "mixedsmall", "one pod of the gang wastes none"
    cpu = unit("cpu", (0, 0.0))
    cpu.entries[0].planned = PlanPod("ns/cpu")
    assert turns(cpu, small, most=2, patience_s=10.0) == "cpusmall"
    durations = Durations()
    durations.finished(("ns",), 0.5)
    assert turns(large, small, most=2, patience_s=5.0, order=Order.KERF, durations=durations) == "largesmall"
    held = unit("small", (0, 4.0), gpus=0)
    assert turns(large, held, most=2, patience_s=5.0, order=Order.KERF, durations=durations) == "smalllarge"
