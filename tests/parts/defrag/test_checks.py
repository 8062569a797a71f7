"""Why a plan is refused before anything is moved, and whether a moved pod or the target is the reason."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from extender.parts.defrag.checks import (
    CheckInputs,
    RoomError,
    TargetError,
    check,
    crowded,
    siblings,
    siblings_running,
    targets_of,
    why_stays,
)
from extender.parts.defrag.plan import RoomPlan, TargetPod
from extender.planning.quotas import Quotas
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod
from tests.golden import Golden
from tests.parts.defrag.rigs import MOVE_V, Defrag, gang, move, plan, scattered
from tests.queueing.rigs import GATES


def facts(defrag: Defrag, *, exempt: Collection[str] = ()) -> CheckInputs:
    queue = defrag.rig.queue
    return CheckInputs(defrag.running, queue.backlog.entries, queue.namespaces, frozenset(exempt), queue.use)


def refusal(defrag: Defrag, given: RoomPlan, *, exempt: Collection[str] = ()) -> RoomError:
    with pytest.raises(RoomError) as error:
        check(given, facts(defrag, exempt=exempt))
    return error.value


def for_pods(*target: TargetPod, moved: str = "v", **fields: Any) -> RoomPlan:
    """A plan for other pods than `big`."""
    given = plan(move(moved, "a", "b") if moved == "v" else move(moved, "b", "a"), target="", **fields)
    given.target[:] = target
    return given


def test_refused_plans(golden: Golden) -> None:
    defrag = scattered()
    defrag.node("c", 1)
    defrag.waits("released", controller="")
    defrag.tick()
    assert defrag.node_of("released")
    claims = {"schedulingGates": GATES, "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    defrag.waits("claims", 0, controller="", spec=claims)
    defrag.waits("invalid", controller="", annotations={"kerf.dev/policy": "nonsense"})
    defrag.runs("stays", "b", 0, annotations={"kerf.dev/movable": "false"})
    defrag.runs("unqueued", "b", 0, labels={"kerf.dev/queue": "disabled"})
    defrag.runs("many", "b", 0, controller="many")
    for number in range(65):
        defrag.waits(f"w{number}", 0, controller="many")
    v = move("v", "a", "b")
    plans = [
        msgspec.structs.replace(MOVE_V, fits=False),
        msgspec.structs.replace(plan(), fits=False),
        plan(),
        plan(move("v", "a", "b", -1)),
        plan(move("v", "a", "b", 2), move("w", "b", "a", 1)),
        plan(v, v),
        plan(*[v] * 1000),
        plan(*[v] * 1001),
        for_pods(TargetPod("ns/gone", "a", [], "gone")),
        for_pods(TargetPod("ns/another", "a", [], "big")),
        for_pods(TargetPod("ns/big", "", [], "big")),
        for_pods(TargetPod("ns/claims", "a", [], "claims")),
        for_pods(TargetPod("ns/released", "a", [], "released")),
        for_pods(TargetPod("ns/invalid", "a", [], "invalid")),
        plan(v, move("gone", "a", "b")),
        plan(msgspec.structs.replace(v, pod="ns/was")),
        plan(move("v", "b", "a")),
        plan(move("v", "a", "b", controller="x")),
        plan(v, move("many", "b", "a", controller="many")),
        plan(v, move("stays", "b", "a")),
        plan(v, move("unqueued", "b", "a")),
    ]
    errors = [refusal(defrag, given) for given in plans]
    lines = [f"{error}{f' (of {error.pod_uid})' if error.pod_uid else ''}" for error in errors]
    golden("defrag/refused_plans.txt", [line.partition("; use one of")[0] for line in lines])
    assert [isinstance(error, TargetError) for error in errors] == ["invalid can't be" in line for line in lines]
    check(plan(move("v", "a", "b", 3)), facts(defrag))


def test_a_queued_pod_that_can_t_be_placed_says_why() -> None:
    defrag = scattered()
    left = Entry(decode_pod(defrag.api.pods["big"]), 0.0, 0.0, left_to_scheduler="kube-scheduler allocates its devices")
    with pytest.raises(TargetError, match=r"^pod ns/big can't be placed: kube-scheduler allocates its devices$"):
        targets_of(plan(), {"big": left})


def test_the_existing_pods_of_the_target_with_their_nodes() -> None:
    defrag = scattered()
    given = for_pods(TargetPod("ns/not-yet", "b", []), TargetPod("ns/big", "a", [], "big"))
    [(entry, node)] = targets_of(given, defrag.rig.queue.backlog.entries)
    assert (entry.uid, node) == ("big", "a")


def test_a_target_that_is_a_part_of_its_gang_is_refused() -> None:
    defrag = scattered()
    for name, of in (("g1", "g"), ("g2", "g"), ("g3", "h")):
        defrag.waits(name, controller="", annotations=gang(2, of))
    part, rest = TargetPod("ns/g1", "a", [], "g1"), TargetPod("ns/g2", "b", [], "g2")
    error = refusal(defrag, for_pods(part))
    assert isinstance(error, TargetError)
    assert str(error) == "pod ns/g2 is in the target's gang, but not in the plan"
    check(for_pods(part, rest), facts(defrag))
    check(MOVE_V, facts(defrag))  # pods without a gang


def test_the_quotas_of_all_namespaces_of_the_target_are_kept() -> None:
    defrag = scattered(quotas=Quotas({"ns": 6, "theirs": 3}))
    defrag.rig.queue.running.changed(None, defrag.running["v"])
    defrag.waits("more", 2, controller="")
    target = [TargetPod("ns/big", "a", [], "big"), TargetPod("ns/more", "b", [], "more")]
    check(for_pods(*target), facts(defrag))
    defrag.waits("theirs", 4, controller="", namespace="theirs")
    error = refusal(defrag, for_pods(*target, TargetPod("theirs/theirs", "b", [], "theirs")))
    assert isinstance(error, TargetError)
    assert str(error) == "the target is over its quota: quota of namespace theirs: 3 GPUs, 0 in use, 4 more requested"


def test_no_pod_above_the_targets_lowest_priority_moves() -> None:
    defrag = scattered()
    for name, priority in (("low", 3), ("high", 5)):
        labels = {
            "genius/priority": "9" if name == "low" else str(priority)
        }  # of its label and its class the lower one
        defrag.waits(name, controller="", labels=labels, spec={"priority": priority})
    defrag.runs("same", "b", 0, labels={"genius/priority": "3"})
    defrag.runs("above", "b", 0, labels={"genius/priority": "1"}, spec={"priority": 4})
    target = [TargetPod("ns/high", "a", [], "high"), TargetPod("ns/low", "a", [], "low")]
    not_yet = TargetPod("ns/not-yet", "a", [])
    check(for_pods(*target, moved="same", priority=9), facts(defrag))
    check(for_pods(not_yet, moved="above", priority=4), facts(defrag))  # the plan's own priority
    for given in (for_pods(*target, moved="above", priority=9), for_pods(not_yet, moved="above", priority=3)):
        error = refusal(defrag, given)
        assert (str(error), error.pod_uid) == ("pod ns/above has priority 4, above the target's 3", "above")


def test_pods_of_exempt_namespaces_do_not_move() -> None:
    defrag = scattered()
    error = refusal(defrag, MOVE_V, exempt=("kube-system", "ns"))
    assert (str(error), error.pod_uid) == ("pod ns/v is left alone: namespace ns is exempt", "v")
    check(MOVE_V, facts(defrag, exempt=("kube-system",)))


def test_a_gang_moves_whole_in_one_step() -> None:
    defrag = scattered()
    for name in ("m1", "m2", "m3"):
        defrag.runs(name, "b", 0, annotations=gang(3))
    defrag.runs("h1", "b", 0, annotations=gang(3, "h"))
    moves = [move("v", "a", "b"), *(move(name, "b", "a") for name in ("m2", "m3"))]
    check(plan(*moves, move("m1", "b", "a")), facts(defrag))
    for part in (plan(*moves), plan(*moves, move("m1", "b", "a", 1))):
        error = refusal(defrag, part)
        assert (str(error), error.pod_uid) == ("gang ns/g would be moved in part: pod ns/m1 stays", "m2")
    defrag.api.pods["m1"]["status"]["phase"] = "Succeeded"
    defrag.told(decode_pod(defrag.api.pods["m1"]))
    check(plan(*moves), facts(defrag))


def test_siblings_are_the_pods_of_the_same_controller_and_namespace() -> None:
    defrag = scattered()
    defrag.waits("s2", controller="rs2")
    defrag.waits("s3", namespace="theirs")
    defrag.waits("s4", controller="")
    for number in range(64):
        defrag.waits(f"w{number}")
    defrag.runs("r1", "b", 0)
    defrag.runs("r2", "b", 0, namespace="theirs")
    entries, v = defrag.rig.queue.backlog.entries, move("v", "a", "b")
    assert siblings(v, entries) == [f"w{number}" for number in range(64)]
    assert siblings_running(v, defrag.running) == {"v", "r1"}
    assert crowded(entries) == frozenset()
    defrag.waits("w64")
    assert crowded(entries) == {("ns", "rs")}


# Which pods can be moved


def runs(**changes: Any) -> dict[str, Any]:
    """A pod of a ReplicaSet."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    owners = [owner | changes.pop("owner", {})]
    metadata = {"name": "p", "namespace": "ns", "uid": "p", "ownerReferences": owners, **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}, **changes}


