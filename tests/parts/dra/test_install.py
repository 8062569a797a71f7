"""`kerf install dra` on a real API server, beside a real kube-scheduler: devices are given to Kerf, and taken back."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import app
from extender.core.dra import owning
from extender.parts.dra.facts import _tolerates, _waits_in_queue, pools_of
from extender.parts.dra.giving import _rule_name, rule_for
from extender.parts.dra.policies import fence, user_of
from tests.controlplane import dra
from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT, SERVICE_ACCOUNT
from tests.controlplane.objects import cpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.webhooks import gates_of, gating
from tests.parts.dra.test_install_policy import (
    BINDINGS,
    CLAIMS,
    DRIVER,
    INTOLERABLE,
    MERGE,
    POLICIES,
    TOLERABLE,
    allocation,
    claim,
    denied,
    named,
    result,
    template,
)

Manifest = dict[str, Any]
API = "/apis/resource.k8s.io/v1"
RULES = f"{API}/devicetaintrules"
DEFAULT = "/api/v1/namespaces/default"
ACCOUNT = "kube-system/kerf"
SCHEDULER = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration}"


def slice_of(node: str, gpus: int, driver: str = DRIVER, **spec: Any) -> Manifest:
    """What a driver publishes of a node, whose name its pool has."""
    metadata = {"name": f"{node}-{driver.partition('.')[0]}"}
    of = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{index}"} for index in range(gpus)],
        **spec,
    }
    of = {key: value for key, value in of.items() if value is not None}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": of}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    users = {"kerf": SERVICE_ACCOUNT, "allocator": "system:serviceaccount:other:allocator"}
    with ControlPlane(tmp_path_factory.mktemp("dra"), users=users) as running:
        manifests = ROOT / "manifests"
        running.apply(manifests / "rbac.yaml", manifests / "dra" / "rbac.yaml")
        everything = ["resourceclaims", "resourceclaims/status", "resourceclaims/binding"]
        running.grant("allocator", {"apiGroups": ["resource.k8s.io"], "resources": everything, "verbs": ["*"]})
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}}
        running.apply({**head, "spec": {"selectors": [selector], "extendedResourceName": "example.com/gpu"}})
        running.start_scheduler(SCHEDULER)
        yield running


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes with two devices each."""
    for name in ("one", "two"):
        plane.apply(cpu_node(name), slice_of(name, 2))
    yield plane
    for path in (f"{DEFAULT}/pods", CLAIMS, f"{API}/namespaces/default/resourceclaimtemplates"):
        for item in plane.request("GET", path)["items"]:
            remove(plane, f"{path}/{item['metadata']['name']}")
    for path in (RULES, f"{API}/resourceslices", "/api/v1/nodes", POLICIES, BINDINGS):
        plane.request("DELETE", path)
    label(plane, None)
    wait_until(lambda: takes_anything(plane), 30, "the API server no longer keeps to the policies")


def takes_anything(plane: ControlPlane) -> bool:
    """Whether no policy refuses claims for Kerf's devices."""
    try:
        plane.request("POST", f"{CLAIMS}?dryRun=All", named(claim(INTOLERABLE[0]), "anything"))
    except ApiError as error:
        assert error.status in {403, 422}, error
        return False
    return True


def remove(plane: ControlPlane, path: str) -> None:
    plane.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
    try:
        plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
    except ApiError as error:
        assert error.status == 404


def label(plane: ControlPlane, value: str | None) -> None:
    """Opt the namespace `default` in, or out."""
    plane.request("PATCH", DEFAULT, {"metadata": {"labels": {"kerf.dev/queue": value}}}, MERGE)


def install(plane: ControlPlane, *arguments: str, driver: str = DRIVER, settle: float = 0.2) -> tuple[int, str]:
    """Exit status, and what is printed."""
    command = ["install", "dra", "--driver", driver, "--kubeconfig", str(plane.kubeconfig("admin"))]
    account = [] if "--service-account" in arguments else ["--service-account", ACCOUNT]
    outcome = CliRunner().invoke(app, [*command, *account, "--settle", str(settle), *arguments])
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    return outcome.exit_code, outcome.output


def rule(plane: ControlPlane, name: str, value: str, **selector: str) -> None:
    taint = {"key": "kerf.dev/owned", "value": value, "effect": "NoSchedule"}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}}
    plane.apply({**head, "spec": {"deviceSelector": selector, "taint": taint}})


