"""What-if counts what kube-scheduler counts, and says what it did not look at."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from extender.explain.processes import QuestionError
from extender.parts.what_if.process import _answer
from extender.parts.what_if.questions import read_question
from tests.parts.what_if.what_if_facts import Manifest, facts, node, pod

RDMA = "networking.gke.io.networks/rdma-0"
HOSTNAME = "kubernetes.io/hostname"


def told(nodes: Sequence[Manifest], bound: Sequence[Manifest] = (), **question: Any) -> Any:
    return _answer(read_question(msgspec.json.encode(question)), facts(nodes, bound))


def offering(manifest: Manifest, **resources: str) -> Manifest:
    manifest["status"]["allocatable"] = manifest["status"]["allocatable"] | resources
    return manifest


def asking(
    name: str,
    gpus: int = 1,
    resources: Mapping[str, str] | None = None,
    *,
    on: str = "",
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A pod that asks for resources besides, and has labels."""
    made = pod(name, gpus, on=on)
    made["metadata"]["labels"] = dict(labels or {})
    made["spec"]["containers"][0]["resources"]["limits"] |= resources or {}
    return made


def apart(topology: str = HOSTNAME, **labels: str) -> Manifest:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def near(topology: str = HOSTNAME, **labels: str) -> Manifest:
    return {"podAffinity": apart(topology, **labels)["podAntiAffinity"]}


def where(answered: Any) -> dict[str, str]:
    return {entry["pod"]: entry["node"] for entry in answered["assignments"]}


def test_a_resource_that_no_node_has_is_named_and_no_new_node_helps() -> None:
    nodes = [node("a", 8), node("b", 8)]
    pods = [asking("train", 8, {RDMA: "1"})]
    found = told(nodes, pods=pods, replicas=2)
    assert (found["placed"], found["reasons"]) == (0, {f"no node has {RDMA}": 2})
    found = told(nodes, pods=pods, replicas=2, findNodes=True)
    assert found["placed"] == 0
    assert found["missing"]["sentence"] == "no new node like those of the cluster would help"


def test_what_runs_takes_other_resources_and_new_nodes_bring_them() -> None:
    nodes = [offering(node("a", 8), **{"rdma/hca": "2", "hugepages-2Mi": "1Gi", "ephemeral-storage": "100Gi"})]
    nodes += [node("plain", 8)]
    bound = [asking("runs", 1, {"rdma/hca": "1"}, on="a")]
    found = told(nodes, bound, pods=[asking("p", 1, {"rdma/hca": "1"})], replicas=2)
    assert where(found) == {"ns/p-0": "a"}
    assert found["reasons"] == {"needs 1 of rdma/hca, no node with room for it has that much free": 1}
    for resource, fits, too_much in (("hugepages-2Mi", "1Gi", "2Gi"), ("ephemeral-storage", "60Gi", "101Gi")):
        assert where(told(nodes, bound, pods=[asking("p", 1, {resource: fits})])) == {"ns/p": "a"}
        assert told(nodes, bound, pods=[asking("p", 1, {resource: too_much})])["placed"] == 0
    found = told(nodes, bound, pods=[asking("p", 1, {"rdma/hca": "2"})], findNodes=True)
    assert (where(found), found["missing"]["sentence"]) == ({"ns/p": "a+1"}, f"1 node of 8 x {A100}")


def test_new_nodes_are_like_one_that_has_what_is_asked_for() -> None:
    nodes = [node("a", 8), node("b", 8), offering(node("huge", 8), **{"hugepages-1Gi": "8Gi"})]
    found = told(nodes, pods=[asking("p", 8, {"hugepages-1Gi": "4Gi"})], replicas=2, findNodes=True)
    assert sorted(where(found).values()) == ["huge", "huge+1"]


A100 = "a100-sxm4-40gb"


@pytest.mark.parametrize(
    ("taken", "asked", "fits"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"containerPort": 80}, {"hostPort": 80}, True),
    ],
)
def test_host_ports(taken: Manifest, asked: Manifest, fits: bool) -> None:
    runs, wants = asking("runs", 1, on="a"), asking("p", 1)
    runs["spec"]["containers"][0]["ports"], wants["spec"]["containers"][0]["ports"] = [taken], [asked]
    found = told([node("a", 8)], [runs], pods=[wants])
    assert found["placed"] == int(fits)
    if not fits:
        assert found["reasons"] == {"needs host port 80/TCP, which is taken on every node with room for it": 1}


