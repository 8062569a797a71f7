"""The policy that makes room by itself: whom it asks about, what pays, what it begins, tells and leaves alone."""

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
from extender.parts.defrag.policy import Around, MovePolicy, SickGpus, Teller, Terms, Wait
from extender.parts.defrag.questions import RoomAnswer
from extender.parts.defrag.record import Culprit
from extender.parts.defrag.state import MoveState, RoomState, state_of
from extender.planning.windows import window_of
from tests.core.builders import cluster_of, node
from tests.queueing.builders import A100

WALL = 1_795_424_400.0  # 2026-11-23 09:00 UTC, a Monday
TERMS = Terms(
    *("act", True, 300.0, 600.0, 2.0),
    rest_s=3600.0,
    free_nodes=0,
    heal=False,
    moves_an_hour=60,
)


def waits(
    name: str, waited_s: float = 1000.0, priority: int = 0, namespace: str = "ns", *, queued: bool = True
) -> Wait:
    return Wait(f"{namespace}/{name}", namespace, priority, WALL - waited_s, (f"uid-{name}",), queued)


def makes_room(
    name: str, *, gpus: float = 8.0, cost: float = 1000.0, moves: int = 1, namespace: str = "ns"
) -> RoomAnswer:
    """A plan by which a pod would fit."""
    made = [PlannedMove(f"ns/v{n}", f"v{n}", "a", "b", n, [], cost / moves, "rs") for n in range(moves)]
    target = [TargetPod(f"{namespace}/{name}", "a", [], f"uid-{name}")]
    return RoomAnswer(True, made, cost, target, [], [], id=f"plan-{name}", gpus=gpus)


NO_ROOM = RoomAnswer(False, [], 0.0, [], [], ["nobody may move"])
FITS = RoomAnswer(True, [], 0.0, [], [], [])


class World:
    """What the policy works with: each part does as a test says."""

    def __init__(self, terms: Terms = TERMS, *, mover: bool = True) -> None:
        self.now = 1000.0 - terms.every_s
        self.waits: list[Wait] = []
        self.gone: set[str] = set()
        self.standby = ""
        self.answers: dict[str, RoomAnswer | Exception] = {}
        self.asked: list[dict[str, Any]] = []
        self.rested: list[float] = []
        self.sick: list[Any] = []
        self.resting: frozenset[str] = frozenset()
        self.events: list[tuple[str, str]] = []
        self.begun: list[tuple[RoomPlan, str]] = []
        self.refuse: RoomError | None = None
        self.stopped: list[str] = []
        self.room = state_of(None, [], 0, "")
        self.sick_now: dict[str, tuple[int, ...]] = {}
        around = Around(
            lambda: self.cluster,
            self._waits,
            lambda uid: uid not in self.gone,
            lambda: self.standby,
            lambda: self.now,
            lambda: WALL + self.now - 1000.0,
            SickGpus(lambda cluster: self.sick_now, 300.0),
        )
        self.cluster = cluster_of({"a": node((A100, 40_960)), "b": node((A100, 40_960))})
        self.policy = MovePolicy(self, self if mover else None, Teller(cast(EventRecorder, self)), around, terms)
        self.look()  # it begins to lead
        self.now = 1000.0

    async def _waits(self) -> list[Wait]:
        return self.waits

    # What answers

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        resting: frozenset[str] = frozenset(),
    ) -> bytes:
        question = json.loads(body)
        self.resting = resting
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

    # What moves

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
        """The plan under way is over."""
        self.room.culprit = Culprit(culprit)
        self.room.phase, self.room.why = "stopped" if why else "done", why
        self.room.moves = [MoveState("ns/v0", "a", "b", 0, stage, "")]

    # Events

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        self.events.append((name, f"{reason}: {message}"))

    # What happens

    def look(self, later_s: float = 0.0) -> None:
        self.now += later_s
        asyncio.run(self.policy.look())

    @property
    def names(self) -> list[str]:
        return [question["for"] for question in self.asked if "for" in question]

    @property
    def why_not(self) -> list[str]:
        return [advice.why_not for advice in self.policy.advice]