def rules(plane: ControlPlane) -> dict[str, str]:
    """The taint's value by name."""
    return {item["metadata"]["name"]: item["spec"]["taint"]["value"] for item in plane.request("GET", RULES)["items"]}


def policies_of(plane: ControlPlane) -> list[str]:
    return [item["metadata"]["name"] for item in plane.request("GET", POLICIES)["items"]]


def submit(plane: ControlPlane, name: str, **spec: Any) -> None:
    """A pod with a claim of its own on a device."""
    plane.request("POST", CLAIMS, named(claim(), name))
    manifest = pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}], **spec)
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    plane.request("POST", f"{DEFAULT}/pods", manifest)


def node_of(plane: ControlPlane, name: str) -> str:
    return str(plane.request("GET", f"{DEFAULT}/pods/{name}")["spec"].get("nodeName", ""))


def bound(plane: ControlPlane, name: str) -> str:
    """The node of a pod, once it has one."""
    return wait_until(lambda: node_of(plane, name), 20.0, f"{name} is bound")


def why_pending(plane: ControlPlane, name: str) -> str:
    """What kube-scheduler says of a pod that it can't place."""

    def told() -> str:
        conditions = plane.request("GET", f"{DEFAULT}/pods/{name}")["status"].get("conditions") or []
        return str(next((item["message"] for item in conditions if item["type"] == "PodScheduled"), ""))

    return wait_until(told, 20.0, f"{name} is refused")


def devices_of(plane: ControlPlane, name: str) -> list[str]:
    status = plane.request("GET", f"{CLAIMS}/{name}").get("status", {})
    return [
        f"{item['pool']}/{item['device']}"
        for item in status.get("allocation", {}).get("devices", {}).get("results", [])
    ]


def taken(plane: ControlPlane) -> list[str]:
    """All devices that claims have: `pool/device`."""
    statuses = [item.get("status", {}) for item in plane.request("GET", CLAIMS)["items"]]
    results = [
        each for status in statuses for each in status.get("allocation", {}).get("devices", {}).get("results", [])
    ]
    return sorted(f"{item['pool']}/{item['device']}" for item in results)


