"""One plan at a time, by whoever leads: what is begun, goes on, is taken over and kept, and what of it is said."""

import asyncio
import logging

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError
from extender.parts.defrag.checks import RoomError
from extender.queueing.pods.objects import decode_pod
from tests.ledger.builders import until
from tests.parts.defrag.rigs import MOVE_V, Defrag, move, plan, scattered
from tests.parts.defrag.test_starts import told
from tests.parts.defrag.test_surprises import ended_unwritten, moved, two_moves

MOVER = "extender.parts.defrag.mover"
ENDED = "the leader's term in which it began has ended"


def refusal(defrag: Defrag) -> str:
    """Why no plan can be begun."""
    with pytest.raises(RoomError) as error:
        defrag.begin(MOVE_V)
    return str(error.value)


def lead_again(defrag: Defrag, term: str) -> None:
    defrag.rig.fence.take_over("", lambda: float("inf"), str)
    defrag.rig.fence.open(term)


def test_the_mover_works_by_itself_and_a_time_that_fails_costs_that_time_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MOVER}._INTERVAL_S", 0.01)
    defrag = scattered()
    faults = [RuntimeError("broken")]

    def fault() -> str:
        if faults:
            raise faults.pop()
        return ""

    async def run() -> None:
        await defrag.mover.begin(MOVE_V)
        defrag.fault = fault
        defrag.mover.start()
        assert list(defrag.mover.tasks.names) == ["mover"]
        await until(lambda: defrag.api.evicted)
        await defrag.mover.stop()

    asyncio.run(run())
    assert "making room failed" in caplog.messages
    assert defrag.stages == ["evicting"]


def test_a_mover_that_dies_stops_no_other_work() -> None:
    defrag = scattered()

    async def run() -> None:
        defrag.mover.start()
        assert defrag.mover.tasks.fault() == ""
        defrag.mover.tasks.begin("x", defrag.mover.run)
        await defrag.mover.stop()
        assert defrag.mover.tasks.fault().startswith("the x has stopped")

    asyncio.run(run())


def test_while_nothing_can_be_judged_nobody_is_moved_and_no_plan_begun() -> None:
    defrag = scattered()
    defrag.fault = lambda: "pods with a node are not synced yet"
    assert refusal(defrag) == defrag.mover.state().fault == "pods with a node are not synced yet"
    defrag.fault = lambda: ""
    name = defrag.begin(MOVE_V)
    defrag.fault = lambda: "pods with a node are not synced yet"
    defrag.tick()
    assert (defrag.api.evicted, defrag.mover.state().fault) == ([], f"another plan is being carried out: {name}")
    defrag.fault = lambda: ""
    defrag.tick()
    assert defrag.api.evicted == ["v"]


def test_while_a_take_over_goes_on_nobody_is_moved_and_no_plan_begun() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.rig.fence.take_over("taking over", lambda: float("inf"), str)
    defrag.tick()
    assert (defrag.api.evicted, defrag.why) == ([], "")
    assert refusal(defrag) == defrag.mover.state().fault == "taking over"


