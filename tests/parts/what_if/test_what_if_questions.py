"""What may be asked of what-if, and what a question needs to know."""

from typing import Any

import msgspec
import pytest

from extender.explain.manifests.objects import MAX_PODS
from extender.kube.objects import Pod
from extender.parts.what_if.questions import (
    AddedNodes,
    Needs,
    WhatIf,
    WhatIfError,
    added_nodes,
    asked_pods,
    copied,
    needs_of,
    read_question,
)
from extender.queueing.pods.objects import decode_node
from tests.parts.what_if.what_if_facts import Manifest, node, pod


def needs(**question: Any) -> Needs:
    return needs_of(read_question(msgspec.json.encode(question)))


NODE = {"kind": "Node"} | node("big", 8)
SPREAD = {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}
NEAR: Manifest = {"affinity": {"podAffinity": {}}}
APART: Manifest = {"affinity": {"podAntiAffinity": {}}}
TO_NODES: Manifest = {"affinity": {"nodeAffinity": {}}}


def test_what_a_question_needs() -> None:
    """Nodes to drain, whether nodes are added, claims, whether the pending pods count, and whether rules for pods."""
    one = pod("p", 1)
    for question, expected in (
        ({}, Needs([], False, [], False, False)),
        ({"drain": ["b", "a", "b"]}, Needs(["b", "a"], False, [], False, True)),
        ({"waiting": True}, Needs([], False, [], True, True)),
        ({"findNodes": True}, Needs([], True, [], True, True)),
        ({"addNodes": [{"template": "a"}]}, Needs([], True, [], True, True)),
        ({"addNodes": [{"template": "a"}], "drain": ["a"]}, Needs(["a"], True, [], False, True)),
        ({"objects": [NODE]}, Needs([], True, [], True, True)),
        ({"pods": [one], "findNodes": True}, Needs([], True, [], False, False)),
        ({"objects": [NODE, {"kind": "Pod"} | one]}, Needs([], True, [], False, False)),
        ({"pods": [pod("p", spec=SPREAD)]}, Needs([], False, [], False, True)),
        ({"pods": [pod("p", spec=NEAR)]}, Needs([], False, [], False, True)),
        ({"pods": [pod("p", spec=APART)]}, Needs([], False, [], False, True)),
        ({"pods": [pod("p", spec=TO_NODES)]}, Needs([], False, [], False, False)),
        ({"pods": [one], "objects": [{"kind": "Pod"} | pod("q", spec=SPREAD)]}, Needs([], False, [], False, True)),
    ):
        assert needs(**question) == expected, question


def test_each_claim_that_its_pods_name_is_needed_once() -> None:
    def claiming(name: str, **claim: str) -> Manifest:
        return pod(name, spec={"resourceClaims": [{"name": "c", **claim}]})

    objects = [{"kind": "Pod"} | claiming("r", resourceClaimName=claim) for claim in ("y", "z")]
    objects += [{"kind": "Pod"} | claiming("s", resourceClaimTemplateName="t")]
    pods = [claiming("p", resourceClaimName="x"), claiming("q", resourceClaimName="y")]
    assert needs(pods=pods, objects=objects).claims == ["ns/x", "ns/y", "ns/z", "ns/"]


def test_a_question_that_is_refused_says_why_and_may_be_as_large_as_that() -> None:
    most: Manifest = {"candidates": [{}] * 100, "objects": [NODE]}
    for question in ({"drain": ["n"] * 1000}, most, most | {"candidates": [{}] * 99, "findNodes": True}):
        read_question(msgspec.json.encode(question))
    for body, fault in (
        (b"{", "^invalid request: "),
        (b'{"drain": ["\xff"]}', "^invalid request: "),
        (b'{"replicas": 0}', "^invalid request: Expected `int` >= 1"),
        (b'{"pod": []}', "^invalid request: .* unknown field"),
        (b'{"pods": [' + b'{"a":' * 20_000, "^invalid request: "),
        (msgspec.json.encode({"drain": ["n"] * 1001}), "^drain: more than 1000 nodes$"),
        (msgspec.json.encode({"candidates": [{}] * 101}), "^candidates: more than 100 nodes$"),
        (msgspec.json.encode(most | {"findNodes": True}), "^candidates: more than 100 nodes$"),
        (b'{"objects": [{"kind": "Foo"}]}', r"^objects\[0\] \(Foo\): kind: "),
    ):
        with pytest.raises(WhatIfError, match=fault):
            read_question(body)


def test_null_is_as_if_it_were_not_there_and_objects_have_the_namespace_and_copies_that_are_asked_for() -> None:
    labelled = {"kind": "Pod", "metadata": {"name": "p", "labels": None}, "spec": {"containers": [{}]}}
    asked = {"pods": [{"metadata": {"labels": None}}], "objects": [labelled], "namespace": "team", "replicas": 2}
    question = read_question(msgspec.json.encode(asked))
    assert question.asked.pods == [{"metadata": {}}]
    assert [one.metadata.namespace for one in question.given.pods] == ["team"] * len(question.given.pods)
    assert len(question.given.workloads) == 2


