"""What-if in its process: a whole answer, what it is told and tells, and what it refuses."""

import io
import pickle
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fragmentation import ANY_MODEL, TypicalPod, mix_of, tables_of
from extender.core.policies.registry import POLICIES
from extender.explain.processes import ChildPipe
from extender.explain.stranded import Stranding
from extender.parts.what_if.process import _answered
from extender.parts.what_if.questions import WhatIfError
from tests.parts.what_if.test_what_if_objects import job
from tests.parts.what_if.what_if_facts import H100, Manifest, facts, node, pod, told, waits


def ended(manifest: Manifest) -> Manifest:
    return manifest | {"status": {"phase": "Succeeded"}}


def of_daemon(manifest: Manifest) -> Manifest:
    owner = {"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


NODES = [node("a", 8), node("b", 8), node("c", 4, H100)]


def test_a_whole_answer() -> None:
    """A node that is drained and one that is added, pods that wait, of the question and of an object."""
    moves, daemon, other = pod("x", 2, on="a"), of_daemon(pod("daemon", 1, on="a")), pod("y", 1, on="b")
    on_a = [moves, ended(pod("ended", 2, on="a")), daemon, other]
    pending = [waits("waits", 4), waits("over", 1)]
    known = facts(NODES, [moves, daemon, other], pending, pods_on={"a": on_a}, over="quota of namespace ns")
    found = told(
        known,
        drain=["a"],
        waiting=True,
        pods=[pod("p", 2), pod("odd", 1, gpu_count="lots"), pod("never", 9)],
        objects=[job("train", 2, 4), {"kind": "Service", "metadata": {"name": "s"}}],
        addNodes=[{"template": "c"}],
    )
    odd = 'kerf.dev/gpu-count: "lots" is not a quantity; write a whole number of GPUs such as "2"'
    never, busy, quota = (
        "needs 9 GPUs, best node: 8 installed",
        "needs 4 GPUs, best node: 3 free",
        "quota of namespace ns",
    )
    assert found.pop("version") > 0
    assert found == {
        "planner": "greedy",
        "pods": 8,
        "placed": 4,
        "gpus": 12,
        "fragments": 0.3333,
        "assignments": [
            {"pod": "ns/x", "node": "c", "gpus": [0, 1]},
            {"pod": "ns/waits", "node": "c+1", "gpus": [0, 1, 2, 3]},
            {"pod": "ns/p", "node": "c", "gpus": [2, 3]},
            {"pod": "ns/train-0", "node": "b", "gpus": [0, 1, 2, 3]},
        ],
        "unassigned": [
            {"pod": "ns/never", "reason": never},
            {"pod": "ns/train-1", "reason": busy},
            {"pod": "ns/odd", "reason": odd},
            {"pod": "ns/over", "reason": quota},
        ],
        "nodes": [
            {"node": "b", "pods": ["ns/train-0"], "gpusUsed": 5, "gpus": 8, **percents(1.6, 62.5)},
            {"node": "c", "pods": ["ns/x", "ns/p"], "gpusUsed": 4, "gpus": 4, **percents(3.1, 100.0)},
            {"node": "c+1", "pods": ["ns/waits"], "gpusUsed": 4, "gpus": 4, **percents(1.6, 100.0)},
        ],
        "reasons": {never: 1, busy: 1, odd: 1, quota: 1},
        "noMoveHelps": ["ns/never", "ns/odd", "ns/over"],
        "moved": ["ns/x"],
        "fragmentsBefore": 0.6,
        "strandedBefore": None,
        "stranded": None,
        "gained": [],
        "unreadable": 1,
        "objects": [
            {
                "object": "Job ns/train",
                "place": "objects[0]",
                "pods": 2,
                "placed": 1,
                "nodes": [{"node": "b", "pods": ["ns/train-0"]}],
                "reasons": {busy: 1},
                "notes": [],
            }
        ],
        "skipped": ["Service s"],
        "notChecked": {},
    }


def percents(cpu: float, gpu: float) -> Mapping[str, float]:
    return {"cpuPercent": cpu, "memoryPercent": 0.0, "gpuPercent": gpu}


def test_it_is_told_a_question_tells_what_that_needs_and_then_answers() -> None:
    question = msgspec.json.encode({"pods": [pod("p", 2)], "drain": ["b"]})
    source, target = io.BytesIO(), io.BytesIO()
    speaking = ChildPipe(io.BytesIO(), source)
    speaking.send(question)
    speaking.send(pickle.dumps(facts(NODES)))
    source.seek(0)
    answer = msgspec.json.decode(_answered(ChildPipe(source, target)))
    assert [(entry["pod"], entry["node"]) for entry in answer["assignments"]] == [("ns/p", "c")]
    target.seek(0)
    needs = {"drain": ["b"], "adds": False, "claims": [], "waiting": False, "rules": True}
    assert ChildPipe(target, source).read() == b"=" + msgspec.json.encode(needs)


def test_what_cannot_be_read_is_refused() -> None:
    known = facts(NODES)
    named = {"metadata": {"name": 5}}
    for made, question, fault in (
        (
            known,
            {"drain": ["a", *(f"n{number}" for number in range(7))]},
            r"^drain: no node is named n0, n1, n2, n3, n4$",
        ),
        (replace(known, nodes=b"x"), {}, r"^nodes and pods can't be read: "),
        (replace(known, pods_on={"a": b"x"}), {"drain": ["a"]}, r"^nodes and pods can't be read: "),
        (known, {"claims": [named]}, r"^claims: "),
        (known, {"claimTemplates": [{"metadata": {"name": "t"}}]}, r"^claims: "),
        (known, {"candidates": [{"status": 3}], "findNodes": True}, r"^candidates: "),
    ):
        with pytest.raises(WhatIfError, match=fault):
            told(made, **question)


def test_claims_and_templates_are_those_beside_the_pods_and_those_of_objects() -> None:
    def claiming(name: str, **claim: str) -> Manifest:
        return pod(name, spec={"resourceClaims": [{"name": "c", **claim}]})

    def asks(kind: str, name: str) -> Manifest:
        devices = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "nic"}}]}}
        metadata = {"name": name, "namespace": "ns"}
        spec = devices if kind == "ResourceClaim" else {"spec": devices}
        return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}

    pods = [claiming(name, resourceClaimName=name) for name in ("mine", "given")]
    pods += [claiming(f"of-{name}", resourceClaimTemplateName=name) for name in ("template", "other")]
    beside = {"claims": [asks("ResourceClaim", "mine")], "claimTemplates": [asks("ResourceClaimTemplate", "template")]}
    objects = [asks("ResourceClaim", "given"), asks("ResourceClaimTemplate", "other")]
    found = told(facts(NODES), pods=pods, objects=objects, **beside)
    assert found["placed"] == 4
    assert found["notChecked"] == {"its ResourceClaims, which Kerf doesn't allocate": 4}