def test_of_two_plans_that_come_at_once_one_is_begun() -> None:
    defrag = scattered()

    async def both() -> list[str | BaseException]:
        return await asyncio.gather(*(defrag.mover.begin(MOVE_V) for _ in range(2)), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first == defrag.mover.state().id
    assert str(second) == "another plan is being carried out"


def test_a_plan_that_was_refused_holds_no_other_up() -> None:
    defrag = scattered()
    with pytest.raises(RoomError, match="has no moves"):
        defrag.begin(plan())
    defrag.begin(MOVE_V)


def test_a_plan_is_not_begun_where_what_is_written_down_can_not_be_read() -> None:
    defrag = scattered()
    error = defrag.api.refuse_record = ApiError(403, "Forbidden", "configmaps")
    assert refusal(defrag) == f"the plan can't be recorded: {error}"
    defrag.api.refuse_record = None
    del defrag.api.map["metadata"]["resourceVersion"]
    defrag.api.map["metadata"] = {"resourceVersion": "1"}
    defrag.begin(MOVE_V)


def refused_as_it_is_written(defrag: Defrag, error: Exception, *, written: bool) -> str:
    """Why a plan is not begun whose record can't be written, or of whose nobody knows that it was."""
    patch = defrag.api.patch

    async def refuse(path: str, body: bytes) -> bytes:
        if written:
            await patch(path, body)
        defrag.api.refuse_record = ClusterError("cut")
        raise error

    defrag.api.patch = refuse  # type: ignore[method-assign]
    why = refusal(defrag)
    defrag.api.patch, defrag.api.refuse_record = patch, None  # type: ignore[method-assign]
    return why


def test_a_plan_that_could_not_be_written_down_is_none_and_ended_where_it_may_be_written() -> None:
    defrag = scattered()
    assert refused_as_it_is_written(defrag, ClusterError("lost"), written=True) == ("the plan can't be recorded: lost")
    state = defrag.mover.state()
    assert (state.phase, state.why, state.kept) == ("stopped", "the plan can't be recorded: lost", [])
    assert (state.ended, defrag.events) == (defrag.rig.now, [])
    defrag.tick()
    defrag.tick()
    assert (defrag.api.record.id, defrag.api.record.phase) == (state.id, "stopped")


def test_a_plan_that_is_overtaken_by_another_leader_as_it_is_written_down_is_theirs_to_end() -> None:
    defrag = scattered()
    get = defrag.api.get

    async def shuts(path: str, query: object = None) -> bytes:
        if "/configmaps/" in path:
            defrag.rig.fence.open("next term")
        return await get(path, query)

    defrag.api.get = shuts  # type: ignore[method-assign]
    assert refusal(defrag) == ("the plan can't be recorded: the leader's term in which it was decided has ended")
    defrag.api.get = get  # type: ignore[method-assign]
    defrag.tick()
    defrag.tick()
    assert (defrag.api.map["data"], defrag.mover.state().kept, defrag.free("b")) == ({}, [], 1)


def test_the_end_that_could_not_be_written_down_is_none_of_the_next_plan() -> None:
    defrag = ended_unwritten()
    defrag.leaves("big")
    defrag.runs("v", "a")
    defrag.leaves("v2")
    defrag.waits("big", 2, controller="")
    name = defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.record.id, defrag.api.record.phase, defrag.api.record.step) == (name, "moving", 0)


def test_what_has_happened_since_the_start_adds_up() -> None:
    defrag = scattered()
    for _ in range(2):
        defrag.api.refuse = lambda name: ApiError(403, "Forbidden", "no right")
        defrag.begin(MOVE_V)
        defrag.tick()
        defrag.tick()
        defrag.api.refuse = lambda name: None
        defrag.begin(MOVE_V)
        defrag.tick()
        moved(defrag)
        defrag.tick()
        defrag.bind("big")
        defrag.tick()
        defrag.leaves("big")
        defrag.runs("v", "a")
        defrag.leaves("v2")
        defrag.waits("big", 2, controller="")
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (2, 2, 2, 2)


def test_places_are_kept_from_the_beginning_where_they_become_free_by_the_plan_alone() -> None:
    """u makes way for v, and v for the target."""
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    defrag.runs("v", "a")
    defrag.runs("u", "b", 2, controller="rs2")
    defrag.runs("x", "c", 0, controller="rs3")
    defrag.waits("big", 2, controller="")
    defrag.tick()
    assert defrag.node_of("big") == "c"
    defrag.leaves("big")
    defrag.node("d", 0)
    defrag.waits("big", 2, controller="", spec={"nodeSelector": {"is": "a"}, **_asks(2)})
    defrag.node("a", 2, **{"is": "a"})
    given = plan(move("u", "b", "c", 0, "rs2"), move("v", "a", "b", 1))
    given.emptied = ["d"]
    defrag.begin(given)
    assert (defrag.mover.state().kept, defrag.free("c")) == (["a", "b", "d"], 0)
    defrag.tick()
    assert defrag.mover.state().kept == ["a", "b", "c", "d"]
    defrag.leaves("u")
    defrag.waits("u2", 2, controller="rs2")
    defrag.tick()
    defrag.bind("u2")
    defrag.tick()
    assert (told(defrag), defrag.mover.state().kept) == ([("done", ""), ("evicting", "")], ["a", "b", "d"])
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    defrag.bind("v2")
    defrag.tick()
    assert (defrag.phase, defrag.mover.state().kept) == ("placing", ["a"])


