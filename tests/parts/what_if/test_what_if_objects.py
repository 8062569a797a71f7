"""What-if of objects that make pods, of nodes that are drained, and of nodes that are added for the pods that wait."""

from pathlib import Path
from typing import Any

import pytest

from extender.parts.what_if.questions import WhatIfError
from tests.parts.what_if.what_if_facts import H100, Manifest, facts, node, pod, told, waits

SAMPLES = Path(__file__).parents[2] / "explain" / "manifests" / "samples"


def job(name: str, pods: int, gpus: int, **annotations: str) -> Manifest:
    found = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    template = {"metadata": {"annotations": found}, "spec": {"containers": containers}}
    metadata = {"name": name, "namespace": "ns"}
    return {"kind": "Job", "metadata": metadata, "spec": {"parallelism": pods, "template": template}}


def test_every_sample_is_answered_as_text() -> None:
    known = facts([node(f"n{number}", 8) for number in range(4)])
    for sample in sorted(SAMPLES.glob("*.yaml")):
        found = told(known, manifest=sample.read_text())
        (one,) = found["objects"]
        assert one["placed"] == one["pods"] == found["pods"] > 0, sample
        assert sum(len(entry["pods"]) for entry in one["nodes"]) == one["pods"]


def test_a_gang_goes_as_a_whole_or_not_at_all() -> None:
    known = facts([node("a", 8), node("b", 8)])
    found = told(known, objects=[job("gang", 3, 8, gang="g", gang_size="3"), job("alone", 1, 8)])
    gang, alone = found["objects"]
    assert (gang["placed"], alone["placed"]) == (0, 1)
    assert gang["reasons"] == {"its gang ns/g does not fit as a whole": 3}


def test_a_gang_of_too_few_pods_waits_for_the_others_as_it_would_in_the_queue() -> None:
    known = facts([node("a", 8)])
    few = job("few", 2, 1, gang="g", gang_size="3")
    assert told(known, objects=[few])["reasons"] == {"gang ns/g waits for its pods: 2 of 3 exist": 2}
    third = pod("third", 1, gang="g", gang_size="3")
    assert told(known, objects=[few], pods=[third])["placed"] == 3, "the third is asked about beside it"


def grouped(name: str, group: str, gpus: int, *, native: bool = False) -> Manifest:
    made: Manifest = {"kind": "Pod"} | pod(name, gpus)
    if native:
        made["spec"]["schedulingGroup"] = {"podGroupName": group}
    else:
        made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return made


def pod_group(name: str, *, native: bool = False, **spec: Any) -> Manifest:
    version = "scheduling.k8s.io/v1beta1" if native else "scheduling.x-k8s.io/v1alpha1"
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def test_a_pod_group_says_how_many_start_together_and_where() -> None:
    known = facts([node("a", 8, rack="1"), node("b", 8, rack="2"), node("c", 8, rack="2")])
    members = [grouped(f"m{number}", "g", 8, native=True) for number in range(2)]
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    found = told(known, objects=[*members, pod_group("g", native=True, **gang)])
    assert {entry["node"] for entry in found["assignments"]} == {"b", "c"}, "the first node is alone in its rack"
    basic = told(known, objects=[*members, *members, pod_group("g", native=True, schedulingPolicy={"basic": {}})])
    assert (basic["pods"], basic["placed"]) == (4, 3), "they go one by one"
    few = told(known, objects=[grouped("m", "g", 1), pod_group("g", minMember=2)])
    assert few["reasons"] == {"gang ns/g waits for its pods: 1 of 2 exist": 1}
    none = told(known, objects=[grouped("m", "g", 1), pod_group("g")])
    assert none["reasons"] == {"gang ns/g: its PodGroup does not exist, or has no minMember or minCount": 1}


def test_a_pod_group_that_is_not_given_is_noted_and_its_pods_start_together() -> None:
    found = told(facts([node("a", 8)]), objects=[grouped(f"m{number}", "g", 5) for number in range(2)])
    assert found["placed"] == 0
    assert found["objects"][0]["notes"] == ["PodGroup ns/g is not given: all pods that name it start together"]


