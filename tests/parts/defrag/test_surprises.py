"""Whatever happens otherwise than planned: nobody else is evicted, and what is under way keeps its place."""

from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.ledger.claims import ClaimState
from extender.parts.defrag.checks import RoomError, crowded
from extender.parts.defrag.plan import RoomPlan
from extender.planning.quotas import Quotas
from tests.parts.defrag.rigs import LIMITS, MOVE_V, Defrag, move, plan, scattered

BUDGET = ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


def two_moves() -> Defrag:
    """A plan of two moves, the first of which is under way: v has been evicted."""
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    assert defrag.api.evicted == ["v"]
    return defrag


def moved(defrag: Defrag, node: str = "", phase: str = "Running") -> None:
    """v's replacement comes, and has a node."""
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    assert defrag.node_of("v2") == "b"
    defrag.bind("v2", node, phase=phase)
    defrag.tick()


def stopped(defrag: Defrag, why: str) -> None:
    """Nothing is kept any more, and the next pod was never evicted."""
    defrag.tick()
    assert (defrag.phase, defrag.mover.state().kept) == ("stopped", [])
    assert why in defrag.why
    assert ("kerf-defrag", "RoomStopped", f"Plan {defrag.mover.state().id}: {defrag.why}") in defrag.events
    assert defrag.api.record.phase == "stopped"
    assert defrag.mover.counts.stopped == 1
    assert "u" not in defrag.api.evicted
    assert not [claim for claim in defrag.rig.ledger.firm() if claim.uid.startswith("defrag/")]


def test_a_budget_that_refuses_is_asked_again_for_a_while() -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: BUDGET
    defrag.begin(MOVE_V)
    defrag.tick()
    assert sum(defrag.pauses) >= LIMITS.budget_s
    stopped(defrag, "disruption budget")
    assert (defrag.api.evicted, defrag.stages) == ([], ["left"])


def ended_unwritten(*, sure: bool = True) -> Defrag:
    """A plan is done, and that could not be written down; `sure`: this process knows that it leads."""
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    defrag.tick()
    defrag.bind("big")
    defrag.api.refuse_record = ApiError(500, "", "etcd")
    defrag.rig.election.sure = sure
    defrag.tick()
    defrag.rig.election.sure = True
    defrag.api.refuse_record = None
    assert (defrag.phase, defrag.api.record.phase) == ("done", "placing")
    return defrag


def test_the_end_of_a_plan_is_written_down_once_it_can_be() -> None:
    defrag = ended_unwritten()
    defrag.tick()
    assert defrag.api.record.phase == "done"


def test_the_end_of_a_plan_is_written_down_once_a_lease_that_lapsed_is_renewed() -> None:
    """Nobody led in between, so that nothing is taken over."""
    defrag = ended_unwritten(sure=False)
    defrag.tick()
    assert defrag.api.record.phase == "done"


@pytest.mark.parametrize("sure", [True, False])
def test_the_end_of_a_plan_is_not_written_over_what_another_leader_has_written(sure: bool) -> None:
    defrag = ended_unwritten(sure=sure)
    metadata, data = defrag.api.map["metadata"], defrag.api.map["data"]
    metadata["resourceVersion"] = "99"
    data["plan.json"] = data["plan.json"].replace(defrag.mover.state().id, "another")
    defrag.tick()
    defrag.tick()
    assert (defrag.api.record.id, defrag.api.record.phase) == ("another", "placing")


def test_a_budget_that_gives_way_stops_nothing() -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: BUDGET if len(defrag.pauses) < 2 else None
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.api.evicted, defrag.why) == (["v"], "")


def test_of_a_gang_in_part_evicted_each_is_let_go_for_itself() -> None:
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    for name, node in (("g1", "a"), ("g2", "b")):
        defrag.runs(name, node, controller="job", annotations=dict(gang))
    defrag.runs("u", "c", controller="x")
    defrag.waits("big", 2, controller="")
    defrag.begin(plan(move("g1", "a", "c", 0, "job", "ns/g"), move("g2", "b", "b", 0, "job", "ns/g")))
    defrag.api.refuse = lambda name: BUDGET if name == "g2" else None
    defrag.tick()
    assert defrag.stages == ["evicting", "left"]
    defrag.leaves("g1")
    defrag.waits("g3", controller="job", annotations=dict(gang))
    defrag.tick()
    assert defrag.node_of("g3") == "c"
    defrag.bind("g3")
    defrag.tick()
    stopped(defrag, "disruption budget")


