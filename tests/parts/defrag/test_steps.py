"""Following the pods of a step: which pods are replacements, and how long the mover waits for each stage."""

import logging
from collections.abc import Callable

import pytest

from extender.kube.client import ApiError, ClusterError
from extender.kube.watches import PODS
from extender.queueing.pods.objects import decode_pod
from tests.parts.defrag.rigs import (
    BOTH,
    LIMITS,
    MOVE_V,
    Defrag,
    MoverApi,
    evicted,
    gang,
    move,
    plan,
    scattered,
    stopped,
)
from tests.queueing.rigs import GATES


class CountingApi(MoverApi):
    """Counts reads of pod v2."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0
        self.refuse_read: ClusterError | None = None

    async def get(self, path: str, query: object = None) -> bytes:
        self.num_reads += path.endswith("/pods/v2")
        if self.refuse_read is not None and "/pods/" in path:
            raise self.refuse_read
        return await super().get(path, query)


def released() -> tuple[Defrag, CountingApi]:
    """v has gone, and its replacement v2 was released to its place."""
    api = CountingApi()
    defrag = evicted(api=api)
    defrag.play("v2 replaces v, tick 0")
    assert (defrag.node_of("v2"), defrag.moves) == ("b", [("starting", "")])
    return defrag, api


def gone_late() -> Defrag:
    """v has gone as late as it may."""
    defrag = evicted()
    defrag.tick(LIMITS.replace_s)
    defrag.play("v leaves, tick 0")
    return defrag


def roomless() -> Defrag:
    """The replacement v2 needs more than its place has."""
    defrag = evicted()
    defrag.play("v leaves, v2 waits for 3, tick 0")
    assert defrag.why == "pod ns/v2, the replacement of ns/v, has no room on node b"
    return defrag


def unheard() -> Defrag:
    """No watch reports the released replacement."""
    defrag, _ = released()
    defrag.unheard("v2")
    return defrag


def bound() -> Defrag:
    """The replacement is bound, but does not run: its node is open."""
    defrag, _ = released()
    assert defrag.kept == ["a", "b"]
    defrag.bind("v2", phase="Pending")
    defrag.tick(0.0)
    assert defrag.kept == ["a"]
    return defrag


def test_each_stage_has_its_time_and_then_the_move_is_lost() -> None:
    full = "no room for it on node b"
    cases: list[tuple[Callable[[], Defrag], float, tuple[str, str], str]] = [
        (evicted, LIMITS.replace_s, ("evicting", ""), "is still on node a after 100 s"),
        (gone_late, LIMITS.replace_s, ("coming", ""), "has no replacement in the queue after 100 s"),
        (roomless, LIMITS.replace_s, ("coming", full), f"has a replacement that found no room after 100 s: {full}"),
        (lambda: released()[0], LIMITS.start_s, ("starting", ""), "has a replacement without a node after 200 s"),
        (unheard, LIMITS.start_s, ("starting", ""), "has a replacement without a node after 200 s"),
        (bound, LIMITS.start_s, ("starting", ""), "has a replacement that is not ready after 200 s"),
    ]
    for begun, limit_s, stage, why in cases:
        defrag = begun()
        defrag.tick(limit_s)
        assert (defrag.moves, defrag.free("b")) == ([stage], 0)
        defrag.tick(0.5)
        assert defrag.moves == [("lost", why)]
        stopped(defrag, "has no room on node b" if begun is roomless else f"pod ns/v {why}")


def test_a_replacement_that_finds_room_elsewhere_is_lost() -> None:
    defrag = roomless()
    defrag.node("roomy", 3)
    defrag.tick(0.0)
    assert defrag.node_of("v2") == "roomy"
    defrag.tick(0.0)
    assert defrag.moves == [("starting", "no room for it on node b")]
    defrag.play("v2 is bound, tick 0")
    assert defrag.moves == [("lost", "has its replacement on node roomy instead of b")]


def test_a_replacement_has_moved_once_it_is_ready_or_runs_without_that_condition() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    for status, runs in (
        ({"phase": "Running"}, True),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, True),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}, False),
        ({"phase": "Running", "conditions": [scheduled]}, True),
        ({"phase": "Pending", "conditions": [scheduled]}, False),
    ):
        defrag, _ = released()
        defrag.bind("v2")
        defrag.api.pods["v2"]["status"] = status
        defrag.told(decode_pod(defrag.api.pods["v2"]))
        defrag.tick()
        assert defrag.moves == [("done" if runs else "starting", "")]
        assert defrag.mover.counts.moved == runs


# Replacements that no watch reports


def test_a_replacement_that_no_watch_reports_is_read_every_two_seconds_and_holds_its_place() -> None:
    for bound in (False, True):
        defrag, api = released()
        if bound:
            defrag.api.pods["v2"]["spec"]["nodeName"] = "b"
        defrag.unheard("v2")
        api.num_reads = 0
        defrag.tick(0.0)
        for later_s, num_reads in ((2.0, 0), (0.5, 1), (2.0, 1), (0.5, 2)):
            defrag.tick(later_s)
            assert api.num_reads == num_reads
        assert defrag.claimed("v2") == ("" if bound else "b")
        assert defrag.moves == [("starting", "")]


def test_a_replacement_that_succeeded_unseen_has_moved_once_it_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "extender.parts.defrag.steps")
    defrag, api = released()
    defrag.unheard("v2", phase="Succeeded")
    api.refuse_read = ApiError(503, "ServiceUnavailable", "etcd")
    defrag.play("tick 0, tick 3")
    assert (defrag.moves, defrag.why) == ([("starting", "")], "")
    assert f"making room: the replacement of pod ns/v can't be read: {api.refuse_read}" in caplog.messages
    api.refuse_read = None
    defrag.tick(0.0)
    assert (defrag.moves, defrag.why, defrag.mover.counts.moved) == ([("done", "")], "", 1)


@pytest.mark.parametrize("gone", [False, True])
def test_a_replacement_that_failed_or_disappeared_unseen_stops_the_plan_and_another_one_is_awaited(gone: bool) -> None:
    defrag, _ = released()
    defrag.unheard("v2", phase="Failed")
    if gone:
        del defrag.api.pods["v2"]
    defrag.play("tick 0, tick 3")
    assert defrag.moves == [("coming", "its replacement disappeared")]
    assert (defrag.why, defrag.kept) == ("the replacement of pod ns/v is gone", ["b"])
    defrag.tick(LIMITS.replace_s)
    if gone:
        defrag.play("v3 waits, tick 0")
        assert (defrag.node_of("v3"), defrag.stages) == ("b", ["starting"])
        return
    defrag.tick(0.5)
    assert defrag.moves == [("lost", "has no replacement in the queue after 100 s: its replacement disappeared")]
    defrag.tick()
    [progress] = defrag.api.record.progress
    assert (progress.known, progress.replacement) == (["v2"], "")


# Which pods are replacements


def two_of_one(*, of_gang: bool = False) -> Defrag:
    """A step in which two pods of one controller were evicted, from a to b and c; the target needs all of a."""
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    for name, node in (("w", "b"), ("x", "c")):
        defrag.runs(name, node, controller="other")
    for name in ("v", "u"):
        defrag.runs(name, "a", annotations=gang(2) if of_gang else {})
    defrag.waits("big", 2, controller="")
    defrag.tick()
    name = "ns/g" if of_gang else ""
    defrag.begin(plan(move("v", "a", "b", gang=name), move("u", "a", "c", gang=name)))
    defrag.tick()
    assert defrag.api.evicted == ["v", "u"]
    return defrag


def gone() -> Defrag:
    """Both pods have gone."""
    defrag = two_of_one()
    defrag.play("v leaves, u leaves, tick")
    return defrag


def nodes_of(defrag: Defrag, *names: str) -> list[str]:
    return [defrag.node_of(name) for name in names]


@pytest.mark.parametrize("of_gang", [False, True])
def test_the_replacements_of_a_step_are_released_together(of_gang: bool) -> None:
    defrag = two_of_one(of_gang=of_gang)
    notes = gang(2) if of_gang else {}
    defrag.leaves("v")
    defrag.waits("first", annotations=dict(notes))
    defrag.tick()
    assert (defrag.node_of("first"), defrag.moves) == ("", [("coming", ""), ("evicting", "")])
    defrag.play("u leaves, tick")
    assert (defrag.node_of("first"), defrag.moves) == ("", [("coming", ""), ("coming", "")])
    for name in ("second", "third"):
        defrag.waits(name, annotations=dict(notes))
    defrag.tick()
    assert nodes_of(defrag, "first", "second", "third") == ["b", "c", ""]
    assert defrag.moves == [("starting", ""), ("starting", "")]


def test_if_one_replacement_of_a_step_has_no_room_the_others_go_unless_they_are_a_gang() -> None:
    no_room = "no room for it on node {}"
    for of_gang, goes, moves, of in (
        (False, "b", [("starting", ""), ("coming", no_room.format("c"))], "pod ns/second, the replacement of ns/u"),
        (True, "", [("coming", no_room.format(node)) for node in "bc"], "pod ns/first, the replacement of ns/v"),
    ):
        defrag = two_of_one(of_gang=of_gang)
        defrag.play("v leaves, u leaves")
        for name, gpus in (("first", 1), ("second", 3)):
            defrag.waits(name, gpus, annotations=gang(2) if of_gang else {})
        defrag.tick()
        assert nodes_of(defrag, "first", "second") == [goes, ""]
        assert (defrag.moves, defrag.why.startswith(of)) == (moves, True)


def test_a_replacement_deleted_while_it_waits_for_the_others_is_replaced_by_the_next() -> None:
    defrag = two_of_one()
    defrag.play("first replaces v, tick, first leaves, tick, second replaces u, third waits, tick")
    assert nodes_of(defrag, "second", "third") == ["b", "c"]
    defrag.play("second is bound, third is bound, tick")
    [v, u] = defrag.api.record.progress
    assert (v.known, v.replacement, u.known, u.replacement) == (["first"], "second", [], "third")
    assert defrag.phase == "placing"


def test_pods_that_waited_before_the_eviction_are_no_replacements() -> None:
    defrag = scattered()
    defrag.waits("older", 2)
    defrag.begin(MOVE_V)
    defrag.tick()
    assert defrag.api.record.progress[0].known == ["older"]
    defrag.play("v leaves, tick")
    assert (defrag.stages, defrag.node_of("older")) == (["coming"], "")
    assert defrag.mover.place_kept(defrag.comes("older")) == ""
    defrag.play("v2 waits, tick")
    assert defrag.node_of("v2") == "b"


def test_pods_of_another_controller_or_namespace_are_no_replacements() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.waits("other", controller="x")
    defrag.waits("alone", controller="")
    defrag.waits("theirs", namespace="theirs")
    defrag.tick()
    assert defrag.moves == [("coming", "")]
    assert nodes_of(defrag, "other", "alone", "theirs") == ["", "", ""]


def test_a_replacement_bound_before_it_was_released_is_followed_on_its_node() -> None:
    defrag = two_of_one()
    defrag.play("r1 replaces v, tick")
    defrag.api.pods["r1"]["spec"]["schedulingGates"] = []
    defrag.bind("r1", "b", phase="Pending")
    defrag.tick()
    assert defrag.moves == [("starting", ""), ("evicting", "")]


# Replacements without the gate, as if the webhook is down


@pytest.mark.parametrize("has_gone", [True, False])
def test_a_replacement_without_the_gate_gets_its_place_at_once(has_gone: bool) -> None:
    defrag = evicted()
    if has_gone:
        defrag.play("v leaves, tick")
    pod = defrag.comes("v2")
    assert (defrag.mover.place_kept(pod), defrag.claimed("v2")) == ("b", "b")
    assert defrag.mover.place_kept(pod) == "b"  # and when it is asked about again
    defrag.bind("v2", "b")
    if not has_gone:
        defrag.leaves("v")
    defrag.tick()
    assert defrag.stages == ["done"]
    defrag.tick()
    assert defrag.node_of("big") == "a"


def test_a_pod_without_the_gate_gets_the_place_only_with_the_same_controller_and_request() -> None:
    for gpus, controller, roomy in ((2, "rs", False), (2, "rs", True), (1, "another", False), (1, "", False)):
        defrag = evicted()
        defrag.leaves("v")
        if roomy:
            defrag.leaves("w")
        defrag.tick()
        assert defrag.mover.place_kept(defrag.comes("v2", gpus, controller)) == ""
        assert defrag.mover.place_kept(defrag.comes("v3")) == "b"
        assert defrag.mover.place_kept(defrag.comes("v4")) == ""


def test_pods_without_the_gate_get_the_places_of_their_controllers_moves() -> None:
    defrag = gone()
    assert [defrag.mover.place_kept(defrag.comes(name)) for name in ("r1", "r2", "r3")] == ["b", "c", ""]
    assert defrag.moves == [("starting", ""), ("starting", "")]
    defrag = gone()
    for name, node in (("r1", "b"), ("r2", "c")):  # bound without asking Kerf
        defrag.runs(name, node)
    defrag.play("tick, tick")
    assert defrag.moves == [("done", ""), ("done", "")]
    assert [progress.replacement for progress in defrag.api.record.progress] == ["r1", "r2"]
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 1)
    for name, node in (("v", "a"), ("u", "b")):
        defrag.runs(name, node, controller=f"of-{name}")
    defrag.begin(plan(move("v", "a", "c", 0, "of-v"), move("u", "b", "a", 0, "of-u"), target=""))
    defrag.tick()
    defrag.play("v leaves, u leaves, tick")
    assert defrag.mover.place_kept(defrag.comes("u2", controller="of-u")) == "a"
    assert defrag.moves == [("coming", ""), ("starting", "")]
    assert defrag.mover.place_kept(defrag.comes("v2", controller="of-v")) == "c"


def test_siblings_that_ran_before_and_gated_ones_get_no_place() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("sibling", "c")
    defrag.begin(MOVE_V)
    defrag.play("tick, v leaves, tick")
    assert defrag.mover.place_kept(defrag.running["sibling"]) == ""
    gated = defrag.comes("gated")
    gated.spec.scheduling_gates = decode_pod({"metadata": {}, "spec": {"schedulingGates": GATES}}).spec.scheduling_gates
    assert defrag.mover.place_kept(gated) == ""
    defrag.tick()
    assert (defrag.moves, defrag.free("b"), defrag.claimed("defrag/v")) == ([("coming", "")], 0, "b")


@BOTH
def test_a_replacement_bound_without_asking_kerf_is_found_and_its_place_released(direct: bool) -> None:
    defrag = Defrag(direct=direct)
    for name in "ab":
        defrag.node(name, 2)
    for name in ("v", "u"):
        defrag.runs(name, "a", controller=f"of-{name}")
    defrag.begin(plan(move("v", "a", "b", 0, "of-v"), move("u", "a", "b", 1, "of-u"), target=""))
    defrag.play("tick, v leaves, tick")
    defrag.runs("v2", "b", controller="of-v")
    defrag.play("tick, tick")
    assert (defrag.why, defrag.moves, defrag.api.evicted) == ("", [("done", ""), ("evicting", "")], ["v", "u"])


def test_a_replacement_ungated_by_others_has_its_place() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "v2" else None
    defrag.play("v2 waits, tick")
    del defrag.api.pods["v2"]["spec"]["schedulingGates"]
    pod = decode_pod(defrag.api.pods["v2"])
    defrag.told(pod)
    defrag.tick()
    assert defrag.mover.place_kept(pod) == "b"
    defrag.play("v2 is bound to b, tick")
    assert defrag.moves == [("done", "")]


# After a restart


def after_release() -> Defrag:
    """Two replacements of one controller were released to their places, `first` to b and `second` to c."""
    defrag = gone()
    defrag.play("first waits, second waits, tick")
    assert nodes_of(defrag, "first", "second") == ["b", "c"]
    return defrag


def test_after_a_restart_released_replacements_have_the_places_in_their_annotations() -> None:
    defrag = after_release()
    defrag.bind("second", phase="Pending")
    defrag.api.pods["first"] = defrag.api.pods.pop("first")  # reported last
    after = defrag.restarted()
    for _ in range(3):
        after.tick()
    assert after.moves == [("starting", ""), ("starting", "")]
    after.play("second starts, first is bound, tick")
    assert after.moves == [("done", ""), ("done", "")]
    assert [progress.replacement for progress in after.api.record.progress] == ["first", "second"]


def test_after_a_restart_replacements_unknown_to_the_queue_have_the_places_in_their_annotations() -> None:
    after = after_release().restarted()
    pods = {}
    for name in ("first", "second"):
        pods[name] = decode_pod(after.api.pods[name])
        after.rig.hub.cache(PODS).remove(pods[name])
        after.rig.ledger.release(name)
    assert [after.mover.place_kept(pods[name]) for name in ("second", "first")] == ["c", "b"]
    assert [after.claimed(name) for name in ("second", "first")] == ["c", "b"]


def test_after_a_restart_pods_released_by_another_plan_or_to_another_node_are_no_replacements() -> None:
    for changed in ("kerf.dev/planned-by", "kerf.dev/planned-node"):
        defrag, _ = released()
        defrag.api.pods["v2"]["metadata"]["annotations"][changed] = "another"
        after = defrag.restarted()
        after.tick()
        assert after.moves == [("coming", "")]
