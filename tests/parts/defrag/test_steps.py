"""Following the pods of a step: who replaces whom, for how long anything is waited for, and what is told of it."""

import logging
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError
from extender.kube.watches import PODS
from extender.queueing.pods.objects import decode_pod
from tests.parts.defrag.rigs import LIMITS, MOVE_V, Defrag, MoverApi, move, plan, scattered
from tests.parts.defrag.test_starts import told
from tests.parts.defrag.test_without_gate import comes
from tests.queueing.rigs import GATES

STARTED_S = 2048.0


class CountingApi(MoverApi):
    """Counts how often a pod is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        self.refuse_read: ClusterError | None = None

    async def get(self, path: str, query: object = None) -> bytes:
        self.looked += path.endswith("/pods/v2")
        if self.refuse_read is not None and "/pods/" in path:
            raise self.refuse_read
        return await super().get(path, query)


def evicted() -> Defrag:
    """v is asked to go, at STARTED_S."""
    defrag = scattered(api=CountingApi())
    defrag.rig.now = STARTED_S
    defrag.begin(MOVE_V)
    defrag.tick(0.0)
    assert defrag.api.evicted == ["v"]
    return defrag


def let_go() -> Defrag:
    """v has gone, and v2 was let go for its place, at STARTED_S."""
    defrag = evicted()
    defrag.leaves("v")
    defrag.waits("v2")
    defrag.tick(0.0)
    assert (defrag.node_of("v2"), told(defrag)) == ("b", [("starting", "")])
    return defrag


def unheard(defrag: Defrag, name: str = "v2", **status: Any) -> None:
    """No watch tells of a pod any more."""
    pod = decode_pod(defrag.api.pods[name])
    defrag.rig.hub.cache(PODS).remove(pod)
    defrag.rig.ledger.release(name)
    defrag.api.pods[name]["status"] |= status


# For how long anything is waited for


def test_a_pod_that_does_not_go_is_waited_for_as_long_as_it_may_take() -> None:
    defrag = evicted()
    defrag.tick(LIMITS.replace_s)
    assert told(defrag) == [("evicting", "")]
    defrag.tick(0.5)
    assert told(defrag) == [("lost", "is still on node a after 100 s")]
    assert defrag.why == "pod ns/v is still on node a after 100 s"


def test_a_replacement_that_does_not_come_is_waited_for_from_when_the_pod_had_gone() -> None:
    defrag = evicted()
    defrag.tick(LIMITS.replace_s)
    defrag.leaves("v")
    defrag.tick(0.0)
    defrag.tick(LIMITS.replace_s)
    assert told(defrag) == [("coming", "")]
    defrag.tick(0.5)
    assert told(defrag) == [("lost", "has no replacement in the queue after 100 s")]


def test_a_replacement_that_finds_no_room_is_waited_for_and_says_so() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.waits("v2", 3)
    defrag.tick(0.0)
    why = "no room for it on node b"
    assert told(defrag) == [("coming", why)]
    assert defrag.why == "pod ns/v2, the replacement of ns/v, has no room on node b"
    defrag.tick(LIMITS.replace_s)
    assert told(defrag) == [("coming", why)]
    defrag.tick(0.5)
    assert told(defrag) == [("lost", f"has a replacement that found no room after 100 s: {why}")]


def test_a_replacement_that_finds_room_elsewhere_says_why_it_is_there() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.waits("v2", 3)
    defrag.tick(0.0)
    defrag.node("roomy", 3)
    defrag.tick(0.0)
    assert defrag.node_of("v2") == "roomy"
    defrag.tick(0.0)
    assert told(defrag) == [("starting", "no room for it on node b")]
    defrag.bind("v2")
    defrag.tick(0.0)
    assert told(defrag) == [("lost", "has its replacement on node roomy instead of b")]


@pytest.mark.parametrize("heard", [True, False])
def test_a_replacement_that_gets_no_node_is_waited_for_from_when_it_was_let_go(heard: bool) -> None:
    defrag = let_go()
    if not heard:
        unheard(defrag)
    defrag.tick(LIMITS.start_s)
    assert (told(defrag), defrag.free("b")) == ([("starting", "")], 0)
    defrag.tick(0.5)
    assert told(defrag) == [("lost", "has a replacement without a node after 200 s")]


def test_a_replacement_that_does_not_get_ready_is_waited_for_and_needs_its_node_kept_no_more() -> None:
    defrag = let_go()
    assert defrag.mover.state().kept == ["a", "b"]
    defrag.bind("v2", phase="Pending")
    defrag.tick(LIMITS.start_s)
    assert (told(defrag), defrag.mover.state().kept) == ([("starting", "")], ["a"])
    defrag.tick(0.5)
    assert told(defrag) == [("lost", "has a replacement that is not ready after 200 s")]


READY, UNREADY = ({"type": "Ready", "status": status} for status in ("True", "False"))


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        ({"phase": "Running"}, True),
        ({"phase": "Running", "conditions": [READY]}, True),
        ({"phase": "Running", "conditions": [UNREADY]}, False),
        ({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}, True),
        ({"phase": "Pending"}, False),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}, False),
    ],
)
def test_a_replacement_has_its_place_once_it_is_ready_or_runs_and_nobody_tells(
    status: dict[str, Any], runs: bool
) -> None:
    defrag = let_go()
    defrag.bind("v2")
    defrag.api.pods["v2"]["status"] = status
    defrag.told(decode_pod(defrag.api.pods["v2"]))
    defrag.tick()
    assert told(defrag) == [("done" if runs else "starting", "")]
    assert defrag.mover.counts.moved == runs


# Replacements that nobody tells of


def test_a_replacement_that_no_watch_tells_of_is_looked_at_every_two_seconds() -> None:
    defrag = let_go()
    api = defrag.api
    assert isinstance(api, CountingApi)
    api.looked = 0
    unheard(defrag)
    defrag.tick(0.0)
    defrag.tick(2.0)
    assert api.looked == 0
    defrag.tick(0.5)
    assert api.looked == 1
    defrag.tick(2.0)
    assert api.looked == 1
    defrag.tick(0.5)
    assert api.looked == 2
    assert told(defrag) == [("starting", "")]


@pytest.mark.parametrize("bound", [False, True])
def test_a_replacement_without_a_node_that_no_watch_tells_of_holds_its_place(bound: bool) -> None:
    defrag = let_go()
    if bound:
        defrag.api.pods["v2"]["spec"]["nodeName"] = "b"
    unheard(defrag)
    defrag.tick(0.0)
    defrag.tick(3.0)
    claim = defrag.rig.ledger.claim("v2")
    assert (claim.node if claim is not None else "") == ("" if bound else "b")
    assert told(defrag) == [("starting", "")]


def test_a_replacement_that_ended_well_before_anybody_told_has_moved() -> None:
    defrag = let_go()
    unheard(defrag, phase="Succeeded")
    defrag.tick(0.0)
    defrag.tick(3.0)
    assert (told(defrag), defrag.why, defrag.mover.counts.moved) == ([("done", "")], "", 1)


@pytest.mark.parametrize("gone", [False, True], ids=["it failed", "it is gone"])
def test_a_replacement_that_came_to_nothing_is_waited_for_anew_and_the_plan_stops(gone: bool) -> None:
    defrag = let_go()
    unheard(defrag, phase="Failed")
    if gone:
        del defrag.api.pods["v2"]
    defrag.tick(0.0)
    defrag.tick(3.0)
    assert told(defrag) == [("coming", "its replacement disappeared")]
    assert (defrag.why, defrag.mover.state().kept) == ("the replacement of pod ns/v is gone", ["b"])
    defrag.tick(LIMITS.replace_s)
    assert told(defrag) == [("coming", "its replacement disappeared")]
    defrag.tick(0.5)
    assert told(defrag) == [("lost", "has no replacement in the queue after 100 s: its replacement disappeared")]
    defrag.tick()
    [progress] = defrag.api.record.progress
    assert (progress.known, progress.replacement) == (["v2"], "")


def test_what_can_not_be_read_of_a_replacement_now_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "extender.parts.defrag.steps")
    defrag = let_go()
    api = defrag.api
    assert isinstance(api, CountingApi)
    unheard(defrag, phase="Succeeded")
    api.refuse_read = ApiError(503, "ServiceUnavailable", "etcd")
    defrag.tick(0.0)
    defrag.tick(3.0)
    assert (told(defrag), defrag.why) == ([("starting", "")], "")
    assert f"making room: the replacement of pod ns/v can't be read: {api.refuse_read}" in caplog.messages
    api.refuse_read = None
    defrag.tick(0.0)
    assert told(defrag) == [("done", "")]


# Who replaces whom


def two_of_one(*, gang: bool = False, node: str = "b") -> Defrag:
    """Two pods of one controller are asked to go in one step, from a to b and c; the target needs all of a."""
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    defrag.runs("w", "b", controller="other")
    defrag.runs("x", "c", controller="other")
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"} if gang else {}
    for name in ("v", "u"):
        defrag.runs(name, "a", annotations=dict(notes))
    defrag.waits("big", 2, controller="")
    defrag.tick()
    of = "ns/g" if gang else ""
    defrag.begin(plan(move("v", "a", "b", gang=of), move("u", "a", "c", gang=of)))
    defrag.tick()
    assert defrag.api.evicted == ["v", "u"]
    return defrag


def comes_back(defrag: Defrag, name: str, gpus: int = 1, **fields: Any) -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"} if fields.pop("gang", False) else {}
    defrag.waits(name, gpus, annotations=notes, **fields)


@pytest.mark.parametrize("gang", [False, True])
def test_the_replacements_of_a_step_wait_for_each_other_and_each_has_a_place_of_its_own(gang: bool) -> None:
    defrag = two_of_one(gang=gang)
    defrag.leaves("v")
    comes_back(defrag, "first", gang=gang)
    defrag.tick()
    assert (defrag.node_of("first"), told(defrag)) == ("", [("coming", ""), ("evicting", "")])
    defrag.leaves("u")
    defrag.tick()
    assert (defrag.node_of("first"), told(defrag)) == ("", [("coming", ""), ("coming", "")])
    comes_back(defrag, "second", gang=gang)
    comes_back(defrag, "third", gang=gang)
    defrag.tick()
    assert [defrag.node_of(name) for name in ("first", "second", "third")] == ["b", "c", ""]
    assert told(defrag) == [("starting", ""), ("starting", "")]


@pytest.mark.parametrize(("gang", "goes"), [(False, "b"), (True, "")])
def test_where_one_replacement_of_a_step_finds_no_room_the_other_goes_unless_they_are_a_gang(
    gang: bool, goes: str
) -> None:
    defrag = two_of_one(gang=gang)
    for name in ("v", "u"):
        defrag.leaves(name)
    comes_back(defrag, "first", gang=gang)
    comes_back(defrag, "second", 3, gang=gang)
    defrag.tick()
    assert (defrag.node_of("first"), defrag.node_of("second")) == (goes, "")
    no_room = "no room for it on node c"
    if gang:
        assert told(defrag) == [("coming", "no room for it on node b"), ("coming", no_room)]
        assert defrag.why == "pod ns/first, the replacement of ns/v, has no room on node b"
    else:
        assert told(defrag) == [("starting", ""), ("coming", no_room)]
        assert defrag.why == "pod ns/second, the replacement of ns/u, has no room on node c"


def test_a_replacement_that_is_deleted_while_it_waits_for_others_is_followed_by_another_one() -> None:
    defrag = two_of_one()
    defrag.leaves("v")
    comes_back(defrag, "first")
    defrag.tick()
    defrag.leaves("first")
    defrag.tick()
    defrag.leaves("u")
    for name in ("second", "third"):
        comes_back(defrag, name)
    defrag.tick()
    assert [defrag.node_of(name) for name in ("second", "third")] == ["b", "c"]
    for name in ("second", "third"):
        defrag.bind(name)
    defrag.tick()
    [v, u] = defrag.api.record.progress
    assert (v.known, v.replacement, u.known, u.replacement) == (["first"], "second", [], "third")
    assert defrag.phase == "placing"


def test_pods_that_waited_before_are_no_replacements_whoever_asks_for_them() -> None:
    defrag = scattered()
    defrag.waits("older", 2)
    defrag.begin(MOVE_V)
    defrag.tick()
    assert defrag.api.record.progress[0].known == ["older"]
    defrag.leaves("v")
    defrag.rig.hub.cache(PODS).remove(decode_pod(defrag.api.pods["older"]))
    defrag.api.pods["older"]["spec"] = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}]}
    assert defrag.mover.place_kept(decode_pod(defrag.api.pods["older"])) == ""


def test_a_pod_of_another_controller_or_namespace_is_no_replacement() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.waits("other", controller="x")
    defrag.waits("alone", controller="")
    defrag.waits("theirs", namespace="theirs")
    defrag.tick()
    assert told(defrag) == [("coming", "")]
    assert [defrag.node_of(name) for name in ("other", "alone", "theirs")] == ["", "", ""]


def test_of_pods_of_one_controller_that_ran_before_none_is_a_replacement_and_one_that_comes_without_the_gate_is() -> (
    None
):
    defrag = two_of_one()
    for name in ("v", "u"):
        defrag.leaves(name)
    defrag.tick()
    defrag.runs("r1", "b")
    defrag.runs("r2", "c")
    defrag.tick()
    defrag.tick()
    assert told(defrag) == [("done", ""), ("done", "")]
    assert [progress.replacement for progress in defrag.api.record.progress] == ["r1", "r2"]


def test_a_replacement_that_is_bound_before_it_is_seen_to_wait_is_followed_there() -> None:
    defrag = two_of_one()
    defrag.leaves("v")
    defrag.waits("r1")
    defrag.tick()
    defrag.api.pods["r1"]["spec"]["schedulingGates"] = []
    defrag.bind("r1", "b", phase="Pending")
    defrag.tick()
    assert told(defrag) == [("starting", ""), ("evicting", "")]


# Replacements that nobody holds at a gate


def test_of_two_moves_a_pod_without_the_gate_has_the_place_of_the_one_of_its_controller() -> None:
    defrag = Defrag()
    for name in "abc":
        defrag.node(name, 2)
    defrag.runs("w", "b", controller="other")
    defrag.runs("x", "c", controller="other")
    defrag.runs("v", "a")
    defrag.runs("u", "a", controller="rs2")
    defrag.waits("big", 2, controller="")
    defrag.tick()
    defrag.begin(plan(move("v", "a", "b"), move("u", "a", "c", controller="rs2")))
    defrag.tick()
    for name in ("v", "u"):
        defrag.leaves(name)
    defrag.tick()
    assert defrag.mover.place_kept(comes(defrag, "u2", controller="rs2")) == "c"
    assert told(defrag) == [("coming", ""), ("starting", "")]
    assert defrag.mover.place_kept(comes(defrag, "u3", controller="rs2")) == ""
    assert defrag.mover.place_kept(comes(defrag, "v2")) == "b"
    assert [defrag.rig.ledger.is_reserved(name, node) for name, node in (("u2", "c"), ("v2", "b"))] == [True, True]


def test_a_pod_without_the_gate_takes_the_next_place_where_there_is_none_left_of_the_first() -> None:
    defrag = two_of_one()
    for name in ("v", "u"):
        defrag.leaves(name)
    defrag.tick()
    assert [defrag.mover.place_kept(comes(defrag, name)) for name in ("r1", "r2", "r3")] == ["b", "c", ""]
    assert told(defrag) == [("starting", ""), ("starting", "")]


def test_a_sibling_that_runs_or_is_gated_is_given_no_place_however_it_is_asked_about() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("sibling", "c")
    defrag.begin(MOVE_V)
    defrag.tick()
    defrag.leaves("v")
    defrag.tick()
    assert defrag.mover.place_kept(defrag.running["sibling"]) == ""
    gated = comes(defrag, "gated")
    gated.spec.scheduling_gates = decode_pod({"metadata": {}, "spec": {"schedulingGates": GATES}}).spec.scheduling_gates
    assert defrag.mover.place_kept(gated) == ""
    assert (told(defrag), defrag.free("b")) == ([("coming", "")], 0)
    assert defrag.rig.ledger.claim("defrag/v") is not None


@pytest.mark.parametrize("direct", [False, True])
def test_the_place_of_a_replacement_that_came_without_the_gate_is_not_kept_beside_it(direct: bool) -> None:
    """As the webhook is down, and nobody has asked about it: else there is no room for the next one."""
    defrag = Defrag(direct=direct)
    for name in "ab":
        defrag.node(name, 2)
    for name in ("v", "u"):
        defrag.runs(name, "a", controller=f"of-{name}")
    defrag.begin(plan(move("v", "a", "b", 0, "of-v"), move("u", "a", "b", 1, "of-u"), target=""))
    defrag.tick()
    defrag.leaves("v")
    defrag.tick()
    defrag.runs("v2", "b", controller="of-v")
    defrag.tick()
    defrag.tick()
    assert (defrag.why, told(defrag), defrag.api.evicted) == ("", [("done", ""), ("evicting", "")], ["v", "u"])


def test_a_replacement_whose_gate_somebody_else_opens_has_its_place() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "v2" else None
    defrag.waits("v2")
    defrag.tick()
    del defrag.api.pods["v2"]["spec"]["schedulingGates"]
    pod = decode_pod(defrag.api.pods["v2"])
    defrag.told(pod)
    defrag.tick()
    assert defrag.mover.place_kept(pod) == "b"
    defrag.bind("v2", "b")
    defrag.tick()
    assert told(defrag) == [("done", "")]


# After a restart


def test_after_a_restart_each_of_those_let_go_before_has_the_place_that_is_written_on_it() -> None:
    defrag = two_of_one()
    for name in ("v", "u"):
        defrag.leaves(name)
    for name in ("first", "second"):
        comes_back(defrag, name)
    defrag.tick()
    assert [defrag.node_of(name) for name in ("first", "second")] == ["b", "c"]
    defrag.bind("second", phase="Pending")
    defrag.api.pods["aside"] = defrag.api.pods.pop("first")  # told of last
    defrag.api.pods["first"] = defrag.api.pods.pop("aside")
    after = defrag.restarted()
    for _ in range(3):
        after.tick()
    assert told(after) == [("starting", ""), ("starting", "")]
    after.starts("second")
    after.bind("first")
    after.tick()
    assert told(after) == [("done", ""), ("done", "")]
    assert [progress.replacement for progress in after.api.record.progress] == ["first", "second"]


def test_after_a_restart_a_pod_that_no_queue_knows_has_the_place_that_is_written_on_it() -> None:
    """Two of one controller go to different nodes; the second asks first."""
    defrag = two_of_one()
    for name in ("v", "u"):
        defrag.leaves(name)
    for name in ("first", "second"):
        comes_back(defrag, name)
    defrag.tick()
    after = defrag.restarted()
    pods = {}
    for name in ("first", "second"):
        pods[name] = decode_pod(defrag.api.pods[name])
        after.rig.hub.cache(PODS).remove(pods[name])
        after.rig.ledger.release(name)
    assert after.mover.place_kept(pods["second"]) == "c"
    assert after.mover.place_kept(pods["first"]) == "b"
    assert [after.rig.ledger.is_reserved(name, node) for name, node in (("first", "b"), ("second", "c"))] == [True] * 2


@pytest.mark.parametrize("changed", ["kerf.dev/planned-by", "kerf.dev/planned-node"])
def test_after_a_restart_a_pod_let_go_by_another_plan_or_for_another_node_is_no_replacement_for_that(
    changed: str,
) -> None:
    defrag = let_go()
    defrag.api.pods["v2"]["metadata"]["annotations"][changed] = "another"
    after = defrag.restarted()
    after.tick()
    assert told(after) == [("coming", "")]