def test_room_is_made_for_what_waits_too_long_by_the_plan_that_was_answered() -> None:
    world = World()
    world.waits = [waits("big"), waits("new", waited_s=599.0)]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    assert world.asked == [{"for": "ns/big", "maxMoves": 60}]
    assert world.rested == [3600.0]
    ((plan, target),) = world.begun
    assert ([move.uid for move in plan.moves], target) == (["v0"], "ns/big")
    assert world.policy.counts.begun == 1
    assert not world.events, "the mover tells of it"


def test_it_looks_every_so_often_and_not_while_a_plan_is_carried_out() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
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


@pytest.mark.parametrize(
    ("gpus", "waited_s", "cost", "expected"),
    [
        (8.0, 1000.0, 4000.0, True),  # 8 GPUs x 1000 s = 8000 = 2 x 4000
        (8.0, 1000.0, 4001.0, False),
        (8.0, 10_000_000.0, 345_600.0, True),  # a day at most: 8 x 86400 = 691200 = 2 x 345600
        (8.0, 10_000_000.0, 345_601.0, False),
        (0.5, 1000.0, 250.0, True),
        (0.5, 1000.0, 251.0, False),
        (0.0, 1000.0, 0.0, False),  # of no use to any GPU
        (8.0, 1000.0, 0.0, True),
    ],
)
def test_only_moves_that_pay_are_made(gpus: float, waited_s: float, cost: float, expected: bool) -> None:
    world = World()
    world.waits = [waits("big", waited_s)]
    world.answers["ns/big"] = makes_room("big", gpus=gpus, cost=cost)
    world.look()
    assert bool(world.begun) is expected


def test_of_several_the_one_is_begun_that_gains_most_beyond_what_it_loses() -> None:
    world = World()
    world.waits = [waits("a"), waits("b"), waits("c", namespace="other")]
    world.answers["ns/a"] = makes_room("a", gpus=4, cost=10.0)  # 4000 - 10
    world.answers["ns/b"] = makes_room("b", gpus=8, cost=3000.0)  # 8000 - 3000
    world.answers["other/c"] = makes_room("c", gpus=9, cost=4400.0, namespace="other")  # 9000 - 4400
    world.look()
    assert [target for _, target in world.begun] == ["ns/b"]


def test_whoever_begins_to_lead_waits_for_a_while_first() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.standby = "another leads"
    world.look(1000.0)
    world.standby = ""
    world.look()
    world.look(299.0)
    assert not world.asked
    world.look(1.0)
    assert len(world.begun) == 1


def test_few_are_asked_about_in_a_round_and_no_namespace_takes_all_turns() -> None:
    world = World()
    crowd = [waits(f"crowd{n}", priority=9, namespace="crowd") for n in range(50)]
    world.waits = [*crowd, *(waits(f"w{n}", namespace=f"ns{n}") for n in range(3))]
    world.look()
    assert world.names == ["crowd/crowd0", "crowd/crowd1", "ns0/w0", "ns1/w1"]
    world.look(300.0)
    assert world.names[4:] == ["crowd/crowd2", "crowd/crowd3", "ns2/w2"]


def test_of_equal_priority_no_crowd_of_old_pods_keeps_others_from_their_turn() -> None:
    world = World()
    crowds = [waits(f"w{n}", 9_000.0, namespace=f"crowd{n % 2}") for n in range(100)]
    world.waits = [*crowds, waits("late", namespace="ns")]
    world.look()
    assert {name.partition("/")[0] for name in world.names} == {"crowd0", "crowd1"}
    world.look(300.0)
    assert world.names[4] == "ns/late"


def test_those_past_the_queue_have_what_is_left_of_a_round_and_rest_once_they_are_told() -> None:
    world = World()
    past_it = [waits(f"p{n}", 90_000.0, 9, f"past-{n % 2}", queued=False) for n in range(4)]
    world.waits = [*past_it, waits("big", priority=1)]
    world.answers = {one.name: makes_room(f"p{n}", namespace=one.namespace) for n, one in enumerate(past_it)}
    world.look()
    assert world.names == ["ns/big", "past-0/p0", "past-1/p1", "past-0/p2"]
    assert [pod for pod, _ in world.events] == ["p0", "p1", "p2"], "each is told"
    assert len(world.policy.advice) == 3
    world.asked.clear()
    world.look(300.0)
    assert world.names == ["past-1/p3"]
    assert len(world.policy.advice) == 4, "what was told holds while they rest"
    world.waits = past_it[:1]
    world.look(5.0)
    world.look(295.0)
    assert [advice.target for advice in world.policy.advice] == ["past-0/p0"], "of those that wait still"


