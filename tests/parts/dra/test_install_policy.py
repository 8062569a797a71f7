"""The policies of DRA on a real API server: who may tolerate Kerf's taint, and who may allocate what Kerf owns."""

from collections.abc import Iterator
from typing import Any

import pytest

from extender.parts.dra import policies
from tests.controlplane import dra
from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import ROOT, SERVICE_ACCOUNT
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.manifests import DRA_POLICY

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, dra.TAINTS]

Manifest = dict[str, Any]
GROUP = "/apis/resource.k8s.io"
CLAIMS = f"{GROUP}/v1/namespaces/default/resourceclaims"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
DRIVER = "gpu.example.com"
MERGE = "application/merge-patch+json"
FLAGS = ("--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",)
USERS = {"kerf": SERVICE_ACCOUNT, "author": "alice", "allocator": "system:serviceaccount:other:allocator"}
TOLERATED = "must not tolerate kerf.dev/owned"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("dra-policy"), users=USERS, flags=FLAGS) as running:
        running.apply(ROOT / "manifests" / "dra" / "rbac.yaml", DRA_POLICY)
        everything = ["resourceclaims", "resourceclaimtemplates", "resourceclaims/status", "resourceclaims/binding"]
        for user in ("author", "allocator"):
            running.grant(user, {"apiGroups": ["resource.k8s.io"], "resources": everything, "verbs": ["*"]})
        running.request("PATCH", "/api/v1/namespaces/default", admin_access("true"), MERGE)
        wait_until(
            lambda: TOLERATED in refused(running, claim({"key": "kerf.dev/owned"})), 20.0, "the policy is in force"
        )
        yield running


@pytest.fixture(scope="module")
def users(plane: ControlPlane) -> Iterator[dict[str, Api]]:
    apis = {user: plane.api(user) for user in USERS}
    yield apis
    for api in apis.values():
        api.close()


def admin_access(value: str | None) -> Manifest:
    return {"metadata": {"labels": {"resource.kubernetes.io/admin-access": value}}}


def claim(*tolerations: Manifest, form: str = "exactly", admin: bool = False, version: str = "v1") -> Manifest:
    """A claim whose request has tolerations; as versions before `v1` have them where one is named."""
    asked: Manifest = {"deviceClassName": "gpu.example.com", "tolerations": list(tolerations)}
    if admin:
        asked["adminAccess"] = True
    request: Manifest = {"name": "gpu"}
    if form == "firstAvailable":
        alternatives = [{"name": "plain", "deviceClassName": "gpu.example.com"}, {"name": "tolerant", **asked}]
        request["firstAvailable"] = alternatives
    elif version == "v1beta1":
        request |= asked
    else:
        request["exactly"] = asked
    spec = {"devices": {"requests": [request]}}
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaim"}
    return {**head, "metadata": {"generateName": "claim-", "namespace": "default"}, "spec": spec}


def named(manifest: Manifest, name: str) -> Manifest:
    return {**manifest, "metadata": {"name": name, "namespace": "default"}}


def template(of: Manifest) -> Manifest:
    """The template of a claim."""
    return {**of, "kind": "ResourceClaimTemplate", "spec": {"spec": of["spec"]}}


def refused(plane: ControlPlane, manifest: Manifest) -> str:
    """Why the API server does not take an object of an author, "" where it does."""
    kind = "resourceclaimtemplates" if manifest["kind"].endswith("Template") else "resourceclaims"
    path = f"/apis/{manifest['apiVersion']}/namespaces/default/{kind}?dryRun=All"
    api = plane.api("author")
    try:
        api.request("POST", path, manifest)
    except ApiError as error:
        return error.message
    finally:
        api.close()
    return ""