def test_why_a_pod_stays(golden: Golden) -> None:
    owners = (
        *(("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("apps/v1", "Job")),
        *(("batch/v1", "Job"), ("batch.volcano.sh/v1alpha1", "Job"), ("jobset.x-k8s.io/v1alpha2", "JobSet")),
        *(("v1", "ReplicationController"), ("v1", "Node"), ("v1", "Pod"), ("v1", "ConfigMap"), ("", "")),
        *(("coordination.k8s.io/v1", "Lease"), ("x.k8s.io/v1", "K" * 50), ("kubeflow.org/v1", "PyTorchJob")),
        *(("sparkoperator.k8s.io/v1beta2", kind) for kind in ("SparkApplication", "Other")),
    )
    pods = [(f"{version} {kind}", runs(owner={"apiVersion": version, "kind": kind})) for version, kind in owners]
    pods += [
        ("no owner", runs(metadata={"ownerReferences": []})),
        ("an owner that is no controller", runs(owner={"controller": False})),
        ("deleted", runs(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        ("failed", runs(status={"phase": "Failed"})),
        ("exempt namespace", runs(metadata={"namespace": "left"})),
        ("movable: True", runs(metadata={"annotations": {"kerf.dev/movable": " True "}})),
        ("movable: no", runs(metadata={"annotations": {"kerf.dev/movable": " No" + "x" * 50}})),
        ("ResourceClaims", runs(spec={"resourceClaims": [{"name": "gpu"}]})),
    ]
    stays = [f"{what}: {why_stays(decode_pod(pod), {'ns'}, frozenset({'left'})) or '-'}" for what, pod in pods]
    golden("defrag/immovable_pods.txt", stays)


def test_only_a_pod_whose_replacement_is_gated_is_moved() -> None:
    for labels, namespace, gated in (
        ({}, "ns", True),
        ({}, "other", False),
        ({"kerf.dev/queue": "enabled"}, "other", True),
        ({"kerf.dev/queue": "yes"}, "other", False),
        ({"kerf.dev/queue": "disabled"}, "ns", False),
        ({"genius/priority": "1"}, "other", True),
        ({"genius/priority": " "}, "other", False),
        ({"genius/priority": "1", "kerf.dev/queue": "disabled"}, "other", False),
    ):
        pod = decode_pod(runs(metadata={"labels": labels, "namespace": namespace}))
        assert (not why_stays(pod, {"ns"}, frozenset())) is gated
        assert why_stays(pod, None, frozenset()) == ""  # without a mover