def test_who_was_in_vain_is_asked_about_ever_more_seldom_and_at_least_once_an_hour() -> None:
    world = World()
    world.waits = [waits("big")]
    times = []
    for _ in range(200):
        before = len(world.asked)
        world.look(100.0)
        times += [world.now] * (len(world.asked) - before)
    assert [round(later - sooner) for sooner, later in pairwise(times)][:6] == [*(600, 1200, 2400, 3600, 3600, 3600)]


def test_pods_of_one_gang_are_asked_about_once() -> None:
    world = World()
    world.waits = [waits("g0", queued=False), waits("g1", queued=False)]
    answer = makes_room("g0")
    answer.target.append(TargetPod("ns/g1", "b", [], "uid-g1"))
    world.answers["ns/g0"] = answer
    world.look()
    assert world.names == ["ns/g0"]


def test_advise_only_tells_and_once_for_a_while() -> None:
    world = World(replace(TERMS, mode="advise", acts=False))
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big", cost=1234.0, moves=3)
    for _ in range(10):
        world.look(300.0)
    assert not world.begun
    assert world.events == [
        (
            "big",
            "MovesWouldHelp: It would fit if 3 pods moved, which loses 1234 GPU-seconds of work: "
            "kerf defrag --for ns/big",
        )
    ]
    (advice,) = world.policy.advice
    assert (advice.purpose, advice.target, advice.moves, advice.plan) == ("room", "ns/big", 3, "plan-big")
    assert "defrag.mode" in advice.why_not
    for _ in range(4):
        world.look(300.0)
    assert len(world.events) == 2, "after an hour it is told again"


def test_what_it_advises_is_in_its_metrics_and_state() -> None:
    world = World(replace(TERMS, mode="advise", acts=False))
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big", gpus=8, cost=1000.0, moves=2)
    world.look()
    found = {
        (sample.name, sample.labels.get("purpose", "")): sample.value
        for metric in policy_metrics(world.policy)
        for sample in metric.samples
    }
    assert found["kerf_defrag_advised_moves", "room"] == 2
    assert found["kerf_defrag_advised_moves", "heal"] == 0
    assert found["kerf_defrag_advised_gain_gpu_seconds", "room"] == 8000
    assert found["kerf_defrag_advised_cost_gpu_seconds", "room"] == 1000
    assert found["kerf_defrag_policy_rounds_total", ""] == 1
    state = world.policy.state()
    assert (state.mode, state.window_open, state.begun, state.fault) == ("advise", True, 0, "")
    page = world.policy.told()
    assert (page["target"], page["moves"], page["cost_gpu_s"]) == ("ns/big", 2, 1000.0)
    world.waits = []
    world.look(300.0)
    assert (world.policy.state().advice, world.policy.told()) == ([], {})


def test_without_anything_that_moves_pods_it_tells() -> None:
    world = World(mover=False)
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    assert world.policy.advice
    assert len(world.events) == 1


def test_who_does_not_wait_in_the_queue_is_only_told() -> None:
    world = World()
    world.waits = [waits("big", queued=False)]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    assert not world.begun
    assert "queue" in world.why_not[0]
    assert len(world.events) == 1


def test_who_is_only_told_keeps_nobody_of_the_queue_from_their_room() -> None:
    world = World()
    world.waits = [waits("past", queued=False), waits("big")]
    world.answers |= {"ns/past": makes_room("past", gpus=64, moves=3), "ns/big": makes_room("big")}
    world.look()
    assert [target for _, target in world.begun] == ["ns/big"]
    assert [advice.target for advice in world.policy.advice] == ["ns/big", "ns/past"]
    moves = next(metric for metric in policy_metrics(world.policy) if metric.name == "kerf_defrag_advised_moves")
    assert [sample.value for sample in moves.samples if sample.labels["purpose"] == "room"] == [1], "the one begun"


