"""The admission policy on a real API server: who may write what pods hold, and that it stops nobody else."""

import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest

from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import RBAC, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.policies import HAMI_PLUGIN, enforce

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

Manifest = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
USERS = {
    "kerf": SERVICE_ACCOUNT,
    "author": "alice",
    "kubelet": "system:node:node",
    "plugin": HAMI_PLUGIN,
    "validator": "system:serviceaccount:gpu-operator:nvidia-operator-validator",
}
KEYS = [
    *(f"kerf.dev/assigned-{what}" for what in ("gpus", "uuids", "share", "memory-mib", "model", "by")),
    *("kerf.dev/epoch", "kerf.dev/epoch-kerf", "kerf.dev/epoch-kube-scheduler", "kerf.dev/sealed"),
    *("kerf.dev/planned-node", "kerf.dev/planned-by", "kerf.dev/nomination-lost"),
]
PLUGIN_KEYS = [
    *(f"hami.io/{what}" for what in ("vgpu-devices-allocated", "vgpu-devices-to-allocate", "vgpu-node", "vgpu-time")),
    *("hami.io/bind-phase", "hami.io/bind-time"),
    *(f"ALIYUN_COM_GPU_MEM_{what}" for what in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")),
]
ASKED = ["gpu-count", "gpu-share", "gpu-memory-each", "gpu-memory-total", "gpu-model", "gpu-uuid-exclude"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("policy"), users=USERS) as running:
        running.apply(RBAC, gpu_node("node", gpus=4))
        everything = ["pods", "pods/status", "pods/binding", "bindings", "pods/ephemeralcontainers", "pods/resize"]
        for user in ("author", "kubelet", "plugin", "validator"):
            running.grant(user, {"apiGroups": [""], "resources": everything, "verbs": ["*"]})
        enforce(running)
        yield running


@pytest.fixture(scope="module")
def users(plane: ControlPlane) -> Iterator[dict[str, Api]]:
    """A client for each, who may do all to pods as far as roles go."""
    apis = {user: plane.api(user) for user in USERS}
    yield apis
    for api in apis.values():
        api.close()


@pytest.fixture
def bound(plane: ControlPlane, users: dict[str, Api]) -> Iterator[str]:
    """A pod that Kerf has bound with GPUs 0 and 1; its name."""
    created = users["author"].request("POST", PODS, pod("bound", annotations={"kerf.dev/gpu-count": "2"}))
    held = {"kerf.dev/assigned-gpus": "0,1", "hami.io/vgpu-node": "node", "ALIYUN_COM_GPU_MEM_IDX": "0"}
    users["kerf"].request("POST", f"{PODS}/bound/binding", binding(created, held))
    yield "bound"
    remove(plane, "bound")


@pytest.fixture
def pending(plane: ControlPlane, users: dict[str, Api]) -> Iterator[Manifest]:
    """A pod of an author that waits."""
    yield users["author"].request("POST", PODS, pod("pending"))
    remove(plane, "pending")


def remove(plane: ControlPlane, name: str) -> None:
    plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    wait_until(lambda: not plane.exists(f"{PODS}/{name}"), 10.0, f"{name} is gone")


def binding(created: Manifest, annotations: dict[str, str]) -> Manifest:
    metadata = {"name": created["metadata"]["name"], "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "node"}}


def merge(name: str, annotations: dict[str, str | None], part: str = "") -> Callable[[Api], Any]:
    body = {"metadata": {"annotations": annotations}}
    return lambda api: api.request("PATCH", f"{PODS}/{name}{part}", body, MERGE)


def strategic(name: str, annotations: dict[str, str | None]) -> Callable[[Api], Any]:
    body = {"metadata": {"annotations": annotations}}
    return lambda api: api.request("PATCH", f"{PODS}/{name}", body, "application/strategic-merge-patch+json")


def json_patch(name: str, key: str, value: str) -> Callable[[Api], Any]:
    at = f"/metadata/annotations/{key.replace('/', '~1')}"
    body = [
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": at, "value": value},
    ]
    return lambda api: api.request("PATCH", f"{PODS}/{name}", body, "application/json-patch+json")


def server_side(name: str, annotations: dict[str, str], part: str = "") -> Callable[[Api], Any]:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}}
    query = "?fieldManager=kerf&force=true"
    return lambda api: api.request("PATCH", f"{PODS}/{name}{part}{query}", body, "application/apply-patch+yaml")


