"""`kerf install dra` on a real API server, beside a real kube-scheduler: devices are given to Kerf, and taken back."""

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
from extender.parts.dra.handover import _rule_name, rule_for
from tests.controlplane import dra
from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT, SERVICE_ACCOUNT
from tests.controlplane.objects import cpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.parts.dra.test_install_policy import (
    BINDINGS,
    CLAIMS,
    DRIVER,
    INTOLERABLE,
    MERGE,
    POLICIES,
    allocation,
    claim,
    named,
    result,
    template,
)

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, dra.RULES]

Manifest = dict[str, Any]
API = "/apis/resource.k8s.io/v1"
RULES = f"{API}/devicetaintrules"
DEFAULT = "/api/v1/namespaces/default"
ACCOUNT = "kube-system/kerf"
SCHEDULER = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration}"


def slice_of(node: str, gpus: int, driver: str = DRIVER, **spec: Any) -> Manifest:
    """What a driver publishes of a node, whose name its pool has."""
    metadata = {"name": f"{node}-{driver.partition('.')[0]}"}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{index}"} for index in range(gpus)]
    full = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **spec}
    of = {key: value for key, value in full.items() if value is not None}
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


def install(
    plane: ControlPlane, *arguments: str, says: str = "", status: int = 0, driver: str = DRIVER, settle: float = 0.2
) -> str:
    """Run the command; its output, which has to contain `says`."""
    command = ["install", "dra", "--driver", driver, "--kubeconfig", str(plane.kubeconfig("admin"))]
    account = [] if "--service-account" in arguments else ["--service-account", ACCOUNT]
    outcome = CliRunner().invoke(app, [*command, *account, "--settle", str(settle), *arguments])
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    assert (outcome.exit_code, says in outcome.output) == (status, True), outcome.output
    return outcome.output


def rule(plane: ControlPlane, name: str, value: str, **selector: str) -> None:
    taint = {"key": "kerf.dev/owned", "value": value, "effect": "NoSchedule"}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}}
    plane.apply({**head, "spec": {"deviceSelector": selector, "taint": taint}})


def rules(plane: ControlPlane) -> dict[str, str]:
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
    return wait_until(lambda: node_of(plane, name), 20.0, f"{name} is bound")


def why_pending(plane: ControlPlane, name: str) -> str:
    """Why kube-scheduler can't place a pod."""

    def message() -> str:
        conditions = plane.request("GET", f"{DEFAULT}/pods/{name}")["status"].get("conditions") or []
        return str(next((item["message"] for item in conditions if item["type"] == "PodScheduled"), ""))

    return wait_until(message, 20.0, f"{name} is refused")


def devices_of(plane: ControlPlane, name: str) -> list[str]:
    return _devices_in(plane.request("GET", f"{CLAIMS}/{name}").get("status", {}))


def taken(plane: ControlPlane) -> list[str]:
    """All devices of claims: `pool/device`."""
    claims = plane.request("GET", CLAIMS)["items"]
    return sorted(device for item in claims for device in _devices_in(item.get("status", {})))


def _devices_in(status: Manifest) -> list[str]:
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return [f"{item['pool']}/{item['device']}" for item in results]


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


def test_given_to_kerf_and_taken_back(cluster: ControlPlane) -> None:
    """kube-scheduler allocates before and after, and in between binds what Kerf has allocated."""
    label(cluster, "enabled")
    submit(cluster, "before")
    assert bound(cluster, "before")
    install(cluster, says="already allocated: 1, to 1 claims")
    assert rules(cluster) == {"kerf-gpu.example.com": "kerf"}
    assert policies_of(cluster) == ["kerf-dra-tolerations", "kerf-gpu.example.com"]

    submit(cluster, "outside")
    assert "cannot allocate all claims" in why_pending(cluster, "outside")
    submit(cluster, "kerfs", schedulingGates=[{"name": "kerf.dev/queue"}])
    (taken,) = devices_of(cluster, "before")
    free = next(name for name in ("one", "two") if not taken.startswith(name))
    allocate(cluster, "kerf", "kerfs", free, "gpu-1")
    cluster.request("PATCH", f"{DEFAULT}/pods/kerfs", {"spec": {"schedulingGates": None}}, MERGE)
    assert bound(cluster, "kerfs") == free
    assert (node_of(cluster, "outside"), devices_of(cluster, "kerfs")) == ("", [f"{free}/gpu-1"])

    install(cluster, says="already owned by Kerf")
    install(cluster, "--remove")
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    assert bound(cluster, "outside")
    assert not set(devices_of(cluster, "outside")) & {taken, f"{free}/gpu-1"}


def test_nothing_is_allocated_twice_during_the_handover(cluster: ControlPlane) -> None:
    """Pods come all the time; Kerf allocates all free devices once it may, kube-scheduler once it may again."""
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
            install(cluster, settle=1.0)
            free = {f"{node}/gpu-{index}" for node in ("one", "two") for index in range(16)} - set(taken(cluster))
            assert free
            for device in sorted(free)[::2]:
                cluster.request("POST", CLAIMS, named(claim(), device.replace("/", "-")))
                allocate(cluster, "kerf", device.replace("/", "-"), *device.split("/"))
            install(cluster, "--remove", settle=1.0)
            wait_until(lambda: len(taken(cluster)) == 32, 20.0, "kube-scheduler allocates again")
        finally:
            done.set()
        pods.result()
    assert len(set(taken(cluster))) == len(taken(cluster)) == 32