def test_outside_of_its_windows_it_only_tells() -> None:
    world = World(replace(TERMS, windows=(window_of("Mon 10:00-11:00"),)))  # it is 09:00
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big", cost=1.0)
    world.look()
    assert not world.begun
    assert "defrag.windows" in world.why_not[0]
    assert not world.policy.state().window_open
    world.look(3601.0)
    assert len(world.begun) == 1


def test_a_plan_of_its_own_that_is_still_under_way_is_stopped_when_the_window_closes() -> None:
    world = World(replace(TERMS, windows=(window_of("Mon 08:00-10:00"),)))
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    world.look(3500.0)
    assert (len(world.begun), world.stopped) == (1, [])
    world.look(200.0)
    assert ["defrag.windows" in why for why in world.stopped] == [True]
    world.look(5.0)
    assert len(world.stopped) == 1


def test_a_plan_begun_by_hand_is_left_to_whoever_began_it() -> None:
    world = World(replace(TERMS, windows=(window_of("Mon 10:00-11:00"),)))
    asyncio.run(world.begin(cast(RoomPlan, FITS), "by hand"))
    world.look()
    assert not world.stopped


def test_a_plan_begun_by_hand_after_its_own_is_not_stopped_either() -> None:
    world = World(replace(TERMS, windows=(window_of("Mon 08:00-10:00"),)))
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    asyncio.run(world.begin(cast(RoomPlan, FITS), "by hand"))
    world.look(7200.0)
    assert not world.stopped


def test_no_more_moves_are_asked_for_than_are_left_of_the_hour() -> None:
    world = World()
    world.waits = [waits("big")]
    world.room.evicted = 57
    world.look()
    assert world.asked[0]["maxMoves"] == 3
    world.room.evicted = 60
    world.look(700.0)
    assert len(world.asked) == 1
    world.room.evicted = 59
    world.look(300.0)
    assert world.asked[1]["maxMoves"] == 1


def test_a_plan_that_is_refused_is_told_of_and_its_target_waits() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.refuse = RoomError("it has changed")
    world.look()
    assert (world.why_not, world.policy.counts.refused) == (["it has changed"], 1)
    world.look(299.0)
    assert len(world.asked) == 1


@pytest.mark.parametrize("error", [BusyError("later"), ClusterError("silent")])
def test_where_there_is_no_answer_nothing_is_done_and_it_is_said(error: Exception) -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = error
    world.look()
    assert world.policy.state().fault == f"ns/big: {error}"
    world.answers["ns/big"] = makes_room("big")
    world.look(300.0)
    assert not world.begun, "it rests as one that was in vain"
    world.look(300.0)
    assert len(world.begun) == 1
    assert world.policy.state().fault == ""


@pytest.mark.parametrize("error", [BusyError("no answer within 10 s"), ClusterError("silent")])
def test_one_question_without_an_answer_ends_nothing_that_was_found_for_others(error: Exception) -> None:
    world = World(replace(TERMS, heal=True))
    world.waits = [waits("odd", priority=5, namespace="odd"), waits("big")]
    world.sick_now = {"a": (0,)}
    world.answers |= {"heal": error, "odd/odd": error, "ns/big": makes_room("big")}
    world.look()
    assert [target for _, target in world.begun] == ["ns/big"]
    world.ends()
    world.look(299.0)
    world.look(1.0)
    assert world.names == ["odd/odd", "ns/big", "ns/big"], "the odd one rests"


def test_nodes_that_can_not_be_asked_about_rest() -> None:
    world = World(replace(TERMS, free_nodes=1))
    world.answers["freeNodes 1"] = BusyError("no answer within 10 s")
    world.look()
    world.look(300.0)
    assert (len(world.asked), world.begun) == (1, [])


def test_one_that_can_not_be_asked_about_holds_no_other_up() -> None:
    world = World()
    world.waits = [waits("odd", priority=5), waits("big")]
    world.answers |= {"ns/odd": QuestionError("it has a node"), "ns/big": makes_room("big")}
    world.look()
    assert len(world.begun) == 1


def test_on_standby_nothing_is_asked_and_nothing_is_said() -> None:
    world = World(replace(TERMS, mode="advise", acts=False))
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    world.standby = "another leads"
    world.look(300.0)
    assert len(world.asked) == 1
    assert (world.policy.advice, world.policy.state().fault) == ([], "another leads")


# What becomes of it