def allocate(plane: ControlPlane, user: str, name: str, pool: str, device: str) -> None:
    """As Kerf does it: the finalizer, then the device, on a node."""
    api = plane.api(user)
    finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    field = {"key": "metadata.name", "operator": "In", "values": [pool]}
    given = allocation([result(device, pool=pool)])
    given["status"]["allocation"] |= {
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        "allocationTimestamp": "2036-01-01T00:00:00Z",
    }
    try:
        api.request("PATCH", f"{CLAIMS}/{name}", finalizers, MERGE)
        api.request("PATCH", f"{CLAIMS}/{name}/status", given, MERGE)
    finally:
        api.close()


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_given_to_kerf_and_taken_back(cluster: ControlPlane) -> None:
    """kube-scheduler allocates before and after, and in between binds what Kerf has allocated."""
    label(cluster, "enabled")
    submit(cluster, "before")
    assert bound(cluster, "before")
    status, said = install(cluster)
    assert status == 0, said
    assert rules(cluster) == {"kerf-gpu.example.com": "kerf"}
    assert policies_of(cluster) == ["kerf-dra-tolerations", "kerf-gpu.example.com"]
    assert "already allocated: 1, to 1 claims; their 1 pods keep running" in said

    submit(cluster, "outside")
    assert "cannot allocate all claims" in why_pending(cluster, "outside")
    submit(cluster, "kerfs", schedulingGates=[{"name": "kerf.dev/queue"}])
    (taken,) = devices_of(cluster, "before")
    free = next(name for name in ("one", "two") if not taken.startswith(name))
    allocate(cluster, "kerf", "kerfs", free, "gpu-1")
    cluster.request("PATCH", f"{DEFAULT}/pods/kerfs", {"spec": {"schedulingGates": None}}, MERGE)
    assert bound(cluster, "kerfs") == free
    assert (node_of(cluster, "outside"), devices_of(cluster, "kerfs")) == ("", [f"{free}/gpu-1"])

    status, said = install(cluster)
    assert (status, "already owned by Kerf" in said) == (0, True), said
    status, said = install(cluster, "--remove")
    assert status == 0, said
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    assert bound(cluster, "outside")
    assert not set(devices_of(cluster, "outside")) & {taken, f"{free}/gpu-1"}


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_the_fence_stands_before_kerf_has_them(cluster: ControlPlane) -> None:
    """What another allocator decided before it saw the taint is refused, so that nothing is allocated twice."""
    submit(cluster, "late", schedulingGates=[{"name": "kerf.dev/queue"}])
    assert install(cluster)[0] == 0
    allocator = cluster.api("allocator")
    try:
        assert "is allocated only by Kerf" in denied(allocator, "late", [result("gpu-0", pool="one")])
    finally:
        allocator.close()


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_nothing_is_allocated_twice_while_it_changes_hands(cluster: ControlPlane) -> None:
    """Pods come all the time; Kerf takes all that is free at once when it may, kube-scheduler when it may again."""
    label(cluster, "enabled")
    for name in ("one", "two"):
        cluster.apply(slice_of(name, 16, pool={"name": name, "generation": 2, "resourceSliceCount": 1}))
    names = iter(range(1000))
    done = threading.Event()

    def submit_all() -> None:
        while not done.wait(0.1):
            submit(cluster, f"pod-{next(names)}")

    with ThreadPoolExecutor() as pool:
        pods = pool.submit(submit_all)
        try:
            wait_until(lambda: taken(cluster), 20.0, "kube-scheduler allocates")
            status, said = install(cluster, settle=1.0)
            assert status == 0, said
            free = {f"{node}/gpu-{index}" for node in ("one", "two") for index in range(16)} - set(taken(cluster))
            assert free
            for device in sorted(free)[::2]:
                cluster.request("POST", CLAIMS, named(claim(), device.replace("/", "-")))
                allocate(cluster, "kerf", device.replace("/", "-"), *device.split("/"))
            assert install(cluster, "--remove", settle=1.0)[0] == 0
            wait_until(lambda: len(taken(cluster)) == 32, 20.0, "kube-scheduler allocates again")
        finally:
            done.set()
        pods.result()
    assert len(set(taken(cluster))) == len(taken(cluster)) == 32


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
@pytest.mark.parametrize("direction", [(), ("--remove",)], ids=["taking", "giving back"])
def test_whoever_is_killed_on_the_way_goes_on_from_there(cluster: ControlPlane, direction: tuple[str, ...]) -> None:
    rule(cluster, "kerf-gpu.example.com", "held", driver=DRIVER)
    cluster.request(
        "POST",
        CLAIMS.replace("default", "kube-system"),
        {**named(claim(), "kerf-probe"), "metadata": {"name": "kerf-probe"}},
    )
    submit(cluster, "waits")
    assert "cannot allocate all claims" in why_pending(cluster, "waits")
    status, said = install(cluster, *direction, "--force")
    assert status == 0, said
    assert rules(cluster) == ({} if direction else {"kerf-gpu.example.com": "kerf"})
    assert not cluster.exists(f"{CLAIMS.replace('default', 'kube-system')}/kerf-probe")


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_single_pools(cluster: ControlPlane) -> None:
    """Those that are named are Kerf's, the others stay kube-scheduler's; they are given back one by one or together."""
    status, said = install(cluster, "--pool", "one")
    assert status == 0, said
    assert rules(cluster) == {_rule_name(DRIVER, "one"): "kerf"}
    for name in ("first", "second"):
        submit(cluster, name)
        assert bound(cluster, name) == "two"
    submit(cluster, "third")
    assert "cannot allocate all claims" in why_pending(cluster, "third")
    status, said = install(cluster)
    assert (status, "already owns pool one: give that back first" in said) == (1, True), said
    assert install(cluster, "--pool", "two", "--force")[0] == 0
    status, said = install(cluster, "--remove", "--pool", "three")
    assert (status, "no DeviceTaintRule owns pool three" in said) == (1, True), said
    assert install(cluster, "--remove", "--pool", "one")[0] == 0
    assert (rules(cluster), len(policies_of(cluster))) == ({_rule_name(DRIVER, "two"): "kerf"}, 2), (
        "that of the pool, and that of claims"
    )
    assert bound(cluster, "third") == "one"
    assert install(cluster, "--remove")[0] == 0
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    status, said = install(cluster, "--remove")
    assert (status, "no DeviceTaintRule gives devices of gpu.example.com to Kerf" in said) == (1, True), said


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_pods_that_get_nothing_any_more_are_named_and_kept_from_harm(cluster: ControlPlane) -> None:
    submit(cluster, "runs")
    assert bound(cluster, "runs")
    submit(cluster, "waits", nodeSelector={"kubernetes.io/hostname": "nowhere"})
    cluster.request("POST", f"{API}/namespaces/default/resourceclaimtemplates", named(template(claim()), "gpu"))
    by_name = pod("by-name", nodeSelector={"kubernetes.io/hostname": "nowhere"})
    by_name["spec"]["containers"][0]["resources"]["limits"] = {"example.com/gpu": "1"}
    cluster.request("POST", f"{DEFAULT}/pods", by_name)
    cluster.request("POST", CLAIMS, named(claim(INTOLERABLE[0]), "tolerant"))
    status, said = install(cluster)
    assert status == 1
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    assert "which tolerate all taints or Kerf's: default/tolerant" in said
    assert "they keep running, but their replacements would wait for ever: default/runs" in said
    assert "such pods now: default/by-name, default/waits" in said
    assert "claim templates in namespaces that have not opted in: default/gpu" in said
    assert "pods with extended resources of its classes get no devices either: example.com/gpu" in said
    assert "--force overrides this" in said
    status, said = install(cluster, "--force")
    assert (status, rules(cluster)) == (0, {"kerf-gpu.example.com": "kerf"}), said
    assert node_of(cluster, "runs")
    # In a namespace that opts in nothing speaks against it.
    assert install(cluster, "--remove")[0] == 0
    label(cluster, "enabled")
    status, said = install(cluster)
    assert (status, "such pods now" in said, "claim templates" in said) == (0, False, False), said


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_what_speaks_against_it(cluster: ControlPlane) -> None:
    status, said = install(cluster, driver="gpu.exmaple.com")
    expected = "driver gpu.exmaple.com publishes no ResourceSlices; drivers that do: gpu.example.com"
    assert (status, expected in said) == (1, True)
    status, said = install(cluster, "--pool", "three", "--pool", "one")
    assert (status, "publishes no pool three" in said) == (1, True), said
    cluster.apply(slice_of("net", 1, nodeName=None, allNodes=True))
    status, said = install(cluster, "--force")
    assert (status, "does not allocate pools that span nodes, so nothing would: net" in said) == (1, True), said
    status, said = install(cluster, "--service-account", "kube-system/somebody", "--pool", "one")
    assert (status, "kube-system:somebody may not patch resourceclaims/binding: no device" in said) == (1, True), said
    status, said = install(cluster, "--service-account", "it's")
    assert (status, "write NAMESPACE/NAME" in said) == (2, True), said
    status, said = install(cluster, "--service-account", "")
    assert (status, "no Kerf was found in the cluster" in said) == (1, True), said
    for name in ("a", "b"):
        cluster.request("POST", CLAIMS, named(claim(), name))
        allocate(cluster, "allocator", name, "one", "gpu-0")
    status, said = install(cluster, "--pool", "one", "--force")
    assert (status, "allocated to two claims: one/gpu-0" in said) == (1, True), said
    rule(cluster, "by-hand", "kerf", driver=DRIVER, pool="two", device="gpu-0")
    status, said = install(cluster, "--pool", "two", "--force")
    assert (status, "DeviceTaintRule by-hand has Kerf's taint, but does not select" in said) == (1, True), said
    assert (rules(cluster), policies_of(cluster)) == ({"by-hand": "kerf"}, [])


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_a_dry_run_writes_nothing_and_shows_what_would_be(cluster: ControlPlane) -> None:
    status, said = install(cluster, "--dry-run", "--pool", "one")
    assert status == 0
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    documents = list(yaml.safe_load_all(said[said.index("apiVersion") :]))
    assert [item["kind"] for item in documents] == [
        "DeviceTaintRule",
        *["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 2,
    ]
    assert documents[0] == rule_for(DRIVER, "one", owning.OWNED)
    cluster.apply(*documents)
    status, said = install(cluster, "--remove", "--dry-run")
    assert (status, "would be held for 0.2 s, then deleted" in said) == (0, True)
    assert rules(cluster) == {_rule_name(DRIVER, "one"): "kerf"}


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
@pytest.mark.parametrize(
    ("disabled", "told"),
    [
        (
            "resource.k8s.io/v1/devicetaintrules=false",
            "taints: [{key: kerf.dev/owned, value: kerf, effect: NoSchedule}]",
        ),
        ("resource.k8s.io/v1=false", "needs Kubernetes 1.34 or newer"),
    ],
)
def test_where_the_api_server_has_no_such_rules_it_says_what_can_be_done(
    tmp_path: Path, disabled: str, told: str
) -> None:
    with ControlPlane(tmp_path, flags=(f"--runtime-config={disabled}",)) as older:
        status, said = install(older)
        assert (status, told in said) == (1, True), said


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_pods_with_claims_get_the_gate_where_their_namespace_opts_in(cluster: ControlPlane, tmp_path: Path) -> None:
    with gating(cluster, tmp_path):
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        path = f"{DEFAULT}/pods?dryRun=All"
        assert gates_of(cluster.request("POST", path, pod("p", resourceClaims=claims))) == []
        label(cluster, "enabled")

        def gates() -> list[Manifest]:
            return gates_of(cluster.request("POST", path, pod("p", resourceClaims=claims)))

        assert wait_until(gates, 20.0, "the namespace opts in") == [{"name": "kerf.dev/queue"}]


# Without a cluster


@pytest.mark.parametrize(
    ("labels", "gates", "opted_in", "waits"),
    [
        ({}, [], [], False),
        ({}, [{"name": "kerf.dev/queue"}], [], True),
        ({}, [{"name": "example.com/other"}], [], False),
        ({}, [], ["default"], True),
        ({"kerf.dev/queue": "disabled"}, [], ["default"], False),
        ({"kerf.dev/queue": "enabled"}, [], [], True),
        ({"genius/priority": "3"}, [], [], True),
        ({"genius/priority": " "}, [], [], False),
    ],
)
def test_who_waits_in_the_queue(
    labels: dict[str, str], gates: list[Manifest], opted_in: list[str], waits: bool
) -> None:
    assert _waits_in_queue(pod("p", labels=labels, schedulingGates=gates), opted_in) is waits


@pytest.mark.parametrize("form", ["exactly", "firstAvailable"])
def test_what_the_policy_refuses_is_found_among_what_was_there_before(form: str) -> None:
    for toleration in INTOLERABLE:
        assert _tolerates(claim(TOLERABLE[0], toleration, form=form)["spec"])
    assert not _tolerates(claim(*TOLERABLE, form=form)["spec"])
    assert not _tolerates(claim(INTOLERABLE[0], admin=True)["spec"])
    assert not _tolerates({})


def test_pools_are_those_of_the_newest_generation() -> None:
    old = slice_of("one", 4)
    new = slice_of("one", 1, pool={"name": "one", "generation": 2, "resourceSliceCount": 2})
    more = slice_of("one", 2, pool={"name": "one", "generation": 2, "resourceSliceCount": 2})
    (found,) = pools_of([new, old, more, slice_of("one", 8, driver="nic.example.com")], DRIVER)
    assert (found.name, found.num_devices, sorted(found.nodes), found.local, found.tainted) == (
        "one",
        3,
        ["one"],
        True,
        False,
    )


@pytest.mark.parametrize(
    ("taints", "tainted"),
    [
        ([["kerf"], ["kerf"]], True),
        ([["kerf"], []], False),
        ([["kerf"], ["held"]], False),
        ([["kerf", "held"], ["kerf"]], False),
    ],
)
def test_a_pool_is_tainted_when_all_its_devices_are(taints: list[list[str]], tainted: bool) -> None:
    devices = [
        {"name": f"gpu-{i}", "taints": [{"key": "kerf.dev/owned", "value": v, "effect": "NoSchedule"} for v in values]}
        for i, values in enumerate(taints)
    ]
    (found,) = pools_of([slice_of("one", 0, devices=devices)], DRIVER)
    assert found.tainted is tainted


def test_rules_have_names_that_the_api_server_takes() -> None:
    long = "/".join(["rack-1.example.com"] * 12)
    assert len(_rule_name(DRIVER, long)) < 64
    assert len({_rule_name(DRIVER, pool) for pool in (None, "a", "b", "a/b", long)}) == 5


def test_a_fence_names_the_account() -> None:
    text = json.dumps(fence("owned", DRIVER, None, user_of("gpu/kerf-2")))
    assert "system:serviceaccount:gpu:kerf-2" in text
    for account in ("a/b'c", "a", "a/b/c", "A/b", "a/b\n", "/b", "a/"):
        with pytest.raises(ValueError, match="write NAMESPACE/NAME"):
            user_of(account)
