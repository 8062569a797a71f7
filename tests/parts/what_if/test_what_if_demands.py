"""What-if counts what kube-scheduler counts, and says what it did not look at."""

from collections.abc import Sequence
from typing import Any

import pytest

from extender.explain.processes import QuestionError
from tests.parts.what_if.what_if_facts import Manifest, asking, facts, node, offering, pod, told, where

RDMA = "networking.gke.io.networks/rdma-0"
HOSTNAME = "kubernetes.io/hostname"


def apart(topology: str = HOSTNAME, **labels: str) -> Manifest:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def near(topology: str = HOSTNAME, **labels: str) -> Manifest:
    return {"podAffinity": apart(topology, **labels)["podAntiAffinity"]}


def answer(nodes: Sequence[Manifest], bound: Sequence[Manifest] = (), **question: Any) -> Any:
    return told(facts(nodes, bound), **question)


def test_a_resource_that_no_node_has_is_named_and_no_new_node_helps() -> None:
    nodes = [node("a", 8), node("b", 8)]
    pods = [asking("train", 8, {RDMA: "1"}), asking("amd", 0, {"amd.com/gpu": "1"})]
    assert answer(nodes, pods=pods)["reasons"] == {f"no node has {RDMA}": 1, "no node has amd.com/gpu": 1}
    found = answer(nodes, pods=pods, findNodes=True)
    assert found["placed"] == 0
    assert found["missing"]["sentence"] == "no new node like those of the cluster would help"


def test_what_runs_takes_other_resources_and_new_nodes_bring_them() -> None:
    nodes = [offering(node("a", 8), **{"rdma/hca": "2", "hugepages-2Mi": "1Gi", "ephemeral-storage": "100Gi"})]
    nodes += [node("plain", 8)]
    bound = [asking("runs", 1, {"rdma/hca": "1"}, on="a")]
    found = answer(nodes, bound, pods=[asking("p", 1, {"rdma/hca": "1"})], replicas=2)
    assert where(found) == {"ns/p-0": "a"}
    assert found["reasons"] == {"needs 1 of rdma/hca, no node with room for it has that much free": 1}
    for resource, fits, too_much in (("hugepages-2Mi", "1Gi", "2Gi"), ("ephemeral-storage", "60Gi", "101Gi")):
        assert where(answer(nodes, bound, pods=[asking("p", 1, {resource: fits})])) == {"ns/p": "a"}
        assert answer(nodes, bound, pods=[asking("p", 1, {resource: too_much})])["placed"] == 0
    found = answer(nodes, bound, pods=[asking("p", 1, {"rdma/hca": "2"})], findNodes=True)
    assert (where(found), found["missing"]["sentence"]) == ({"ns/p": "a+1"}, f"1 node of 8 x {A100}")


def test_new_nodes_are_like_one_that_has_what_is_asked_for() -> None:
    nodes = [node("a", 8), node("b", 8), offering(node("huge", 8), **{"hugepages-1Gi": "8Gi"})]
    found = answer(nodes, pods=[asking("p", 8, {"hugepages-1Gi": "4Gi"})], replicas=2, findNodes=True)
    assert sorted(where(found).values()) == ["huge", "huge+1"]


A100 = "a100-sxm4-40gb"


PORT_80 = {"hostPort": 80}


def test_host_ports() -> None:
    here, there = PORT_80 | {"hostIP": "10.0.0.1"}, PORT_80 | {"hostIP": "10.0.0.2"}
    for taken, asked, fits in (
        (PORT_80, PORT_80, False),
        (PORT_80, {"hostPort": 81}, True),
        (PORT_80, PORT_80 | {"protocol": "UDP"}, True),
        (here, there, True),
        (here, PORT_80, False),
        (PORT_80, there, False),
        ({"containerPort": 80}, PORT_80, True),
    ):
        runs, wants = asking("runs", 1, on="a"), asking("p", 1)
        runs["spec"]["containers"][0]["ports"], wants["spec"]["containers"][0]["ports"] = [taken], [asked]
        found = answer([node("a", 8)], [runs], pods=[wants])
        why = {} if fits else {"needs host port 80/TCP, which is taken on every node with room for it": 1}
        assert (found["placed"], found["reasons"]) == (int(fits), why)


def test_pods_of_one_host_port_go_to_a_node_each() -> None:
    nodes, wants = [node("a", 8), node("b", 8)], asking("p", 1)
    wants["spec"]["containers"][0]["ports"] = [PORT_80]
    assert sorted(where(answer(nodes, pods=[wants], replicas=4)).values()) == ["a", "b"]
    wants["spec"]["containers"][0]["ports"] = [{"containerPort": 9}]
    wants["spec"]["hostNetwork"] = True
    assert answer(nodes, pods=[wants], replicas=4)["placed"] == 2


