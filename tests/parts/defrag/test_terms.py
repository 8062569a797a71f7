"""One plan at a time, by the leader: what prevents plans, how terms end, and how the end of a plan is recorded."""

import asyncio
import logging

import pytest

from extender.kube.client import ApiError, ClusterError
from extender.ledger.allocations import AllocationState
from extender.parts.defrag.checks import RoomError
from tests.ledger.builders import until
from tests.parts.defrag.rigs import MOVE_V, Defrag, evicted, moved, scattered, two_moves

MOVER = "extender.parts.defrag.mover"


def refusal(defrag: Defrag) -> str:
    """Why no plan can begin."""
    with pytest.raises(RoomError) as error:
        defrag.begin(MOVE_V)
    return str(error.value)


def lead(defrag: Defrag, term: str) -> None:
    defrag.rig.fence.take_over("", lambda: float("inf"), str)
    defrag.rig.fence.open(term)


def test_the_mover_runs_in_the_background_and_goes_on_after_an_exception(
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
        assert defrag.mover.tasks.fault() == "", "other work does not need it"

    asyncio.run(run())
    assert "making room failed" in caplog.messages
    assert defrag.stages == ["evicting"]


def test_without_a_view_of_the_cluster_no_plan_begins_and_nobody_is_evicted() -> None:
    defrag = scattered()
    why = "pods with a node are not synced yet"
    defrag.fault = lambda: why
    assert refusal(defrag) == defrag.mover.state().fault == why
    defrag.fault = lambda: ""
    name = defrag.begin(MOVE_V)
    defrag.fault = lambda: why
    defrag.tick()
    assert (defrag.api.evicted, defrag.mover.state().fault) == ([], f"another plan is being carried out: {name}")
    defrag.fault = lambda: ""
    defrag.tick()
    assert defrag.api.evicted == ["v"]


def test_during_a_takeover_no_plan_begins_and_nobody_is_evicted() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.rig.fence.take_over("taking over", lambda: float("inf"), str)
    defrag.tick()
    assert (defrag.api.evicted, defrag.why) == ([], "")
    assert refusal(defrag) == defrag.mover.state().fault == "taking over"


def test_of_two_plans_begun_at_once_one_is_carried_out() -> None:
    defrag = scattered()

    async def both() -> list[str | BaseException]:
        return await asyncio.gather(*(defrag.mover.begin(MOVE_V) for _ in range(2)), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first == defrag.mover.state().id
    assert str(second) == "another plan is being carried out"


def test_a_standby_shows_and_does_nothing() -> None:
    defrag = two_moves()
    assert (defrag.mover.busy, defrag.phase, defrag.kept) == (True, "moving", ["a", "b"])
    defrag.rig.fence.shut(lambda: "another leads")
    assert (defrag.mover.busy, defrag.phase, defrag.kept) == (False, "none", [])
    assert defrag.mover.state().fault == "standby: another leads"
    assert defrag.rig.ledger.num_allocations(AllocationState.RESERVED)
    defrag.tick()
    assert defrag.rig.ledger.rows.closed == frozenset()
    assert not defrag.rig.ledger.num_allocations(AllocationState.RESERVED)
    defrag = scattered()
    defrag.rig.fence.shut(lambda: "another leads")
    defrag.tick()
    assert "another leads" in refusal(defrag)


def test_a_plan_stops_with_its_term_also_if_nobody_led_in_between() -> None:
    for term in ("term", "next term"):
        defrag = two_moves()
        if term == "term":
            defrag.rig.fence.shut(lambda: "another leads")
            defrag.tick()
        lead(defrag, term)
        moved(defrag)
        defrag.tick()
        why = "the leader's term in which it began has ended"
        assert (defrag.phase, defrag.why, defrag.api.evicted) == ("stopped", why, ["v"])
        assert defrag.moves == [("done", ""), ("planned", "")]


def test_nobody_is_evicted_unless_leadership_is_confirmed() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.rig.election.sure = False
    defrag.tick()
    assert (defrag.api.evicted, defrag.stages) == ([], ["left"])
    assert "can't be sure that it still leads" in defrag.why


# Recording the begin


def test_a_plan_does_not_begin_if_the_record_can_t_be_read() -> None:
    defrag = scattered()
    error = defrag.api.refuse_record = ApiError(403, "Forbidden", "configmaps")
    assert refusal(defrag) == f"the plan can't be recorded: {error}"
    assert (defrag.phase, defrag.kept, defrag.free("b")) == ("none", [], 1)
    defrag.api.refuse_record = None
    defrag.begin(MOVE_V)


def test_a_plan_that_may_have_been_recorded_but_did_not_begin_is_ended_in_the_record() -> None:
    defrag = scattered()
    patch = defrag.api.patch

    async def loses(path: str, body: bytes) -> bytes:
        await patch(path, body)
        defrag.api.refuse_record = ClusterError("cut")
        raise ClusterError("lost")

    defrag.api.patch = loses  # type: ignore[method-assign]
    assert refusal(defrag) == "the plan can't be recorded: lost"
    defrag.api.patch, defrag.api.refuse_record = patch, None  # type: ignore[method-assign]
    state = defrag.mover.state()
    assert (state.phase, state.why, state.kept) == ("stopped", "the plan can't be recorded: lost", [])
    assert (state.ended, defrag.events, defrag.free("b")) == (defrag.rig.now, [], 1)
    assert defrag.api.record.phase == "moving"
    defrag.play("tick, tick")
    assert (defrag.api.record.id, defrag.api.record.phase, defrag.api.evicted) == (state.id, "stopped", [])
    defrag.begin(MOVE_V)


def test_a_plan_overtaken_by_another_leader_while_it_is_recorded_is_not_ended_in_the_record() -> None:
    defrag = scattered()
    get = defrag.api.get

    async def shuts(path: str, query: object = None) -> bytes:
        if "/configmaps/" in path:
            defrag.rig.fence.open("next term")
        return await get(path, query)

    defrag.api.get = shuts  # type: ignore[method-assign]
    assert refusal(defrag) == "the plan can't be recorded: the leader's term in which it was decided has ended"
    defrag.api.get = get  # type: ignore[method-assign]
    defrag.play("tick, tick")
    assert (defrag.api.map["data"], defrag.kept, defrag.free("b")) == ({}, [], 1)


# Recording the end


def ended_unrecorded(*, sure: bool = True) -> Defrag:
    """A plan is done, which could not be recorded; `sure`: this process knows that it leads."""
    defrag = evicted()
    moved(defrag)
    defrag.play("tick, big is bound")
    defrag.api.refuse_record = ApiError(500, "", "etcd")
    defrag.rig.election.sure = sure
    defrag.tick()
    defrag.rig.election.sure = True
    defrag.api.refuse_record = None
    assert (defrag.phase, defrag.api.record.phase) == ("done", "placing")
    return defrag


@pytest.mark.parametrize("sure", [True, False])
def test_the_end_of_a_plan_is_written_down_once_it_can_be(sure: bool) -> None:
    """Also after a lapse of the lease in which nobody else led."""
    defrag = ended_unrecorded(sure=sure)
    defrag.tick()
    assert defrag.api.record.phase == "done"


@pytest.mark.parametrize("sure", [True, False])
def test_the_end_of_a_plan_does_not_overwrite_another_leaders_record(sure: bool) -> None:
    defrag = ended_unrecorded(sure=sure)
    metadata, data = defrag.api.map["metadata"], defrag.api.map["data"]
    metadata["resourceVersion"] = "99"
    data["plan.json"] = data["plan.json"].replace(defrag.mover.state().id, "another")
    defrag.play("tick, tick")
    assert (defrag.api.record.id, defrag.api.record.phase) == ("another", "placing")


def test_the_next_plan_replaces_an_end_that_could_not_be_recorded() -> None:
    defrag = ended_unrecorded()
    defrag.leaves("big")
    defrag.runs("v", "a")
    defrag.leaves("v2")
    defrag.waits("big", 2, controller="")
    name = defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.record.id, defrag.api.record.phase, defrag.api.record.step) == (name, "moving", 0)


def test_a_takeover_drops_an_end_that_could_not_be_recorded() -> None:
    defrag = ended_unrecorded()
    asyncio.run(defrag.mover.catch_up())
    assert (defrag.phase, defrag.mover.busy) == ("placing", True)
    defrag.tick()
    assert defrag.api.record.phase == "done"  # big has its node


def test_the_end_is_not_retried_if_the_record_is_unusable() -> None:
    for status in (403, 404, 422, 409):
        defrag = ended_unrecorded()
        patch, writes = defrag.api.patch, list[str]()

        async def refuse(path: str, body: bytes, status: int = status, writes: list[str] = writes) -> bytes:
            writes.append(path)
            raise ApiError(status, "", "refused")

        defrag.api.patch = refuse  # type: ignore[method-assign]
        for _ in range(3):
            defrag.tick()
        assert len(writes) == (1 if status != 409 else 3)
        defrag.api.patch = patch  # type: ignore[method-assign]
        defrag.tick()
        assert defrag.api.record.phase == ("placing" if status != 409 else "done")


def test_the_target_is_placed_although_that_phase_could_not_be_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, MOVER)
    defrag = evicted()
    name = defrag.mover.state().id
    defrag.play("v2 replaces v, tick, v2 is bound")
    error = defrag.api.refuse_record = ApiError(503, "ServiceUnavailable", "etcd")
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.kept) == ("placing", str(error), ["a"])
    assert f"making room, plan {name} is stopping: {error}" in caplog.messages
    defrag.api.refuse_record = None
    defrag.tick()
    assert defrag.node_of("big") == "a"