def test_a_node_is_drained_once_and_one_whose_pods_nobody_has_told_of_is_empty() -> None:
    on_a = [pod("x", 2, on="a")]
    found = told(facts(NODES, on_a, pods_on={"a": on_a}), drain=["a", "c", "a"])
    assert found["moved"] == ["ns/x"]
    assert [entry["node"] for entry in found["assignments"]] == ["b"]


def test_a_node_that_has_as_many_pods_as_it_takes_gets_no_more() -> None:
    known = facts([node("a", 8), node("b", 8)])
    full = replace(known, num_pods={"a": 110, "b": 109})
    found = told(full, pods=[pod("p", 1), pod("q", 1)])
    assert [(entry["pod"], entry["node"]) for entry in found["assignments"]] == [("ns/p", "b")]
    assert told(known, pods=[pod("p", 1), pod("q", 1)])["placed"] == 2


def test_nodes_are_ranked_as_the_policy_is_configured_here() -> None:
    known = facts([node("a", 8), node("b", 8)], [pod("x", 4, on="a")])
    for configured, expected in (("tightest", "a"), ("spread", "b")):
        found = told(replace(known, policies={"tightest": POLICIES[configured]}), pods=[pod("p", 1)])
        assert [entry["node"] for entry in found["assignments"]] == [expected]


def test_tolerations_that_admission_may_add_are_taken_to_be_there_only_where_that_helps() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    tainted = node("a", 8) | {"spec": {"taints": [taint]}}
    roomy = told(facts([tainted, node("b", 8)]), pods=[pod("p", 8)])
    assert (roomy["placed"], roomy["notChecked"]) == (1, {})
    (why,) = told(facts([tainted]), pods=[pod("p", 9)])["reasons"]
    assert why.startswith("untolerated taint nvidia.com/gpu")
    (why,) = told(facts([tainted]), pods=[pod("cpu")])["reasons"]
    assert why.startswith("untolerated taint nvidia.com/gpu"), "it asks for no such resource"
    helped = told(facts([tainted]), pods=[pod("p", 8)], replicas=2, findNodes=True)
    assert (helped["placed"], list(helped["notChecked"].values()), helped["missing"]["nodes"][0]["count"]) == (
        2,
        [2],
        1,
    )
    added = told(facts([node("b", 1)]), pods=[pod("p", 8)], addNodes=[{"manifest": tainted}])
    assert [entry["node"] for entry in added["assignments"]] == ["a+1"]
    assert told(facts([tainted]), objects=[job("train", 1, 8)])["placed"] == 1


def four_at_once(cluster: Cluster) -> Stranding:
    """Of a cluster whose next pods are expected to ask for four GPUs at once."""
    mix = mix_of([TypicalPod(0, 4, 1000, ANY_MODEL, 1)], 1)
    tables = tables_of(mix, len(cluster.models), cluster.gpu_model.shape[1])
    free = cluster.gpu_free_milli.sum(axis=1)
    return Stranding.of(cluster, mix, tables, np.full(cluster.num_nodes, 4000), free)


def test_what_is_stranded_is_told_as_it_is_and_as_the_plan_leaves_it() -> None:
    known = facts([node("a", 4), node("b", 4)], [pod("x", 1, on="a", assigned_gpus="0")])
    assert known.cluster.gpu_free_milli.sum(axis=1).tolist() == [3000, 4000]
    known = replace(known, stranding=four_at_once(known.cluster).packed())
    for question, after in (
        ({}, 0.375),  # three of eight
        ({"pods": [pod("p", 3)]}, 0.0),
        ({"pods": [pod("p", 1)], "replicas": 4}, 0.375),
        ({"drain": ["a"]}, 0.0),
    ):
        found = told(known, **question)
        assert (found["strandedBefore"], found["stranded"]) == (0.375, after)
