"""What speaks against a plan before anything is moved, in the words that are answered, and of whom it is said."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from extender.parts.defrag.checks import (
    Facts,
    RoomError,
    TargetError,
    check,
    crowded,
    siblings,
    siblings_running,
    targets_of,
    why_stays,
)
from extender.parts.defrag.plan import PlannedMove, RoomPlan, TargetPod
from extender.planning.quotas import Quotas
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod
from tests.parts.defrag.rigs import MOVE_V, Defrag, move, plan, scattered
from tests.queueing.rigs import GATES


def facts(defrag: Defrag, *, exempt: Collection[str] = ()) -> Facts:
    queue = defrag.rig.queue
    return Facts(defrag.running, queue.backlog.entries, queue.namespaces, frozenset(exempt), queue.use)


def refusal(defrag: Defrag, given: RoomPlan, *, exempt: Collection[str] = ()) -> RoomError:
    with pytest.raises(RoomError) as error:
        check(given, facts(defrag, exempt=exempt))
    return error.value


def said(defrag: Defrag, given: RoomPlan, *, exempt: Collection[str] = ()) -> tuple[str, str]:
    """Why a plan is refused, and the pod that it is said of."""
    error = refusal(defrag, given, exempt=exempt)
    assert not isinstance(error, TargetError)
    return str(error), error.of


WRONG: dict[str, tuple[RoomPlan, str]] = {
    "no room is made": (msgspec.structs.replace(MOVE_V, fits=False), "the plan makes no room"),
    "neither room nor moves": (msgspec.structs.replace(plan(), fits=False), "the plan makes no room"),
    "no moves": (plan(), "the plan has no moves"),
    "a step before the first": (plan(move("v", "a", "b", -1)), "the steps of the plan are out of order"),
    "not in order": (
        plan(move("v", "a", "b", 2), move("w", "b", "a", 1)),
        "the steps of the plan are out of order",
    ),
    "twice": (plan(move("v", "a", "b"), move("v", "a", "b")), "the plan moves a pod twice"),
    "too many": (plan(*[move("v", "a", "b")] * 1001), "1001 moves are more than 1000"),
    "as many as may be": (plan(*[move("v", "a", "b")] * 1000), "the plan moves a pod twice"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_plan_that_makes_no_sense_by_itself_is_refused(case: str) -> None:
    given, why = WRONG[case]
    assert said(scattered(), given) == (why, "")


def test_a_plan_that_fits_the_cluster_is_not_refused_whatever_its_steps_are_called() -> None:
    check(plan(move("v", "a", "b", 3)), facts(scattered()))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (TargetPod("ns/gone", "a", [], "gone"), "pod ns/gone does not wait in the queue (any more)"),
        (TargetPod("ns/another", "a", [], "big"), "pod ns/another does not wait in the queue (any more)"),
        (TargetPod("ns/big", "", [], "big"), "the plan has no node for pod ns/big"),
        (TargetPod("ns/claims", "a", [], "claims"), "pod ns/claims has ResourceClaims: no room is made for them"),
        (TargetPod("ns/let-go", "a", [], "let-go"), "pod ns/let-go is on its way to a node already"),
    ],
    ids=lambda value: value.pod if isinstance(value, TargetPod) else "",
)
@pytest.mark.parametrize("first", [False, True], ids=["alone", "after one that does not exist"])
def test_a_target_that_no_place_can_be_kept_for_is_refused(target: TargetPod, why: str, first: bool) -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.waits("let-go", controller="")
    defrag.tick()
    assert defrag.node_of("let-go")
    claims = {"schedulingGates": GATES, "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    defrag.waits("claims", 0, controller="", spec=claims)
    given = plan(move("v", "a", "b"), target="")
    given.target[:] = [TargetPod("ns/not-yet", "a", [])] * first + [target]
    told, of = said(defrag, given)
    assert (told.removesuffix(": no place can be kept for it"), of) == (why, "")
    assert told.endswith(": no place can be kept for it") == ("does not wait" in why)


def test_a_target_that_can_not_be_placed_at_all_says_why_by_its_own_doing() -> None:
    defrag = scattered()
    defrag.waits("odd", controller="", annotations={"kerf.dev/policy": "nonsense"})
    error = refusal(defrag, plan(move("v", "a", "b"), target="odd"))
    assert isinstance(error, TargetError)
    assert str(error).startswith('pod ns/odd can\'t be placed: kerf.dev/policy: "nonsense" is not a policy')
    left = Entry(decode_pod(defrag.api.pods["odd"]), 0.0, 0.0, left="kube-scheduler allocates its devices")
    with pytest.raises(TargetError, match=r"^pod ns/odd can't be placed: kube-scheduler allocates its devices$"):
        targets_of(plan(target="odd"), {"odd": left})


def test_pods_of_the_target_that_are_there_are_told_with_their_nodes() -> None:
    defrag = scattered()
    given = plan(move("v", "a", "b"))
    given.target[:] = [TargetPod("ns/not-yet", "b", []), *given.target]
    [(entry, node)] = targets_of(given, defrag.rig.queue.backlog.entries)
    assert (entry.uid, node) == ("big", "a")


def test_a_target_that_is_a_part_of_its_gang_is_refused() -> None:
    defrag = scattered()
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    for name in ("g1", "g2"):
        defrag.waits(name, controller="", annotations=dict(gang))
    defrag.waits("g3", controller="", annotations={**gang, "kerf.dev/gang": "h"})
    error = refusal(defrag, plan(move("v", "a", "b"), target="g1"))
    assert isinstance(error, TargetError)
    assert str(error) == "pod ns/g2 is in the target's gang, but not in the plan"
    whole = plan(move("v", "a", "b"), target="g1")
    whole.target.append(TargetPod("ns/g2", "b", [], "g2"))
    check(whole, facts(defrag))
    check(plan(move("v", "a", "b")), facts(defrag))  # pods without a gang are none


def test_the_quota_of_each_namespace_of_the_target_counts_all_that_it_uses_and_asks() -> None:
    defrag = scattered(quotas=Quotas({"ns": 6, "theirs": 3}))
    defrag.rig.queue.running.changed(None, defrag.running["v"])
    defrag.waits("more", 2, controller="")
    given = plan(move("v", "a", "b"))
    given.target.append(TargetPod("ns/more", "b", [], "more"))
    check(given, facts(defrag))
    defrag.waits("theirs", 4, controller="", namespace="theirs")
    given.target.append(TargetPod("theirs/theirs", "b", [], "theirs"))
    error = refusal(defrag, given)
    assert isinstance(error, TargetError)
    assert str(error) == "the target is over its quota: quota of namespace theirs: 3 GPUs, 0 in use, 4 more requested"


def test_nobody_of_a_higher_priority_moves_than_the_least_of_the_target() -> None:
    defrag = scattered()
    for name, priority in (("low", 3), ("high", 5)):
        defrag.waits(name, controller="", labels={"genius/priority": str(priority)})
    defrag.runs("same", "b", 0, labels={"genius/priority": "3"})
    defrag.runs("above", "b", 0, spec={"priority": 4})
    target = [TargetPod("ns/high", "a", [], "high"), TargetPod("ns/low", "a", [], "low")]
    for name in ("same", "v"):
        given = plan(move(name, defrag.running[name].spec.node_name or "", "b"), target="", priority=9)
        given.target[:] = target
        check(given, facts(defrag))
    given = plan(move("above", "b", "a"), target="", priority=9)
    given.target[:] = target
    assert said(defrag, given) == ("pod ns/above has priority 4, above the target's 3", "above")
    given.target[:] = [TargetPod("ns/not-yet", "a", [])]
    check(given, facts(defrag))  # the plan's own word
    given.priority = 3
    assert said(defrag, given) == ("pod ns/above has priority 4, above the target's 3", "above")


MOVES: dict[str, tuple[PlannedMove, str]] = {
    "gone": (move("gone", "a", "b"), "pod ns/gone no longer runs, or was recreated"),
    "another pod of that name": (
        msgspec.structs.replace(move("v", "a", "b"), pod="ns/was"),
        "pod ns/was no longer runs, or was recreated",
    ),
    "on another node": (
        move("v", "b", "a"),
        "pod ns/v is not on node b, or not of the controller that the plan names",
    ),
    "of another controller": (
        move("v", "a", "b", controller="x"),
        "pod ns/v is not on node a, or not of the controller that the plan names",
    ),
    "with a priority that is none": (
        move("odd", "b", "a"),
        'pod ns/odd: genius/priority: "high" is not a number; write a whole number such as "10"',
    ),
    "of a controller of which too many wait": (
        move("many", "b", "a", controller="many"),
        "pod ns/many has a controller with more than 64 pods waiting already",
    ),
    "not movable": (move("stays", "b", "a"), "pod ns/stays is left alone: kerf.dev/movable is 'false'"),
}


@pytest.mark.parametrize("case", MOVES)
def test_a_plan_is_refused_for_what_is_wrong_with_a_pod_that_would_move(case: str) -> None:
    given, why = MOVES[case]
    defrag = scattered()
    defrag.runs("odd", "b", 0, labels={"genius/priority": "high"})
    defrag.runs("stays", "b", 0, annotations={"kerf.dev/movable": "false"})
    defrag.runs("many", "b", 0, controller="many")
    for number in range(65):
        defrag.waits(f"w{number}", 0, controller="many")
    assert said(defrag, plan(move("v", "a", "b"), given) if given.uid != "v" else plan(given)) == (why, given.uid)


def test_pods_of_exempt_namespaces_and_past_the_queue_are_left_alone() -> None:
    defrag = scattered()
    told = said(defrag, MOVE_V, exempt=("kube-system", "ns"))
    assert told == ("pod ns/v is left alone: namespace ns is exempt", "v")
    check(MOVE_V, facts(defrag, exempt=("kube-system",)))
    defrag.runs("past", "b", 0, labels={"kerf.dev/queue": "disabled"})
    why = "would not wait in the queue once it is recreated: kerf.dev/queue is not enabled for it"
    assert said(defrag, plan(move("past", "b", "a"))) == (f"pod ns/past {why}", "past")


def test_a_gang_moves_whole_in_one_step() -> None:
    defrag = scattered()
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    for name in ("m1", "m2", "m3"):
        defrag.runs(name, "b", 0, annotations=dict(gang))
    defrag.runs("h1", "b", 0, annotations={**gang, "kerf.dev/gang": "h"})
    moves = [move(name, "b", "a") for name in ("v", "m2", "m3")]
    moves[0] = move("v", "a", "b")
    part = plan(*moves)
    assert said(defrag, part) == ("gang ns/g would be moved in part: pod ns/m1 stays", "m2")
    check(plan(*moves, move("m1", "b", "a")), facts(defrag))
    in_two_steps = plan(*moves, move("m1", "b", "a", 1))
    assert said(defrag, in_two_steps) == ("gang ns/g would be moved in part: pod ns/m1 stays", "m2")
    defrag.api.pods["m1"]["status"]["phase"] = "Succeeded"
    defrag.told(decode_pod(defrag.api.pods["m1"]))
    check(part, facts(defrag))  # who has ended can't move


# Who can be moved


def runs(**changes: Any) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    owner |= changes.pop("owner", {})
    owners = [] if changes.pop("alone", False) else [owner]
    metadata = {"name": "p", "namespace": "ns", "uid": "p", "ownerReferences": owners, **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}, **changes}


NOT_ANEW = "has no controller that would replace it: {} does not recreate pods"
STAYS: dict[str, tuple[dict[str, Any], str]] = {
    "a ReplicaSet's": (runs(), ""),
    "going": (runs(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "is terminating or has finished"),
    "finished": (runs(status={"phase": "Failed"}), "is terminating or has finished"),
    "of an exempt namespace": (runs(metadata={"namespace": "left"}), "is left alone: namespace left is exempt"),
    "movable": (runs(metadata={"annotations": {"kerf.dev/movable": " True "}}), ""),
    "of another word": (
        runs(metadata={"annotations": {"kerf.dev/movable": " No" + "x" * 50}}),
        f"is left alone: kerf.dev/movable is {'no' + 'x' * 38!r}",
    ),
    "alone": (runs(alone=True), "has no controller that would replace it"),
    "of no controller": (runs(owner={"controller": False}), "has no controller that would replace it"),
    "a DaemonSet's": (runs(owner={"kind": "DaemonSet"}), "belongs to its node"),
    "a Node's": (runs(owner={"apiVersion": "v1", "kind": "Node"}), "belongs to its node"),
    "a ReplicationController's": (runs(owner={"apiVersion": "v1", "kind": "ReplicationController"}), ""),
    "a StatefulSet's": (runs(owner={"kind": "StatefulSet"}), ""),
    "a Job's": (runs(owner={"apiVersion": "batch/v1", "kind": "Job"}), ""),
    "a Job's of another group": (
        runs(owner={"apiVersion": "apps/v1", "kind": "Job"}),
        NOT_ANEW.format("Job"),
    ),
    "a ConfigMap's": (runs(owner={"apiVersion": "v1", "kind": "ConfigMap"}), NOT_ANEW.format("ConfigMap")),
    "of a long kind": (
        runs(owner={"apiVersion": "x.k8s.io/v1", "kind": "K" * 50}),
        NOT_ANEW.format("K" * 40),
    ),
    "a SparkApplication's": (
        runs(owner={"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication"}),
        "",
    ),
    "another kind's of that group": (
        runs(owner={"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "Other"}),
        NOT_ANEW.format("Other"),
    ),
    "a custom kind's": (runs(owner={"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}), ""),
    "with ResourceClaims": (
        runs(spec={"resourceClaims": [{"name": "gpu"}]}),
        "has ResourceClaims: it is not known what its replacement would get",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_why_a_pod_stays_where_it_is(case: str) -> None:
    pod, why = STAYS[case]
    assert why_stays(decode_pod(pod), {"ns"}, frozenset({"left"})) == why


UNGATED = "would not wait in the queue once it is recreated: kerf.dev/queue is not enabled for it"


@pytest.mark.parametrize(
    ("labels", "namespace", "waits"),
    [
        ({}, "ns", True),
        ({}, "other", False),
        ({"kerf.dev/queue": "enabled"}, "other", True),
        ({"kerf.dev/queue": "yes"}, "other", False),
        ({"kerf.dev/queue": "disabled"}, "ns", False),
        ({"genius/priority": "1"}, "other", True),
        ({"genius/priority": " "}, "other", False),
        ({"genius/priority": "1", "kerf.dev/queue": "disabled"}, "other", False),
    ],
)
def test_only_a_pod_whose_replacement_waits_behind_the_gate_is_moved(
    labels: dict[str, str], namespace: str, waits: bool
) -> None:
    pod = decode_pod(runs(metadata={"labels": labels, "namespace": namespace}))
    assert why_stays(pod, {"ns"}, frozenset()) == ("" if waits else UNGATED)
    assert why_stays(pod, None, frozenset()) == ""  # where nobody asks for that


def test_siblings_are_the_pods_of_the_same_controller_and_namespace() -> None:
    defrag = scattered()
    defrag.waits("s1")
    defrag.waits("s2", controller="rs2")
    defrag.waits("s3", namespace="theirs")
    defrag.waits("s4", controller="")
    defrag.runs("r1", "b", 0)
    defrag.runs("r2", "b", 0, namespace="theirs")
    entries = defrag.rig.queue.backlog.entries
    assert siblings(move("v", "a", "b"), entries) == ["s1"]
    assert siblings_running(move("v", "a", "b"), defrag.running) == {"v", "r1"}
    assert crowded(entries) == frozenset()