def test_anti_affinity_of_those_who_come_and_of_those_who_run() -> None:
    nodes = [node("a", 8), node("b", 8)]
    lonely = asking("p", 1, labels={"app": "x"})
    lonely["spec"]["affinity"] = apart(app="x")
    found = answer(nodes, pods=[lonely], replicas=3)
    assert sorted(where(found).values()) == ["a", "b"]
    assert "its pod anti-affinity by kubernetes.io/hostname" in next(iter(found["reasons"]))
    runs = asking("runs", 1, on="a", labels={"app": "y"})
    runs["spec"]["affinity"] = apart(app="x")
    assert where(answer(nodes, [runs], pods=[asking("p", 1, labels={"app": "x"})])) == {"ns/p": "b"}
    assert answer(nodes[:1], [runs], pods=[asking("p", 1, labels={"app": "z"})])["placed"] == 1
    found = answer(nodes[:1], [runs], pods=[asking("p", 1, labels={"app": "x"})])
    assert "other pods' anti-affinity by kubernetes.io/hostname" in next(iter(found["reasons"]))


def test_affinity_is_to_be_near_others_wherever_these_come_in_the_batch() -> None:
    nodes = [node("a", 8), node("b", 8)]
    follower = asking("follower", 1)
    follower["spec"]["affinity"] = near(app="leader")
    assert answer(nodes, pods=[follower])["placed"] == 0
    leader = asking("leader", 7, labels={"app": "leader"})
    runs = asking("runs", 7, on="b", labels={"app": "leader"})
    assert where(answer(nodes, [runs], pods=[follower])) == {"ns/follower": "b"}
    found = answer(nodes, pods=[follower, leader])  # it is placed after the one that it waits for
    assert found["placed"] == 2
    assert len(set(where(found).values())) == 1
    friends = asking("f", 1, labels={"app": "f"})
    friends["spec"]["affinity"] = near(app="f")
    assert len(set(where(answer(nodes, pods=[friends], replicas=8)).values())) == 1  # the first may go anywhere


def test_spread_keeps_the_skew() -> None:
    nodes = [node("a", 8), node("b", 8), node("c", 2)]
    rule = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule"}
    even = asking("p", 1, labels={"app": "x"})
    even["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"app": "x"}}}]
    found = answer(nodes, pods=[even], replicas=10)
    assert {name: list(where(found).values()).count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 2}
    even["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway"
    assert answer(nodes, pods=[even], replicas=10)["placed"] == 10


def test_what_a_drained_node_has_is_not_in_the_way_of_its_pods() -> None:
    nodes = [node("a", 8), node("b", 8)]
    runs = asking("runs", 1, on="a", labels={"app": "x"})
    runs["spec"]["affinity"] = apart(app="x")
    runs["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    assert where(told(facts(nodes, [runs], pods_on={"a": [runs]}), drain=["a"])) == {"ns/runs": "b"}


def test_what_was_not_looked_at_is_told_with_the_answer() -> None:
    wants = asking("p", 1)
    wants["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]
    wants["spec"]["runtimeClassName"] = "nvidia"
    assert answer([node("a", 8)], pods=[wants], replicas=2)["notChecked"] == {
        "the nodes of its volumes (PersistentVolumeClaims)": 2,
        "what its RuntimeClass adds to it": 2,
    }
    assert answer([node("a", 0)], pods=[wants])["notChecked"] == {}  # it fits nowhere: nothing is promised
    chosen = asking("q", 1)
    chosen["spec"]["affinity"] = near(app="x")
    term = chosen["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    assert answer([node("a", 8)], pods=[chosen])["notChecked"] == {"pod affinity by labels of namespaces": 1}


def test_what_the_api_server_would_refuse_is_an_error() -> None:
    for resources, why in (
        ({"limits": {"gpu": "1"}}, r"gpu: not a standard resource; an extended resource has a domain"),
        ({"limits": {"GPU": 1}}, r"GPU: not a standard resource"),
        ({"requests": {"nvidia.com/gpu": "1"}}, r"nvidia.com/gpu: is requested without a limit"),
        ({"requests": {"rdma/hca": 1}, "limits": {"rdma/hca": 2}}, r"rdma/hca: its request 1 differs from its limit 2"),
        ({"limits": {"rdma/hca": "0.5"}}, r"rdma/hca: must be a whole number"),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, r"cpu: its request 2 exceeds its limit 1"),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, r"huge pages need cpu or memory"),
    ):
        spec = {"containers": [{"name": "c", "resources": resources}]}
        job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}}
        for question, place in (
            ({"pods": [{"metadata": {"name": "p"}, "spec": spec}]}, r"pods\[0\]: spec.containers\[0\].resources: "),
            ({"objects": [job]}, r"objects\[0\] \(Job j\): spec.template.spec.containers\[0\].resources: "),
        ):
            with pytest.raises(QuestionError, match=f"{place}the API server refuses it: {why}"):
                answer([node("a", 8), node("cpu", 0)], **question)


def test_keys_that_are_on_the_job_and_not_on_its_template_are_told() -> None:
    metadata = {"name": "j", "annotations": {"kerf.dev/gpu-model": "h100"}}
    job: Manifest = {"kind": "Job", "metadata": metadata | {"labels": {"genius/priority": "5", "app": "x"}}}
    job["spec"] = {"template": {"metadata": {}, "spec": pod("x", 1)["spec"]}}
    (note,) = answer([node("a", 8)], objects=[job])["objects"][0]["notes"]
    assert note.startswith("genius/priority, kerf.dev/gpu-model: ")
    written = {"annotations": {"kerf.dev/gpu-model": "a100"}, "labels": {"genius/priority": "1"}}
    job["spec"]["template"]["metadata"] = written
    assert answer([node("a", 8)], objects=[job])["objects"][0]["notes"] == []
