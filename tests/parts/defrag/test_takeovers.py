"""Kerf is killed at any point of a plan: the next leader finishes what is under way, and evicts nobody else."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from extender.api.wire import NodeNames
from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError
from extender.parts.defrag.record import Record, Stage
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import Placement, PodIdentity
from tests.parts.defrag.rigs import (
    BOTH,
    MOVE_V,
    Defrag,
    gang_of_three,
    move,
    moved,
    plan,
    scattered,
    stopped,
    two_moves,
)
from tests.parts.defrag.rigs import evicted as evicted_v

MOVER = "extender.parts.defrag.mover"
RESTARTED = "Kerf was restarted, or another replica leads now"


class KilledError(Exception):
    """kill -9."""


def evicted(defrag: Defrag) -> None:
    defrag.tick()
    assert defrag.api.evicted == ["v"]


def left(defrag: Defrag) -> None:
    evicted(defrag)
    defrag.leaves("v")


def replaced(defrag: Defrag) -> None:
    left(defrag)
    defrag.waits("v2")


def released(defrag: Defrag) -> None:
    replaced(defrag)
    defrag.tick()
    assert defrag.node_of("v2") == "b"


def nominated(defrag: Defrag) -> None:
    """Between the two writes that release a pod."""
    replaced(defrag)
    defrag.api.fail = lambda name, part: ApiError(500, "", "killed") if name == "v2" and not part else None
    defrag.tick()
    defrag.api.fail = lambda name, part: None
    defrag.api.pods["v2"]["status"]["nominatedNodeName"] = "b"  # before it could be taken back
    assert defrag.node_of("v2") == ""


@BOTH
@pytest.mark.parametrize("killed", [evicted, left, replaced, nominated, released])
def test_what_is_under_way_is_finished_and_no_other_move_made(killed: Callable[[Defrag], None], direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    killed(defrag)
    after = defrag.restarted()

    def place() -> Placement:
        best_fit = after.rig.placer.policies["bestfit"]
        return after.rig.placer.place(PodIdentity("x", "y", "z"), GpuRequest(1), best_fit, ["b"])

    assert place().node is None
    after.tick()
    if "v" in after.api.pods:
        assert place().node is None
        after.leaves("v")
    if killed is released:
        assert after.claimed("v2") == "b"
    after.tick()
    if "v2" not in after.api.pods:
        assert place().node is None
        after.waits("v2")
    for _ in range(3):
        after.tick()
    if direct:  # its settler reads what is written
        after.rig.settle()
        after.tick()
    assert after.node_of("v2") == "b"
    after.play("v2 is bound, tick")
    stopped(after, RESTARTED)
    assert after.stages == ["done", "planned"]


def test_an_eviction_that_a_leader_before_sends_late_is_refused() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    version = defrag.api.pods["v"]["metadata"]["resourceVersion"]

    def kill(record: Record) -> None:
        if record.step >= 0:
            raise KilledError

    defrag.api.on_record = kill  # after the step is recorded, before its eviction is sent
    with pytest.raises(KilledError):
        defrag.tick()
    defrag.api.on_record = lambda record: None
    after = defrag.restarted()
    assert after.api.pods["v"]["metadata"]["resourceVersion"] != version
    stopped(after, RESTARTED)
    assert (after.stages, after.api.evicted) == (["left"], [])


def test_the_leader_before_records_nothing_and_evicts_nobody() -> None:
    defrag = two_moves()
    after = defrag.restarted()
    defrag.play("v2 replaces v, tick, v2 is bound, tick, tick")
    assert defrag.api.evicted == ["v"]
    assert "the step could not be recorded" in defrag.why
    assert after.api.record.step == 0


def test_a_replacement_has_its_place_if_kube_scheduler_asks_before_the_mover_runs() -> None:
    """kube-scheduler may have cleared the nomination meanwhile."""
    for status in ({"nominatedNodeName": "b"}, {}):
        defrag = evicted_v()
        defrag.play("v2 replaces v, tick")
        defrag.api.pods["v2"]["status"] = {"phase": "Pending", **status}
        after = defrag.restarted()
        pod, of_others = decode_pod(defrag.api.pods["v2"]), decode_pod(defrag.api.pods["v2"])
        of_others.metadata.uid = of_others.metadata.owner_references[0].uid = "other"  # type: ignore[index]
        assert (after.mover.place_kept(of_others), after.mover.place_kept(pod)) == ("", "b")
        request, names = after.rig.placer.read_request(pod).gpus, NodeNames(b'["a","b"]')
        assert request is not None
        assert after.rig.placer.reserved_candidate("v2", request, names, kept="b") == "b"
        assert after.rig.placer.reserved_candidate("v2", request, names) == ""
        assert after.rig.placer.reserved_candidate("v2", request, NodeNames(b'["b"]')) == "b"
        assert after.claimed("v2") == "b"


def test_the_next_leader_places_the_target_also_if_kube_scheduler_asks_first() -> None:
    defrag = evicted_v()
    moved(defrag)
    assert defrag.api.record.phase == "placing"
    assert defrag.restarted().mover.place_kept(decode_pod(defrag.api.pods["big"])) == "a"
    after = defrag.restarted()
    assert after.free("a") == 0
    after.tick()
    assert after.node_of("big") == "a"
    after.play("big is bound, tick")
    assert (after.phase, after.why) == ("done", "")


def test_a_takeover_seals_pods_records_the_result_and_reports_it() -> None:
    defrag = gang_of_three()
    name = defrag.mover.state().id
    defrag.tick()
    assert len(defrag.api.evicted) == 3
    del defrag.api.pods["g1"]["metadata"]["deletionTimestamp"]  # an eviction that had no effect
    version = defrag.api.map["metadata"]["resourceVersion"]
    after = defrag.restarted()
    assert after.moves == [("evicting", ""), ("left", "was not evicted"), ("evicting", "")]
    assert (after.mover.state().id, after.why, after.kept) == (name, RESTARTED, ["b"])
    assert (after.mover.busy, after.api.map["metadata"]["resourceVersion"]) == (True, str(int(version) + 1))
    assert (after.api.record.why, after.api.record.progress[1].why) == (RESTARTED, "was not evicted")
    assert after.events == [("kerf-defrag", "RoomStopped", f"Plan {name}: {RESTARTED}")]


def test_a_takeover_shows_an_ended_plan_and_continues_nothing() -> None:
    defrag = evicted_v()
    moved(defrag)
    defrag.play("tick, big is bound, tick")
    ended = defrag.mover.state()
    version = defrag.api.map["metadata"]["resourceVersion"]
    after = defrag.restarted()
    assert (after.mover.state(), after.mover.busy, after.events) == (ended, False, [])
    assert after.api.map["metadata"]["resourceVersion"] == version


def test_a_leader_that_takes_over_again_starts_without_its_earlier_plan() -> None:
    defrag = two_moves()
    defrag.api.map["data"] = {}
    asyncio.run(defrag.mover.catch_up())
    assert (defrag.mover.busy, defrag.kept, defrag.free("b")) == (False, [], 1)


def test_a_replacement_that_only_the_record_names_is_gone() -> None:
    defrag = evicted_v()
    defrag.leaves("v")
    record = defrag.api.record
    record.progress[0].stage, record.progress[0].replacement = Stage.STARTING, "nobody"
    defrag.api.map["data"]["plan.json"] = msgspec.json.encode(record).decode()
    after = defrag.restarted()
    after.play("tick, tick 3")
    assert after.moves == [("coming", "its replacement disappeared")]


def test_a_takeover_waits_only_for_a_record_that_may_be_readable_later(caplog: pytest.LogCaptureFixture) -> None:
    for error, said in (
        (ApiError(403, "Forbidden", "configmaps"), ""),
        (ApiError(422, "Invalid", "configmaps"), ""),
        (ApiError(404, "NotFound", "configmaps"), "there is no ConfigMap kerf/kerf-defrag"),
    ):
        defrag = two_moves()
        defrag.api.refuse_record = error
        caplog.clear()
        after = defrag.restarted()
        message = f"making room: the record of moves under way can't be read or written: {said or error}"
        assert [line.message for line in caplog.records if line.name == MOVER] == [message]
        assert (after.mover.busy, after.phase) == (False, "none")
    defrag = two_moves()
    defrag.api.refuse_record = ApiError(503, "", "etcd")
    with pytest.raises(ApiError):
        defrag.restarted()


def test_an_invalid_record_counts_as_none() -> None:
    defrag = evicted_v()
    data = defrag.api.map["data"]
    valid = data["plan.json"]
    changes = (
        ('"pod":"ns/v"', '"pod":"v"'),
        ('"pod":"ns/v"', '"pod":"ns/../../../api/v1/nodes/a"'),
        ('"pod":"ns/v"', '"pod":"ns/V"'),
        ('"to":"b"', '"to":"../b"'),
        ('"uid":"v","stage"', '"uid":"w","stage"'),
    )
    for text in ("", "[]", '{"id": 3}', "not json", *(valid.replace(old, new) for old, new in changes)):
        assert text != valid
        data["plan.json"] = text
        after = defrag.restarted()
        assert (after.mover.busy, after.phase) == (False, "none")
