"""Beginning a step: the rest of the plan is checked again, the step recorded, and its pods evicted one by one."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.parts.defrag.checks import RoomError
from extender.planning.quotas import Quotas
from tests.parts.defrag.rigs import (
    BUDGET,
    LIMITS,
    MOVE_V,
    WANTED,
    Defrag,
    gang,
    gang_of_three,
    move,
    moved,
    plan,
    scattered,
    stopped,
    two_moves,
)


def refuses(defrag: Defrag, pod: str, error: ClusterError) -> None:
    defrag.api.refuse = lambda name: error if name == pod else None


def test_after_a_refused_eviction_no_further_pod_of_the_step_is_evicted() -> None:
    defrag = gang_of_three()
    error = ApiError(403, "Forbidden", "no right")
    refuses(defrag, "g1", error)
    defrag.tick()
    why = f"pod ns/g1 can't be evicted: {error}"
    assert defrag.api.evicted == ["g0"]
    assert defrag.moves == [("evicting", ""), ("left", why), ("left", why)]
    assert (defrag.why, defrag.mover.counts.evicted, defrag.mover.state().evicted) == (why, 1, 1)
    assert [name for name, reason, _ in defrag.events if reason == "MovedToMakeRoom"] == ["g0"]
    defrag.leaves("g0")
    defrag.waits("g3", controller="job", annotations=gang(3))
    defrag.tick()
    assert defrag.node_of("g3") == "b"  # although the rest of its gang does not move
    defrag.play("g3 is bound, tick")
    stopped(defrag, why)


def test_after_an_eviction_of_unknown_outcome_no_further_pod_is_evicted_and_its_place_is_kept() -> None:
    defrag = gang_of_three()
    refuses(defrag, "g1", UnreachableError("cut"))
    defrag.api.fail = lambda name, part: UnreachableError("cut as well")
    defrag.tick()
    why = "the outcome of evicting pod ns/g1 is unknown: cut"
    assert defrag.api.evicted == ["g0"]
    assert defrag.moves == [("evicting", ""), ("evicting", ""), ("left", why)]
    assert defrag.why == why
    assert "b" in defrag.kept
    defrag.api.fail = lambda name, part: None
    version = defrag.api.pods["g1"]["metadata"]["resourceVersion"]
    asyncio.run(defrag.resolver.resolve_round())
    assert defrag.api.pods["g1"]["metadata"]["resourceVersion"] != version  # a late eviction is refused


def test_an_eviction_that_a_budget_refuses_is_retried_every_two_seconds_for_a_while() -> None:
    defrag = scattered()
    defrag.rig.now = 1024.0
    defrag.api.refuse = lambda name: BUDGET
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    assert defrag.pauses == [2.0] * int(LIMITS.budget_s / 2)
    assert defrag.moves == [("left", f"pod ns/v can't be evicted now: {BUDGET.message}")]
    defrag = scattered()
    defrag.api.refuse = lambda name: BUDGET if len(defrag.pauses) < 2 else None
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, defrag.why) == (["v"], "")


def test_a_plan_given_up_while_a_budget_refuses_evicts_nobody() -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: None if defrag.pauses else BUDGET

    async def give_up() -> None:
        defrag.mover.give_up("asked to")

    defrag.on_pause = give_up
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, defrag.moves, defrag.why) == ([], [("left", "asked to")], "asked to")


def test_a_plan_taken_over_while_a_budget_refuses_evicts_nobody() -> None:
    """As after a short loss of the lease: this process leads again."""
    defrag = scattered()
    defrag.api.refuse = lambda name: None if defrag.pauses else BUDGET
    defrag.on_pause = defrag.mover.catch_up
    name = defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, len(defrag.pauses)) == ([], 1)
    why = "another leader has taken over meanwhile"
    assert ("kerf-defrag", "RoomStopped", f"Plan {name}: {why}") in defrag.events


def test_a_step_that_can_t_be_recorded_evicts_nobody() -> None:
    defrag = gang_of_three()
    defrag.api.refuse_record = ApiError(409, "Conflict", "it has changed")
    defrag.tick()
    why = f"the step could not be recorded: {defrag.api.refuse_record}"
    assert (defrag.why, defrag.moves) == (why, [("left", why)] * 3)
    assert (defrag.api.evicted, defrag.mover.counts.evicted) == ([], 0)


def test_the_places_of_a_step_are_kept_when_it_is_recorded() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    assert defrag.kept == ["a"]
    kept = []
    defrag.api.on_record = lambda record: kept.append(defrag.kept)
    defrag.tick()
    assert kept == [["a", "b"]]


def test_changes_during_the_check_of_a_plan_count() -> None:
    defrag = scattered()

    async def begins() -> None:
        async def forbids() -> None:
            defrag.runs("v", "a", annotations={"kerf.dev/movable": "false"})

        await asyncio.gather(defrag.mover.begin(MOVE_V), forbids())

    with pytest.raises(RoomError, match="ns/v is left alone"):
        asyncio.run(begins())


def test_a_plan_that_takes_too_long_stops_before_its_last_step() -> None:
    assert [LIMITS.plan_s(num_steps) for num_steps in (1, 2, 6)] == [410.0, 410.0 * 1.25, 410.0 * 2.25]
    late = "it takes too long: more than 512.5 s before its last step"
    for late_s, evicted, why, culprit in ((0.0, ["v", "u"], "", ""), (0.125, ["v"], late, "moved")):
        defrag = scattered()
        defrag.node("c", 1)
        defrag.runs("u", "a", controller="rs2")
        defrag.rig.now = 1024.0
        defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
        defrag.play("tick, v2 replaces v, tick, v2 is bound")
        defrag.rig.now = 1024.0 + LIMITS.plan_s(2)
        defrag.tick(late_s)
        assert (defrag.api.evicted, defrag.why, defrag.mover.state().culprit) == (evicted, why, culprit)
        assert defrag.stages == ["done", "evicting" if "u" in evicted else "planned"]


def second_step(**target: Any) -> Defrag:
    """A plan of two steps; the replacement of the first is about to be bound."""
    defrag = two_moves(**target)
    defrag.play("v2 replaces v, tick")
    return defrag


def test_a_target_that_changes_before_the_next_step_stops_the_plan_and_is_blamed() -> None:
    notes = gang(1)
    cases: list[tuple[str, int, dict[str, Any], str]] = [
        ("big", 3, {}, "pod ns/big has no room on node a: "),
        ("big", 2, {"labels": {"genius/priority": "-1"}}, "pod ns/u has priority 0, above the target's -1"),
        ("big", 2, {"spec": {"nodeSelector": {"is": "nowhere"}}}, "pod ns/big has no room on node a: "),
        ("big", 2, {"annotations": notes | {"kerf.dev/policy": "x"}}, "pod ns/big can't be placed: "),
        ("late", 1, {}, "pod ns/late is in the target's gang, but not in the plan"),
    ]
    for name, gpus, fields, why in cases:
        defrag = second_step(annotations=dict(notes))
        defrag.waits(name, gpus, controller="", **{"annotations": dict(notes), **fields})
        defrag.play("v2 is bound, tick")
        assert defrag.why.startswith(why)
        assert (defrag.mover.state().culprit, defrag.api.evicted) == ("target", ["v"])
        assert defrag.moves == [("done", ""), ("planned", "")]


def test_a_target_that_is_gone_before_the_next_step_is_not_blamed() -> None:
    defrag = second_step()
    defrag.play("big leaves, v2 is bound, tick")
    why = "pod ns/big does not wait in the queue (any more): no place can be kept for it"
    assert (defrag.why, defrag.mover.state().culprit) == (why, "")
    assert defrag.moves == [("done", ""), ("planned", "")]


def test_a_plan_gone_stale_between_two_moves() -> None:
    defrag = two_moves()
    defrag.runs("stranger", "a", controller="x")  # placed by another scheduler
    moved(defrag)
    stopped(defrag, "pod ns/big has no room on node a")
    assert defrag.mover.state().culprit == ""


def test_a_pod_that_may_no_longer_move_is_left_with_the_reason() -> None:
    defrag = second_step()
    defrag.runs("u", "a", controller="rs2", annotations={"kerf.dev/movable": "false"})
    defrag.play("v2 is bound, tick")
    why = "pod ns/u is left alone: kerf.dev/movable is 'false'"
    assert (defrag.why, defrag.mover.state().culprit) == (why, "")
    assert defrag.moves == [("done", ""), ("left", why)]


def test_a_step_that_is_no_longer_needed_is_neither_begun_nor_recorded() -> None:
    defrag = second_step()
    defrag.node("a", 3)
    defrag.play("v2 is bound, tick")
    assert (defrag.phase, defrag.api.evicted, defrag.api.record.step) == ("placing", ["v"], 0)
    assert (defrag.moves, defrag.free("c")) == ([("done", ""), ("planned", "")], 1)


# Refused from the start


def test_refused_before_anything_is_moved() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("blocks", "c", controller="x")
    for given, why in (
        (plan(), "has no moves"),
        (plan(move("v", "a", "c")), "pod ns/v has no room on node c"),
        (plan(move("v", "a", "b"), node="c"), "pod ns/big has no room on node c"),
    ):
        with pytest.raises(RoomError) as error:
            defrag.begin(given)
        assert why in str(error.value)
        assert (defrag.kept, defrag.mover.busy) == ([], False)
    defrag.begin(MOVE_V)  # a refused plan holds up no other one


def test_refused_if_the_target_has_room_as_it_is() -> None:
    defrag = scattered()
    defrag.node("c", 2)
    with pytest.raises(RoomError, match="has room without any move"):
        defrag.begin(plan(move("v", "a", "b"), node="c"))


def test_refused_beyond_the_quota_of_the_target() -> None:
    defrag = scattered(quotas=Quotas({"ns": 3}))
    with pytest.raises(RoomError, match="over its quota"):
        defrag.begin(MOVE_V)


def test_refused_beyond_the_moves_per_hour() -> None:
    defrag = scattered(wanted=WANTED.model_copy(update={"moves_an_hour": 1}))
    defrag.rig.now = 4096.0
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    moved(defrag)
    defrag.play("tick, big is bound, tick, big leaves")
    defrag.runs("v", "a")
    defrag.leaves("v2")
    defrag.waits("big", 2, controller="")
    defrag.rig.now = 4096.0 + 3599.0
    with pytest.raises(RoomError, match=r"^the plan has 1 moves, and 1 of 1 per hour are used up$"):
        defrag.begin(MOVE_V)
    assert defrag.mover.state().evicted == 1
    defrag.rig.now += 1.0
    assert defrag.mover.state().evicted == 0
    defrag.begin(MOVE_V)
    assert defrag.api.record.evicted == []
