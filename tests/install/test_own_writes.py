"""What Kerf's own account may write, by the policy that is shipped: each of its writes passes, and no other does."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from extender.queueing.gangs import GANG_PREEMPTED
from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import RBAC, ROOT, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.policies import enforce

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

Manifest = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
PODS = "/api/v1/namespaces/default/pods"
OWN = "/api/v1/namespaces/kube-system/pods"
NODE = "/api/v1/nodes/node"
USERS = {"kerf": SERVICE_ACCOUNT, "scheduler": "system:kube-scheduler"}
GATES = [{"name": "other.example.com/gate"}, {"name": "kerf.dev/queue"}]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("own-writes"), users=USERS) as running:
        queue = ROOT / "manifests" / "queue" / "rbac.yaml"
        running.apply(RBAC, queue, gpu_node("node", gpus=4))
        for name in ("waits", "gated"):
            spec: dict[str, Any] = {"schedulingGates": GATES} if name == "gated" else {}
            running.apply(pod(name, annotations={"theirs": "yes", "kerf.dev/gpu-count": "1"}, **spec))
        running.apply(pod("kerf-0", namespace="kube-system"))
        running.request("PATCH", NODE, {"metadata": {"annotations": {"theirs": "yes"}}}, MERGE)
        status = {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
        running.request("PATCH", f"{PODS}/waits/status", status, MERGE)
        # More than roles give: what is refused here is refused by the policy.
        everything = ["pods", "pods/status", "pods/binding", "pods/eviction", "nodes", "nodes/status"]
        claims = ["resourceclaims", "resourceclaims/status", "resourceclaims/binding"]
        rules = {"": everything, "batch": ["jobs"], "resource.k8s.io": claims}
        for user in USERS:
            granted = [{"apiGroups": [group], "resources": names, "verbs": ["*"]} for group, names in rules.items()]
            running.grant(user, *granted)
        enforce(running)
        api = running.api("kerf")
        labels = {"metadata": {"labels": {"gold": "yes"}}}
        wait_until(lambda: refusal(api, f"{NODE}/status", labels) != "", 20.0, "the policy is in force")
        api.close()
        yield running


@pytest.fixture(scope="module")
def kerf(plane: ControlPlane) -> Iterator[Api]:
    api = plane.api("kerf")
    yield api
    api.close()


def refusal(api: Api, path: str, body: Any, kind: str = MERGE, method: str = "PATCH") -> str:
    """Why a write is refused, "" where it is not; nothing is written."""
    try:
        api.request(method, f"{path}?dryRun=All", body, kind if method == "PATCH" else "application/json")
    except ApiError as error:
        return error.message
    return ""


def noted(annotations: dict[str, str | None], **parts: Any) -> Manifest:
    return {"metadata": {"annotations": annotations}, **parts}


OWN_WRITES = {
    "wake": (f"{PODS}/waits/status", noted({"kerf.dev/woken": "1", "kerf.dev/skipped": "room"})),
    "epoch": (f"{PODS}/waits/status", noted({"kerf.dev/epoch-kerf": "a-1"})),
    "seal": (f"{PODS}/waits/status", {"status": {"message": "Kerf 0a1b2c3d"}}),
    "nominate": (
        f"{PODS}/waits/status",
        noted({"kerf.dev/planned-node": "node"}, status={"nominatedNodeName": "node"}),
    ),
    "assign": (
        f"{PODS}/waits/status",
        noted(
            {"kerf.dev/assigned-gpus": "0", "hami.io/vgpu-node": "node", "ALIYUN_COM_GPU_MEM_IDX": "0"},
            status={"nominatedNodeName": "node"},
        ),
    ),
    "open": (
        f"{PODS}/gated",
        noted({"kerf.dev/planned-by": "p"}, spec={"schedulingGates": GATES[:1], "nodeSelector": {"zone": "a"}}),
    ),
    "end a gang": (
        f"{PODS}/waits/status",
        {"status": {"conditions": [{"type": "Mine", "status": "True"}, {"type": GANG_PREEMPTED, "status": "True"}]}},
    ),
    "lead": (f"{OWN}/kerf-0/status", {"metadata": {"labels": {"kerf.dev/leads": "kerf"}}}),
    "lock a node": (f"{NODE}/status", noted({"hami.io/mutex.lock": "now", "kerf.dev/set-aside": "{}"})),
}


@pytest.mark.parametrize("write", OWN_WRITES)
def test_each_own_write_passes(kerf: Api, write: str) -> None:
    assert refusal(kerf, *OWN_WRITES[write]) == ""


def binding(**metadata: Any) -> Manifest:
    named = {"name": "waits", "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": named, "target": {"kind": "Node", "name": "node"}}


def eviction(**options: Any) -> Manifest:
    named = {"name": "waits", "namespace": "default"}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named, "deleteOptions": options}


def test_it_binds_with_its_assignment_and_evicts_by_uid(plane: ControlPlane, kerf: Api) -> None:
    uid = plane.request("GET", f"{PODS}/waits")["metadata"]["uid"]
    given = {"kerf.dev/assigned-gpus": "0", "kerf.dev/assigned-node": "node"}
    assert refusal(kerf, f"{PODS}/waits/binding", binding(annotations=given), method="POST") == ""
    assert "these annotations" in refusal(
        kerf, f"{PODS}/waits/binding", binding(annotations={"theirs": "no"}), method="POST"
    )
    by_uid = eviction(preconditions={"uid": uid})
    assert refusal(kerf, f"{PODS}/waits/eviction", by_uid, method="POST") == ""
    for options in ({}, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}):
        assert "by UID" in refusal(kerf, f"{PODS}/waits/eviction", eviction(**options), method="POST")


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
POD_STATUS: list[Manifest] = [
    {"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}},
    {"status": {"phase": "Failed"}},
    {"status": {"message": "evicted"}},
    {"status": {"reason": "Evicted"}},
    {"status": {"hostIP": "192.0.2.1"}},
    {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    {"status": {"conditions": None}},
    {"status": {"containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "image": "", "imageID": ""}]}},
    {"status": {"nominatedNodeName": "node", "phase": "Succeeded"}},
    {"metadata": {"labels": {"app": "theirs"}}},
    {"metadata": {"labels": {"kerf.dev/leads": "kerf"}}},
    {"metadata": {"finalizers": ["example.com/stay"]}},
    {"metadata": {"annotations": {"theirs": None}}},
    {"metadata": {"annotations": {"theirs": "changed"}}},
    {"metadata": {"annotations": {"kerf.dev/woken": "1", "new": "x"}}},
    {"metadata": {"annotations": {"kerf.dev/gpu-count": "8"}}},
]


@pytest.mark.parametrize("body", POD_STATUS, ids=json.dumps)
def test_nothing_else_of_a_pods_status(kerf: Api, body: Manifest) -> None:
    assert "denied request: Kerf " in refusal(kerf, f"{PODS}/waits/status", body)


def test_no_other_label_of_its_own_pods(kerf: Api) -> None:
    assert "these labels" in refusal(kerf, f"{OWN}/kerf-0/status", {"metadata": {"labels": {"app": "x"}}})


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"schedulingGates": None}},
        {"spec": {"schedulingGates": [{"name": "kerf.dev/queue"}]}},
        {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"metadata": {"labels": {"app": "theirs"}}},
        {"metadata": {"ownerReferences": [OWNER]}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"annotations": {"theirs": None}}},
    ],
    ids=json.dumps,
)
def test_nothing_else_of_a_gated_pod(kerf: Api, body: Manifest) -> None:
    assert "denied request: Kerf " in refusal(kerf, f"{PODS}/gated", body)


def test_no_image_of_a_pod(kerf: Api) -> None:
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "registry.example/theirs"}]
    assert "of spec: containers" in refusal(kerf, f"{PODS}/waits", image, JSON)


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"labels": {"node-restriction.kubernetes.io/gold": "yes"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"ownerReferences": [OWNER]}},
        {"metadata": {"annotations": {"theirs": None}}},
        {"metadata": {"annotations": {"kerf.dev/node-report": "{}"}}},
        {"metadata": {"annotations": {"kerf.dev/set-aside": "{}", "kerf.dev/gpus": "[]"}}},
        {"status": {"allocatable": {"nvidia.com/gpu": "99"}}},
        {"status": {"capacity": {"nvidia.com/gpu": "99"}}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
        {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1234}}}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"phase": "Terminated"}},
    ],
    ids=json.dumps,
)
def test_nothing_else_of_a_node(kerf: Api, body: Manifest) -> None:
    assert "denied request: Kerf " in refusal(kerf, f"{NODE}/status", body)
    assert refusal(kerf, NODE, body) != ""


def test_no_pods_and_no_nodes_are_made(kerf: Api) -> None:
    assert "creates no pods" in refusal(kerf, PODS, pod("new"), method="POST")
    assert "does not write nodes" in refusal(kerf, "/api/v1/nodes", gpu_node("new", gpus=1), method="POST")


def test_jobs_are_suspended_and_claims_given_and_nothing_else(plane: ControlPlane, kerf: Api) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template}}
    plane.request("POST", "/apis/batch/v1/namespaces/default/jobs", job)
    at = "/apis/batch/v1/namespaces/default/jobs/job"
    assert refusal(kerf, at, {"spec": {"suspend": True}}) == ""
    for body in ({"spec": {"parallelism": 9}}, {"metadata": {"labels": {"a": "b"}}}, noted({"a": "b"})):
        assert "denied request: Kerf " in refusal(kerf, at, body)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    at = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    plane.request("POST", at, claim)
    at += "/claim"
    finalizer = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    assert refusal(kerf, at, finalizer) == ""
    assert refusal(kerf, at, noted({"kerf.dev/touched": "x"})) == ""
    for body in (noted({"a": "b"}), {"metadata": {"finalizers": ["example.com/stay"]}}):
        assert "denied request: Kerf " in refusal(kerf, at, body)


def test_kube_scheduler_writes_what_it_writes(plane: ControlPlane) -> None:
    """It shares its name with a Kerf that runs as a static pod; and gets no more of nodes and specs than that."""
    api = plane.api("scheduler")
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    mine, gone = {"type": "Mine", "status": "True"}, {"type": "DisruptionTarget", "status": "True"}
    status = {"status": {"conditions": [mine, said, gone], "nominatedNodeName": "node"}}
    assert refusal(api, f"{PODS}/waits/status", status) == ""
    assert refusal(api, f"{PODS}/waits/binding", binding(), method="POST") == ""
    assert "of status: podIP" in refusal(api, f"{PODS}/waits/status", {"status": {"podIP": "192.0.2.1"}})
    for body in ({"status": {"allocatable": {"nvidia.com/gpu": "9"}}}, {"metadata": {"labels": {"a": "b"}}}):
        assert "denied request: Kerf " in refusal(api, f"{NODE}/status", body)
    api.close()


def test_others_are_not_concerned(plane: ControlPlane) -> None:
    at = f"{NODE}/status"
    assert refusal(plane.kubelet("node"), at, {"status": {"allocatable": {"nvidia.com/gpu": "3"}}}) == ""
    body = {"metadata": {"labels": {"team": base64.b32encode(b"a").decode().strip("=")}}}
    assert refusal(plane.api("admin"), f"{PODS}/waits", body) == ""