@pytest.mark.parametrize("error", [ApiError(404, "NotFound", "v"), ApiError(403, "Forbidden", "no right")])
def test_an_eviction_that_is_refused_stops(error: ApiError) -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: error
    defrag.begin(MOVE_V)
    defrag.tick()
    stopped(defrag, "can't be evicted")


def test_a_pod_that_changes_meanwhile_is_looked_at_again() -> None:
    defrag = scattered()
    conflicts = [ApiError(409, "Conflict", "it has changed")] * 2
    defrag.api.refuse = lambda name: conflicts.pop() if conflicts else None
    defrag.begin(MOVE_V)
    defrag.tick()
    assert defrag.api.evicted == ["v"]


def test_another_pod_of_that_name_is_left_alone() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.api.pods["v"]["metadata"]["uid"] = "another"
    defrag.tick()
    assert defrag.api.evicted == []
    stopped(defrag, "pod ns/v is gone")


@pytest.mark.parametrize("error", [UnreachableError("cut"), ApiError(500, "", "broken")])
def test_an_eviction_without_an_answer_that_did_nothing_will_do_nothing(error: ClusterError) -> None:
    defrag = scattered()
    defrag.api.refuse = lambda name: error
    version = defrag.api.pods["v"]["metadata"]["resourceVersion"]
    defrag.begin(MOVE_V)
    defrag.tick()
    stopped(defrag, "was not evicted")
    assert defrag.api.pods["v"]["metadata"]["resourceVersion"] != version  # what was sent is late


def test_an_eviction_whose_answer_is_lost_goes_on() -> None:
    defrag = scattered()
    defrag.api.lost = True
    defrag.begin(MOVE_V)
    defrag.tick()
    assert (defrag.stages, defrag.why) == (["evicting"], "")


def test_a_pod_that_does_not_end_keeps_its_place_for_a_while() -> None:
    defrag = two_moves()
    defrag.tick(LIMITS.replace_s - 1)
    assert (defrag.stages[0], defrag.free("b")) == ("evicting", 0)
    defrag.tick(2.0)
    stopped(defrag, "is still on node a after 100 s")


def test_a_replacement_that_does_not_come_has_its_place_for_a_while() -> None:
    defrag = two_moves()
    defrag.leaves("v")
    defrag.tick()
    defrag.tick(LIMITS.replace_s - 1)
    assert (defrag.stages[0], defrag.free("b")) == ("coming", 0)
    defrag.tick(2.0)
    stopped(defrag, "has no replacement in the queue")


def test_a_replacement_that_goes_elsewhere() -> None:
    defrag = two_moves()
    defrag.node("d", 1)
    moved(defrag, "d")
    stopped(defrag, "has its replacement on node d instead of b")


def test_a_replacement_that_does_not_get_ready() -> None:
    defrag = two_moves()
    moved(defrag, phase="Pending")
    assert defrag.why == ""
    defrag.tick(LIMITS.start_s + 1)
    stopped(defrag, "is not ready after 200 s")


def test_a_replacement_that_is_not_bound() -> None:
    defrag = two_moves()
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    defrag.tick(LIMITS.start_s + 1)
    stopped(defrag, "without a node after 200 s")


def test_a_replacement_that_is_deleted_is_followed_by_another_one() -> None:
    defrag = two_moves()
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    assert defrag.node_of("v2") == "b"
    defrag.leaves("v2")
    for _ in range(4):
        defrag.tick(1.0)
    assert "is gone" in defrag.why
    defrag.waits("v3")
    defrag.tick()
    assert defrag.node_of("v3") == "b"
    defrag.bind("v3")
    defrag.tick()
    stopped(defrag, "the replacement of pod ns/v is gone")


def test_a_replacement_that_asks_for_more_than_there_is_room_for_waits_its_turn() -> None:
    defrag = two_moves()
    defrag.leaves("v")
    defrag.waits("v2", 2)
    defrag.tick()
    assert "has no room on node b" in defrag.why
    defrag.leaves("big")
    defrag.node("roomy", 2)
    defrag.tick()
    assert defrag.node_of("v2") == "roomy"
    defrag.bind("v2")
    defrag.tick()
    stopped(defrag, "has no room on node b")


