"""A plan is carried out step by step, in both modes, and no other pod gets the places that it keeps."""

from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError
from extender.scheduling.placer import PodIdentity
from tests.parts.defrag.rigs import BOTH, MOVE_V, evicted, move, moved, plan, scattered, two_moves


@BOTH
def test_nobody_else_is_placed_where_places_are_kept(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.begin(MOVE_V)
    defrag.waits("first", controller="", labels={"genius/priority": "100"})
    for stage in ("before", "evicted", "gone", "moved"):
        defrag.tick()
        assert defrag.node_of("first") == "", stage
        policy = defrag.rig.placer.policies["bestfit"]
        placement = defrag.rig.placer.place(PodIdentity("x", "y", "z"), GpuRequest(1), policy, ["a", "b"])
        assert placement.node is None, stage  # nor outside the queue
        if stage == "evicted":
            assert (defrag.api.evicted, defrag.stages) == (["v"], ["evicting"])
            defrag.replace("v", "v2")
        elif stage == "gone":
            assert (defrag.node_of("v2"), defrag.node_of("big")) == ("b", "")
            defrag.bind("v2")
    defrag.play("tick, big is bound, tick")
    assert (defrag.phase, defrag.why, defrag.kept, defrag.api.record.phase) == ("done", "", [], "done")
    defrag.play("w leaves, tick")
    assert defrag.node_of("first") == "b"


@BOTH
def test_a_pod_without_gpus_is_not_planned_on_a_kept_node(direct: bool) -> None:
    defrag = scattered(direct=direct)
    defrag.node("c", 0)
    defrag.begin(MOVE_V)
    defrag.waits("plain", 0, controller="", spec={"nodeSelector": {"only": "a"}})
    defrag.node("a", 2, only="a")
    defrag.tick()
    assert defrag.node_of("plain") == ""


def test_the_next_step_waits_until_the_replacement_runs_and_its_place_is_kept_meanwhile() -> None:
    defrag = two_moves()
    assert defrag.free("c") == 0
    defrag.play("v2 replaces v, tick")
    defrag.bind("v2", phase="Pending")
    defrag.tick(40.0)
    assert (defrag.api.evicted, defrag.stages) == (["v"], ["starting", "planned"])
    assert defrag.free("c") == 0  # longer than any reservation
    defrag.play("v2 starts, tick")
    assert defrag.api.evicted == ["v", "u"]


def test_a_replacement_that_loses_its_node_is_nominated_for_it_again() -> None:
    defrag = evicted()
    defrag.play("v2 replaces v, tick")
    assert defrag.node_of("v2") == "b"
    defrag.rig.refuse("v2")
    assert defrag.free("b") == 0
    defrag.play("tick 31, tick")
    assert (defrag.node_of("v2"), defrag.stages) == ("b", ["starting"])


def test_a_replacement_that_can_t_be_patched_keeps_its_place() -> None:
    defrag = evicted()
    defrag.replace("v", "v2")
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "v2" else None
    defrag.tick()
    assert (defrag.node_of("v2"), defrag.free("b")) == ("", 0)
    defrag.api.fail = lambda name, part: None
    defrag.tick()
    assert defrag.node_of("v2") == "b"


def test_a_node_to_be_emptied_is_kept_until_the_last_move() -> None:
    defrag = scattered()
    defrag.leaves("big")
    empty = plan(move("v", "a", "b"), target="")
    empty.emptied = ["a"]
    defrag.begin(empty)
    defrag.tick()
    assert defrag.kept == ["a", "b"]
    moved(defrag)
    defrag.tick()
    assert (defrag.phase, defrag.free("a")) == ("done", 2)


def test_after_a_stop_the_move_under_way_keeps_its_place() -> None:
    defrag = evicted()
    assert defrag.mover.give_up("asked to")
    assert defrag.kept == ["b"]
    moved(defrag)
    assert (defrag.phase, defrag.why, defrag.stages) == ("stopped", "asked to", ["done"])
    assert defrag.node_of("big") == "a"  # by the queue


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


def test_places_are_kept_from_the_start_if_only_the_plan_frees_them() -> None:
    """Pod u makes way for v, and v for the target."""
    defrag = scattered()
    defrag.leaves("w")
    defrag.runs("u", "b", 2, controller="rs2")
    for name, gpus in (("c", 2), ("d", 0)):
        defrag.node(name, gpus)
    defrag.node("a", 2, only="a")
    defrag.waits("big", 2, controller="", spec={"nodeSelector": {"only": "a"}})
    given = plan(move("u", "b", "c", 0, "rs2"), move("v", "a", "b", 1))
    given.emptied = ["d"]
    defrag.begin(given)
    assert (defrag.kept, defrag.free("c")) == (["a", "b", "d"], 0)
    defrag.tick()
    assert defrag.kept == ["a", "b", "c", "d"]
    defrag.leaves("u")
    defrag.waits("u2", 2, controller="rs2")
    defrag.play("tick, u2 is bound, tick")
    assert (defrag.moves, defrag.kept) == ([("done", ""), ("evicting", "")], ["a", "b", "d"])
    moved(defrag)
    assert (defrag.phase, defrag.kept) == ("placing", ["a"])


def test_a_round_places_neither_replacements_nor_the_target_of_a_plan_that_places_it() -> None:
    defrag = two_moves()
    defrag.replace("v", "v2")
    entries = defrag.rig.queue.backlog.entries
    assert [entry.uid for entry in defrag.mover.others(list(entries.values()))] == ["big"]
    defrag = evicted()
    moved(defrag)
    defrag.waits("another", controller="")
    entries = defrag.rig.queue.backlog.entries
    assert [entry.uid for entry in defrag.mover.others(list(entries.values()))] == ["another"]


def test_without_a_plan_no_place_is_kept_and_a_round_may_place_all_pods() -> None:
    defrag = scattered()
    entries = list(defrag.rig.queue.backlog.entries.values())
    assert defrag.mover.place_kept(entries[0].pod) == ""
    assert defrag.mover.others(entries) == entries
    assert not defrag.mover.give_up("nothing")
    assert not defrag.mover.busy