def put(name: str, annotations: dict[str, str], part: str = "") -> Callable[[Api], Any]:
    def write(api: Api) -> Any:
        found = api.request("GET", f"{PODS}/{name}")
        found["metadata"]["annotations"] = annotations
        return api.request("PUT", f"{PODS}/{name}{part}", found)

    return write


def refusal(call: Callable[[Api], Any], api: Api) -> str:
    """What the policy says, "" where it lets through."""
    try:
        call(api)
    except ApiError as error:
        assert error.status == 403, error
        return error.message
    return ""


@pytest.mark.parametrize("key", [*KEYS, *PLUGIN_KEYS])
def test_no_author_writes_what_a_pod_holds(users: dict[str, Api], bound: str, pending: Manifest, key: str) -> None:
    """Neither at its creation nor later, bound or not, by whatever way annotations can be changed."""
    value, author = {key: "3"}, users["author"]
    name = pending["metadata"]["name"]
    ways = {
        "POST": lambda api: api.request("POST", PODS, pod("new", annotations=value)),
        "merge patch": merge(name, dict(value)),
        "strategic merge patch": strategic(name, dict(value)),
        "JSON patch": json_patch(name, key, "3"),
        "server-side apply": server_side(name, value),
        "PUT": put(name, value),
        "status, merge patch": merge(name, dict(value), "/status"),
        "status, server-side apply": server_side(name, value, "/status"),
        "status, PUT": put(name, value, "/status"),
        "Binding": lambda api: api.request("POST", f"{PODS}/{name}/binding", binding(pending, value)),
        "Binding of old": lambda api: api.request(
            "POST", "/api/v1/namespaces/default/bindings", binding(pending, value)
        ),
        "of a bound pod": merge(bound, dict(value)),
        "of a bound pod's status": merge(bound, dict(value), "/status"),
    }
    let_through = [way for way, call in ways.items() if "is written by Kerf" not in refusal(call, author)]
    assert not let_through


@pytest.mark.parametrize("part", ["", "/status"])
def test_no_author_takes_away_what_a_bound_pod_holds(
    plane: ControlPlane, users: dict[str, Api], bound: str, part: str
) -> None:
    before = plane.request("GET", f"{PODS}/{bound}")["metadata"]["annotations"]
    changes: list[dict[str, str | None]] = [
        {"kerf.dev/assigned-gpus": None},
        {"kerf.dev/assigned-gpus": "0"},
        {"hami.io/vgpu-node": None},
    ]
    for change in changes:
        assert "is written by Kerf" in refusal(merge(bound, change, part), users["author"])
    assert "is written by Kerf" in refusal(put(bound, {}, part), users["author"])
    for key in ASKED:
        assert "once it is bound" in refusal(merge(bound, {f"kerf.dev/{key}": "1"}, part), users["author"])
    assert "once it is bound" in refusal(merge(bound, {"kerf.dev/gpu-count": None}, part), users["author"])
    labelled = {"metadata": {"labels": {"genius/gpu-number": "1"}}}
    assert "once it is bound" in refusal(
        lambda api: api.request("PATCH", f"{PODS}/{bound}{part}", labelled, MERGE), users["author"]
    )
    assert plane.request("GET", f"{PODS}/{bound}")["metadata"]["annotations"] == before


def test_other_parts_of_a_pod_do_not_reach_its_annotations(
    plane: ControlPlane, users: dict[str, Api], bound: str
) -> None:
    """So the policy need not look at them."""
    before = plane.request("GET", f"{PODS}/{bound}")["metadata"]["annotations"]
    for part in ("/ephemeralcontainers", "/resize"):
        merge(bound, {"kerf.dev/assigned-gpus": "3", "other": "x"}, part)(users["author"])
    assert plane.request("GET", f"{PODS}/{bound}")["metadata"]["annotations"] == before


def test_nobody_else_is_stopped(plane: ControlPlane, users: dict[str, Api], bound: str, pending: Manifest) -> None:
    author, name = users["author"], pending["metadata"]["name"]
    assert refusal(merge(bound, {"team": "a"}), author) == ""
    assert refusal(merge(name, {"kerf.dev/gpu-count": "1", "kerf.dev/policy": "spread"}), author) == ""
    labels = {"metadata": {"labels": {"app": "x"}, "finalizers": ["example.com/wait"]}}
    author.request("PATCH", f"{PODS}/{bound}", labels, MERGE)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    users["kubelet"].request("PATCH", f"{PODS}/{bound}/status", status, MERGE)
    plane.request("PATCH", f"{PODS}/{bound}", {"metadata": {"finalizers": None}}, MERGE)  # a controller
    found = author.request("GET", f"{PODS}/{bound}")
    author.request("PUT", f"{PODS}/{bound}", found)
    author.request("DELETE", f"{PODS}/{bound}?dryRun=All")
    author.request("POST", f"{PODS}?dryRun=All", pod("says-nothing"))
    author.request("POST", f"{PODS}?dryRun=All", pod("asks", gpus=2, annotations={"kerf.dev/gpu-model": "a100"}))
    author.request("POST", f"{PODS}?dryRun=All", pod("without-gpus", nodeName="node"))


