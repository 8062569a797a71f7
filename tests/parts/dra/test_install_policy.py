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
ONLY_KERF = policies.KERFS
TEMPLATES = "resourceclaimtemplates"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("dra-policy"), users=USERS, flags=FLAGS) as running:
        running.apply(ROOT / "manifests" / "dra" / "rbac.yaml", DRA_POLICY)
        everything = ["resourceclaims", TEMPLATES, "resourceclaims/status", "resourceclaims/binding"]
        for user in ("author", "allocator"):
            running.grant(user, {"apiGroups": ["resource.k8s.io"], "resources": everything, "verbs": ["*"]})
        admin_access = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        running.request("PATCH", "/api/v1/namespaces/default", admin_access, MERGE)
        of = claim({"key": "kerf.dev/owned"})
        wait_until(lambda: TOLERATED in refused(running, of), 20.0, "the policy is in force")
        yield running


@pytest.fixture(scope="module")
def users(plane: ControlPlane) -> Iterator[dict[str, Api]]:
    apis = {user: plane.api(user) for user in USERS}
    yield apis
    for api in apis.values():
        api.close()


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
    return {**of, "kind": "ResourceClaimTemplate", "spec": {"spec": of["spec"]}}


def refused(plane: ControlPlane, manifest: Manifest) -> str:
    """Why the API server does not take an object of an author, "" where it does."""
    kind = TEMPLATES if manifest["kind"].endswith("Template") else "resourceclaims"
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


@pytest.mark.parametrize("form", ["exactly", "firstAvailable"])
def test_no_claim_and_no_template_tolerates_the_taint(plane: ControlPlane, form: str) -> None:
    for toleration in INTOLERABLE:
        for tolerations in ((toleration,), (TOLERABLE[0], toleration)):
            of = claim(*tolerations, form=form)
            assert TOLERATED in refused(plane, of)
            assert TOLERATED in refused(plane, template(of))
    for toleration in TOLERABLE:
        of = claim(toleration, form=form)
        assert (refused(plane, of), refused(plane, template(of))) == ("", "")


def test_every_request_is_looked_at(plane: ControlPlane) -> None:
    of = claim()
    assert refused(plane, {**of, "spec": {}}) == ""
    assert refused(plane, template({**of, "spec": {}})) == ""
    of["spec"]["devices"]["requests"] += [{**claim(INTOLERABLE[0])["spec"]["devices"]["requests"][0], "name": "more"}]
    assert TOLERATED in refused(plane, of)


def test_older_versions_of_the_api_are_no_way_round(plane: ControlPlane) -> None:
    for version in ("v1beta1", "v1beta2"):
        of = claim({"operator": "Exists"}, version=version)
        assert TOLERATED in refused(plane, of)
        assert TOLERATED in refused(plane, template(of))


def test_admin_access_may_tolerate_all(plane: ControlPlane) -> None:
    of = claim({"operator": "Exists"}, admin=True)
    assert (refused(plane, of), refused(plane, template(of))) == ("", "")


