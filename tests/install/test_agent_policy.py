"""What the node agent's account may do, by the role and the policy that are shipped: one annotation of its own node."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

MANIFEST = ROOT / "manifests" / "agent.yaml"
NODE = "/api/v1/nodes/mine"
STATUS = f"{NODE}/status"
MERGE = "application/merge-patch+json"
REPORT = {"metadata": {"annotations": {"kerf.dev/node-report": "{}"}}}
POLICIES = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def agent(plane: ControlPlane, node: str) -> Api:
    """One whose token was made for a pod on a node, "" for a token that says nothing of that."""
    headers = {"Impersonate-User": "system:serviceaccount:kube-system:kerf-agent"}
    if node:
        headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = node
    return Api(plane.url, plane.certificate, plane.token("admin"), headers)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("agent")) as running:
        running.apply(gpu_node("mine", gpus=4), gpu_node("other", gpus=4))
        documents = [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] in POLICIES]
        assert len(documents) == len(POLICIES)
        running.apply(*documents)
        api = agent(running, "other")
        wait_until(
            lambda: "only change its own node" in refusal(api, STATUS, REPORT), 30.0, "role and policy are in force"
        )
        api.close()
        yield running


def refusal(api: Api, path: str, patch: dict[str, Any]) -> str:
    """Why a change is refused, "" where it is not; nothing is changed."""
    try:
        api.request("PATCH", f"{path}?dryRun=All", patch, MERGE)
    except ApiError as error:
        return error.message
    return ""


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    api = agent(plane, "mine")
    yield api
    api.close()


def test_it_writes_removes_and_repeats_its_report(plane: ControlPlane, api: Api) -> None:
    for text in ("{}", "{}", '{"version": 1}'):
        stored = api.request("PATCH", STATUS, {"metadata": {"annotations": {"kerf.dev/node-report": text}}}, MERGE)
        assert stored["metadata"]["annotations"]["kerf.dev/node-report"] == text
    api.request("PATCH", STATUS, {"metadata": {"annotations": {"kerf.dev/node-report": None}}}, MERGE)
    assert "kerf.dev/node-report" not in plane.request("GET", NODE)["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node["metadata"].setdefault("annotations", {}).update({"kerf.dev/gpus": "[]"}),
        lambda node: node["metadata"]["annotations"].update({"theirs": None}),
        lambda node: node["metadata"]["annotations"].update({"theirs": "changed"}),
        lambda node: node["metadata"].setdefault("labels", {}).update({"gold": "yes"}),
        lambda node: node["metadata"].update({"finalizers": ["example.com/stay"]}),
        lambda node: node["metadata"].update(
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}
        ),
        lambda node: node.update({"status": {"allocatable": {"nvidia.com/gpu": "99"}}}),
        lambda node: node.update({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        lambda node: node.update({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
    ],
)
def test_it_writes_nothing_else(plane: ControlPlane, api: Api, change: Callable[[dict[str, Any]], Any]) -> None:
    plane.request("PATCH", NODE, {"metadata": {"annotations": {"theirs": "yes"}}}, MERGE)
    asked = deepcopy(REPORT)
    change(asked)
    assert "only write the annotation kerf.dev/node-report" in refusal(api, STATUS, asked)


def test_nor_on_another_node_nor_without_a_node_nor_by_another_way(plane: ControlPlane, api: Api) -> None:
    for node in ("other", ""):
        other = agent(plane, node)
        assert "only change its own node" in refusal(other, STATUS, REPORT)
        other.close()
    assert "cannot patch resource" in refusal(api, NODE, REPORT)


def test_rights(plane: ControlPlane, api: Api) -> None:
    """It has no others than those with which tests/realnode runs it."""
    assert api.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dmine")["kind"] == "PodList"
    for method, path, body in (
        ("GET", NODE, None),
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("DELETE", NODE, None),
        ("POST", "/api/v1/namespaces/default/pods", pod("p")),
    ):
        with pytest.raises(ApiError, match="403"):
            api.request(method, path, body)


def test_the_api_server_takes_all_of_it(plane: ControlPlane) -> None:
    for item in yaml.safe_load_all(MANIFEST.read_text()):
        plane.validate(item)


def test_others_are_not_concerned(plane: ControlPlane) -> None:
    assert refusal(plane.kubelet("mine"), STATUS, {"status": {"allocatable": {"nvidia.com/gpu": "3"}}}) == ""