@pytest.mark.parametrize("direction", [(), ("--remove",)], ids=["taking", "giving back"])
def test_a_killed_handover_continues_from_there(cluster: ControlPlane, direction: tuple[str, ...]) -> None:
    rule(cluster, "kerf-gpu.example.com", "held", driver=DRIVER)
    probes = CLAIMS.replace("default", "kube-system")
    cluster.request("POST", probes, {**claim(), "metadata": {"name": "kerf-probe"}})
    submit(cluster, "waits")
    assert "cannot allocate all claims" in why_pending(cluster, "waits")
    install(cluster, *direction, "--force")
    assert rules(cluster) == ({} if direction else {"kerf-gpu.example.com": "kerf"})
    assert not cluster.exists(f"{probes}/kerf-probe")


def test_single_pools(cluster: ControlPlane) -> None:
    """Named pools are Kerf's, the others stay kube-scheduler's; they are given back one by one or together."""
    install(cluster, "--pool", "one")
    assert rules(cluster) == {_rule_name(DRIVER, "one"): "kerf"}
    for name in ("first", "second"):
        submit(cluster, name)
        assert bound(cluster, name) == "two"
    submit(cluster, "third")
    assert "cannot allocate all claims" in why_pending(cluster, "third")
    install(cluster, says="already owns pool one", status=1)
    install(cluster, "--pool", "two", "--force")
    install(cluster, "--remove", "--pool", "three", says="pool three", status=1)
    install(cluster, "--remove", "--pool", "one")
    assert rules(cluster) == {_rule_name(DRIVER, "two"): "kerf"}
    assert len(policies_of(cluster)) == 2, "the pool's fence, and that for tolerations"
    assert bound(cluster, "third") == "one"
    install(cluster, "--remove")
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    install(cluster, "--remove", status=1)


def test_pods_that_would_get_no_devices_are_named_before_anything_is_written(cluster: ControlPlane) -> None:
    submit(cluster, "runs")
    assert bound(cluster, "runs")
    submit(cluster, "waits", nodeSelector={"kubernetes.io/hostname": "nowhere"})
    cluster.request("POST", f"{API}/namespaces/default/resourceclaimtemplates", named(template(claim()), "gpu"))
    by_name = pod("by-name", nodeSelector={"kubernetes.io/hostname": "nowhere"})
    by_name["spec"]["containers"][0]["resources"]["limits"] = {"example.com/gpu": "1"}
    cluster.request("POST", f"{DEFAULT}/pods", by_name)
    cluster.request("POST", CLAIMS, named(claim(INTOLERABLE[0]), "tolerant"))
    said = install(cluster, status=1)
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    for part in (
        "or Kerf's: default/tolerant",
        "would wait forever: default/runs",
        "such pods now: default/by-name, default/waits",
        "opted in: default/gpu",
        "either: example.com/gpu",
        "--force overrides this",
    ):
        assert part in said
    install(cluster, "--force")
    assert rules(cluster) == {"kerf-gpu.example.com": "kerf"}
    assert node_of(cluster, "runs")
    install(cluster, "--remove")
    label(cluster, "enabled")
    said = install(cluster)
    assert "such pods now" not in said and "claim templates" not in said


def test_objections(cluster: ControlPlane) -> None:
    install(cluster, says="drivers that do: gpu.example.com", status=1, driver="gpu.exmaple.com")
    install(cluster, "--pool", "three", "--pool", "one", says="publishes no pool three", status=1)
    cluster.apply(slice_of("net", 1, nodeName=None, allNodes=True))
    install(cluster, "--force", says="pools that span nodes, so nothing would: net", status=1)
    somebody = "--service-account", "kube-system/somebody", "--pool", "one"
    install(cluster, *somebody, says="may not patch resourceclaims/binding", status=1)
    install(cluster, "--service-account", "it's", says="write NAMESPACE/NAME", status=2)
    install(cluster, "--service-account", "", says="no Kerf was found", status=1)
    for name in ("a", "b"):
        cluster.request("POST", CLAIMS, named(claim(), name))
        allocate(cluster, "allocator", name, "one", "gpu-0")
    install(cluster, "--pool", "one", "--force", says="allocated to two claims: one/gpu-0", status=1)
    rule(cluster, "by-hand", "kerf", driver=DRIVER, pool="two", device="gpu-0")
    install(cluster, "--pool", "two", "--force", says="DeviceTaintRule by-hand", status=1)
    assert (rules(cluster), policies_of(cluster)) == ({"by-hand": "kerf"}, [])


def test_a_dry_run_writes_nothing_and_shows_the_manifests(cluster: ControlPlane) -> None:
    said = install(cluster, "--dry-run", "--pool", "one")
    assert (rules(cluster), policies_of(cluster)) == ({}, [])
    documents = list(yaml.safe_load_all(said[said.index("apiVersion") :]))
    kinds = ["DeviceTaintRule", *["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 2]
    assert [item["kind"] for item in documents] == kinds
    assert documents[0] == rule_for(DRIVER, "one", owning.OWNED)
    cluster.apply(*documents)
    install(cluster, "--remove", "--dry-run", says="0.2 s, then deleted")
    assert rules(cluster) == {_rule_name(DRIVER, "one"): "kerf"}


@pytest.mark.parametrize(
    ("disabled", "says"),
    [
        ("resource.k8s.io/v1/devicetaintrules=false", "key: kerf.dev/owned, value: kerf, effect: NoSchedule"),
        ("resource.k8s.io/v1=false", "needs Kubernetes 1.34 or newer"),
    ],
)
def test_an_api_server_without_the_rules(tmp_path: Path, disabled: str, says: str) -> None:
    with ControlPlane(tmp_path, flags=(f"--runtime-config={disabled}",)) as older:
        install(older, says=says, status=1)
