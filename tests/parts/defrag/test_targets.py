"""Whom room was made for: each is let go for its node, gangs whole, and followed there for a while."""

import pytest

from extender.kube.client import ApiError
from extender.parts.defrag.plan import TargetPod
from extender.queueing.pods.objects import decode_pod
from tests.parts.defrag.rigs import LIMITS, Defrag, move, plan

GANG = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}


def moving(*, gang: bool = False) -> Defrag:
    """Room is being made for two pods, of 1 and 3 GPUs, on node a, of which one is taken; and for one to come."""
    defrag = Defrag()
    defrag.node("a", 4)
    defrag.node("b", 2)
    defrag.runs("v", "a")
    defrag.runs("w", "b", controller="other")
    notes = dict(GANG) if gang else {}
    for name, gpus in (("small", 1), ("large", 3)):
        defrag.waits(name, gpus, controller="", annotations=dict(notes))
    given = plan(move("v", "a", "b"), target="")
    given.target[:] = [
        TargetPod("ns/later", "b", []),
        TargetPod("ns/small", "a", [], "small"),
        TargetPod("ns/large", "a", [], "large"),
    ]
    defrag.begin(given)
    defrag.tick()
    return defrag


def placing(*, gang: bool = False) -> Defrag:
    """All has moved; the target is about to be let go."""
    defrag = moving(gang=gang)
    defrag.is_replaced("v", "v2")
    defrag.tick()
    assert (defrag.phase, defrag.mover.state().kept) == ("placing", ["a"])
    assert (defrag.node_of("small"), defrag.node_of("large")) == ("", "")
    defrag.rig.now = 2000.0
    return defrag


def gone_no_further(defrag: Defrag, why: str) -> None:
    assert (defrag.phase, defrag.why, defrag.mover.state().kept) == ("stopped", why, [])


@pytest.mark.parametrize("gang", [False, True])
def test_the_target_is_let_go_for_its_nodes_and_the_plan_is_done_once_all_have_them(gang: bool) -> None:
    defrag = placing(gang=gang)
    defrag.tick()
    name = defrag.mover.state().id
    for pod in ("small", "large"):
        notes = defrag.api.pods[pod]["metadata"]["annotations"]
        assert (notes["kerf.dev/planned-by"], notes["kerf.dev/planned-node"]) == (f"defrag {name}", "a")
    defrag.bind("small")
    defrag.tick()
    assert (defrag.phase, defrag.mover.state().kept) == ("placing", ["a"])
    defrag.bind("large")
    defrag.tick()
    assert (defrag.phase, defrag.why, defrag.mover.state().kept) == ("done", "", [])


def test_a_pod_of_the_target_has_no_place_before_all_has_moved_and_its_own_then() -> None:
    defrag = moving()
    small, stranger = (decode_pod(defrag.api.pods[name]) for name in ("small", "w"))
    assert defrag.free("a") == 0
    assert defrag.mover.place_kept(small) == ""
    defrag = placing()
    assert (defrag.mover.place_kept(small), defrag.mover.place_kept(stranger)) == ("a", "")
    claim = defrag.rig.ledger.claim("small")
    assert claim is not None
    assert claim.node == "a"


@pytest.mark.parametrize(("gang", "goes"), [(False, "a"), (True, "")])
def test_where_there_is_room_for_one_it_goes_unless_it_is_of_a_gang(gang: bool, goes: str) -> None:
    defrag = placing(gang=gang)
    defrag.runs("stranger", "a", controller="x")  # past Kerf
    defrag.tick()
    assert (defrag.node_of("small"), defrag.node_of("large")) == (goes, "")
    defrag.leaves("stranger")
    defrag.tick()
    assert (defrag.node_of("small"), defrag.node_of("large")) == ("a", "a")


def test_a_pod_of_the_target_that_went_elsewhere_ends_the_plan() -> None:
    defrag = placing()
    defrag.node("c", 1)
    defrag.tick()
    defrag.bind("small", "c")
    defrag.tick()
    gone_no_further(defrag, "pod ns/small went to node c instead of a")


def test_a_pod_of_the_target_that_is_not_seen_for_a_while_is_gone_and_holds_no_other_up() -> None:
    defrag = placing()
    defrag.tick(0.0)
    defrag.leaves("small")
    defrag.tick(5.0)
    assert (defrag.phase, defrag.node_of("large")) == ("placing", "a")
    defrag.tick(0.5)
    gone_no_further(defrag, "pod ns/small is gone")


def test_a_pod_of_the_target_that_was_gone_before_it_was_let_go_holds_no_other_up() -> None:
    defrag = placing()
    defrag.leaves("small")
    defrag.tick()
    assert (defrag.phase, defrag.node_of("large")) == ("placing", "a")
    defrag.tick(5.5)
    gone_no_further(defrag, "pod ns/small is gone")


def test_the_target_has_its_time_and_the_first_that_has_no_node_is_named() -> None:
    defrag = placing()
    defrag.tick(0.0)
    defrag.tick(LIMITS.target_s)
    assert (defrag.phase, defrag.why) == ("placing", "")
    defrag.bind("small")
    defrag.tick(0.5)
    gone_no_further(defrag, "pod ns/large has no node after 50 s")


def test_a_target_that_can_not_be_placed_any_more_is_waited_for_in_vain() -> None:
    defrag = placing()
    defrag.waits("small", 1, controller="", annotations={"kerf.dev/policy": "nonsense"})
    defrag.tick()
    assert (defrag.phase, defrag.node_of("small"), defrag.node_of("large")) == ("placing", "", "a")
    defrag.tick(LIMITS.target_s + 1.0)
    gone_no_further(defrag, "pod ns/small has no node after 50 s")


def test_a_target_that_loses_its_node_is_let_go_for_it_again_and_nobody_has_it_meanwhile() -> None:
    defrag = placing()
    defrag.tick()
    defrag.rig.refuse("small")
    assert defrag.free("a") == 0
    defrag.tick(31.0)
    defrag.tick()
    assert (defrag.node_of("small"), defrag.phase) == ("a", "placing")
    claim = defrag.rig.ledger.claim("small")
    assert claim is not None


@pytest.mark.parametrize("node", ["a", "c"])
def test_after_a_restart_the_target_holds_the_node_that_it_was_let_go_for_if_it_is_the_one_kept(node: str) -> None:
    defrag = placing()
    defrag.tick()
    defrag.node("c", 4)
    for name in ("small", "large"):
        pod = defrag.api.pods[name]
        pod["metadata"]["annotations"]["kerf.dev/planned-node"] = pod["status"]["nominatedNodeName"] = node
    after = defrag.restarted()
    after.tick()
    claims = [after.rig.ledger.claim(name) for name in ("small", "large")]
    assert [claim.node if claim is not None else "" for claim in claims] == (["a", "a"] if node == "a" else ["", ""])


def test_a_target_that_can_not_be_written_on_now_keeps_its_place() -> None:
    defrag = placing()
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "small" else None
    defrag.tick()
    assert (defrag.node_of("small"), defrag.node_of("large"), defrag.free("a")) == ("", "a", 0)
    defrag.api.fail = lambda name, part: None
    defrag.tick()
    assert defrag.node_of("small") == "a"
