"""What-if for pods with ResourceClaims: given beside the pods, made from templates, or those of the cluster."""

import pickle
from dataclasses import replace
from typing import Any

import msgspec

from extender.core.dra.devices import NodeDevices, Taking
from extender.core.policies.registry import POLICIES
from extender.dra.objects import ResourceClaim
from extender.kube.objects import Node
from extender.parts.what_if.claims import DeviceFacts, pack
from extender.parts.what_if.inputs import WhatIfInputs
from extender.parts.what_if.process import _answer
from extender.parts.what_if.questions import WhatIfResult, read_question
from tests.core.dra.machines import a100_node, partition
from tests.dra.owned_rig import OwnedRig
from tests.plugins.claims import resource_claim

ONE = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}


def node(name: str) -> dict[str, Any]:
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    status = {"allocatable": capacity, "capacity": capacity}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {}, "status": status}


def facts(rig: OwnedRig, *claims: ResourceClaim, pods_on: dict[str, bytes] | None = None) -> WhatIfInputs:
    """All of a rig's ledger, as it reaches the other process."""
    nodes = [node(name) for name in rig.ledger.rows.names()]
    for manifest in nodes:
        rig.ledger.upsert_node(msgspec.convert(manifest, Node))
    cluster = rig.ledger.snapshot(rig.now)
    assert cluster.devices is not None
    devices = {
        name: pack(cluster.devices[row], pickle.dumps(cluster.devices[row].inventory))
        for name, row in cluster.row_of.items()
    }
    known = {claim.key: claim for claim in claims}
    told = DeviceFacts(devices, known, dict(rig.owned.classes))
    listed = msgspec.json.encode({"items": nodes})
    made = WhatIfInputs(
        listed, pods_on or {}, cluster, rig.ledger.without_holders(rig.now), dict.fromkeys(devices, 0), "tightest",
        {name: policy for name, policy in POLICIES.items() if name in ("tightest", "bestfit")}, told,
    )  # fmt: skip
    found: WhatIfInputs = pickle.loads(pickle.dumps(made))  # noqa: S301
    return found


def pod(name: str, **claim: str) -> dict[str, Any]:
    named = {"name": "gpu", **claim}
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, "resourceClaims": [named]}}


def template(name: str, count: int = 1) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": [_CONFIG]}}
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}


_CONFIG = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}


def told(rig: OwnedRig, *claims: ResourceClaim, **question: Any) -> WhatIfResult:
    return _answer(read_question(msgspec.json.encode(question)), facts(rig, *claims))


def test_replicas_get_claims_of_their_own_from_a_template_given_beside_them() -> None:
    pods = [pod("train", resourceClaimTemplateName="one")]
    found = told(OwnedRig(gpus=2), pods=pods, replicas=3, claimTemplates=[template("one")])
    assert (found["pods"], found["placed"]) == (3, 2)
    (reason,) = found["reasons"]
    assert "2 matching, 0 free (node n)" in reason


def placed(claim: ResourceClaim, node: str) -> ResourceClaim:
    """A claim whose devices are on a node."""
    place = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    manifest = msgspec.to_builtins(claim)
    manifest["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [place]}
    return msgspec.convert(manifest, ResourceClaim)


def test_a_claim_with_devices_keeps_its_pod_where_these_are() -> None:
    rig = OwnedRig(gpus=1)
    rig.publish("m", 1)
    claim = placed(resource_claim("has", devices=("gpu-0",), pool="m"), "m")
    found = told(rig, claim, pods=[pod("p", resourceClaimName="has")])
    assert [entry["node"] for entry in found["assignments"]] == ["m"]


def test_nodes_that_are_added_like_another_have_its_devices_free() -> None:
    rig = OwnedRig(gpus=1)
    rig.ledger.upsert_device(resource_claim("has", devices=("gpu-0",), pool="n"))
    pods = [pod("p", resourceClaimTemplateName="one")]
    question: dict[str, Any] = {"pods": pods, "claimTemplates": [template("one")]}
    assert told(rig, **question)["placed"] == 0
    found = told(rig, **question, addNodes=[{"template": "n", "count": 2}])
    assert [entry["node"] for entry in found["assignments"]] == ["n+1"]
    after = told(rig, **question, addNodes=[{"manifest": node("new")}, {"template": "n"}])
    assert [entry["node"] for entry in after["assignments"]] == ["n+2"], "nobody knows what devices the first has"


def test_new_nodes_like_another_have_its_devices_and_what_devices_those_of_the_question_have_nobody_knows() -> None:
    rig = OwnedRig(gpus=1)
    rig.ledger.upsert_device(resource_claim("has", devices=("gpu-0",), pool="n"))
    large, pods = node("n"), [pod("p", resourceClaimTemplateName="one")]
    large["status"]["allocatable"]["cpu"] = "64"
    question: dict[str, Any] = {"findNodes": True, "candidates": [large], "claimTemplates": [template("one")]}
    assert told(rig, pods=pods, **question)["missing"]["sentence"] == "1 node like n"
    pods[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9"
    found = told(rig, pods=pods, **question)["missing"]
    assert (found["nodes"], [entry["pod"] for entry in found["stillUnplaced"]]) == ([], ["default/p"])


def test_a_partition_that_is_taken_leaves_what_its_gpu_has_besides() -> None:
    inventory = a100_node("n", 1)
    made = facts(rig := OwnedRig())
    question = {"pods": [pod("p", resourceClaimTemplateName="one")], "replicas": 8, "claimTemplates": [template("one")]}
    for profile, room in (("7g.40gb", 0), ("4g.20gb", 3)):
        devices = NodeDevices.of(inventory, [Taking(partition(inventory, 0, profile, 0))])
        of_gpu = DeviceFacts({"n": pack(devices, pickle.dumps(inventory))}, {}, dict(rig.owned.classes))
        assert _answer(read_question(msgspec.json.encode(question)), replace(made, devices=of_gpu))["placed"] == room


def test_a_pod_of_a_drained_node_gets_devices_elsewhere_for_the_claim_that_it_has() -> None:
    rig = OwnedRig(gpus=1)
    rig.publish("m", 1)
    claim = placed(resource_claim("made", ONE, devices=("gpu-0",), pool="n", pods=("p",)), "n")
    rig.ledger.upsert_device(claim)
    running = pod("p", resourceClaimTemplateName="gone")
    running["metadata"] |= {"namespace": "default", "uid": "p"}
    running["spec"]["nodeName"] = "n"
    running["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}
    made = facts(rig, claim, pods_on={"n": msgspec.json.encode({"items": [running]})})
    found: Any = _answer(read_question(msgspec.json.encode({"drain": ["n"]})), made)
    assert found["assignments"] == [{"pod": "default/p", "node": "m", "gpus": []}]
