"""A replacement that comes without the gate, as where the webhook is down: its place is its own all the same."""

import pytest

from extender.core.fit.checks import sentence
from extender.core.fit.reasons import Reason
from extender.core.resources.requests import GpuRequest
from extender.kube.objects import Pod
from extender.kube.watches import PODS
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.parts.defrag.rigs import LIMITS, MOVE_V, Defrag, scattered


def comes(defrag: Defrag, name: str, gpus: int = 1, controller: str = "rs") -> Pod:
    """A pod is made that nobody holds at a gate; kube-scheduler asks about it."""
    defrag.waits(name, gpus, controller)
    defrag.rig.hub.cache(PODS).remove(decode_pod(defrag.api.pods[name]))  # of which the queue has never heard
    defrag.api.pods[name]["spec"]["schedulingGates"] = []
    defrag.told(decode_pod(defrag.api.pods[name]))
    assert name not in defrag.rig.queue.backlog.entries
    return decode_pod(defrag.api.pods[name])


def evicted(*, direct: bool = False) -> Defrag:
    """Pod v has left node a, its place is on b."""
    defrag = scattered(direct=direct)
    defrag.begin(MOVE_V)
    defrag.tick()
    assert defrag.api.evicted == ["v"]
    return defrag


@pytest.mark.parametrize("gone", [True, False], ids=["it has gone", "it is still leaving"])
def test_a_replacement_without_the_gate_gets_its_own_place_at_once(gone: bool) -> None:
    defrag = evicted()
    if gone:
        defrag.leaves("v")
        defrag.tick()
    pod = comes(defrag, "v2")
    assert defrag.mover.place_kept(pod) == "b"
    assert defrag.rig.ledger.is_reserved("v2", "b")
    assert defrag.mover.place_kept(pod) == "b"  # and when it is asked about again
    defrag.bind("v2", "b")
    if not gone:
        defrag.leaves("v")
    defrag.tick()
    assert defrag.stages == ["done"]
    defrag.tick()
    assert defrag.node_of("big") == "a"


@pytest.mark.parametrize(
    ("name", "gpus", "controller"),
    [("v2", 2, "rs"), ("v2", 1, "another"), ("v2", 1, "")],
    ids=["it asks for more", "of another controller", "of none"],
)
def test_the_place_is_nobody_else_s(name: str, gpus: int, controller: str) -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.tick()
    assert defrag.mover.place_kept(comes(defrag, name, gpus, controller)) == ""
    defrag.waits("v3")
    defrag.tick()
    assert defrag.node_of("v3") == "b"


def test_the_place_is_for_a_pod_that_asks_the_same() -> None:
    """Also where there is room for more."""
    defrag = evicted()
    defrag.leaves("v")
    defrag.leaves("w")
    defrag.tick()
    assert defrag.mover.place_kept(comes(defrag, "v2", 2)) == ""
    assert defrag.mover.place_kept(comes(defrag, "v3")) == "b"


def test_of_two_that_come_one_has_the_place() -> None:
    defrag = evicted()
    defrag.leaves("v")
    first, second = comes(defrag, "v2"), comes(defrag, "v3")
    assert (defrag.mover.place_kept(first), defrag.mover.place_kept(second)) == ("b", "")


@pytest.mark.parametrize("direct", [False, True])
def test_a_replacement_that_nobody_asked_about_is_found_where_it_runs(direct: bool) -> None:
    defrag = evicted(direct=direct)
    defrag.leaves("v")
    defrag.tick()
    defrag.runs("v2", "b")
    defrag.tick()
    defrag.tick()
    assert defrag.stages == ["done"]
    assert defrag.why == ""


def test_a_sibling_that_ran_before_is_no_replacement() -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.runs("sibling", "c")
    defrag.begin(MOVE_V)
    defrag.tick()
    defrag.leaves("v")
    defrag.tick()
    defrag.tick()
    assert defrag.stages == ["coming"]


def test_a_replacement_without_the_gate_that_is_not_bound_is_given_up_in_time() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.tick()
    assert defrag.mover.place_kept(comes(defrag, "v2")) == "b"
    for _ in range(20):
        defrag.tick(5.0)
        assert defrag.rig.ledger.is_reserved("v2", "b") or "b" in defrag.rig.ledger.rows.closed
    defrag.tick(LIMITS.start_s)
    assert defrag.why == f"pod ns/v has a replacement without a node after {LIMITS.start_s:g} s"
    assert defrag.rig.ledger.rows.closed == frozenset()


def test_others_are_told_that_the_room_is_kept_for_a_move() -> None:
    defrag = evicted()
    defrag.leaves("v")
    defrag.tick()
    identity = decode_pod(defrag.api.pods["w"])
    placer, request = defrag.rig.placer, GpuRequest(1)
    decision = placer.place(PodIdentity.of(identity), request, placer.policies["tightest"], ["b"]).decision
    assert decision.evaluation.reason.tolist() == [Reason.KEPT_FOR_MOVE]
    assert sentence(Reason.KEPT_FOR_MOVE, request, 2) == (
        "needs 1 GPU, free capacity here is reserved for a move that makes room"
    )
    defrag.waits("other", controller="")
    defrag.tick(40.0)
    assert "reserved for a move" in str(defrag.rig.queue.backlog.entries["other"].skips.reason)