def test_copies_of_an_object_are_gangs_of_their_own() -> None:
    gang = job("gang", 2, 8, gang="g", gang_size="2")
    found = told(facts([node("a", 8), node("b", 8), node("c", 8)]), objects=[gang], replicas=2)
    assert [one["placed"] for one in found["objects"]] == [2, 0]
    assert found["reasons"] == {"its gang ns/g, copy 2 does not fit as a whole": 2}
    group = pod_group("g", minMember=2)
    grouped_job = job("gang", 2, 8)
    grouped_job["spec"]["template"]["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
    found = told(facts([node("a", 8), node("b", 8), node("c", 8)]), objects=[grouped_job, group], replicas=2)
    assert [(one["placed"], one["notes"]) for one in found["objects"]] == [(2, []), (0, [])]


def test_pods_of_one_name_are_told_apart() -> None:
    known = facts([node("a", 8)], [pod("train-0", 1, on="a")])
    found = told(known, objects=[job("train", 1, 1), job("train", 1, 9)], pods=[pod("train-0", 1)])
    assert [one["placed"] for one in found["objects"]] == [1, 0]
    keys = [entry["pod"] for entry in (*found["assignments"], *found["unassigned"])]
    assert sorted(keys) == ["ns/train-0", "ns/train-0.2", "ns/train-0.3"]


def test_nodes_among_the_objects_are_added_or_what_new_ones_may_be_like() -> None:
    new = {"kind": "Node"} | node("big", 16, H100)
    known = facts([node("a", 8)])
    found = told(known, objects=[job("train", 1, 16), job("none", 0, 1), new])
    train, none = found["objects"]
    assert train["nodes"] == [{"node": "big+1", "pods": ["ns/train-0"]}]
    assert (none["pods"], none["notes"]) == (0, ["it creates no pods as written"])
    found = told(known, objects=[job("train", 2, 16), new], findNodes=True)
    assert found["missing"]["nodes"] == [{"like": "big", "count": 2, "gpus": 16, "model": "h100-80gb-hbm3"}]


def test_new_nodes_have_the_labels_that_the_pods_of_an_object_name() -> None:
    train = job("train", 1, 8)
    train["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "second"}
    pools = {"a": "first", "b": "first", "c": "second", "d": "second"}
    full = [pod(f"on-{name}", 8, on=name) for name in pools]
    known = facts([node(name, 8, pool=pool) for name, pool in pools.items()], full)
    assert [entry["like"] for entry in told(known, objects=[train], findNodes=True)["missing"]["nodes"]] == ["c"]


def test_a_question_about_objects_is_refused_with_the_place_of_what_is_wrong() -> None:
    known = facts([node("a", 8)])
    for question, fault in (
        ({"objects": [job("a", 1, 1), job("b", "two", 1)]}, r"^objects\[1\] \(Job b\): spec.parallelism: "),  # type: ignore[arg-type]
        (
            {"manifest": "kind: Service\n---\nkind: Foo\nmetadata: {name: x}\n"},
            r"^document 2, line 3 \(Foo x\): kind: ",
        ),
        ({"manifest": "x" * 2**21}, "1048576"),
        ({"objects": [job("a", 10, 1), job("b", 9_999, 1)]}, "9,999 pods with 10 others"),
    ):
        with pytest.raises(WhatIfError, match=fault):
            told(known, **question)


def test_draining_alone_tells_where_the_pods_go_and_which_do_not_fit() -> None:
    on_a = [pod("x", 4, on="a"), pod("y", 5, on="a")]
    known = facts([node("a", 16), node("b", 8)], on_a, pods_on={"a": on_a})
    found = told(known, drain=["a"])
    assert found["moved"] == ["ns/x", "ns/y"]
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]} == {"ns/x": "b"}
    assert found["unassigned"] == [{"pod": "ns/y", "reason": "needs 5 GPUs, best node: 4 free"}]
    assert (found["objects"], found["gained"]) == ([], [])


def test_nodes_that_are_added_alone_are_for_the_pods_that_wait() -> None:
    known = facts([node("a", 8)], [pod("x", 4, on="a")], [waits("fits", 4), waits("gains", 8), waits("never", 9)])
    found = told(known, addNodes=[{"template": "a"}])
    assert (found["pods"], found["placed"]) == (3, 2)
    assert found["gained"] == ["ns/gains"], "the other has room as it is"
    assert [entry["pod"] for entry in found["unassigned"]] == ["ns/never"]
    found = told(known, objects=[{"kind": "Node"} | node("big", 24)])
    assert found["gained"] == ["ns/gains", "ns/never"]
    assert told(known, findNodes=True)["missing"]["sentence"] == "1 node of 8 x a100-sxm4-40gb"
