"""Placing the target: its pods are released to their kept nodes, gangs whole, and followed until they are bound."""

import pytest

from extender.kube.client import ApiError
from extender.parts.defrag.plan import TargetPod
from extender.queueing.pods.objects import decode_pod
from tests.parts.defrag.rigs import LIMITS, Defrag, gang, move, plan


def placing(*, of_gang: bool = False) -> Defrag:
    """All is moved for two pods, of 1 and 3 GPUs, to be placed on node a, and one that does not exist yet."""
    defrag = Defrag()
    defrag.node("a", 4)
    defrag.node("b", 2)
    defrag.runs("v", "a")
    defrag.runs("w", "b", controller="other")
    for name, gpus in (("small", 1), ("large", 3)):
        defrag.waits(name, gpus, controller="", annotations=gang(2) if of_gang else {})
    given = plan(move("v", "a", "b"), target="")
    given.target[:] = [
        TargetPod("ns/later", "b", []),
        TargetPod("ns/small", "a", [], "small"),
        TargetPod("ns/large", "a", [], "large"),
    ]
    defrag.begin(given)
    defrag.tick()
    assert defrag.free("a") == 0
    assert defrag.mover.place_kept(decode_pod(defrag.api.pods["small"])) == "", "not before all is moved"
    defrag.play("v2 replaces v, tick, v2 is bound, tick")
    assert (defrag.phase, defrag.kept) == ("placing", ["a"])
    assert nodes_of(defrag) == ("", "")
    defrag.rig.now = 2000.0
    return defrag


def nodes_of(defrag: Defrag) -> tuple[str, str]:
    return defrag.node_of("small"), defrag.node_of("large")


def stopped(defrag: Defrag, why: str) -> None:
    assert (defrag.phase, defrag.why, defrag.kept) == ("stopped", why, [])


@pytest.mark.parametrize("of_gang", [False, True])
def test_the_target_is_released_to_its_nodes_and_the_plan_is_done_once_all_is_bound(of_gang: bool) -> None:
    defrag = placing(of_gang=of_gang)
    defrag.tick()
    name = defrag.mover.state().id
    for pod in ("small", "large"):
        notes = defrag.api.pods[pod]["metadata"]["annotations"]
        assert (notes["kerf.dev/planned-by"], notes["kerf.dev/planned-node"]) == (f"defrag {name}", "a")
    defrag.play("small is bound, tick")
    assert (defrag.phase, defrag.kept) == ("placing", ["a"])
    defrag.play("large is bound, tick")
    assert (defrag.phase, defrag.why, defrag.kept) == ("done", "", [])


def test_pods_of_the_target_and_no_others_have_its_nodes() -> None:
    defrag = placing()
    small, stranger = (decode_pod(defrag.api.pods[name]) for name in ("small", "w"))
    assert (defrag.mover.place_kept(small), defrag.mover.place_kept(stranger)) == ("a", "")
    assert defrag.claimed("small") == "a"


@pytest.mark.parametrize(("of_gang", "goes"), [(False, "a"), (True, "")])
def test_if_only_one_pod_has_room_it_goes_unless_it_is_of_a_gang(of_gang: bool, goes: str) -> None:
    defrag = placing(of_gang=of_gang)
    defrag.runs("stranger", "a", controller="x")  # placed by another scheduler
    defrag.tick()
    assert nodes_of(defrag) == (goes, "")
    defrag.play("stranger leaves, tick")
    assert nodes_of(defrag) == ("a", "a")


def test_a_target_pod_that_goes_elsewhere_ends_the_plan() -> None:
    defrag = placing()
    defrag.node("c", 1)
    defrag.play("tick, small is bound to c, tick")
    stopped(defrag, "pod ns/small went to node c instead of a")


@pytest.mark.parametrize("was_released", [True, False])
def test_a_target_pod_unseen_for_a_while_is_gone_and_holds_up_no_other(was_released: bool) -> None:
    defrag = placing()
    if was_released:
        defrag.tick(0.0)
    defrag.play("small leaves, tick 5")
    assert (defrag.phase, defrag.node_of("large")) == ("placing", "a")
    defrag.tick(0.5 if was_released else 5.5)
    stopped(defrag, "pod ns/small is gone")


def test_the_target_may_take_target_s_and_the_first_pod_without_a_node_is_named() -> None:
    defrag = placing()
    defrag.tick(0.0)
    defrag.tick(LIMITS.target_s)
    assert (defrag.phase, defrag.why) == ("placing", "")
    defrag.play("small is bound, tick 0.5")
    stopped(defrag, "pod ns/large has no node after 50 s")


def test_a_target_pod_that_becomes_invalid_times_out() -> None:
    defrag = placing()
    defrag.waits("small", 1, controller="", annotations={"kerf.dev/policy": "nonsense"})
    defrag.tick()
    assert (defrag.phase, *nodes_of(defrag)) == ("placing", "", "a")
    defrag.tick(LIMITS.target_s + 1.0)
    stopped(defrag, "pod ns/small has no node after 50 s")


def test_a_target_pod_that_loses_its_node_is_released_to_it_again() -> None:
    defrag = placing()
    defrag.tick()
    defrag.rig.refuse("small")
    assert defrag.free("a") == 0
    defrag.play("tick 31, tick")
    assert (defrag.node_of("small"), defrag.phase, defrag.claimed("small")) == ("a", "placing", "a")


@pytest.mark.parametrize("node", ["a", "c"])
def test_after_a_restart_released_target_pods_hold_their_node_if_it_is_the_kept_one(node: str) -> None:
    defrag = placing()
    defrag.tick()
    defrag.node("c", 4)
    for name in ("small", "large"):
        pod = defrag.api.pods[name]
        pod["metadata"]["annotations"]["kerf.dev/planned-node"] = pod["status"]["nominatedNodeName"] = node
    after = defrag.restarted()
    after.tick()
    assert [after.claimed(name) for name in ("small", "large")] == (["a", "a"] if node == "a" else ["", ""])


def test_a_target_pod_that_can_t_be_patched_keeps_its_place() -> None:
    defrag = placing()
    defrag.api.fail = lambda name, part: ApiError(500, "", "broken") if name == "small" else None
    defrag.tick()
    assert (*nodes_of(defrag), defrag.free("a")) == ("", "a", 0)
    defrag.api.fail = lambda name, part: None
    defrag.tick()
    assert defrag.node_of("small") == "a"
