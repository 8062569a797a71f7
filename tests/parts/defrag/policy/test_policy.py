"""The policy of `defrag.mode`: which pods it plans for, which moves pay, what it begins and reports, and back-offs."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest

from extender.explain.processes import BusyError, QuestionError
from extender.kube.client import ClusterError
from extender.kube.events import EventRecorder
from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.metrics import policy_metrics
from extender.parts.defrag.plan import PlannedMove, RoomPlan, TargetPod
from extender.parts.defrag.policy import DefragConfig, MovePolicy, PolicyInputs, SickGpus, Teller, Wait, _BackOffs
from extender.parts.defrag.questions import RoomAnswer
from extender.parts.defrag.record import Culprit
from extender.parts.defrag.state import MoveState, RoomState, state_of
from extender.planning.windows import window_of
from tests.core.builders import cluster_of, node
from tests.queueing.builders import A100

WALL = 1_795_424_400.0  # 2026-11-23 09:00 UTC, a Monday
TERMS = DefragConfig("act", True, 300.0, 600.0, 2.0, rest_s=3600.0, free_nodes=0, heal=False, moves_an_hour=60)


def waits(
    name: str, waited_s: float = 1000.0, priority: int = 0, namespace: str = "ns", *, queued: bool = True
) -> Wait:
    return Wait(f"{namespace}/{name}", namespace, priority, WALL - waited_s, (f"uid-{name}",), queued)


def makes_room(
    name: str, *, gpus: float = 8.0, cost: float = 1000.0, moves: int = 1, namespace: str = "ns"
) -> RoomAnswer:
    """A plan with which a pod would fit."""
    made = [PlannedMove(f"ns/v{n}", f"v{n}", "a", "b", n, [], cost / moves, "rs") for n in range(moves)]
    target = [TargetPod(f"{namespace}/{name}", "a", [], f"uid-{name}")]
    return RoomAnswer(True, made, cost, target, [], [], id=f"plan-{name}", gpus=gpus)


NO_ROOM = RoomAnswer(False, [], 0.0, [], [], ["nobody may move"])
FITS = RoomAnswer(True, [], 0.0, [], [], [])


class World:
    """The policy, and fakes of its planner, mover and events."""

    def __init__(self, **terms: Any) -> None:
        """`terms` differ from TERMS."""
        wanted = replace(TERMS, **terms)
        self.now = 1000.0 - wanted.every_s
        self.waits: list[Wait] = []
        self.gone: set[str] = set()
        self.standby = ""
        self.answers: dict[str, RoomAnswer | Exception] = {}
        self.asked: list[dict[str, Any]] = []
        self.rested: list[float] = []
        self.sick: list[Any] = []
        self.backing_off: frozenset[str] = frozenset()
        self.events: list[tuple[str, str]] = []
        self.begun: list[tuple[RoomPlan, str]] = []
        self.refuse: RoomError | None = None
        self.stopped: list[str] = []
        self.room = state_of(None, [], 0, "")
        self.sick_now: dict[str, tuple[int, ...]] = {}
        cluster = cluster_of({"a": node((A100, 40_960)), "b": node((A100, 40_960))})

        async def waits() -> list[Wait]:
            return self.waits

        inputs = PolicyInputs(
            *(lambda: cluster, waits, lambda uid: uid not in self.gone, lambda: self.standby, lambda: self.now),
            lambda: WALL + self.now - 1000.0,
            SickGpus(lambda cluster: self.sick_now, 300.0),
        )
        mover = self if wanted.acts else None
        self.policy = MovePolicy(self, mover, Teller(cast(EventRecorder, self)), inputs, wanted)
        self.look()  # this process leads from now on
        self.now = 1000.0

    @classmethod
    def helped(cls, *, mode: str = "act", every: dict[str, Any] | None = None, **answer: Any) -> "World":
        """Pod `big` waits, and moves would help."""
        world = cls(mode=mode, acts=mode == "act", **(every or {}))
        world.wants("big", **answer)
        return world

    def wants(self, name: str, **answer: Any) -> None:
        """Only this pod waits, and moves would help."""
        self.waits = [waits(name)]
        self.answers[f"ns/{name}"] = makes_room(name, **answer)

    # The planner

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        backing_off: frozenset[str] = frozenset(),
    ) -> bytes:
        question = json.loads(body)
        self.backing_off = backing_off
        self.asked.append(question)
        self.rested.append(rest_s)
        self.sick.append(sick)
        key = question.get("for") or next(name for name in ("heal", "freeNodes") if name in question)
        found = self.answers.get(f"{key} {question['freeNodes']}" if key == "freeNodes" else key, NO_ROOM)
        if isinstance(found, Exception):
            raise found
        return msgspec.json.encode(found)

    def kept(self, plan: str) -> RoomPlan | None:
        for found in self.answers.values():
            if isinstance(found, RoomAnswer) and found.id == plan:
                return msgspec.convert(msgspec.to_builtins(found), RoomPlan)
        return None

    # The mover

    async def begin(self, plan: RoomPlan, target: str = "") -> str:
        if self.refuse is not None:
            raise self.refuse
        self.begun.append((plan, target))
        self.room = RoomState(f"run-{len(self.begun)}", target, "moving", 0, 1, [], [], "", 0.0, 0.0, 0, "")
        return self.room.id

    def give_up(self, why: str) -> bool:
        self.stopped.append(why)
        self.room.why = self.room.why or why
        return True

    def state(self) -> RoomState:
        return self.room

    def ends(self, why: str = "", *, stage: str = "done", culprit: str = "") -> None:
        """The current plan ends."""
        self.room.culprit = Culprit(culprit)
        self.room.phase, self.room.why = "stopped" if why else "done", why
        self.room.moves = [MoveState("ns/v0", "a", "b", 0, stage, "")]

    # Events

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        self.events.append((name, f"{reason}: {message}"))

    def look(self, later_s: float = 0.0) -> None:
        self.now += later_s
        asyncio.run(self.policy.look())

    @property
    def names(self) -> list[str]:
        return [question["for"] for question in self.asked if "for" in question]

    @property
    def why_not(self) -> list[str]:
        return [advice.why_not for advice in self.policy.advice]

    @property
    def targets(self) -> list[str]:
        """Targets of the plans begun."""
        return [target for _, target in self.begun]


def test_room_is_made_for_a_pod_that_waits_too_long() -> None:
    world = World.helped()
    world.waits.append(waits("new", waited_s=599.0))
    world.look()
    assert world.asked == [{"for": "ns/big", "maxMoves": 60}]
    assert world.rested == [3600.0]
    ((plan, target),) = world.begun
    assert ([move.uid for move in plan.moves], target) == (["v0"], "ns/big")
    assert world.policy.counts.begun == 1
    assert not world.events, "the mover reports it"


def test_rounds_are_every_s_apart_and_not_while_a_plan_is_carried_out() -> None:
    world = World.helped()
    world.look()
    world.look(10_000.0)
    assert (len(world.asked), len(world.begun)) == (1, 1)
    world.ends()
    world.look(1.0)
    world.ends()
    world.look(299.0)
    assert len(world.asked) == 2
    world.look(1.0)
    assert len(world.asked) == 3


def test_only_moves_that_pay_are_made() -> None:
    for gpus, waited_s, cost, pays in (
        (8.0, 1000.0, 4000.0, True),  # 8 GPUs x 1000 s = 8000 = 2 x 4000
        (8.0, 1000.0, 4001.0, False),
        (8.0, 10_000_000.0, 345_600.0, True),  # a day at most: 8 x 86400 = 691200 = 2 x 345600
        (8.0, 10_000_000.0, 345_601.0, False),
        (0.0, 1000.0, 0.0, False),
    ):
        world = World.helped(gpus=gpus, cost=cost)
        world.waits = [waits("big", waited_s)]
        world.look()
        assert bool(world.begun) is pays
    # 8 GPUs of an emptied node x 3600 s = 28800 = 2 x 14400
    for cost, pays in ((14_400.0, True), (14_401.0, False)):
        world = World(free_nodes=1)
        world.answers["freeNodes 1"] = msgspec.structs.replace(EMPTIES, cost_gpu_s=cost)
        world.look()
        assert bool(world.begun) is pays


def test_the_plan_with_the_highest_net_gain_begins() -> None:
    world = World()
    world.waits = [waits("a"), waits("b"), waits("c", namespace="other")]
    world.answers["ns/a"] = makes_room("a", gpus=4, cost=10.0)  # 4000 - 10
    world.answers["ns/b"] = makes_room("b", gpus=8, cost=3000.0)  # 8000 - 3000
    world.answers["other/c"] = makes_room("c", gpus=9, cost=4400.0, namespace="other")  # 9000 - 4400
    world.look()
    assert world.targets == ["ns/b"]


def test_a_new_leader_waits_every_s_first_and_a_standby_reports_nothing() -> None:
    world = World.helped(mode="advise")
    world.look()
    assert world.policy.advice
    world.standby = "another leads"
    world.look(1000.0)
    assert (world.policy.advice, world.policy.state().fault) == ([], "another leads")
    world.standby = ""
    world.look()
    world.look(299.0)
    assert len(world.asked) == 1
    world.look(1.0)
    assert len(world.asked) == 2


def test_a_round_plans_for_few_targets_with_turns_for_namespaces() -> None:
    world = World()
    crowd = [waits(f"crowd{n}", priority=9, namespace="crowd") for n in range(50)]
    world.waits = [*crowd, *(waits(f"w{n}", namespace=f"ns{n}") for n in range(3))]
    world.look()
    assert world.names == ["crowd/crowd0", "crowd/crowd1", "ns0/w0", "ns1/w1"]
    world.look(300.0)
    assert world.names[4:] == ["crowd/crowd2", "crowd/crowd3", "ns2/w2"]


def test_targets_outside_the_queue_come_last_and_back_off_once_they_are_reported() -> None:
    world = World()
    unqueued = [waits(f"p{n}", 90_000.0, 9, f"out-{n % 2}", queued=False) for n in range(4)]
    world.waits = [*unqueued, waits("big", priority=1)]
    world.answers = {one.name: makes_room(f"p{n}", namespace=one.namespace) for n, one in enumerate(unqueued)}
    world.look()
    assert world.names == ["ns/big", "out-0/p0", "out-1/p1", "out-0/p2"]
    assert [pod for pod, _ in world.events] == ["p0", "p1", "p2"]
    assert len(world.policy.advice) == 3
    world.asked.clear()
    world.look(300.0)
    assert world.names == ["out-1/p3"]
    assert len(world.policy.advice) == 4, "earlier advice stays during the back-off"
    world.waits = unqueued[:1]
    world.look(5.0)
    world.look(295.0)
    assert [advice.target for advice in world.policy.advice] == ["out-0/p0"], "only of those that still wait"


def test_advice_for_a_target_outside_the_queue_holds_up_no_queued_target() -> None:
    world = World.helped()
    world.waits.insert(0, waits("out", queued=False))
    world.answers["ns/out"] = makes_room("out", gpus=64, moves=3)
    world.look()
    assert world.targets == ["ns/big"]
    assert [advice.target for advice in world.policy.advice] == ["ns/big", "ns/out"]
    assert "queue" in world.why_not[1]
    moves = next(metric for metric in policy_metrics(world.policy) if metric.name == "kerf_defrag_advised_moves")
    assert [sample.value for sample in moves.samples if sample.labels["purpose"] == "room"] == [1], "the plan begun"


def test_a_target_that_moves_do_not_help_is_retried_ever_more_rarely_but_hourly() -> None:
    world = World()
    world.waits = [waits("big")]
    times = []
    for _ in range(200):
        before = len(world.asked)
        world.look(100.0)
        times += [world.now] * (len(world.asked) - before)
    assert [round(later - sooner) for sooner, later in pairwise(times)][:6] == [*(600, 1200, 2400, 3600, 3600, 3600)]


def test_pods_of_one_gang_are_planned_for_once() -> None:
    world = World()
    world.waits = [waits("g0", queued=False), waits("g1", queued=False)]
    answer = world.answers["ns/g0"] = makes_room("g0")
    answer.target.append(TargetPod("ns/g1", "b", [], "uid-g1"))
    world.look()
    assert world.names == ["ns/g0"]


def test_advise_only_reports_hourly_in_events_metrics_and_state() -> None:
    world = World.helped(mode="advise", cost=1234.0, moves=3)
    for _ in range(10):
        world.look(300.0)
    assert not world.begun
    message = "It would fit if 3 pods moved, which loses 1234 GPU-seconds of work: kerf defrag --for ns/big"
    assert world.events == [("big", f"MovesWouldHelp: {message}")]
    (advice,) = world.policy.advice
    assert (advice.purpose, advice.target, advice.moves, advice.plan) == ("room", "ns/big", 3, "plan-big")
    assert "defrag.mode" in advice.why_not
    found = {
        (sample.name, sample.labels.get("purpose", "")): sample.value
        for metric in policy_metrics(world.policy)
        for sample in metric.samples
    }
    assert found["kerf_defrag_advised_moves", "room"] == 3
    assert found["kerf_defrag_advised_moves", "heal"] == 0
    assert found["kerf_defrag_advised_gain_gpu_seconds", "room"] == advice.gain_gpu_s > 8000
    assert found["kerf_defrag_advised_cost_gpu_seconds", "room"] == 1234
    assert found["kerf_defrag_policy_rounds_total", ""] == 10
    state = world.policy.state()
    assert (state.mode, state.window_open, state.begun, state.fault) == ("advise", True, 0, "")
    page = world.policy.to_json()
    assert (page["target"], page["moves"], page["cost_gpu_s"]) == ("ns/big", 3, 1234.0)
    for _ in range(4):
        world.look(300.0)
    assert len(world.events) == 2, "again after an hour"
    world.waits = []
    world.look(300.0)
    assert (world.policy.state().advice, world.policy.to_json()) == ([], {})


def test_outside_its_windows_it_only_advises() -> None:
    world = World.helped(every={"windows": (window_of("Mon 10:00-11:00"),)}, cost=1.0)  # it is 09:00
    world.look()
    assert not world.begun
    assert "defrag.windows" in world.why_not[0]
    assert not world.policy.state().window_open
    world.look(3601.0)
    assert len(world.begun) == 1


def test_its_own_plan_under_way_is_stopped_when_the_window_closes() -> None:
    world = World.helped(every={"windows": (window_of("Mon 08:00-10:00"),)})
    world.look()
    world.look(3500.0)
    assert (len(world.begun), world.stopped) == (1, [])
    world.look(200.0)
    world.look(5.0)
    assert ["defrag.windows" in why for why in world.stopped] == [True]


def test_a_plan_begun_by_an_operator_is_not_stopped() -> None:
    for window, after_its_own in (("Mon 10:00-11:00", False), ("Mon 08:00-10:00", True)):
        world = World.helped(every={"windows": (window_of(window),)})
        if after_its_own:
            world.look()
        asyncio.run(world.begin(cast(RoomPlan, FITS), "by hand"))
        world.look(7200.0 if after_its_own else 0.0)
        assert not world.stopped


def test_a_plan_has_at_most_the_moves_left_in_this_hour() -> None:
    world = World()
    world.waits = [waits("big")]
    for evicted, later_s, asked in ((57, 0.0, [3]), (60, 700.0, [3]), (59, 300.0, [3, 1])):
        world.room.evicted = evicted
        world.look(later_s)
        assert [question["maxMoves"] for question in world.asked] == asked


def test_a_target_whose_plan_is_refused_backs_off() -> None:
    world = World.helped()
    world.refuse = RoomError("it has changed")
    world.look()
    assert (world.why_not, world.policy.counts.refused) == (["it has changed"], 1)
    world.look(299.0)
    assert len(world.asked) == 1


@pytest.mark.parametrize("error", [BusyError("later"), ClusterError("silent")])
def test_without_an_answer_the_target_backs_off_and_the_fault_is_reported(error: Exception) -> None:
    world = World.helped()
    answer, world.answers["ns/big"] = world.answers["ns/big"], error
    world.look()
    assert world.policy.state().fault == f"ns/big: {error}"
    world.answers["ns/big"] = answer
    world.look(300.0)
    assert not world.begun
    world.look(300.0)
    assert len(world.begun) == 1
    assert world.policy.state().fault == ""


@pytest.mark.parametrize("error", [BusyError("no answer within 10 s"), QuestionError("it has a node")])
def test_a_question_without_an_answer_holds_up_no_others(error: Exception) -> None:
    world = World.helped(every={"heal": True})
    world.waits.insert(0, waits("odd", priority=5, namespace="odd"))
    world.sick_now = {"a": (0,)}
    world.answers |= {"heal": error, "odd/odd": error}
    world.look()
    assert world.targets == ["ns/big"]
    world.ends()
    world.look(299.0)
    world.look(1.0)
    assert world.names == ["odd/odd", "ns/big", "ns/big"], "the odd one backs off"


# Outcomes


def test_a_target_that_goes_soon_after_it_has_its_place_makes_its_namespace_wait() -> None:
    world = World.helped()
    world.look()
    world.ends()
    world.look(5.0)
    world.gone = {"uid-big"}
    world.look(5.0)
    world.wants("next")
    world.waits.append(waits("other", namespace="theirs"))
    world.look(300.0)
    assert world.names == ["ns/big", "theirs/other"]
    world.look(300.0)
    assert "ns/next" in world.names


def until_begun(world: World, name: str) -> float:
    """Seconds until room is made for a pod that moves would help."""
    world.wants(name)
    since, begun = world.now, len(world.begun)
    while len(world.begun) == begun:
        world.look(100.0)
    return world.now - since


def test_a_namespace_backs_off_twice_as_long_each_time_until_a_target_keeps_its_place() -> None:
    world = World()
    waited = []
    for number in range(6):
        waited.append(until_begun(world, f"big{number}"))
        world.waits = []
        if number == 4:  # it stays
            world.ends()
            world.look(1.0)
            world.look(601.0)
        world.gone.add(f"uid-big{number}")
        if number != 4:
            world.ends("pod is gone", stage="planned")
            world.look(1.0)
    assert [later > 1.5 * sooner for sooner, later in pairwise(waited[1:4])] == [True, True]
    assert waited[1] == pytest.approx(600, abs=100)
    assert waited[5] < 600
    assert until_begun(world, "last") == pytest.approx(600, abs=100), "as the first time"


def test_a_target_that_keeps_its_place_blames_nobody() -> None:
    world = World.helped()
    world.look()
    world.ends()
    world.look(5.0)
    world.waits = []
    world.look(601.0)
    world.gone = {"uid-big"}
    world.wants("next")
    world.look(300.0)
    assert len(world.begun) == 2


def test_a_stopped_plan_backs_off_its_target_only() -> None:
    world = World.helped(cost=1.0)
    world.waits.append(waits("next", waited_s=900.0))
    world.answers["ns/next"] = makes_room("next")
    world.look()
    world.ends("the target has no room", stage="planned")
    world.look(1.0)
    world.asked.clear()
    world.look(299.0)
    assert world.names == ["ns/next"]


@pytest.mark.parametrize("stage", ["lost", "left"])
def test_a_failed_move_backs_off_the_owner_of_its_pod_only(stage: str) -> None:
    world = World.helped()
    backing_off = []
    for _ in range(10):
        world.look(300.0)
        backing_off.append(len(world.backing_off))
        world.ends("it has no replacement in the queue", stage=stage)
        world.look(0.0)
    assert len(world.begun) == 10, "the target is planned for each time: others may move"
    assert backing_off == [0, 1, 0, 1, 1, 1, 0, 1, 1, 1], "for 600 s, then 1200 s, and so on"


def test_a_plan_refused_for_a_moved_pod_backs_off_its_owner_until_a_move_succeeds() -> None:
    world = World.helped()
    world.refuse = RoomError("pod ns/v0 has a controller of which too many pods wait", "v0")
    world.look()
    assert world.backing_off == frozenset()
    world.refuse = None
    world.look(300.0)
    assert (set(world.backing_off), len(world.begun)) == ({"rs"}, 1)
    world.ends()
    world.look(1.0)
    world.look(300.0)
    assert world.backing_off == frozenset()


def test_a_target_not_placed_after_all_moves_or_changed_after_an_eviction_makes_its_namespace_wait() -> None:
    for why, stage, culprit, moves, rests in (
        ("pod ns/big has no node after 300 s", "done", "", 1, True),
        ("pod ns/late is of the target's gang", "done", "target", 2, True),
        ("pod ns/late is of the target's gang", "planned", "target", 2, False),
    ):
        world = World.helped(moves=moves)
        world.look()
        world.ends(why, stage=stage, culprit=culprit)
        world.look(1.0)
        world.waits = [waits("next")]
        world.asked.clear()
        world.look(300.0)
        assert (not world.names) is rests
        assert not world.backing_off


def test_if_moves_take_too_long_their_owners_back_off_and_not_the_target() -> None:
    world = World.helped(moves=2)
    world.look()
    world.ends("it takes too long", culprit="moved")
    world.room.moves.append(MoveState("ns/v1", "a", "b", 1, "planned", ""))
    world.look(1.0)
    world.look(300.0)
    assert (world.names, set(world.backing_off)) == (["ns/big"] * 2, {"rs"})


# Unhealthy GPUs and empty nodes

HEALS = RoomAnswer(True, makes_room("x").moves, 5_000_000.0, [], [], [], id="plan-heal", on_sick=["ns/v0"])
EMPTIES = RoomAnswer(True, makes_room("x").moves, 14_400.0, [], ["a"], [], id="plan-free", gpus=8.0)


def test_pods_are_moved_off_gpus_unhealthy_for_long_enough_at_any_cost_before_others() -> None:
    world = World(heal=True)
    world.answers["heal"] = HEALS
    world.sick_now = {"a": (0,)}
    world.look()
    world.wants("big")
    world.waits = []
    world.look(299.0)
    assert not world.asked
    world.waits = [waits("big")]
    world.look(1.0)
    assert (world.asked[0], world.sick[0]) == ({"heal": True, "maxMoves": 60}, {"a": (0,)})
    assert world.targets == ["moving pods off unhealthy GPUs"]
    assert world.why_not == ["", "another plan is carried out first"]
    world = World()
    world.sick_now = {"a": (0,)}
    world.look()
    world.look(600.0)
    assert not world.asked, "not with `heal` off"


def test_a_gpu_that_comes_and_goes_moves_nobody() -> None:
    world = World(heal=True)
    world.answers["heal"] = HEALS
    for _ in range(50):
        world.sick_now = {"a": (0,)}
        world.look(100.0)
        world.look(100.0)
        world.sick_now = {}
        world.look(100.0)
    assert not world.asked


def test_nodes_are_emptied_while_nothing_waits() -> None:
    world = World(free_nodes=4)
    world.answers["freeNodes 2"] = EMPTIES
    world.waits = [waits("new", waited_s=1.0)]
    world.look()
    assert not world.asked, "a pod waits, however short"
    world.waits = []
    world.look(300.0)
    assert world.asked == [{"freeNodes": 4, "maxMoves": 60}, {"freeNodes": 2, "maxMoves": 60}]
    assert world.targets == ["emptying a"]


def test_nodes_back_off_without_an_answer_and_are_left_if_enough_are_empty() -> None:
    world = World(free_nodes=1)
    world.answers["freeNodes 1"] = BusyError("no answer within 10 s")
    world.look()
    world.look(300.0)
    assert (len(world.asked), world.begun) == (1, [])
    world = World(free_nodes=2)
    world.answers["freeNodes 2"] = FITS
    world.look()
    assert (len(world.asked), world.begun) == (1, [])


def test_each_failure_in_a_row_doubles_the_back_off_up_to_a_limit() -> None:
    back_offs, now, lengths = _BackOffs(10.0, 60.0), 0.0, []
    for _ in range(5):
        back_offs.fail("ns", "a", now)
        back_offs.fail("ns", "a", now + 1.0)  # during the back-off: no change
        until = now
        while back_offs.is_active("a", until):
            until += 1
        lengths.append(until - now)
        now = until
    assert lengths == [10, 20, 40, 60, 60]
    back_offs.reset("a")
    assert not back_offs.is_active("a", now)
    back_offs.fail("ns", "a", now)
    assert not back_offs.is_active("a", now + 10)
    for number in range(1_000):
        back_offs.fail("ns", "a", now + 100.0 * number)
    assert back_offs.is_active("a", now + 99_900.0 + 59)


def test_memory_is_bounded_and_a_namespace_with_many_names_loses_its_own() -> None:
    back_offs = _BackOffs(10.0, 60.0, most_kept=20)
    back_offs.fail("quiet", "quiet/a", 0.0)
    for number in range(1_000):
        back_offs.fail("crowd", f"crowd/{number}", 0.0)
    assert len(back_offs) == 20
    assert back_offs.is_active("quiet/a", 5.0)
    back_offs.expire(121.0)
    assert len(back_offs) == 0


CLUSTER = cluster_of({"a": node((A100, 40_960), (A100, 40_960)), "b": node((A100, 40_960))})


def test_a_gpu_counts_once_it_has_been_unhealthy_for_long_enough() -> None:
    now_sick: dict[str, tuple[int, ...]] = {"a": (1,)}
    sick = SickGpus(lambda cluster: now_sick, 300.0)
    sick.look(CLUSTER, 0.0)
    assert sick.steady(299.0) == {}
    now_sick = {"a": (0, 1), "b": (0,)}
    sick.look(CLUSTER, 200.0)
    assert sick.steady(300.0) == {"a": (1,)}
    assert sick.steady(500.0) == {"a": (0, 1), "b": (0,)}
    now_sick = {}
    sick.look(CLUSTER, 501.0)
    assert sick.steady(1e9) == {}


def test_a_gpu_that_is_healthy_for_a_moment_is_reset() -> None:
    now_sick: dict[str, tuple[int, ...]] = {"a": (1,)}
    sick = SickGpus(lambda cluster: now_sick, 300.0)
    for now in range(0, 3000, 10):
        now_sick = {} if now % 250 == 0 else {"a": (1,)}
        sick.look(CLUSTER, float(now))
        assert sick.steady(float(now)) == {}
