"""A plan is carried out step by step, in both modes; nobody gets in between."""

import pytest

from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError
from extender.scheduling.placer import PodIdentity
from tests.parts.defrag.rigs import MOVE_V, Defrag, move, plan, scattered
from tests.queueing.rigs import GATES

BOTH = pytest.mark.parametrize("direct", [False, True], ids=["extender", "direct"])


def replace(defrag: Defrag, name: str, by: str) -> None:
    """The evicted pod ends, and its controller makes another one."""
    defrag.leaves(name)
    defrag.waits(by)


@BOTH
def test_a_pod_moves_and_the_target_gets_the_node_that_it_left(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.begin(MOVE_V)
    assert (defrag.free("a"), defrag.free("b")) == (0, 0)  # closed, and reserved for what replaces v
    defrag.tick()
    assert (defrag.api.evicted, defrag.stages) == (["v"], ["evicting"])
    replace(defrag, "v", "v2")
    defrag.tick()
    assert (defrag.node_of("v2"), defrag.node_of("big")) == ("b", "")
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert (defrag.stages, defrag.node_of("big")) == (["done"], "a")
    defrag.bind("big")
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.mover.state().kept) == ("done", "", [])
    assert defrag.api.record.phase == "done"
    assert [(name, reason) for name, reason, _ in defrag.events if name in ("big", "v")] == [
        ("big", "MakingRoom"),
        ("v", "MovedToMakeRoom"),
        ("big", "RoomMade"),
    ]
    counts = defrag.mover.counts
    assert (counts.evicted, counts.moved, counts.done, counts.stopped) == (1, 1, 1, 0)


