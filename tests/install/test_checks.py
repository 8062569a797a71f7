"""`kerf install check` on a real API server: an empty cluster, one that has everything, and each thing broken."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pytest import MonkeyPatch
from typer.testing import CliRunner

from extender.cli.install.checks import checks_of
from extender.cli.install.findings import Finding, Needs, Verdict, findings_of
from extender.cli.install.kerf import CheckedCluster, Installed
from extender.cli.install.schedulers import control_plane
from extender.cli.main import app
from extender.core.faces import Face
from extender.kube.client import Transport
from extender.kube.rights import _SERVING, BY_CHART, QUEUEING, Need, electing, serving
from extender.settings.load import load_settings, settings_elsewhere
from extender.settings.tree import PARTS, Settings, rights_of
from tests.cli.test_doctor import KUBECONFIG
from tests.controlplane import dra
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.helm import CHART, Helm
from tests.install.rights import FLOWS
from tests.telemetry import servers

MERGE_PATCH = "application/merge-patch+json"
NAMESPACE = "kerf-system"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf"

Findings = dict[str, dict[str, str]]
OF_PARTS = [need for rights in rights_of(Settings()) for need in rights.needs]
"""What parts take that are on as shipped."""


def test_the_rights_that_are_looked_for_are_those_that_are_given() -> None:
    known = {
        (r.group, r.resource, verb, r.name)
        for r in (*_SERVING, *OF_PARTS, *electing("own", "n", "kerf"))
        for verb in r.verbs
    }
    known |= {(r.group, r.resource, "get", "kube-scheduler") for r in electing("scheduler", "n", "kube-scheduler")}
    assert known == set(FLOWS), "those that tests/install/test_rights.py compares with manifests/rbac.yaml"


ROLES_OF_THEIR_OWN = [("manifests/queue/rbac.yaml", QUEUEING)] + [
    (rights.manifest, rights.needs)
    for part in PARTS
    for rights in part.rights
    if rights.manifest.endswith("/rbac.yaml") and rights.manifest != "manifests/rbac.yaml"
]


@pytest.mark.parametrize(("manifest", "rights"), ROLES_OF_THEIR_OWN)
def test_the_rights_of_the_queue_and_of_parts_are_those_that_are_given(manifest: str, rights: tuple[Need, ...]) -> None:
    known = {(right.group, right.resource, verb) for right in rights for verb in right.verbs}
    roles = yaml.safe_load_all((ROOT / manifest).read_text())
    (role,) = (document for document in roles if document["kind"] == "ClusterRole")
    assert known == {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("checks"), users={"kerf": "nobody"}) as running:
        yield running


@pytest.fixture(scope="module")
def helm(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"), plane.kubeconfig("admin"))


def check(plane: ControlPlane, *arguments: str, user: str = "admin") -> tuple[int, Findings]:
    """Exit status and findings; of several about one thing, the worst."""
    command = ["install", "check", "--kubeconfig", str(plane.kubeconfig(user)), "-o", "json", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    order = ["ok", "note", "broken"]
    found = sorted(json.loads(result.stdout), key=lambda finding: order.index(finding["verdict"]))
    return result.exit_code, {finding["what"]: finding for finding in found}


def verdicts(found: Findings) -> dict[str, str]:
    return {what: finding["verdict"] for what, finding in found.items()}


@pytest.mark.e2e
@pytest.mark.controlplane
def test_from_an_empty_cluster_to_one_that_has_everything(plane: ControlPlane, helm: Helm) -> None:
    """Each fix that can be made here is made, and its finding is gone."""
    status, found = check(plane)
    assert status == 1
    assert verdicts(found) == {
        "Kubernetes": "ok",
        "Kerf": "broken",
        "kube-scheduler": "ok",
        "admission policy": "note",
        "device plugin": "broken",
        "DCGM": "note",
        "Prometheus": "note",
    }
    assert found["Kerf"]["fix"].startswith("helm install kerf")
    assert found["Kerf"]["told"] == "neither a Deployment nor a static pod was found"
    assert "nvidia-device-plugin" in found["device plugin"]["fix"]

    helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    status, found = check(plane)
    assert (status, found["Kerf"]["verdict"], found["Kerf"]["told"]) == (
        1,
        "broken",
        f"Deployment {NAMESPACE}/kerf: no replica is ready",
    )
    assert found["rights"]["verdict"] == found["scheduler configuration"]["verdict"] == "ok"
    assert "kerf-scheduler" in found["scheduler configuration"]["told"]
    assert found["version skew"]["verdict"] == found["admission policy"]["verdict"] == "ok"

    status_of = {"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}}
    plane.request("PATCH", f"{DEPLOYMENT}/status", status_of, MERGE_PATCH)
    bare = cpu_node("bare", labels={"nvidia.com/gpu.present": "true"})
    plane.apply(bare, cpu_node("cpu"))
    _, found = check(plane)
    assert (found["Kerf"]["verdict"], found["device plugin"]["verdict"]) == ("ok", "broken")
    assert found["Kerf"]["told"] == f"Deployment {NAMESPACE}/kerf: 1 ready, mode scheduler"
    assert "nodes with NVIDIA cards offer no GPUs: bare" in found["device plugin"]["told"]

    plane.request("DELETE", "/api/v1/nodes/bare")
    plane.apply(cpu_node("unlabelled", allocatable={"nvidia.com/gpu": "2"}))
    _, found = check(plane)
    assert found["device plugin"]["verdict"] == "ok"
    assert (found["GPU Feature Discovery"]["verdict"], "unlabelled" in found["GPU Feature Discovery"]["told"]) == (
        "note",
        True,
    )
    assert "devicePlugin.enabled=false" in found["GPU Feature Discovery"]["fix"]  # no second device plugin

    plane.request("DELETE", "/api/v1/nodes/unlabelled")
    exporter = pod("dcgm", labels={"app.kubernetes.io/name": "dcgm-exporter"}, nodeName="node")
    plane.apply(gpu_node("node", gpus=2), exporter)
    service = {"metadata": {"name": "prometheus-server", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}}
    plane.apply({"apiVersion": "v1", "kind": "Service", **service})
    _, found = check(plane)  # any author may have made it there
    assert found["Prometheus"]["verdict"] == "note"
    assert (
        "its namespace is not in telemetry.namespaces: http://prometheus-server.default.svc:80"
        in found["Prometheus"]["told"]
    )
    service["metadata"] = {"name": "prometheus-server", "namespace": "kube-system"}
    plane.apply({"apiVersion": "v1", "kind": "Service", **service})
    status, found = check(plane)
    assert set(verdicts(found).values()) == {"ok"}, found
    assert status == 0
    assert "prometheus-server.kube-system.svc" in found["Prometheus"]["told"]


def node_with(
    name: str,
    resources: dict[str, str],
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Any:
    """A node with these resources."""
    manifest = cpu_node(name, allocatable=resources)
    manifest["metadata"]["labels"] = manifest["metadata"].get("labels", {}) | (labels or {})
    manifest["metadata"]["annotations"] = annotations or {}
    return manifest


@pytest.mark.e2e
@pytest.mark.controlplane
def test_nodes_of_other_kinds_are_sound_and_what_is_left_out_is_told(plane: ControlPlane) -> None:
    """Nodes all in MIG, of virtual machines, of a cloud; and leftovers of plugins, from which Kerf takes nothing."""

    def told(*nodes: Any) -> list[Finding]:
        """Findings about device plugins of a cluster of these nodes."""
        for node in plane.request("GET", "/api/v1/nodes")["items"]:
            plane.request("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")
        plane.apply(*nodes)
        command = ["install", "check", "--kubeconfig", str(plane.kubeconfig("admin")), "-o", "json"]
        found = json.loads(CliRunner().invoke(app, command).stdout)
        return [Finding(**one) for one in found if one["what"] in ("device plugin", "GPU Feature Discovery")]

    present = {"nvidia.com/gpu.present": "true"}
    sound = told(
        node_with("mig", {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "0"}, labels=present),
        node_with("vm", {"nvidia.com/GM204GL_TESLA_M6": "1"}, labels=present),
        node_with("gke", {"nvidia.com/gpu": "1"}, labels={"cloud.google.com/gke-accelerator": "nvidia-l4"}),
    )
    assert {finding.verdict for finding in sound} == {"ok"}
    assert sound[0].told == "1 nodes offer GPUs, 1 offer only MIG devices, 1 offer nvidia.com/GM204GL_TESLA_M6"

    register = '[{"id":"GPU-0","count":10,"devmem":24576,"type":"NVIDIA-A10","mode":"hami-core","health":true}]'
    hami = {"hami.io/node-nvidia-register": register, "hami.io/node-handshake": "Requesting_2024-01-23 04:30:04"}
    by_name = {
        finding.told: finding
        for finding in told(
            gpu_node("sound", gpus=8),
            node_with("was-hami", {"nvidia.com/gpu": "1"}, hami),
            node_with("hami-alone", {}, hami, present),
            node_with("was-gpushare", {"nvidia.com/gpu": "7", "aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "7"}),
            node_with("virtual", {"nvidia.com/gpu": "500"}),
            node_with("garbage", {"nvidia.com/gpu": "8"}, {"kerf.dev/gpus": "[{"}),
        )
    }
    (left,) = (one for text, one in by_name.items() if text.endswith(": was-hami"))
    assert left.verdict == "note"
    assert left.fix.startswith("kubectl annotate node NODE hami.io/node-nvidia-register- ")
    assert any("gpushare's plugin is gone: was-gpushare" in text for text in by_name)
    (alone,) = (one for text, one in by_name.items() if text.startswith("hami-alone: "))
    assert (alone.verdict, "the kubelet offers none of these GPUs" in alone.told) == ("note", True)
    assert "virtual: 500 GPUs on one node: only 64 of them are used" in by_name
    (garbage,) = (one for text, one in by_name.items() if text.startswith("garbage: "))
    assert (garbage.verdict, "kerf.dev/gpus" in garbage.told) == ("broken", True)
    assert "4 nodes offer GPUs" in by_name
    assert not any("gfd.enabled" in one.fix and "devicePlugin.enabled=false" not in one.fix for one in by_name.values())


@pytest.mark.e2e
@pytest.mark.controlplane
def test_each_right_that_is_missing_is_told_with_what_it_breaks(plane: ControlPlane, helm: Helm) -> None:
    helm("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kerf"
    plane.request("PATCH", path, {"rules": []}, MERGE_PATCH)
    for binding in ("kerf-kube-scheduler", "kerf-volume-scheduler"):
        plane.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{binding}")
    command = ["install", "check", "--kubeconfig", str(plane.kubeconfig("admin"))]
    wait_until(lambda: "may not list nodes" in CliRunner().invoke(app, command).stdout, 20.0, "rights are gone")
    said = CliRunner().invoke(app, command).stdout
    for right in (*_SERVING, *OF_PARTS):
        for verb in right.verbs:
            assert f"kerf may not {verb} {right.resource}: {right.without}" in said
    assert "--set rbac.create=true" in said
    # The fix puts them back.
    helm("uninstall", "kerf", "--namespace", NAMESPACE)
    helm("install", "kerf", str(CHART), "--namespace", NAMESPACE)
    wait_until(lambda: check(plane)[1]["rights"]["verdict"] == "ok", 20.0, "rights are back")


@pytest.mark.e2e
@pytest.mark.controlplane
@pytest.mark.parametrize(
    ("values", "change", "what", "told"),
    [
        (("scheduler.tag=v1.20.0",), {}, "version skew", "kube-scheduler 1.20 on Kubernetes 1."),
        ((), {"ignorable": True}, "scheduler configuration", "ignorable is true"),
        ((), {"bindVerb": ""}, "scheduler configuration", "bindVerb is missing"),
        ((), {"managedResources": []}, "scheduler configuration", "one entry for all pods"),
        (("scheduler.percentageOfNodesToScore=50",), {}, "scheduler configuration", "is not 100"),
    ],
)
def test_a_scheduler_that_calls_it_wrongly(
    plane: ControlPlane, helm: Helm, values: tuple[str, ...], change: dict[str, Any], what: str, told: str
) -> None:
    settings = [part for value in values for part in ("--set", value)]
    helm("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *settings)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/kerf"
    if change:
        config = yaml.safe_load(plane.request("GET", path)["data"]["scheduler.yaml"])
        config["extenders"][0].update(change)
        plane.request("PATCH", path, {"data": {"scheduler.yaml": yaml.safe_dump(config)}}, MERGE_PATCH)
    _, found = check(plane)
    assert told in found[what]["told"]
    assert "helm upgrade kerf" in found[what]["fix"]
    if change:  # Helm sees no change in its own objects, and would leave this one
        plane.request("DELETE", path)


@pytest.mark.e2e
@pytest.mark.controlplane
def test_which_modes_a_cluster_can_have(plane: ControlPlane, helm: Helm) -> None:
    upgrade = ("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    helm(*upgrade, "--set", "mode=planner", "--set", "queue.enabled=true")
    _, found = check(plane)
    assert found["scheduler configuration"]["told"].startswith("mode planner: queued pods are nominated")
    assert found["rights"]["verdict"] == "ok"
    assert found["kube-scheduler"]["told"].startswith("is not a pod in kube-system, so it is not checked")
    static = pod(
        "kube-scheduler-control", namespace="kube-system", labels={"component": "kube-scheduler"}, nodeName="control"
    )
    path = "/api/v1/namespaces/kube-system/pods"
    plane.request("POST", path, static)
    try:
        _, found = check(plane)
        assert found["kube-scheduler"]["told"].startswith("kube-scheduler-control in kube-system: it can call Kerf")
    finally:
        plane.request("DELETE", f"{path}/kube-scheduler-control?gracePeriodSeconds=0")
        helm("uninstall", "kerf", "--namespace", NAMESPACE)


@pytest.mark.e2e
@pytest.mark.controlplane
def test_the_planner_needs_the_rights_of_the_queue_and_none_to_bind(plane: ControlPlane, helm: Helm) -> None:
    planner = ("--set", "mode=planner", "--set", "queue.enabled=true", "--set", "dra.enabled=true")
    helm("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *planner)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    try:
        for role in ("kerf", "kerf-queue", "kerf-dra"):
            plane.request("PATCH", f"{roles}/{role}", {"rules": []}, MERGE_PATCH)
        command = ["install", "check", "--kubeconfig", str(plane.kubeconfig("admin"))]
        wait_until(lambda: "may not patch pods:" in CliRunner().invoke(app, command).stdout, 20.0, "rights are gone")
        said = CliRunner().invoke(app, command).stdout
        settings = load_settings(flags={"queue.enabled": True, "dra.allocate": True})
        of_parts = [need for rights in rights_of(settings) for need in rights.needs]
        for right in (*serving(extender=False), *QUEUEING, *of_parts):
            for verb in right.verbs:
                assert f"kerf may not {verb} {right.resource}: {right.without}" in said
        assert "pods/binding" not in said
    finally:
        helm("uninstall", "kerf", "--namespace", NAMESPACE)


@pytest.mark.e2e
@pytest.mark.controlplane
@dra.RULES
def test_devices_that_are_kerfs_are_told_with_who_allocates_them(plane: ControlPlane, helm: Helm) -> None:
    """From no pool to one that is Kerf's, and each thing that can be wrong with it."""
    planner = ("--set", "mode=planner", "--set", "queue.enabled=true")
    upgrade = ("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *planner)

    def told(verdict: str, text: str, fix: str = "") -> bool:
        finding = check(plane)[1].get("DRA devices", {"verdict": "", "told": "", "fix": ""})
        return finding["verdict"] == verdict and text in finding["told"] and fix in finding["fix"]

    def install(*arguments: str) -> int:
        command = ["install", "dra", "--driver", "gpu.example.com", "--kubeconfig", str(plane.kubeconfig("admin"))]
        return CliRunner().invoke(app, [*command, "--force", "--settle", "0", *arguments]).exit_code

    try:
        helm(*upgrade)
        assert told("", "")
        assert install() == 1  # Kerf does not allocate
        helm(*upgrade, "--set", "dra.enabled=true")
        assert told("note", "owns no pool", "kerf install dra")
        assert install() == 0
        assert told("ok", "allocated by Kerf: gpu.example.com")
        for path in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            plane.request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{path}/kerf-gpu.example.com")
        assert told("broken", "no policy kerf-gpu.example.com is in force", "kerf install dra --driver gpu.example.com")
        assert install() == 0
        assert told("ok", "allocated by Kerf")
        held = {"spec": {"taint": {"value": "held"}}}
        plane.request("PATCH", "/apis/resource.k8s.io/v1/devicetaintrules/kerf-gpu.example.com", held, MERGE_PATCH)
        assert told("broken", "so not allocated: kerf-gpu.example.com", "again, with or without --remove")
        helm(*upgrade, "--set", "dra.enabled=false")
        assert told("broken", "which does not allocate", "--set dra.enabled=true")
        assert install("--remove") == 0
        assert told("", "")
    finally:
        helm("uninstall", "kerf", "--namespace", NAMESPACE)


@pytest.mark.parametrize(
    ("version", "settings", "verdict"),
    [
        ("v1.33.4-eks-1a2b3c4", {"queue": {"extender": True}}, "note"),
        ("v1.33.4-gke.1036000", {"queue": {"extender": False}}, "ok"),
        ("v1.33.4", {"queue": {"extender": True}}, "ok"),
    ],
)
def test_who_waits_for_calls_of_a_scheduler_that_is_not_his_is_told(
    version: str, settings: dict[str, Any], verdict: str
) -> None:
    class Managed:
        async def get(self, path: str, query: object = None) -> bytes:
            return json.dumps({"items": []}).encode()

    installed = Installed("kerf", NAMESPACE, ready=1, settings=settings_elsewhere(yaml.safe_dump(settings)))
    look = CheckedCluster(cast(Transport, Managed()), {"gitVersion": version}, installed)

    async def findings() -> list[Finding]:
        return [finding async for finding in control_plane(look)]

    (found,) = asyncio.run(findings())
    assert (found.verdict, bool(found.fix)) == (verdict, verdict == "note")
    assert ("--reset-then-reuse-values --set mode=planner --set queue.enabled=true" in found.fix) == (verdict == "note")


@pytest.mark.parametrize(
    ("version", "label", "group", "told"),
    [
        ("v1.33.4-eks-1a2b3c4", "", "", "EKS runs it, so it can't be configured here: mode planner"),
        ("v1.33.4", "kubernetes.azure.com/cluster", "", "AKS runs it, so it can't be configured here: mode planner"),
        ("v1.33.4", "", "config.openshift.io", "OpenShift runs it, so it can't be configured here: mode planner"),
        ("v1.36.1+k3s1", "", "", "k3s lets it call Kerf (mode service) with `kube-scheduler-arg: [config=FILE]`"),
        ("v1.36.1+rke2r1", "", "", "RKE2 lets it call Kerf (mode service) with `kube-scheduler-arg: [config=FILE]`"),
        (
            "v1.36.1",
            "",
            "",
            "is not a pod in kube-system, so it is not checked: mode service where you can configure it",
        ),
    ],
)
def test_whose_kube_scheduler_it_is(version: str, label: str, group: str, told: str) -> None:
    """On a cluster where it is no pod of kube-system; nobody is told that he can't configure what he can."""

    class Vendors:
        async def get(self, path: str, query: object = None) -> bytes:
            if path == "/apis":
                return json.dumps({"groups": [{"name": name} for name in ("apps", group) if name]}).encode()
            asked = dict(cast(Any, query) or {}).get("labelSelector")
            there = path.endswith("/nodes") and label and asked == label
            return json.dumps({"items": [{"metadata": {"name": "a"}}] if there else []}).encode()

    async def findings() -> list[Finding]:
        return [
            finding
            async for finding in control_plane(CheckedCluster(cast(Transport, Vendors()), {"gitVersion": version}))
        ]

    (found,) = asyncio.run(findings())
    assert found.verdict == "ok"
    assert found.told.startswith(told)


@pytest.mark.e2e
@pytest.mark.controlplane
def test_no_second_device_plugin_is_advised_where_one_is(tmp_path: Path) -> None:
    """One whose pods serve no node yet, and a cloud that brings its own when nodes with GPUs come."""
    with ControlPlane(tmp_path) as plane:
        plane.apply(cpu_node("bare", labels={"nvidia.com/gpu.present": "true"}))
        assert "helm upgrade --install nvidia-device-plugin" in check(plane)[1]["device plugin"]["fix"]
        for image in (
            "nvcr.io/nvidia/k8s-device-plugin:v0.17.4",
            "mcr.microsoft.com/oss/v2/nvidia/k8s-device-plugin:v0.17",
        ):
            spec = {"containers": [{"name": "plugin", "image": image}]}
            template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
            head = {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "theirs", "namespace": "default"},
            }
            plane.apply({**head, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
            found = check(plane)[1]["device plugin"]
            assert "helm" not in found["fix"]
            assert "default/theirs" in found["fix"]
        plane.request("DELETE", "/apis/apps/v1/namespaces/default/daemonsets/theirs")
        plane.request("DELETE", "/api/v1/nodes/bare")
        plane.apply(cpu_node("gke", labels={"cloud.google.com/gke-nodepool": "default"}))
        found = check(plane)[1]["device plugin"]
        assert ("GKE runs its own device plugin" in found["fix"], "helm" in found["fix"]) == (True, False)


@pytest.mark.e2e
@pytest.mark.controlplane
def test_a_policy_that_is_missing_or_stops_kerf_is_told(plane: ControlPlane, helm: Helm) -> None:
    upgrade = ("upgrade", "--install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    helm(*upgrade, "--set", "admissionPolicy.enabled=false")
    _, found = check(plane)
    assert (found["admission policy"]["verdict"], "is not installed" in found["admission policy"]["told"]) == (
        "note",
        True,
    )
    assert "--set admissionPolicy.enabled=true" in found["admission policy"]["fix"]
    helm(*upgrade, "--set", "admissionPolicy.enabled=true")
    _, found = check(plane)
    assert found["admission policy"]["verdict"] == "ok"
    helm("install", "another", str(CHART), "--namespace", "elsewhere", "--create-namespace")
    try:
        _, found = check(plane)
        assert found["admission policy"]["verdict"] == "broken"
        assert "kerf-assignments does not exempt system:serviceaccount:" in found["admission policy"]["told"]
    finally:
        helm("uninstall", "another", "--namespace", "elsewhere")


@pytest.mark.e2e
@pytest.mark.controlplane
def test_who_may_not_look_is_told_so(plane: ControlPlane) -> None:
    status, found = check(plane, "--service-account", f"{NAMESPACE}/kerf", user="kerf")
    assert (status, set(verdicts(found).values())) == (0, {"ok", "note"})
    assert "can't be read" in found["rights"]["told"]


def test_every_form_has_the_same_findings(tmp_path: Path) -> None:
    version = json.dumps({"minor": "35", "gitVersion": "v1.35.0"}).encode()
    with servers.serving(lambda path, *_: (200, version) if path == "/version" else (404, b"{}")) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(server=server.url))
        command = ["install", "check", "--kubeconfig", str(kubeconfig), "-o"]
        data, text, table = (CliRunner().invoke(app, [*command, form]) for form in ("json", "yaml", "table"))
    found = json.loads(data.stdout)
    assert {"what": "Kubernetes", "verdict": "ok", "told": "1.35", "fix": ""} in found
    assert yaml.safe_load(text.stdout) == found
    assert [line for line in table.stdout.splitlines() if not line.startswith(" ")] == [
        f"{one['verdict']:6}  {one['what']}: {one['told']}" for one in found
    ]


def test_of_settings_and_nodes_it_is_told_what_can_be_read() -> None:
    nodes = [gpu_node("sound", gpus=8), {"metadata": {"name": "bad"}, "status": 7}]

    class Cluster:
        async def get(self, path: str, query: object = None) -> bytes:
            return json.dumps({"items": nodes if path.endswith("/nodes") else []}).encode()

    installed = Installed("kerf", NAMESPACE, settings=settings_elsewhere("telemetry: {source: off}"))
    look = CheckedCluster(cast(Transport, Cluster()), {}, installed)
    checks = [check for check in checks_of(Needs.CLUSTER) if check.name in ("device plugin", "DCGM")]
    told = {finding.what: finding.told for finding in asyncio.run(findings_of(checks, look)) if finding.verdict == "ok"}
    assert (told["telemetry"], told["device plugin"]) == ("is off (telemetry.source)", "1 nodes offer GPUs")
    assert "nodes that can't be read: bad" in [finding.told for finding in asyncio.run(findings_of(checks, look))]


def test_no_cluster_is_said_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["install", "check", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "no usable credentials" in result.output


def test_checks_of_a_part_that_can_not_be_loaded_are_told_and_the_others_go_on(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cli.install.checks.faces", lambda: {"acme": Face(checks="acme_of_nobody:checks")})
    checks = checks_of(Needs.CLUSTER)
    assert len(checks) > 5
    found = asyncio.run(findings_of([check for check in checks if check.name == "part acme"], None))
    assert [(one.verdict, "acme_of_nobody" in one.told) for one in found] == [(Verdict.BROKEN, True)]


def test_what_no_manifest_brings_is_not_told_as_a_command() -> None:
    assert Installed().fix("rbac.create=true", BY_CHART) == "grant it with a role of your own, as in the chart"
    assert Installed().fix("rbac.create=true", "manifests/rbac.yaml") == "kubectl apply -f manifests/rbac.yaml"
    assert Installed("kerf", NAMESPACE).fix("rbac.create=true", BY_CHART).endswith("--set rbac.create=true")