INTOLERABLE = [
    {"key": "kerf.dev/owned", "operator": "Exists"},
    {"key": "kerf.dev/owned", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "kerf.dev/owned", "operator": "Equal", "value": "kerf"},
    {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"},
    {"key": "kerf.dev/owned", "value": "held"},
    {"key": "kerf.dev/owned"},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
    {"operator": "Equal", "value": "kerf"},  # kube-scheduler takes an empty key for all keys here too
    {"value": "kerf"},
]
TOLERABLE = [
    {"key": "example.com/broken", "operator": "Exists"},
    {"key": "kerf.dev", "operator": "Exists"},
    {"operator": "Exists", "effect": "NoExecute"},
    {"operator": "Exists", "effect": "None"},
]


@pytest.mark.parametrize("toleration", INTOLERABLE, ids=str)
@pytest.mark.parametrize("form", ["exactly", "firstAvailable"])
def test_nobody_tolerates_the_taint(plane: ControlPlane, form: str, toleration: Manifest) -> None:
    """In claims and templates, alone and after one that is harmless."""
    for tolerations in ((toleration,), (TOLERABLE[0], toleration)):
        of = claim(*tolerations, form=form)
        assert TOLERATED in refused(plane, of)
        assert TOLERATED in refused(plane, template(of))


@pytest.mark.parametrize("toleration", TOLERABLE, ids=str)
@pytest.mark.parametrize("form", ["exactly", "firstAvailable"])
def test_other_tolerations_are_left_alone(plane: ControlPlane, form: str, toleration: Manifest) -> None:
    of = claim(toleration, form=form)
    assert (refused(plane, of), refused(plane, template(of))) == ("", "")


def test_a_second_request_is_looked_at_too(plane: ControlPlane) -> None:
    of = claim()
    of["spec"]["devices"]["requests"] += [{**claim(INTOLERABLE[0])["spec"]["devices"]["requests"][0], "name": "more"}]
    assert TOLERATED in refused(plane, of)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_older_versions_of_the_api_are_no_way_round(plane: ControlPlane, version: str) -> None:
    of = claim({"operator": "Exists"}, version=version)
    assert TOLERATED in refused(plane, of)
    assert TOLERATED in refused(plane, template(of))


def test_who_only_looks_may_tolerate_all(plane: ControlPlane) -> None:
    of = claim({"operator": "Exists"}, admin=True)
    assert (refused(plane, of), refused(plane, template(of))) == ("", "")


def test_claims_without_requests_are_left_alone(plane: ControlPlane) -> None:
    of = {**claim(), "spec": {}}
    assert refused(plane, of) == ""
    assert refused(plane, template(of)) == ""


def test_specs_never_change_so_updates_are_no_way_round(plane: ControlPlane, users: dict[str, Api]) -> None:
    for made in (named(claim(), "steady"), named(template(claim()), "steady")):
        kind = "resourceclaimtemplates" if made["kind"].endswith("Template") else "resourceclaims"
        path = f"{GROUP}/v1/namespaces/default/{kind}"
        users["author"].request("POST", path, made)
        with pytest.raises(ApiError, match="immutable"):
            changed = named(claim(INTOLERABLE[0]), "steady")
            spec = {"spec": changed["spec"]} if kind == "resourceclaimtemplates" else changed["spec"]
            users["author"].request("PATCH", f"{path}/steady", {"spec": spec}, MERGE)
        # What is no spec can be changed: finalizers above all.
        users["author"].request("PATCH", f"{path}/steady", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        users["author"].request("DELETE", f"{path}/steady")


# Allocations


def fenced(plane: ControlPlane, name: str, user: str, pool: str | None = None, driver: str = DRIVER) -> None:
    """A user alone allocates the devices of a driver or a pool, "" for nobody."""
    plane.apply(*policies.fence(name, driver, pool, user))


def result(device: str, driver: str = "gpu.example.com", pool: str = "node", admin: bool = False) -> Manifest:
    access = {"adminAccess": True} if admin else {}
    return {"request": "gpu", "driver": driver, "pool": pool, "device": device, **access}


def allocation(results: list[Manifest]) -> Manifest:
    return {"status": {"allocation": {"devices": {"results": results}}}}


def denied(api: Api, name: str, results: list[Manifest], version: str = "v1") -> str:
    """Why the API server does not take an allocation, "" where it does; nothing is stored."""
    path = f"{GROUP}/{version}/namespaces/default/resourceclaims/{name}/status?dryRun=All"
    try:
        api.request("PATCH", path, allocation(results), MERGE)
    except ApiError as error:
        return error.message
    return ""


@pytest.fixture
def asked(plane: ControlPlane, users: dict[str, Api]) -> Iterator[str]:
    """The name of a claim that has nothing yet; the fences are taken away afterwards."""
    plane.request("POST", CLAIMS, named(claim(), "asked"))
    yield "asked"
    for path in (POLICIES, BINDINGS):
        for found in plane.request("GET", path)["items"]:
            if found["metadata"]["name"] != "kerf-dra-tolerations":
                plane.request("DELETE", f"{path}/{found['metadata']['name']}")
    for device in (result("gpu-0"), result("gpu-0", pool="other")):
        seen(users, "asked", "allowed", [device])
    plane.request("DELETE", f"{CLAIMS}/asked")


def seen(users: dict[str, Api], name: str, text: str, results: list[Manifest], user: str = "allocator") -> None:
    """Wait until a fence is in force."""
    wait_until(lambda: text in (denied(users[user], name, results) or "allowed"), 10.0, f"{user}: {text}")


@pytest.mark.parametrize("pool", [None, "node"])
def test_what_kerf_owns_it_alone_allocates(
    plane: ControlPlane, users: dict[str, Api], asked: str, pool: str | None
) -> None:
    fenced(plane, "owned", SERVICE_ACCOUNT, pool)
    seen(users, asked, "gpu-0 of pool node is allocated only by Kerf (owned)", [result("gpu-0")])
    assert denied(users["kerf"], asked, [result("gpu-0")]) == ""
    assert denied(users["allocator"], asked, [result("gpu-0", driver="nic.example.com")]) == ""
    other = denied(users["allocator"], asked, [result("gpu-0", pool="other")])
    assert ("gpu-0 of pool other is allocated only by Kerf" in other) == (pool is None)
    mixed = [result("nic-0", driver="nic.example.com"), result("gpu-1")]
    assert "gpu-1 of pool node is allocated only by Kerf" in denied(users["allocator"], asked, mixed)
    for version in ("v1beta1", "v1beta2"):
        assert "by Kerf alone" in denied(users["allocator"], asked, [result("gpu-0")], version)
    # Who looks takes nothing.
    assert denied(users["allocator"], asked, [result("gpu-0", admin=True)]) == ""


def test_on_its_way_nobody_allocates(plane: ControlPlane, users: dict[str, Api], asked: str) -> None:
    fenced(plane, "owned", "")
    for user in ("allocator", "kerf"):
        seen(
            users,
            asked,
            "is being handed over to or from Kerf and cannot be allocated now (owned)",
            [result("gpu-0")],
            user,
        )


def test_a_fence_changes_hands(plane: ControlPlane, users: dict[str, Api], asked: str) -> None:
    """And comes back after it was gone: an API server stops watching the parameters of policies that were deleted."""
    for _ in range(2):
        fenced(plane, "owned", "")
        seen(users, asked, "cannot be allocated now", [result("gpu-0")], "kerf")
        fenced(plane, "owned", SERVICE_ACCOUNT)
        seen(users, asked, "allowed", [result("gpu-0")], "kerf")
        seen(users, asked, "by Kerf alone", [result("gpu-0")])
        for path in (POLICIES, BINDINGS):
            plane.request("DELETE", f"{path}/owned")
        seen(users, asked, "allowed", [result("gpu-0")])


def test_a_pool_that_two_fences_contradict_each_other_about_is_nobodys(
    plane: ControlPlane, users: dict[str, Api], asked: str
) -> None:
    fenced(plane, "owned", SERVICE_ACCOUNT)
    fenced(plane, "held", "", "node")
    seen(users, asked, "is being handed over to or from Kerf", [result("gpu-0")], "kerf")
    assert denied(users["kerf"], asked, [result("gpu-0", pool="other")]) == ""


def test_what_is_allocated_can_be_reserved_and_given_back_by_others(
    plane: ControlPlane, users: dict[str, Api], asked: str
) -> None:
    """kube-scheduler and kube-controller-manager go on with what is allocated, before a pool is owned or after."""
    status = f"{CLAIMS}/{asked}/status"
    users["allocator"].request("PATCH", status, allocation([result("gpu-0")]), MERGE)
    fenced(plane, "owned", SERVICE_ACCOUNT)
    plane.request("POST", CLAIMS, named(claim(), "another"))
    try:
        seen(users, "another", "by Kerf alone", [result("gpu-1")])
        consumer = {"resource": "pods", "name": "pod", "uid": "1"}
        users["allocator"].request("PATCH", status, {"status": {"reservedFor": [consumer]}}, MERGE)
        users["allocator"].request("PATCH", status, {"status": {"reservedFor": None, "allocation": None}}, MERGE)
        assert "by Kerf alone" in denied(users["allocator"], asked, [result("gpu-0")])
    finally:
        plane.request("DELETE", f"{CLAIMS}/another")


@pytest.mark.parametrize("name", ["", "a'", "a' || true || '", "A", "a\n", "-a", "a b"])
def test_what_is_no_name_comes_into_no_expression(name: str) -> None:
    for driver, pool in ((name, None), ("gpu.example.com", name)):
        with pytest.raises(ValueError, match="is not a valid driver or pool name"):
            policies.fence("owned", driver, pool, SERVICE_ACCOUNT)