def test_a_pod_with_as_many_annotations_as_there_can_be_is_taken(plane: ControlPlane, users: dict[str, Api]) -> None:
    """What the policy takes does not grow with them."""
    author = users["author"]
    many = {f"a{number}": "" for number in range(40_000)}
    assert 200_000 < sum(map(len, many)) < 256 * 1024
    for tries_left in (2, 1, 0):
        try:
            author.request("POST", PODS, pod("many", annotations=many))
            break
        except ApiError as error:  # an API server that is busy besides takes longer than it gives itself
            if error.status == HTTPStatus.CONFLICT and tries_left < 2:
                break
            if error.status != HTTPStatus.GATEWAY_TIMEOUT or not tries_left:
                raise
    try:
        assert refusal(merge("many", {"more": "x"}), author) == ""
        assert refusal(merge("many", {"more": "y"}, "/status"), author) == ""
        assert "is written by Kerf" in refusal(merge("many", {"kerf.dev/sealed": "y"}), author)
    finally:
        remove(plane, "many")


def test_a_kubelet_shows_the_static_pods_of_its_own_node(users: dict[str, Api]) -> None:
    annotations = {"kubernetes.io/config.mirror": "hash", "kerf.dev/assigned-gpus": "0"}

    def create(node: str, annotations: dict[str, str], gpus: int = 1) -> Callable[[Api], Any]:
        manifest = pod("static-node", gpus=gpus, annotations=annotations, nodeName=node)
        return lambda api: api.request("POST", f"{PODS}?dryRun=All", manifest)

    assert refusal(create("node", annotations), users["kubelet"]) == ""
    assert "is written by Kerf" in refusal(create("other", annotations), users["kubelet"])
    assert "is written by Kerf" in refusal(create("node", {"kerf.dev/assigned-gpus": "0"}), users["kubelet"])
    assert "is written by Kerf" in refusal(create("node", annotations), users["author"])


@pytest.mark.parametrize(
    "asks",
    [
        {"gpus": 1},
        {"annotations": {"kerf.dev/gpu-count": "1"}},
        {"labels": {"genius/gpu-number": "1"}},
        {"initContainers": [{"name": "i", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    ],
    ids=json.dumps,
)
def test_who_asks_for_gpus_does_not_place_itself(users: dict[str, Api], asks: dict[str, Any]) -> None:
    manifest = pod("placed", nodeName="node", **asks)

    def create(api: Api) -> Any:
        return api.request("POST", f"{PODS}?dryRun=All", manifest)

    assert "is placed by a scheduler" in refusal(create, users["author"])
    for user in ("kerf", "validator"):
        if user == "validator":
            assert refusal(create, users[user]) == ""


def test_the_plugin_writes_its_own_keys_and_no_others(users: dict[str, Api], bound: str) -> None:
    plugin = users["plugin"]
    served = {"hami.io/bind-phase": "success", "hami.io/vgpu-devices-to-allocate": ";"}
    assert refusal(merge(bound, dict(served)), plugin) == ""
    assert refusal(merge(bound, {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}, "/status"), plugin) == ""
    assert "is written by Kerf" in refusal(merge(bound, {"kerf.dev/assigned-gpus": "3"}), plugin)


def test_kerf_and_the_scheduler_whose_name_it_bears_may(users: dict[str, Api], pending: Manifest) -> None:
    name = pending["metadata"]["name"]
    for key in (*KEYS, *PLUGIN_KEYS):
        assert refusal(merge(name, {key: "1"}, "/status"), users["kerf"]) == ""


def test_the_api_server_has_nothing_to_say_against_it(plane: ControlPlane) -> None:
    """Its type checker reads the expressions against the kinds they are about."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/kerf-assignments"
    plane.start_controller_manager("validatingadmissionpolicy-status-controller")

    def checked() -> Manifest | None:
        status: Manifest = plane.request("GET", path).get("status", {})
        return status if status.get("observedGeneration") else None

    status = wait_until(checked, 60.0, "a look at it")
    assert status is not None
    assert not status.get("typeChecking", {}).get("expressionWarnings"), json.dumps(status, indent=1)