@BOTH
def test_nobody_else_is_placed_where_places_are_kept(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.begin(MOVE_V)
    defrag.waits("first", controller="", labels={"genius/priority": "100"})
    for stage in ("before", "evicted", "gone", "moved"):
        defrag.tick()
        assert defrag.node_of("first") == "", stage
        placement = defrag.rig.placer.place(PodIdentity("x", "y", "z"), GpuRequest(1), _policy(defrag), ["a", "b"])
        assert placement.node is None, stage  # nor past the queue
        if stage == "evicted":
            replace(defrag, "v", "v2")
        elif stage == "gone":
            defrag.bind("v2")
    defrag.tick()
    defrag.bind("big")
    defrag.tick()
    defrag.leaves("w")
    defrag.tick()
    assert defrag.node_of("first") == "b"


def _policy(defrag: Defrag) -> Policy:
    return defrag.rig.placer.policies["bestfit"]


@BOTH
def test_a_pod_without_gpus_is_not_planned_on_a_node_that_is_kept(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.node("c", 0)
    defrag.begin(MOVE_V)
    defrag.waits("plain", 0, controller="", spec={"nodeSelector": {"only": "a"}})
    defrag.node("a", 2, only="a")
    defrag.tick()
    assert defrag.node_of("plain") == ""


def test_the_next_move_waits_until_the_one_before_is_ready() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    assert defrag.free("c") == 0  # its place is kept from the start
    defrag.tick()
    replace(defrag, "v", "v2")
    defrag.tick()
    defrag.bind("v2", phase="Pending")
    defrag.tick(40.0)
    assert (defrag.api.evicted, defrag.stages) == (["v"], ["starting", "planned"])
    assert defrag.free("c") == 0  # longer than any reservation
    defrag.starts("v2")
    defrag.tick()
    assert defrag.api.evicted == ["v", "u"]


def test_a_gang_moves_together_and_is_let_go_together() -> None:
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    for name, node in (("g1", "a"), ("g2", "b")):
        defrag.runs(name, node, controller="job", annotations=dict(gang))
    defrag.runs("u", "c", controller="x")
    defrag.waits("big", 2, controller="")
    moves = move("g1", "a", "c", 0, "job", "ns/g"), move("g2", "b", "b", 0, "job", "ns/g")
    defrag.begin(plan(*moves))
    defrag.tick()
    assert defrag.api.evicted == ["g1", "g2"]
    defrag.leaves("g1")
    defrag.waits("g3", controller="job", annotations=dict(gang))
    defrag.tick()
    assert defrag.node_of("g3") == ""
    defrag.leaves("g2")
    defrag.waits("g4", controller="job", annotations=dict(gang))
    defrag.tick()
    assert sorted(map(defrag.node_of, ("g3", "g4"))) == ["b", "c"]
    defrag.bind("g3")
    defrag.bind("g4")
    defrag.tick()
    defrag.tick()
    assert defrag.node_of("big") == "a"


def test_moves_that_are_not_needed_any_more_are_not_made() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.leaves("v")
    defrag.runs("v", "b")  # whoever it was: as far as the plan goes it is not on its node any more
    defrag.leaves("w")
    defrag.tick()
    assert defrag.api.evicted == []
    assert defrag.why.startswith("pod ns/v is not on node a")


def test_of_a_target_that_has_room_by_now_nobody_is_moved() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("u", "a", controller="rs2")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    replace(defrag, "v", "v2")
    defrag.leaves("u")  # by itself
    defrag.tick()
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert defrag.api.evicted == ["v"]
    assert defrag.why.startswith("pod ns/u no longer runs")


def test_siblings_that_waited_before_are_no_replacement() -> None:
    defrag = scattered()
    defrag.waits("older", 2)
    defrag.begin(MOVE_V)
    defrag.tick()
    defrag.leaves("v")
    defrag.tick()
    assert defrag.stages == ["coming"]
    assert defrag.node_of("older") == ""
    defrag.waits("v2")
    defrag.tick()
    assert (defrag.node_of("v2"), defrag.node_of("older")) == ("b", "")


def test_a_replacement_that_loses_its_node_is_nominated_for_it_again() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    replace(defrag, "v", "v2")
    defrag.tick()
    assert defrag.node_of("v2") == "b"
    defrag.rig.refuse("v2")
    assert defrag.free("b") == 0
    defrag.tick(31.0)
    defrag.tick()
    assert (defrag.node_of("v2"), defrag.stages) == ("b", ["starting"])


def test_a_write_that_fails_costs_the_replacement_nothing() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    replace(defrag, "v", "v2")
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "v2" else None
    defrag.tick()
    assert (defrag.node_of("v2"), defrag.free("b")) == ("", 0)
    defrag.api.fail = lambda name, part: None
    defrag.tick()
    assert defrag.node_of("v2") == "b"


def test_one_plan_at_a_time() -> None:
    defrag = scattered()
    first = defrag.begin(MOVE_V)
    with pytest.raises(ValueError, match=f"another plan is being carried out: {first}"):
        defrag.begin(MOVE_V)


def test_room_without_a_target_is_kept_until_the_last_move() -> None:
    defrag = scattered()
    defrag.leaves("big")
    empty = plan(move("v", "a", "b"), target="")
    empty.emptied = ["a"]
    defrag.begin(empty)
    defrag.tick()
    assert defrag.mover.state().kept == ["a", "b"]
    replace(defrag, "v", "v2")
    defrag.tick()
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert (defrag.phase, defrag.free("a")) == ("done", 2)


def test_the_state_tells_what_is_planned_and_done() -> None:
    defrag = scattered()
    assert defrag.mover.state().phase == "none"
    plan_id = defrag.begin(MOVE_V)
    defrag.tick()
    state = defrag.mover.state()
    assert (state.id, state.target, state.phase, state.step, state.num_steps) == (plan_id, "ns/big", "moving", 0, 1)
    assert (state.kept, state.evicted, bool(state.fault)) == (["a", "b"], 1, True)


def test_a_stop_leaves_what_is_under_way_its_place() -> None:
    defrag = scattered()
    defrag.begin(MOVE_V)
    defrag.tick()
    assert defrag.mover.give_up("asked to")
    assert defrag.mover.state().kept == ["b"]
    replace(defrag, "v", "v2")
    defrag.tick()
    defrag.bind("v2")
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.stages) == ("stopped", "asked to", ["done"])
    assert defrag.node_of("big") == "a"  # by the queue: v has left that node whole


def test_no_step_begins_before_the_plan_is_written_down() -> None:
    defrag = scattered()
    patch = defrag.api.patch

    async def slow(path: str, body: bytes) -> bytes:
        if "/configmaps/" in path and not defrag.api.map["data"]:
            await defrag.mover.tick()
            assert defrag.api.evicted == []
        return await patch(path, body)

    defrag.api.patch = slow  # type: ignore[method-assign]
    defrag.begin(MOVE_V)
    assert (defrag.why, defrag.api.record.step) == ("", -1)


def test_a_move_that_is_not_needed_any_more_is_not_made_and_its_place_is_free() -> None:
    defrag = Defrag()
    for name, gpus in (("a", 4), ("b", 1), ("c", 1)):
        defrag.node(name, gpus)
    for name, controller in (("v", "rs"), ("u", "rs2"), ("x", "rs3")):
        defrag.runs(name, "a", controller=controller)
    defrag.waits("big", 3, controller="")
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", 1, "rs2")))
    defrag.tick()
    replace(defrag, "v", "v2")
    defrag.leaves("x")
    defrag.tick()
    defrag.bind("v2")
    defrag.tick()
    defrag.tick()
    assert (defrag.api.evicted, defrag.node_of("big"), defrag.free("c")) == (["v"], "a", 1)


def test_the_cpu_of_a_pod_that_leaves_counts_for_the_target() -> None:
    defrag = Defrag()
    defrag.node("a", 2)
    defrag.node("b", 2)
    half = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 40}}}]}
    defrag.runs("v", "a", spec=dict(half))
    defrag.waits("big", controller="", spec={**half, "schedulingGates": GATES})
    assert defrag.begin(MOVE_V)