def test_a_plan_gone_stale_between_two_moves() -> None:
    defrag = two_moves()
    defrag.runs("stranger", "a", controller="x")  # where kube-scheduler asks nobody
    moved(defrag)
    stopped(defrag, "pod ns/big has no room on node a")


def test_a_node_that_is_gone() -> None:
    defrag = two_moves()
    defrag.rig.remove_node("c")
    moved(defrag)
    stopped(defrag, "node c is gone")


def test_a_target_that_is_gone() -> None:
    defrag = two_moves()
    defrag.leaves("big")
    moved(defrag)
    stopped(defrag, "pod ns/big does not wait in the queue")


def test_a_target_that_has_a_node_meanwhile() -> None:
    defrag = two_moves()
    defrag.node("new", 2)
    defrag.tick()
    assert defrag.node_of("big") == "new"
    moved(defrag)
    stopped(defrag, "pod ns/big is on its way to a node already")


def test_a_target_that_is_not_bound_in_time_gives_its_nodes_back() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    moved(defrag)
    defrag.tick()
    assert (defrag.node_of("big"), defrag.free("a")) == ("a", 0)
    defrag.tick(LIMITS.target_s + 1)
    defrag.tick()
    assert (defrag.phase, defrag.mover.state().kept) == ("stopped", [])
    assert "pod ns/big has no node after 50 s" in defrag.why


def test_a_step_that_can_not_be_written_down_is_not_begun() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.api.refuse_record = ApiError(409, "Conflict", "it has changed")
    defrag.tick()
    defrag.api.refuse_record = None
    defrag.tick()
    assert (defrag.api.evicted, defrag.phase) == ([], "stopped")
    assert "the step could not be recorded" in defrag.why


def test_a_plan_that_can_not_be_written_down_is_refused_and_keeps_nothing() -> None:
    defrag = scattered()
    defrag.api.refuse_record = ApiError(403, "Forbidden", "configmaps")
    with pytest.raises(RoomError, match="can't be recorded"):
        defrag.begin(MOVE_V)
    assert (defrag.mover.state().phase, defrag.mover.state().kept, defrag.free("b")) == ("none", [], 1)


def test_a_plan_that_was_written_down_and_never_begun_is_ended_there() -> None:
    """The answer to the first write is lost, and the line cut: whoever leads next would keep places for it."""
    defrag = scattered()
    patch = defrag.api.patch

    async def lost(path: str, body: bytes) -> bytes:
        await patch(path, body)
        defrag.api.refuse_record = ClusterError("the line is cut")
        raise ClusterError("the answer is lost")

    defrag.api.patch = lost  # type: ignore[method-assign]
    with pytest.raises(RoomError, match="can't be recorded"):
        defrag.begin(MOVE_V)
    defrag.api.patch, defrag.api.refuse_record = patch, None  # type: ignore[method-assign]
    assert (defrag.api.record.phase, defrag.free("b")) == ("moving", 1)
    defrag.tick()
    defrag.tick()
    assert (defrag.api.record.phase, defrag.api.evicted) == ("stopped", [])
    defrag.begin(MOVE_V)


def test_a_plan_whose_record_says_that_it_was_written_down_is_begun() -> None:
    defrag = scattered()
    patch = defrag.api.patch

    async def lost(path: str, body: bytes) -> bytes:
        await patch(path, body)
        raise ClusterError("the answer is lost")

    defrag.api.patch = lost  # type: ignore[method-assign]
    defrag.begin(MOVE_V)
    assert defrag.api.record.phase == "moving"


def test_the_term_that_ends_before_an_eviction() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.rig.election.sure = False
    defrag.tick()
    assert defrag.api.evicted == []
    assert "can't be sure that it still leads" in defrag.why


def test_a_term_after_another_goes_no_further() -> None:
    defrag = two_moves()
    defrag.rig.fence.shut(lambda: "another leads")
    defrag.tick()
    assert defrag.api.record.progress[0].stage == "evicting"
    defrag.rig.fence.take_over("", lambda: float("inf"), str)
    defrag.rig.fence.open("next term")
    moved(defrag)
    stopped(defrag, "the leader's term in which it began has ended")