def test_nodes_of_objects_are_added_or_candidates() -> None:
    beside: Manifest = {"candidates": [node("mine", 1)], "addNodes": [{"template": "a"}], "objects": [NODE]}
    added = read_question(msgspec.json.encode(beside))
    names = [(one.template, one.manifest and one.manifest["metadata"]["name"]) for one in added.add_nodes]
    assert names == [("a", None), ("", "big")]
    assert [one["metadata"]["name"] for one in added.candidates] == ["mine"]
    searched = read_question(msgspec.json.encode(beside | {"findNodes": True}))
    assert [one.template for one in searched.add_nodes] == ["a"]
    assert [one["metadata"]["name"] for one in searched.candidates] == ["mine", "big"]


def test_nodes_are_added_under_names_of_their_own_and_know_whom_they_are_like() -> None:
    known = {"a": decode_node(node("a", 8, pool="x"))}
    found = added_nodes([AddedNodes("a", count=2), AddedNodes(manifest=node("new", 4)), AddedNodes("a")], known)
    names = [(one.metadata.name, like) for one, like in found]
    assert names == [("a+1", "a"), ("a+2", "a"), ("new+3", ""), ("a+4", "a")]


def test_a_copy_of_a_node_is_not_cordoned_and_has_a_hostname_of_its_own() -> None:
    cordoned = node("a", 8, pool="x")
    cordoned["spec"] = {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]}
    template = decode_node(cordoned)
    copy = copied(template, "b")
    assert (copy.metadata.name, copy.metadata.uid, copy.spec.unschedulable) == ("b", "b", False)
    assert copy.metadata.labels == (template.metadata.labels or {}) | {"kubernetes.io/hostname": "b"}
    assert (copy.spec.taints, copy.status) == (template.spec.taints, template.status)
    plain = copied(decode_node({"metadata": {"name": "a"}}), "c")
    assert plain.metadata.labels == {"kubernetes.io/hostname": "c"}


def test_nodes_that_cannot_be_added() -> None:
    known = {"a": decode_node(node("a", 8))}
    assert len(added_nodes([AddedNodes("a", count=1000)], known)) == 1000
    for asked, fault in (
        ([AddedNodes()], r"^addNodes: write either template \(a node's name\) or manifest$"),
        ([AddedNodes("a", manifest={})], "^addNodes: write either template"),
        ([AddedNodes("gone")], "^addNodes: no node is named gone$"),
        ([AddedNodes(manifest={"status": 3})], "^addNodes: Expected `object`"),
        ([AddedNodes("a", count=1001)], "^addNodes: more than 1000 nodes$"),
        ([AddedNodes("a", count=501), AddedNodes("a", count=500)], "^addNodes: more than 1000 nodes$"),
    ):
        with pytest.raises(WhatIfError, match=fault):
            added_nodes(asked, known)


def identity(pods: list[Pod]) -> list[tuple[str, str]]:
    return [(one.key, one.metadata.uid) for one in pods]


def test_pods_are_told_apart_by_their_names_and_numbers() -> None:
    pods: list[dict[str, Any]] = [pod("train", 1), {"spec": {"containers": [{}]}}]
    assert identity(asked_pods(WhatIf(pods=pods))) == [("ns/train", "0-train"), ("default/pod-1", "1-pod-1")]
    twice = identity(asked_pods(WhatIf(pods=pods, replicas=2)))
    assert twice[:2] == [("ns/train-0", "0-train-0"), ("ns/train-1", "0-train-1")]
    assert twice[2:] == [("default/pod-1-0", "1-pod-1-0"), ("default/pod-1-1", "1-pod-1-1")]


def test_pods_that_cannot_be_asked_about() -> None:
    half = MAX_PODS // 2
    pair, odd = [pod("p"), pod("q")], {"spec": {"containers": 3}}
    bad: Manifest = {"spec": {"containers": [{"resources": {"limits": {"gpu": "1"}}}]}}
    assert len(asked_pods(WhatIf(pods=pair, replicas=half))) == MAX_PODS
    for asked, fault in (
        (WhatIf(pods=pair, replicas=half + 1), rf"^pods: 2 x {half + 1} replicas are more than {MAX_PODS} pods$"),
        (WhatIf(pods=[pod("p"), odd]), r"^pods\[1\]: Expected `array"),
        (WhatIf(pods=[bad]), r"^pods\[0\]: spec\.containers\[0\]\.resources: the API server refuses it: gpu"),
    ):
        with pytest.raises(WhatIfError, match=fault):
            asked_pods(asked)
