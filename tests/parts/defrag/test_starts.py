"""Beginning a step: it holds as the cluster is by then, is written down, and its pods are evicted one by one."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.parts.defrag.checks import RoomError
from tests.parts.defrag.rigs import LIMITS, MOVE_V, Defrag, move, plan, scattered
from tests.parts.defrag.test_surprises import BUDGET, second_step, two_moves


def told(defrag: Defrag) -> list[tuple[str, str]]:
    """How far the moves are, and what went wrong with them."""
    return [(move.stage, move.why) for move in defrag.mover.state().moves]


def gang_of_three() -> Defrag:
    """Three pods of a gang are about to move from a to b, in one step."""
    defrag = Defrag()
    for name in "ab":
        defrag.node(name, 4)
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    for number in range(3):
        defrag.runs(f"g{number}", "a", controller="job", annotations=dict(gang))
    defrag.runs("w", "b", controller="other")
    defrag.waits("big", 4, controller="")
    defrag.tick()
    defrag.begin(plan(*(move(f"g{number}", "a", "b", 0, "job", "ns/g") for number in range(3))))
    return defrag


def refuses(defrag: Defrag, who: str, error: ClusterError) -> None:
    defrag.api.refuse = lambda name: error if name == who else None


def test_of_a_step_nobody_is_evicted_after_one_that_is_refused() -> None:
    defrag = gang_of_three()
    error = ApiError(403, "Forbidden", "no right")
    refuses(defrag, "g1", error)
    defrag.tick()
    why = f"pod ns/g1 can't be evicted: {error}"
    assert defrag.api.evicted == ["g0"]
    assert told(defrag) == [("evicting", ""), ("left", why), ("left", why)]
    assert (defrag.why, defrag.mover.counts.evicted, defrag.mover.state().evicted) == (why, 1, 1)
    assert [name for name, reason, _ in defrag.events if reason == "MovedToMakeRoom"] == ["g0"]


def test_of_a_step_nobody_is_evicted_after_one_of_which_nobody_knows_and_that_one_keeps_its_place() -> None:
    defrag = gang_of_three()
    refuses(defrag, "g1", UnreachableError("cut"))
    defrag.api.fail = lambda name, part: UnreachableError("cut as well")
    defrag.tick()
    why = "the outcome of evicting pod ns/g1 is unknown: cut"
    assert defrag.api.evicted == ["g0"]
    assert told(defrag) == [("evicting", ""), ("evicting", ""), ("left", why)]
    assert defrag.why == why
    assert "b" in defrag.mover.state().kept


def test_a_pod_that_can_not_be_looked_at_is_left() -> None:
    defrag = gang_of_three()
    refuses(defrag, "g2", ApiError(404, "NotFound", "g2"))
    defrag.tick()
    assert [stage for stage, _ in told(defrag)] == ["evicting", "evicting", "left"]
    assert defrag.mover.counts.evicted == 2


def test_a_budget_is_asked_again_every_two_seconds_for_as_long_as_it_may_be() -> None:
    defrag = scattered()
    defrag.rig.now = 1024.0
    defrag.api.refuse = lambda name: BUDGET
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    assert defrag.pauses == [2.0] * int(LIMITS.budget_s / 2)
    assert told(defrag) == [("left", f"pod ns/v can't be evicted now: {BUDGET.message}")]


def test_a_plan_that_is_given_up_while_a_budget_is_waited_for_evicts_nobody() -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: None if defrag.pauses else BUDGET

    async def give_up() -> None:
        defrag.mover.give_up("asked to")

    defrag.on_pause = give_up
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, told(defrag), defrag.why) == ([], [("left", "asked to")], "asked to")


def test_a_plan_that_is_taken_over_while_a_budget_is_waited_for_evicts_nobody() -> None:
    """As where this process has lost the lease for a moment, and leads anew."""
    defrag = scattered()
    defrag.api.refuse = lambda name: None if defrag.pauses else BUDGET
    defrag.on_pause = defrag.mover.catch_up
    name = defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, len(defrag.pauses)) == ([], 1)
    why = "another leader has taken over meanwhile"
    assert ("kerf-defrag", "RoomStopped", f"Plan {name}: {why}") in defrag.events


def test_a_step_that_can_not_be_written_down_evicts_nobody_and_says_so_of_each() -> None:
    defrag = gang_of_three()
    defrag.api.refuse_record = ApiError(409, "Conflict", "it has changed")
    defrag.tick()
    why = f"the step could not be recorded: {defrag.api.refuse_record}"
    assert defrag.why == why
    assert told(defrag) == [("left", why)] * 3
    assert (defrag.api.evicted, defrag.mover.counts.evicted) == ([], 0)


def test_the_places_of_a_step_are_kept_as_it_is_written_down() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    assert defrag.mover.state().kept == ["a"]
    kept = []
    defrag.api.on_record = lambda record: kept.append(defrag.mover.state().kept)
    defrag.tick()
    assert kept == [["a", "b"]]


def test_what_happens_while_a_plan_is_proved_counts() -> None:
    defrag = scattered()

    async def begins() -> None:
        async def forbids() -> None:
            defrag.runs("v", "a", annotations={"kerf.dev/movable": "false"})

        await asyncio.gather(defrag.mover.begin(MOVE_V), forbids())

    with pytest.raises(RoomError, match="ns/v is left alone"):
        asyncio.run(begins())


def test_a_plan_that_takes_too_long_stops_before_its_last_step_and_says_whose_doing_it_is() -> None:
    defrag = two_moves()
    limit_s = LIMITS.plan_s(2)
    assert limit_s == 410.0 * 1.25
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    defrag.bind("v2")
    defrag.rig.now = defrag.mover.state().begun + limit_s
    defrag.tick(0.125)
    why = f"it takes too long: more than {limit_s:g} s before its last step"
    assert (defrag.why, defrag.mover.state().culprit, told(defrag)) == (why, "moved", [("done", ""), ("planned", "")])
    assert defrag.api.evicted == ["v"]


def test_a_plan_that_takes_just_as_long_as_it_may_goes_on() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.rig.now = 1024.0
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick(0.25)
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick(0.25)
    defrag.bind("v2")
    defrag.rig.now = 1024.0
    defrag.tick(LIMITS.plan_s(2))
    assert (defrag.api.evicted, defrag.why) == (["v", "u"], "")


def test_a_target_that_is_gone_before_the_next_step_is_nobody_s_doing() -> None:
    defrag = second_step()
    defrag.leaves("big")
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    why = "pod ns/big does not wait in the queue (any more): no place can be kept for it"
    assert (defrag.why, defrag.mover.state().culprit) == (why, "")
    assert told(defrag) == [("done", ""), ("planned", "")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": 3}, "pod ns/big has no room on node a: "),
        ({"gpus": 2, "labels": {"genius/priority": "-1"}}, "pod ns/u has priority 0, the target -1: "),
        ({"gpus": 2, "annotations": {"kerf.dev/policy": "nonsense"}}, "pod ns/big can't be placed: "),
    ],
    ids=["more GPUs", "another priority", "a policy that there is not"],
)
def test_a_target_that_asks_something_else_by_then_has_itself_to_blame(fields: dict[str, Any], why: str) -> None:
    defrag = second_step()
    defrag.waits("big", controller="", **fields)
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert defrag.why.startswith(why)
    assert (defrag.mover.state().culprit, defrag.api.evicted) == ("target", ["v"])
    assert told(defrag) == [("done", ""), ("planned", "")]


def test_a_pod_that_can_not_move_by_then_is_left_and_says_why() -> None:
    defrag = second_step()
    defrag.runs("u", "a", controller="rs2", annotations={"kerf.dev/movable": "false"})
    defrag.bind("v2")
    defrag.tick()
    why = "pod ns/u is left alone: kerf.dev/movable is 'false'"
    assert (defrag.why, defrag.mover.state().culprit) == (why, "")
    assert told(defrag) == [("done", ""), ("left", why)]


def test_a_step_that_is_not_needed_any_more_is_not_begun_nor_written_down() -> None:
    defrag = second_step()
    defrag.node("a", 3)
    defrag.bind("v2")
    defrag.tick()
    assert (defrag.phase, defrag.api.evicted, defrag.api.record.step) == ("placing", ["v"], 0)
    assert told(defrag) == [("done", ""), ("planned", "")]


def test_a_plan_without_a_target_needs_none_that_has_no_room() -> None:
    defrag = scattered()
    given = plan(move("v", "a", "b"), target="")
    defrag.begin(given)
    defrag.tick()
    assert defrag.api.evicted == ["v"]