REFUSED: dict[str, tuple[RoomPlan, str]] = {
    "no room is made": (msgspec.structs.replace(MOVE_V, fits=False), "makes no room"),
    "no moves": (plan(), "has no moves"),
    "another pod of that name": (
        plan(msgspec.structs.replace(move("v", "a", "b"), uid="old")),
        "ns/v no longer runs, or was recreated",
    ),
    "on another node": (plan(move("v", "b", "a")), "not on node b"),
    "of another controller": (plan(move("v", "a", "b", controller="x")), "not of the controller"),
    "without a controller": (plan(move("alone", "b", "a")), "has no controller"),
    "not movable": (plan(move("stays", "b", "a")), "kerf.dev/movable is 'false'"),
    "not in the queue": (plan(move("past", "b", "a")), "would not wait in the queue"),
    "of higher priority": (plan(move("above", "b", "a")), "has priority 7, the target 0"),
    "exempt": (plan(move("system", "b", "a")), "is exempt"),
    "twice": (plan(move("v", "a", "b"), move("v", "a", "b")), "moves a pod twice"),
    "not in order": (plan(move("v", "a", "b", 1), move("w", "b", "a", 0)), "out of order"),
    "a gang in part": (plan(move("member", "b", "a")), "gang ns/g would be moved in part: pod ns/mate stays"),
    "no room for what moves": (plan(move("v", "a", "c")), "pod ns/v has no room on node c"),
    "the target does not fit": (plan(move("v", "a", "b"), node="c"), "pod ns/big has no room on node c"),
    "the target waits no more": (plan(move("v", "a", "b"), target="gone"), "pod ns/gone does not wait"),
    "a node that is not there": (plan(move("v", "a", "z")), "node z is gone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_moved(case: str) -> None:
    given, why = REFUSED[case]
    defrag = scattered()
    defrag.node("c", 1)
    defrag.exempt = frozenset({"kube-system"})
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    defrag.runs("blocks", "c", controller="x")
    defrag.runs("alone", "b", 0, controller="")
    defrag.runs("stays", "b", 0, annotations={"kerf.dev/movable": "false"})
    defrag.runs("past", "b", 0, labels={"kerf.dev/queue": "disabled"})
    defrag.runs("above", "b", 0, spec={"priority": 7})
    for name in ("member", "mate"):
        defrag.runs(name, "b", 0, annotations=dict(gang))
    defrag.runs("system", "b", 0)
    if case == "exempt":
        defrag.exempt = frozenset({"ns"})
    with pytest.raises(RoomError) as error:
        defrag.begin(given)
    assert why in str(error.value)
    assert (defrag.mover.state().kept, defrag.mover.busy) == ([], False)


def test_refused_where_the_target_has_room_as_it_is() -> None:
    defrag = scattered()
    defrag.node("c", 2)
    with pytest.raises(RoomError, match="has room without any move"):
        defrag.begin(plan(move("v", "a", "b"), node="c"))


def test_refused_beyond_the_quota_of_the_target() -> None:
    defrag = scattered(quotas=Quotas({"ns": 3}))
    with pytest.raises(RoomError, match="over its quota"):
        defrag.begin(MOVE_V)


def test_refused_on_a_standby() -> None:
    defrag = scattered()
    defrag.rig.fence.shut(lambda: "another leads")
    with pytest.raises(RoomError, match="another leads"):
        defrag.begin(MOVE_V)


def test_a_standby_tells_nothing_of_what_it_had_under_way() -> None:
    defrag = two_moves()
    assert (defrag.mover.busy, defrag.phase, defrag.mover.state().kept) == (True, "moving", ["a", "b"])
    defrag.rig.fence.shut(lambda: "another leads")
    assert (defrag.mover.busy, defrag.phase, defrag.mover.state().kept) == (False, "none", [])
    assert defrag.mover.state().fault == "standby: another leads"
    assert defrag.rig.ledger.num_claims(ClaimState.RESERVED)
    defrag.tick()
    assert defrag.rig.ledger.rows.closed == frozenset()
    assert not defrag.rig.ledger.num_claims(ClaimState.RESERVED)


def test_refused_beyond_the_moves_of_an_hour() -> None:
    defrag = scattered(most_an_hour=1)
    defrag.rig.now = 4096.0
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    moved(defrag)
    defrag.tick()
    defrag.bind("big")
    defrag.tick()
    defrag.leaves("big")
    defrag.runs("v", "a")
    defrag.leaves("v2")
    defrag.waits("big", 2, controller="")
    defrag.rig.now = 4096.0 + 3599.0
    with pytest.raises(RoomError) as error:
        defrag.begin(MOVE_V)
    assert str(error.value) == "the plan has 1 moves, and 1 of 1 per hour are used up"
    assert defrag.mover.state().evicted == 1
    defrag.rig.now += 1.0
    assert defrag.mover.state().evicted == 0
    defrag.begin(MOVE_V)
    assert defrag.api.record.evicted == []


def test_a_plan_is_refused_for_a_pod_of_whose_controller_too_many_wait_and_says_whose() -> None:
    defrag = scattered()
    entries = defrag.rig.queue.backlog.entries
    for number in range(64):
        defrag.waits(f"s{number}", 1)
    assert crowded(entries) == frozenset()
    defrag.waits("s64", 1)
    assert crowded(entries) == {("ns", "rs")}
    with pytest.raises(RoomError, match="more than 64 pods wait") as error:
        defrag.begin(MOVE_V)
    assert error.value.of == "v"


def test_a_plan_that_stops_for_a_pod_that_would_move_next_says_which() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", 0, controller="rs2")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    for number in range(65):
        defrag.waits(f"s{number}", 1, controller="rs2")
    defrag.is_replaced("v", "v2")
    defrag.tick()
    defrag.tick()
    assert (defrag.phase, defrag.stages) == ("stopped", ["done", "left"])


GANG = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "1"}


def second_step(**target: Any) -> Defrag:
    """A plan of two steps whose first is about to end; `target` are metadata of whom it is for."""
    defrag = Defrag()
    for name in "ab":
        defrag.node(name, 2)
    defrag.node("c", 1)
    defrag.runs("v", "a")
    defrag.runs("u", "a", controller="rs2")
    defrag.runs("w", "b", controller="other")
    defrag.waits("big", 2, controller="", **target)
    defrag.tick()
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick()
    return defrag


@pytest.mark.parametrize("what", ["its gang grows", "it fits nowhere", "it matters less", "another takes the place"])
def test_what_stops_a_plan_by_the_target_s_doing_is_told_as_that(what: str) -> None:
    defrag = second_step(annotations=dict(GANG))
    if what == "its gang grows":
        defrag.waits("late", 1, controller="", annotations=dict(GANG))
    elif what == "it fits nowhere":
        defrag.waits("big", 2, controller="", annotations=dict(GANG), spec={"nodeSelector": {"is": "nowhere"}})
    elif what == "it matters less":
        defrag.waits("big", 2, controller="", annotations=dict(GANG), labels={"genius/priority": "-1"})
    else:
        defrag.runs("stranger", "c", controller="x")
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert (defrag.api.evicted, defrag.phase, defrag.stages) == (["v"], "stopped", ["done", "planned"])
    assert defrag.mover.state().culprit == ("" if what == "another takes the place" else "target")


def test_a_plan_as_a_whole_takes_no_longer_than_its_slowest_step_and_a_quarter_of_that_for_each_other() -> None:
    defrag, number = Defrag(), 6
    defrag.node("a", 8)
    defrag.node("b", 6)
    for n in range(number):
        defrag.runs(f"v{n}", "a", controller=f"rs{n}")
    defrag.waits("big", 8, controller="")
    defrag.tick()
    defrag.begin(plan(*(move(f"v{n}", "a", "b", n, f"rs{n}") for n in range(number))))
    begun, n = defrag.rig.now, 0
    while defrag.phase == "moving":
        for _ in range(9):  # each goes, comes and starts as late as it may
            defrag.tick(10.0)
        defrag.leaves(f"v{n}")
        for _ in range(9):
            defrag.tick(10.0)
        defrag.waits(f"r{n}", controller=f"rs{n}")
        defrag.tick()
        defrag.bind(f"r{n}", phase="Pending")
        for _ in range(19):
            defrag.tick(10.0)
        defrag.starts(f"r{n}")
        defrag.tick()
        defrag.tick()
        n += 1
    step_s = LIMITS.budget_s + 2 * LIMITS.replace_s + LIMITS.start_s
    assert LIMITS.plan_s(number) == step_s * (1 + 5 / 4)
    assert (n, defrag.rig.now - begun > LIMITS.plan_s(number)) == (3, True)
    assert (defrag.phase, defrag.stages) == ("stopped", ["done"] * 3 + ["planned"] * 3)
    assert defrag.mover.state().culprit == "moved"
