"""A Kerf that is killed at any point of a plan, and the one after it: nothing is lost, and nobody else evicted."""

from collections.abc import Callable

import pytest

from extender.api.wire import NodeNames
from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError
from extender.parts.defrag.record import Record
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import Placement, PodIdentity
from tests.parts.defrag.rigs import MOVE_V, Defrag, move, plan, scattered
from tests.parts.defrag.test_mover import BOTH
from tests.parts.defrag.test_surprises import moved, stopped, two_moves


class KilledError(Exception):
    """kill -9."""


def killed_after_the_record(defrag: Defrag) -> None:
    """Once the step is written down, and before its eviction is sent."""

    def kill(record: Record) -> None:
        if record.step >= 0:
            raise KilledError

    defrag.api.on_record = kill
    with pytest.raises(KilledError):
        defrag.tick()
    defrag.api.on_record = lambda record: None


def evicted(defrag: Defrag) -> None:
    defrag.tick()
    assert defrag.api.evicted == ["v"]


def left(defrag: Defrag) -> None:
    evicted(defrag)
    defrag.leaves("v")


def replaced(defrag: Defrag) -> None:
    left(defrag)
    defrag.waits("v2")


def let_go(defrag: Defrag) -> None:
    replaced(defrag)
    defrag.tick()
    assert defrag.node_of("v2") == "b"


def nominated(defrag: Defrag) -> None:
    """Between the two writes that let a pod go."""
    replaced(defrag)
    defrag.api.fail = lambda name, part: ApiError(500, "", "killed") if name == "v2" and not part else None
    defrag.tick()
    defrag.api.fail = lambda name, part: None
    defrag.api.pods["v2"]["status"]["nominatedNodeName"] = "b"  # before it could be taken back
    assert defrag.node_of("v2") == ""


@BOTH
@pytest.mark.parametrize("killed", [evicted, left, replaced, nominated, let_go])
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
    after.tick()
    if "v2" not in after.api.pods:
        assert place().node is None
        after.waits("v2")
    for _ in range(3):
        after.tick()
    if direct:  # its settler looks at what is written
        after.rig.settle()
        after.tick()
    assert after.node_of("v2") == "b"
    after.bind("v2")
    after.tick()
    stopped(after, "Kerf was restarted, or another replica leads now")
    assert after.stages == ["done", "planned"]


@BOTH
def test_a_replacement_that_was_let_go_holds_its_gpus_after_a_restart(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.begin(MOVE_V)
    let_go(defrag)
    after = defrag.restarted()
    after.tick()
    claim = after.rig.ledger.claim("v2")
    assert claim is not None
    assert claim.node == "b"


@pytest.mark.parametrize("status", [{"nominatedNodeName": "b"}, {}])
def test_whoever_is_asked_first_about_a_replacement_gives_it_its_place(status: dict[str, str]) -> None:
    """kube-scheduler asks before the mover has looked, and may have taken the nomination away meanwhile."""
    defrag = scattered()
    defrag.begin(MOVE_V)
    let_go(defrag)
    defrag.api.pods["v2"]["status"] = {"phase": "Pending", **status}
    after = defrag.restarted()
    pod, of_others = decode_pod(defrag.api.pods["v2"]), decode_pod(defrag.api.pods["v2"])
    of_others.metadata.uid = of_others.metadata.owner_references[0].uid = "other"  # type: ignore[index]
    assert (after.mover.place_kept(of_others), after.mover.place_kept(pod)) == ("", "b")
    request, names = after.rig.placer.read_request(pod).gpus, NodeNames(b'["a","b"]')
    assert request is not None
    assert after.rig.placer.keeps("v2", request, names, kept="b") == "b"
    assert after.rig.placer.keeps("v2", request, names) == ""
    assert after.rig.placer.keeps("v2", request, NodeNames(b'["b"]')) == "b"
    claim = after.rig.ledger.claim("v2")
    assert claim is not None
    assert claim.node == "b"


def test_whoever_is_asked_first_about_the_target_gives_it_its_nodes() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    big = decode_pod(defrag.api.pods["big"])
    assert defrag.mover.place_kept(big) == ""
    moved(defrag)
    assert defrag.api.record.phase == "placing"
    assert defrag.restarted().mover.place_kept(big) == "a"


def test_a_step_that_was_only_written_down_evicts_nobody_later() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    killed_after_the_record(defrag)
    after = defrag.restarted()
    stopped(after, "Kerf was restarted")
    assert (after.stages, after.api.evicted, "v" in after.api.pods) == (["left"], [], True)


def test_an_eviction_that_a_leader_before_sends_late_is_refused() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    version = defrag.api.pods["v"]["metadata"]["resourceVersion"]
    killed_after_the_record(defrag)
    defrag.restarted()
    assert defrag.api.pods["v"]["metadata"]["resourceVersion"] != version


def test_a_leader_before_that_goes_on_writes_nothing_and_evicts_nobody() -> None:
    defrag = two_moves()
    after = defrag.restarted()
    defrag.is_replaced("v", "v2")
    defrag.tick()
    defrag.tick()
    assert defrag.api.evicted == ["v"]
    assert "the step could not be recorded" in defrag.why
    assert after.api.record.step == 0


def test_a_target_whose_moves_are_all_made_is_placed_by_the_next_leader() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    assert defrag.api.record.phase == "placing"
    after = defrag.restarted()
    assert after.free("a") == 0
    after.tick()
    after.tick()
    assert after.node_of("big") == "a"
    after.bind("big")
    after.tick()
    assert (after.phase, after.why) == ("done", "")


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", "configmaps"), ApiError(404, "NotFound", "configmaps")])
def test_a_record_that_can_not_be_had_holds_no_take_over_up(error: ApiError) -> None:
    defrag = two_moves()
    defrag.api.refuse_record = error
    after = defrag.restarted()
    assert not after.mover.busy


def test_a_take_over_waits_for_a_record_that_can_not_be_read_now() -> None:
    defrag = two_moves()
    defrag.api.refuse_record = ApiError(503, "", "etcd")
    with pytest.raises(ApiError):
        defrag.restarted()


@pytest.mark.parametrize("text", ["", "[]", '{"id": 3}', "not json"])
def test_a_record_that_makes_no_sense_is_none(text: str) -> None:
    defrag = scattered()
    defrag.api.map["data"] = {"plan.json": text}
    assert not defrag.restarted().mover.busy


def test_a_record_with_names_that_are_none_is_none() -> None:
    defrag = two_moves()
    data = defrag.api.map["data"]
    data["plan.json"] = data["plan.json"].replace("ns/v", "ns/../../../api/v1/nodes/a")
    assert not defrag.restarted().mover.busy


def test_a_record_whose_answer_was_lost_and_that_was_sent_again_is_written() -> None:
    defrag = scattered()
    patch = defrag.api.patch

    async def twice(path: str, body: bytes) -> bytes:
        if "/configmaps/" in path:
            await patch(path, body)
        return await patch(path, body)

    defrag.api.patch = twice  # type: ignore[method-assign]
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, defrag.api.record.step) == (["v"], 0)