def _asks(gpus: int) -> dict[str, object]:
    limits = {"nvidia.com/gpu": gpus, "cpu": 1}
    return {"containers": [{"resources": {"limits": limits}}], "schedulingGates": [{"name": "kerf.dev/queue"}]}


def test_without_a_plan_no_place_is_kept_for_anybody_and_a_round_may_place_all() -> None:
    defrag = scattered()
    entries = list(defrag.rig.queue.backlog.entries.values())
    assert defrag.mover.place_kept(decode_pod(defrag.api.pods["big"])) == ""
    assert defrag.mover.others(entries) == entries
    assert not defrag.mover.give_up("nothing")
    assert not defrag.mover.busy


def test_a_round_places_neither_replacements_nor_the_target_once_that_is_its_turn() -> None:
    defrag = two_moves()
    defrag.leaves("v")
    defrag.waits("v2")
    entries = defrag.rig.queue.backlog.entries
    assert [entry.uid for entry in defrag.mover.others(list(entries.values()))] == ["big"]
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    defrag.waits("another", controller="")
    entries = defrag.rig.queue.backlog.entries
    assert [entry.uid for entry in defrag.mover.others(list(entries.values()))] == ["another"]


# Terms


def test_a_standby_without_a_plan_does_nothing() -> None:
    defrag = scattered()
    defrag.rig.fence.shut(lambda: "another leads")
    defrag.tick()
    assert defrag.phase == "none"


@pytest.mark.parametrize("term", ["term", "next term"])
def test_a_plan_of_a_term_that_has_ended_goes_no_further_in_the_next_one(term: str) -> None:
    """Also where nobody has led in between, so that nothing was taken over."""
    defrag = two_moves()
    if term == "term":
        defrag.rig.fence.shut(lambda: "another leads")
        defrag.tick()
    lead_again(defrag, term)
    moved(defrag)
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.api.evicted) == ("stopped", ENDED, ["v"])
    assert told(defrag) == [("done", ""), ("planned", "")]


def test_what_is_taken_over_is_told_with_what_was_not_done() -> None:
    defrag = Defrag()
    for name in "ab":
        defrag.node(name, 4)
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    for number in range(3):
        defrag.runs(f"g{number}", "a", controller="job", annotations=dict(gang))
    defrag.runs("w", "b", controller="other")
    defrag.waits("big", 4, controller="")
    defrag.tick()
    name = defrag.begin(plan(*(move(f"g{number}", "a", "b", 0, "job", "ns/g") for number in range(3))))
    defrag.tick()
    assert len(defrag.api.evicted) == 3
    del defrag.api.pods["g1"]["metadata"]["deletionTimestamp"]  # of which the leader before was not told
    version = defrag.api.map["metadata"]["resourceVersion"]
    after = defrag.restarted()
    assert told(after) == [("evicting", ""), ("left", "was not evicted"), ("evicting", "")]
    why = "Kerf was restarted, or another replica leads now"
    assert (after.mover.state().id, after.why, after.mover.state().kept) == (name, why, ["b"])
    assert (after.mover.busy, after.api.map["metadata"]["resourceVersion"]) == (True, str(int(version) + 1))
    assert (after.api.record.why, after.api.record.progress[1].why) == (why, "was not evicted")
    assert after.events == [("kerf-defrag", "RoomStopped", f"Plan {name}: {why}")]


