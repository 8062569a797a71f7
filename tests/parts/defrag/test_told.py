"""What a plan says of itself from its beginning to its end: in its record, to who asks, as events and in the log."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.parts.defrag.plan import TargetPod
from extender.parts.defrag.record import Culprit, Phase, Record, Stage
from extender.parts.defrag.state import MoveState, RoomState
from tests.parts.defrag.rigs import MOVE_V, move, plan, scattered
from tests.parts.defrag.test_surprises import moved, two_moves

MOVER = "extender.parts.defrag.mover"


def as_record(state: RoomState, evicted: list[float]) -> dict[str, Any]:
    """What a record says of progress, where a state says the same."""
    return {
        "phase": state.phase,
        "step": state.step,
        "why": state.why,
        "culprit": state.culprit,
        "begun": state.begun,
        "ended": state.ended,
        "evicted": evicted,
        "stages": [move.stage for move in state.moves],
    }


def written(record: Record) -> dict[str, Any]:
    """A record's words on progress."""
    said: dict[str, Any] = msgspec.to_builtins(record)
    return {
        **{key: said[key] for key in ("phase", "step", "why", "culprit", "begun", "ended", "evicted")},
        "stages": [progress["stage"] for progress in said["progress"]],
    }


def test_a_plan_is_told_and_written_down_from_its_beginning_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, MOVER)
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    given = plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2"))
    given.target.append(TargetPod("ns/later", "a", []))
    begun = defrag.rig.now
    name = defrag.begin(given)
    assert len(bytes.fromhex(name)) == 4

    def state(phase: Phase, step: int, stages: str, kept: str, evicted: int, ended: float = 0.0) -> RoomState:
        v, u = (Stage(stage) for stage in stages.split())
        return RoomState(
            id=name,
            target="ns/big",
            phase=phase,
            step=step,
            num_steps=2,
            moves=[MoveState("ns/v", "a", "b", 0, v, ""), MoveState("ns/u", "a", "c", 1, u, "")],
            kept=list(kept),
            why="",
            begun=begun,
            ended=ended,
            evicted=evicted,
            fault="" if ended else f"another plan is being carried out: {name}",
            policy=None,
            culprit=Culprit.NOBODY,
        )

    planned = state(Phase.MOVING, -1, "planned planned", "a", 0)
    assert defrag.mover.state() == planned
    record = defrag.api.record
    assert (record.id, record.plan, record.target) == (name, given, "ns/big")
    assert written(record) == as_record(planned, [])
    assert [(one.uid, one.known, one.replacement, one.why) for one in record.progress] == [
        ("v", [], "", ""),
        ("u", [], "", ""),
    ]
    defrag.tick()
    first = defrag.rig.now
    assert defrag.mover.state() == state(Phase.MOVING, 0, "evicting planned", "ab", 1)
    assert written(defrag.api.record) == as_record(defrag.mover.state(), [])  # before anybody is evicted
    defrag.is_replaced("v", "v2")
    defrag.tick()
    second = defrag.rig.now
    assert defrag.mover.state() == state(Phase.MOVING, 1, "done evicting", "ac", 2)
    assert written(defrag.api.record) == as_record(defrag.mover.state(), [first])
    assert defrag.api.record.progress[0].replacement == "v2"
    defrag.leaves("u")
    defrag.waits("u2", controller="rs2")
    defrag.tick()
    assert defrag.mover.state() == state(Phase.MOVING, 1, "done starting", "ac", 2)
    defrag.bind("u2")
    defrag.tick()
    assert defrag.mover.state() == state(Phase.PLACING, 1, "done done", "a", 2)
    assert written(defrag.api.record) == as_record(defrag.mover.state(), [first, second])
    defrag.tick()
    defrag.bind("big")
    defrag.tick()
    ended = state(Phase.DONE, 1, "done done", "", 2, defrag.rig.now)
    assert defrag.mover.state() == ended
    assert written(defrag.api.record) == as_record(ended, [first, second])
    assert defrag.events == [
        ("big", "MakingRoom", f"Making room with 2 moves: plan {name}"),
        ("v", "MovedToMakeRoom", f"Moved to node b to make room for ns/big: plan {name}"),
        ("u", "MovedToMakeRoom", f"Moved to node c to make room for ns/big: plan {name}"),
        ("big", "RoomMade", f"Room was made: plan {name}"),
    ]
    assert [line.message for line in caplog.records if line.name == MOVER] == [
        f"making room for ns/big, plan {name}: 2 moves",
        f"making room, plan {name} is done",
    ]
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (2, 2, 1, 0)
    defrag.tick()
    assert (defrag.mover.counts.done, len(defrag.events)) == (1, 4)  # once
    assert defrag.api.map["metadata"]["resourceVersion"] == "6"


def test_a_plan_that_goes_no_further_is_told_once_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, MOVER)
    defrag = two_moves()
    name = defrag.mover.state().id
    defrag.node("d", 1)
    moved(defrag, "d")
    defrag.tick()
    fault = "has its replacement on node d instead of b"
    why = f"pod ns/v {fault}"
    state = defrag.mover.state()
    assert (state.phase, state.why, state.ended) == ("stopped", why, defrag.rig.now - 0.3)
    assert state.moves == [
        MoveState("ns/v", "a", "b", 0, Stage.LOST, fault),
        MoveState("ns/u", "a", "c", 1, Stage.PLANNED, ""),
    ]
    record = defrag.api.record
    assert (record.phase, record.why, record.ended, record.evicted) == (
        *("stopped", why, state.ended),
        [state.begun + 0.3],
    )
    assert defrag.events[2:] == [
        ("kerf-defrag", "RoomStopped", f"Plan {name}: {why}"),
        ("big", "RoomStopped", why),
    ]
    assert [line.message for line in caplog.records if line.name == MOVER][1:] == [
        f"making room, plan {name} is stopping: {why}",
        f"making room, plan {name} is stopped: {why}",
    ]
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (1, 0, 0, 1)


def test_a_plan_for_nobody_in_words_is_for_pods(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, MOVER)
    defrag = scattered()
    name = asyncio.run(defrag.mover.begin(MOVE_V))
    defrag.tick()
    assert (defrag.mover.state().target, defrag.api.record.target) == ("", "")
    assert f"making room for pods, plan {name}: 1 moves" in caplog.messages
    assert ("v", "MovedToMakeRoom", f"Moved to node b to make room for waiting pods: plan {name}") in defrag.events


def test_events_are_about_the_pods_and_the_config_map_of_the_plan() -> None:
    defrag = two_moves()
    defrag.mover.give_up("asked to")
    assert defrag.about == [("ns", "big", "big"), ("ns", "v", "v"), ("kerf", "kerf-defrag", "")]


def test_an_end_that_can_not_be_written_down_is_told_to_administrators(caplog: pytest.LogCaptureFixture) -> None:
    defrag = scattered()
    name = defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    defrag.tick()
    defrag.bind("big")
    defrag.api.refuse_record = ApiError(503, "ServiceUnavailable", "etcd")
    caplog.clear()
    defrag.tick()
    assert [line.message for line in caplog.records if line.name == MOVER] == [
        f"making room: the end of plan {name} is not recorded yet: {defrag.api.refuse_record}"
    ]


def test_the_state_without_any_plan_is_none() -> None:
    defrag = scattered()
    assert defrag.mover.state() == RoomState("", "", "none", -1, 0, [], [], "", 0.0, 0.0, 0, "")
    defrag.rig.fence.shut(lambda: "another leads")
    told = RoomState("", "", "none", -1, 0, [], [], "", 0.0, 0.0, 0, "standby: another leads")
    assert defrag.mover.state() == told