def test_a_target_that_goes_soon_after_it_has_its_place_makes_its_namespace_wait() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    world.ends()
    world.look(5.0)
    world.gone = {"uid-big"}
    world.look(5.0)
    world.waits = [waits("next"), waits("other", namespace="theirs")]
    world.answers["ns/next"] = makes_room("next")
    world.look(300.0)
    assert world.names == ["ns/big", "theirs/other"]
    world.look(300.0)
    assert "ns/next" in world.names, "after twice the time between two looks"


def until_begun(world: World, name: str) -> float:
    """How long it takes until room is made for a pod that moves would help."""
    world.waits = [waits(name)]
    world.answers[f"ns/{name}"] = makes_room(name)
    since, begun = world.now, len(world.begun)
    while len(world.begun) == begun:
        world.look(100.0)
    return world.now - since


def test_each_time_in_a_row_its_namespace_waits_for_twice_as_long() -> None:
    world = World()
    waited = []
    for number in range(4):
        waited.append(until_begun(world, f"big{number}"))
        world.ends("pod ns/big is gone", stage="planned")
        world.gone.add(f"uid-big{number}")
        world.look(1.0)
    assert [later > 1.5 * sooner for sooner, later in pairwise(waited[1:])] == [True, True]


def test_a_target_that_keeps_its_place_is_held_against_nobody() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    world.ends()
    world.look(5.0)
    world.waits = []
    world.look(601.0)
    world.gone = {"uid-big"}
    world.waits = [waits("next")]
    world.answers["ns/next"] = makes_room("next")
    world.look(300.0)
    assert len(world.begun) == 2


def test_a_namespace_that_has_kept_a_place_begins_anew() -> None:
    world = World()
    waited = []
    for number in range(3):
        waited.append(until_begun(world, f"big{number}"))
        world.waits = []
        if number == 1:  # it stays for long enough
            world.ends()
            world.look(1.0)
            world.look(601.0)
        world.gone.add(f"uid-big{number}")
        if number != 1:
            world.ends("pod is gone")
            world.look(1.0)
    world.waits = [waits("last")]
    world.answers["ns/last"] = makes_room("last")
    since = world.now
    while len(world.begun) == 3:
        world.look(100.0)
    assert waited[1] == pytest.approx(600, abs=100)
    assert world.now - since == pytest.approx(600, abs=100), "not twice as long"


def test_a_plan_that_others_have_stopped_is_held_against_its_target_alone() -> None:
    world = World()
    world.waits = [waits("big"), waits("next", waited_s=900.0)]
    world.answers |= {"ns/big": makes_room("big", cost=1.0), "ns/next": makes_room("next")}
    world.look()
    world.ends("the target has no room", stage="planned")
    world.look(1.0)
    world.asked.clear()
    world.look(299.0)
    assert world.names == ["ns/next"]


@pytest.mark.parametrize("stage", ["lost", "left"])
def test_a_move_that_came_to_nothing_is_held_against_the_owner_of_its_pod_alone(stage: str) -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    resting = []
    for _ in range(10):
        world.look(300.0)
        resting.append(len(world.resting))
        world.ends("it has no replacement in the queue", stage=stage)
        world.look(0.0)
    assert len(world.begun) == 10, "the target is asked about each time: others may move"
    assert resting == [0, 1, 0, 1, 1, 1, 0, 1, 1, 1], "for 600 s, then 1200 s, and so on"


def test_a_plan_refused_for_a_pod_that_would_move_is_held_against_its_owner() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.refuse = RoomError("pod ns/v0 has a controller of which too many pods wait", "v0")
    world.look()
    assert world.resting == frozenset()
    world.refuse = None
    world.look(300.0)
    assert (set(world.resting), len(world.begun)) == ({"rs"}, 1), "the target finds others to move"
    world.ends()
    world.look(1.0)
    world.look(300.0)
    assert world.resting == frozenset(), "that went well"


def test_a_target_for_which_all_was_moved_and_that_did_not_come_makes_its_namespace_wait() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big")
    world.look()
    world.ends("pod ns/big has no node after 300 s")
    world.look(1.0)
    world.waits = [waits("next")]
    world.asked.clear()
    world.look(300.0)
    assert not world.asked