def test_what_was_ended_before_is_told_of_and_nothing_of_it_taken_over() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    defrag.tick()
    defrag.bind("big")
    defrag.tick()
    ended = defrag.mover.state()
    version = defrag.api.map["metadata"]["resourceVersion"]
    after = defrag.restarted()
    assert (after.mover.state(), after.mover.busy, after.events) == (ended, False, [])
    assert after.api.map["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiError(403, "Forbidden", "configmaps"), None),
        (ApiError(422, "Invalid", "configmaps"), None),
        (ApiError(404, "NotFound", "configmaps"), "there is no ConfigMap kerf/kerf-defrag"),
    ],
)
def test_administrators_are_told_of_a_record_that_can_not_be_had(
    error: ApiError, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    defrag = two_moves()
    defrag.api.refuse_record = error
    caplog.clear()
    after = defrag.restarted()
    message = f"making room: the record of moves under way can't be read or written: {said or error}"
    assert [line.message for line in caplog.records if line.name == MOVER] == [message]
    assert (after.mover.busy, after.phase) == (False, "none")


def test_who_takes_over_again_begins_with_nothing_of_its_own() -> None:
    defrag = two_moves()
    defrag.api.map["data"] = {}
    asyncio.run(defrag.mover.catch_up())
    assert (defrag.mover.busy, defrag.mover.state().kept, defrag.free("b")) == (False, [], 1)


def test_an_end_that_a_leader_did_not_write_down_is_not_written_after_the_next_take_over() -> None:
    defrag = ended_unwritten()
    asyncio.run(defrag.mover.catch_up())
    assert (defrag.phase, defrag.mover.busy) == ("placing", True)
    defrag.tick()
    assert defrag.api.record.phase == "done"  # big has its node


UNSOUND = {
    "a pod without a namespace": ('"pod":"ns/v"', '"pod":"v"'),
    "a pod with a path": ('"pod":"ns/v"', '"pod":"ns/v/w"'),
    "a name that is none": ('"pod":"ns/v"', '"pod":"ns/V"'),
    "a node that is none": ('"to":"b"', '"to":"../b"'),
    "progress of another pod": ('"uid":"v","stage"', '"uid":"w","stage"'),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_record_that_kerf_can_not_have_written_is_none(case: str) -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    data = defrag.api.map["data"]
    changed = data["plan.json"].replace(*UNSOUND[case])
    assert changed != data["plan.json"]
    data["plan.json"] = changed
    after = defrag.restarted()
    assert (after.mover.busy, after.phase) == (False, "none")


def test_a_replacement_of_which_a_record_alone_tells_is_gone() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    defrag.leaves("v")
    record = defrag.api.record
    record.progress[0].stage, record.progress[0].replacement = type(record.progress[0].stage).STARTING, "nobody"
    defrag.api.map["data"]["plan.json"] = msgspec.json.encode(record).decode()
    after = defrag.restarted()
    after.tick()
    after.tick(3.0)
    assert told(after) == [("coming", "its replacement disappeared")]


def test_the_target_is_placed_though_that_it_is_its_turn_could_not_be_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, MOVER)
    defrag = scattered()
    name = defrag.begin(MOVE_V)
    defrag.tick()
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    defrag.bind("v2")
    error = defrag.api.refuse_record = ApiError(503, "ServiceUnavailable", "etcd")
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.mover.state().kept) == ("placing", str(error), ["a"])
    assert f"making room, plan {name} is stopping: {error}" in caplog.messages
    defrag.api.refuse_record = None
    defrag.tick()
    assert defrag.node_of("big") == "a"


# The end, written down again until it is


@pytest.mark.parametrize("status", [403, 404, 422, 409])
def test_an_end_that_can_not_be_written_down_is_not_tried_for_ever(status: int) -> None:
    defrag = ended_unwritten()
    writes = 0
    patch = defrag.api.patch

    async def refuse(path: str, body: bytes) -> bytes:
        nonlocal writes
        if "/configmaps/" in path:
            writes += 1
            raise ApiError(status, "", "refused")
        return await patch(path, body)

    defrag.api.patch = refuse  # type: ignore[method-assign]
    for _ in range(3):
        defrag.tick()
    assert writes == (1 if status != 409 else 3)
    defrag.api.patch = patch  # type: ignore[method-assign]
    defrag.tick()
    assert defrag.api.record.phase == ("placing" if status != 409 else "done")