def test_specs_never_change_so_updates_are_no_way_round(plane: ControlPlane, users: dict[str, Api]) -> None:
    author, tolerant = users["author"], claim(INTOLERABLE[0])
    for kind, of, changed in (
        ("resourceclaims", claim(), tolerant),
        (TEMPLATES, template(claim()), template(tolerant)),
    ):
        path = f"{GROUP}/v1/namespaces/default/{kind}"
        author.request("POST", path, named(of, "steady"))
        with pytest.raises(ApiError, match="immutable"):
            author.request("PATCH", f"{path}/steady", {"spec": changed["spec"]}, MERGE)
        author.request("PATCH", f"{path}/steady", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        author.request("DELETE", f"{path}/steady")


# Allocations


def result(device: str, driver: str = DRIVER, pool: str = "node", admin: bool = False) -> Manifest:
    access = {"adminAccess": True} if admin else {}
    return {"request": "gpu", "driver": driver, "pool": pool, "device": device, **access}


def allocation(results: list[Manifest]) -> Manifest:
    return {"status": {"allocation": {"devices": {"results": results}}}}


class Fences:
    """Fences, and an unallocated claim to try them on."""

    def __init__(self, plane: ControlPlane, users: dict[str, Api]) -> None:
        self.plane, self.users = plane, users

    def put(self, user: str, pool: str | None = None, name: str = "owned") -> None:
        """Only that user allocates the devices of the driver or a pool; "" for nobody."""
        self.plane.apply(*policies.fence(name, DRIVER, pool, user))

    def delete(self) -> None:
        for path in (POLICIES, BINDINGS):
            for found in self.plane.request("GET", path)["items"]:
                if found["metadata"]["name"] != "kerf-dra-tolerations":
                    self.plane.request("DELETE", f"{path}/{found['metadata']['name']}")
        for device in (result("gpu-0"), result("gpu-0", pool="other")):
            self.wait("allowed", device)

    def denied(self, user: str, *results: Manifest, version: str = "v1", name: str = "asked") -> str:
        """Why the API server rejects an allocation, "" if it does not; nothing is stored."""
        path = f"{GROUP}/{version}/namespaces/default/resourceclaims/{name}/status?dryRun=All"
        try:
            self.users[user].request("PATCH", path, allocation(list(results)), MERGE)
        except ApiError as error:
            return error.message
        return ""

    def wait(self, text: str, device: Manifest, user: str = "allocator", name: str = "asked") -> None:
        """Wait until a fence is in force."""
        wait_until(lambda: text in (self.denied(user, device, name=name) or "allowed"), 10.0, f"{user}: {text}")


@pytest.fixture
def fences(plane: ControlPlane, users: dict[str, Api]) -> Iterator[Fences]:
    plane.request("POST", CLAIMS, named(claim(), "asked"))
    found = Fences(plane, users)
    yield found
    found.delete()
    plane.request("DELETE", f"{CLAIMS}/asked")


@pytest.mark.parametrize("pool", [None, "node"])
def test_only_kerf_allocates_what_it_owns(fences: Fences, pool: str | None) -> None:
    fences.put(SERVICE_ACCOUNT, pool)
    fences.wait(ONLY_KERF, result("gpu-0"))
    assert fences.denied("kerf", result("gpu-0")) == ""
    nic = result("nic-0", driver="nic.example.com")
    assert fences.denied("allocator", nic) == ""
    assert (ONLY_KERF in fences.denied("allocator", result("gpu-0", pool="other"))) == (pool is None)
    assert f"gpu-1 of pool node {ONLY_KERF}" in fences.denied("allocator", nic, result("gpu-1"))
    for version in ("v1beta1", "v1beta2"):
        assert ONLY_KERF in fences.denied("allocator", result("gpu-0"), version=version)
    assert fences.denied("allocator", result("gpu-0", admin=True)) == ""


def test_a_fence_changes_hands(fences: Fences) -> None:
    """Also after it was deleted: an API server stops watching the parameters of deleted policies."""
    for _ in range(2):
        fences.put("")
        for user in ("allocator", "kerf"):
            fences.wait(f"{policies.HELD} (owned)", result("gpu-0"), user)
        fences.put(SERVICE_ACCOUNT)
        fences.wait("allowed", result("gpu-0"), "kerf")
        fences.wait(ONLY_KERF, result("gpu-0"))
        fences.delete()


def test_a_pool_of_two_contradicting_fences_is_allocated_by_nobody(fences: Fences) -> None:
    fences.put(SERVICE_ACCOUNT)
    fences.put("", "node", name="held")
    fences.wait(policies.HELD, result("gpu-0"), "kerf")
    assert fences.denied("kerf", result("gpu-0", pool="other")) == ""


def test_others_may_reserve_and_deallocate_what_is_allocated(fences: Fences) -> None:
    """kube-scheduler and kube-controller-manager go on with what is allocated, before a pool is owned or after."""
    status, allocator = f"{CLAIMS}/asked/status", fences.users["allocator"]
    allocator.request("PATCH", status, allocation([result("gpu-0")]), MERGE)
    fences.put(SERVICE_ACCOUNT)
    fences.plane.request("POST", CLAIMS, named(claim(), "another"))
    try:
        fences.wait(ONLY_KERF, result("gpu-1"), name="another")
        consumer = {"resource": "pods", "name": "pod", "uid": "1"}
        allocator.request("PATCH", status, {"status": {"reservedFor": [consumer]}}, MERGE)
        allocator.request("PATCH", status, {"status": {"reservedFor": None, "allocation": None}}, MERGE)
        assert ONLY_KERF in fences.denied("allocator", result("gpu-0"))
    finally:
        fences.plane.request("DELETE", f"{CLAIMS}/another")


def test_an_invalid_name_comes_into_no_expression() -> None:
    for name in ("", "a'", "a' || true || '", "A", "a\n", "-a", "a b"):
        for driver, pool in ((name, None), ("gpu.example.com", name)):
            with pytest.raises(ValueError, match="not a valid"):
                policies.fence("owned", driver, pool, SERVICE_ACCOUNT)
