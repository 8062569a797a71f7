"""A plan's record, state, events and log, from its begin to its end."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.parts.defrag.plan import TargetPod
from extender.parts.defrag.record import Phase, Record, Stage
from extender.parts.defrag.state import MoveState, RoomState
from tests.parts.defrag.rigs import MOVE_V, evicted, move, moved, plan, scattered, two_moves

MOVER = "extender.parts.defrag.mover"
IN_BOTH = ("phase", "step", "why", "culprit", "begun", "ended")
"""Fields of a record and of a state."""


def progress_of(told: RoomState | Record) -> list[Any]:
    """The progress that a state or a record shows."""
    moves: list[Any] = told.moves if isinstance(told, RoomState) else told.progress
    fields = msgspec.to_builtins(told)
    return [*(fields[name] for name in IN_BOTH), [str(move.stage) for move in moves]]


def test_a_plan_is_reported_and_recorded_from_its_begin_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, MOVER)
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    given = plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2"))
    given.target.append(TargetPod("ns/later", "a", []))
    begun = defrag.rig.now
    name = defrag.begin(given)
    assert len(bytes.fromhex(name)) == 4

    def expect(
        phase: Phase, step: int, stages: str, kept: str, evicted: int, recorded: list[float], ended: float = 0.0
    ) -> None:
        """The state; the record has the same progress, and the times of evictions before its last write."""
        v, u = (Stage(stage) for stage in stages.split())
        moves = [MoveState("ns/v", "a", "b", 0, v, ""), MoveState("ns/u", "a", "c", 1, u, "")]
        fault = "" if ended else f"another plan is being carried out: {name}"
        state = RoomState(name, "ns/big", phase, step, 2, moves, list(kept), "", begun, ended, evicted, fault)
        assert defrag.mover.state() == state
        assert defrag.api.record.evicted == recorded
        if "starting" not in stages:
            assert progress_of(defrag.api.record) == progress_of(state)

    expect(Phase.MOVING, -1, "planned planned", "a", 0, [])
    record = defrag.api.record
    assert (record.id, record.plan, record.target) == (name, given, "ns/big")
    assert [(one.uid, one.known, one.replacement, one.why) for one in record.progress] == [
        ("v", [], "", ""),
        ("u", [], "", ""),
    ]
    defrag.tick()
    first = defrag.rig.now
    expect(Phase.MOVING, 0, "evicting planned", "ab", 1, [])  # recorded before the eviction
    defrag.play("v2 replaces v, tick, v2 is bound, tick")
    second = defrag.rig.now
    expect(Phase.MOVING, 1, "done evicting", "ac", 2, [first])
    assert defrag.api.record.progress[0].replacement == "v2"
    defrag.replace("u", "u2", controller="rs2")
    defrag.tick()
    expect(Phase.MOVING, 1, "done starting", "ac", 2, [first])
    defrag.play("u2 is bound, tick")
    expect(Phase.PLACING, 1, "done done", "a", 2, [first, second])
    defrag.play("tick, big is bound, tick")
    expect(Phase.DONE, 1, "done done", "", 2, [first, second], defrag.rig.now)
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
    defrag.tick()
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (2, 2, 1, 0)
    assert (len(defrag.events), defrag.api.map["metadata"]["resourceVersion"]) == (4, "6")


def test_a_plan_that_stops_reports_its_cause_once(caplog: pytest.LogCaptureFixture) -> None:
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
        "stopped",
        why,
        state.ended,
        [state.begun + 0.3],
    )
    assert defrag.events[2:] == [
        ("kerf-defrag", "RoomStopped", f"Plan {name}: {why}"),
        ("big", "RoomStopped", why),
    ]
    assert defrag.about == [("ns", "big", "big"), ("ns", "v", "v"), ("kerf", "kerf-defrag", ""), ("ns", "big", "big")]
    assert [line.message for line in caplog.records if line.name == MOVER][1:] == [
        f"making room, plan {name} is stopping: {why}",
        f"making room, plan {name} is stopped: {why}",
    ]
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (1, 0, 0, 1)


def test_counts_add_up_over_plans() -> None:
    defrag = scattered()
    for _ in range(2):
        defrag.api.refuse = lambda name: ApiError(403, "Forbidden", "no right")
        defrag.begin(MOVE_V)
        defrag.play("tick, tick")
        defrag.api.refuse = lambda name: None
        defrag.begin(MOVE_V)
        defrag.tick()
        moved(defrag)
        defrag.play("tick, big is bound, tick, big leaves, v2 leaves")
        defrag.runs("v", "a")
        defrag.waits("big", 2, controller="")
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (2, 2, 2, 2)


def test_a_plan_without_a_described_target_is_for_pods(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, MOVER)
    defrag = scattered()
    name = asyncio.run(defrag.mover.begin(MOVE_V))
    defrag.tick()
    assert (defrag.mover.state().target, defrag.api.record.target) == ("", "")
    assert f"making room for pods, plan {name}: 1 moves" in caplog.messages
    assert ("v", "MovedToMakeRoom", f"Moved to node b to make room for waiting pods: plan {name}") in defrag.events


def test_an_end_that_can_t_be_recorded_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    defrag = evicted()
    name = defrag.mover.state().id
    moved(defrag)
    defrag.play("tick, big is bound")
    defrag.api.refuse_record = ApiError(503, "ServiceUnavailable", "etcd")
    caplog.clear()
    defrag.tick()
    assert [line.message for line in caplog.records if line.name == MOVER] == [
        f"making room: the end of plan {name} is not recorded yet: {defrag.api.refuse_record}"
    ]


def test_the_state_without_a_plan() -> None:
    defrag = scattered()
    assert defrag.mover.state() == RoomState("", "", "none", -1, 0, [], [], "", 0.0, 0.0, 0, "")