@pytest.mark.parametrize(("stage", "rests"), [("done", True), ("planned", False)])
def test_a_target_that_changes_after_others_were_evicted_makes_its_namespace_wait(stage: str, rests: bool) -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big", moves=2)
    world.look()
    world.ends("pod ns/late is of the target's gang", stage=stage, culprit="target")
    world.look(1.0)
    world.waits = [waits("next")]
    world.asked.clear()
    world.look(300.0)
    assert (not world.names) is rests
    assert not world.resting


def test_owners_who_move_too_slowly_all_together_are_left_alone_and_not_the_target() -> None:
    world = World()
    world.waits = [waits("big")]
    world.answers["ns/big"] = makes_room("big", moves=2)
    world.look()
    world.ends("it takes too long", culprit="moved")
    world.room.moves.append(MoveState("ns/v1", "a", "b", 1, "planned", ""))
    world.look(1.0)
    world.look(300.0)
    assert (world.names, set(world.resting)) == (["ns/big"] * 2, {"rs"})


# Sick GPUs and empty nodes

HEALS = RoomAnswer(True, makes_room("x").moves, 5_000_000.0, [], [], [], id="plan-heal", on_sick=["ns/v0"])
EMPTIES = RoomAnswer(True, makes_room("x").moves, 14_400.0, [], ["a"], [], id="plan-free", gpus=8.0)


def test_pods_leave_gpus_that_have_been_sick_for_long_enough_whatever_that_costs() -> None:
    world = World(replace(TERMS, heal=True))
    world.answers["heal"] = HEALS
    world.sick_now = {"a": (0,)}
    world.look()
    world.look(299.0)
    assert not world.asked
    world.look(1.0)
    assert (world.asked, world.sick) == ([{"heal": True, "maxMoves": 60}], [{"a": (0,)}])
    assert [target for _, target in world.begun] == ["moving pods off unhealthy GPUs"]


def test_a_gpu_that_comes_and_goes_moves_nobody() -> None:
    world = World(replace(TERMS, heal=True))
    world.answers["heal"] = HEALS
    for _ in range(50):
        world.sick_now = {"a": (0,)}
        world.look(100.0)
        world.look(100.0)
        world.sick_now = {}
        world.look(100.0)
    assert not world.asked


def test_of_sick_gpus_nothing_is_asked_where_that_is_not_wanted() -> None:
    world = World()
    world.sick_now = {"a": (0,)}
    world.look()
    world.look(600.0)
    assert not world.asked


def test_pods_on_sick_gpus_come_first_and_the_others_next_time() -> None:
    world = World(replace(TERMS, heal=True))
    world.answers |= {"heal": HEALS, "ns/big": makes_room("big")}
    world.sick_now = {"a": (0,)}
    world.look()
    world.waits = [waits("big")]
    world.look(300.0)
    assert [target for _, target in world.begun] == ["moving pods off unhealthy GPUs"]
    assert world.why_not == ["", "another plan is carried out first"]


def test_nodes_are_emptied_while_nothing_waits() -> None:
    world = World(replace(TERMS, free_nodes=4))
    world.answers |= {"freeNodes 2": EMPTIES}
    world.waits = [waits("new", waited_s=1.0)]
    world.look()
    assert not world.asked, "somebody waits, however short"
    world.waits = []
    world.look(300.0)
    assert world.asked == [{"freeNodes": 4, "maxMoves": 60}, {"freeNodes": 2, "maxMoves": 60}]
    assert [target for _, target in world.begun] == ["emptying a"]


@pytest.mark.parametrize(("cost", "expected"), [(14_400.0, True), (14_401.0, False)])
def test_nodes_are_emptied_where_an_hour_of_their_gpus_pays(cost: float, expected: bool) -> None:
    # 8 GPUs x 3600 s = 28800 = 2 x 14400
    world = World(replace(TERMS, free_nodes=1))
    empties = msgspec.structs.replace(EMPTIES, cost_gpu_s=cost)
    world.answers["freeNodes 1"] = empties
    world.look()
    assert bool(world.begun) is expected


def test_nodes_that_are_empty_already_are_enough() -> None:
    world = World(replace(TERMS, free_nodes=2))
    world.answers["freeNodes 2"] = FITS
    world.look()
    assert (len(world.asked), world.begun) == (1, [])