def test_pods_of_one_host_port_go_to_a_node_each() -> None:
    wants = asking("p", 1)
    wants["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    found = told([node("a", 8), node("b", 8)], pods=[wants], replicas=4)
    assert sorted(where(found).values()) == ["a", "b"]
    wants["spec"] |= {
        "hostNetwork": True,
        "containers": [{**wants["spec"]["containers"][0], "ports": [{"containerPort": 9}]}],
    }
    assert told([node("a", 8), node("b", 8)], pods=[wants], replicas=4)["placed"] == 2


def test_anti_affinity_of_those_who_come_and_of_those_who_run() -> None:
    nodes = [node("a", 8), node("b", 8)]
    lonely = asking("p", 1, labels={"app": "x"})
    lonely["spec"]["affinity"] = apart(app="x")
    found = told(nodes, pods=[lonely], replicas=3)
    assert sorted(where(found).values()) == ["a", "b"]
    why = "its pod anti-affinity by kubernetes.io/hostname keeps it from every node with room for it"
    assert found["reasons"] == {why: 1}
    runs = asking("runs", 1, on="a", labels={"app": "y"})
    runs["spec"]["affinity"] = apart(app="x")
    assert where(told(nodes, [runs], pods=[asking("p", 1, labels={"app": "x"})])) == {"ns/p": "b"}
    assert told(nodes[:1], [runs], pods=[asking("p", 1, labels={"app": "z"})])["placed"] == 1
    found = told(nodes[:1], [runs], pods=[asking("p", 1, labels={"app": "x"})])
    assert "other pods' anti-affinity by kubernetes.io/hostname" in next(iter(found["reasons"]))


def test_affinity_is_to_be_near_others_wherever_these_come_in_the_batch() -> None:
    nodes = [node("a", 8), node("b", 8)]
    follower = asking("follower", 1)
    follower["spec"]["affinity"] = near(app="leader")
    assert told(nodes, pods=[follower])["placed"] == 0
    leader = asking("leader", 7, labels={"app": "leader"})
    runs = asking("runs", 7, on="b", labels={"app": "leader"})
    assert where(told(nodes, [runs], pods=[follower])) == {"ns/follower": "b"}
    found = told(nodes, pods=[follower, leader])  # it is placed after the one that it waits for
    assert found["placed"] == 2
    assert len(set(where(found).values())) == 1
    friends = asking("f", 1, labels={"app": "f"})
    friends["spec"]["affinity"] = near(app="f")
    assert len(set(where(told(nodes, pods=[friends], replicas=8)).values())) == 1  # the first may go anywhere


def test_spread_keeps_the_skew() -> None:
    nodes = [node("a", 8), node("b", 8), node("c", 2)]
    rule = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule"}
    even = asking("p", 1, labels={"app": "x"})
    even["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"app": "x"}}}]
    found = told(nodes, pods=[even], replicas=10)
    assert {name: list(where(found).values()).count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 2}
    even["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway"
    assert told(nodes, pods=[even], replicas=10)["placed"] == 10


def test_what_a_drained_node_has_is_not_in_the_way_of_its_pods() -> None:
    nodes = [node("a", 8), node("b", 8)]
    runs = asking("runs", 1, on="a", labels={"app": "x"})
    runs["spec"]["affinity"] = apart(app="x")
    runs["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    made = facts(nodes, [runs], pods_on={"a": [runs]})
    found = _answer(read_question(msgspec.json.encode({"drain": ["a"]})), made)
    assert where(found) == {"ns/runs": "b"}


def test_what_was_not_looked_at_is_told_with_the_answer() -> None:
    wants = asking("p", 1)
    wants["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]
    wants["spec"]["runtimeClassName"] = "nvidia"
    assert told([node("a", 8)], pods=[wants], replicas=2)["notChecked"] == {
        "the nodes of its volumes (PersistentVolumeClaims)": 2,
        "what its RuntimeClass adds to it": 2,
    }
    assert told([node("a", 0)], pods=[wants])["notChecked"] == {}  # it fits nowhere: nothing is promised
    chosen = asking("q", 1)
    chosen["spec"]["affinity"] = near(app="x")
    term = chosen["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    assert told([node("a", 8)], pods=[chosen])["notChecked"] == {"pod affinity by labels of namespaces": 1}
    assert told([node("a", 8)], pods=[asking("r", 1)])["notChecked"] == {}


def test_gpus_are_checked_beside_claims_of_others() -> None:
    wants = asking("p", 4)
    claims = [{"name": "channel", "resourceClaimTemplateName": "domain"}, {"name": "nic", "resourceClaimName": "nic"}]
    wants["spec"]["resourceClaims"] = claims
    found = told([node("a", 8)], pods=[wants], replicas=3)
    assert found["placed"] == 2
    assert found["notChecked"] == {"its ResourceClaims, which Kerf doesn't allocate": 2}


def test_a_taint_is_named_and_the_toleration_that_admission_adds_is_taken_to_be_there() -> None:
    nodes = [node("a", 8), node("b", 8)]
    for manifest in nodes:
        manifest["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    found = told(nodes, pods=[pod("p", 8)], replicas=2)
    assert found["placed"] == 2
    assert [(what.partition(":")[0], count) for what, count in found["notChecked"].items()] == [
        ("the toleration of taint nvidia.com/gpu", 2)
    ]
    assert told(nodes, pods=[pod("p", 8)], replicas=3, findNodes=True)["missing"]["sentence"] == f"1 node of 8 x {A100}"
    found = told(nodes, pods=[pod("cpu")])  # asks for no such resource
    assert found["reasons"] == {"untolerated taint nvidia.com/gpu on every node that matches its selector (2)": 1}
    nodes[0]["spec"]["taints"][0]["key"] = "team"
    assert told(nodes[:1], pods=[pod("p", 8)])["reasons"] == {
        "untolerated taint team on every node that matches its selector (1)": 1
    }
    tolerant = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    found = told(nodes[1:], pods=[pod("p", 8, spec=tolerant)])
    assert (found["placed"], found["notChecked"]) == (1, {})


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"limits": {"gpu": "1"}}, r"gpu: not a standard resource; an extended resource has a domain"),
        ({"limits": {"GPU": 1}}, r"GPU: not a standard resource"),
        ({"requests": {"nvidia.com/gpu": "1"}}, r"nvidia.com/gpu: is requested without a limit"),
        ({"requests": {"rdma/hca": 1}, "limits": {"rdma/hca": 2}}, r"rdma/hca: its request 1 differs from its limit 2"),
        ({"limits": {"rdma/hca": "0.5"}}, r"rdma/hca: must be a whole number"),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, r"cpu: its request 2 exceeds its limit 1"),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, r"huge pages need cpu or memory"),
    ],
)
def test_what_the_api_server_would_refuse_is_an_error(resources: Manifest, why: str) -> None:
    spec = {"containers": [{"name": "c", "resources": resources}]}
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}}
    for question, place in (
        ({"pods": [{"metadata": {"name": "p"}, "spec": spec}]}, r"pods\[0\]: spec.containers\[0\].resources: "),
        ({"objects": [job]}, r"objects\[0\] \(Job j\): spec.template.spec.containers\[0\].resources: "),
    ):
        with pytest.raises(QuestionError, match=f"{place}the API server refuses it: {why}"):
            told([node("a", 8), node("cpu", 0)], **question)


def test_a_gpu_of_another_vendor_is_no_pod_without_gpus() -> None:
    found = told([node("a", 8), node("cpu", 0)], pods=[asking("p", 0, {"amd.com/gpu": "1"})])
    assert (found["placed"], found["reasons"]) == (0, {"no node has amd.com/gpu": 1})


def test_keys_that_are_on_the_job_and_not_on_its_template_are_told() -> None:
    template = pod("x", 1)
    metadata = {"name": "j", "annotations": {"kerf.dev/gpu-model": "h100"}}
    job: Manifest = {"kind": "Job", "metadata": metadata | {"labels": {"genius/priority": "5", "app": "x"}}}
    job["spec"] = {"template": {"metadata": {}, "spec": template["spec"]}}
    (entry,) = told([node("a", 8)], objects=[job])["objects"]
    assert entry["notes"] == [
        "genius/priority, kerf.dev/gpu-model: read in the template of its pods alone, not on the Job itself"
    ]
    job["spec"]["template"]["metadata"] = {
        "annotations": {"kerf.dev/gpu-model": "a100"},
        "labels": {"genius/priority": "1"},
    }
    assert told([node("a", 8)], objects=[job])["objects"][0]["notes"] == []
