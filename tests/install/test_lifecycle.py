"""The chart in a real cluster: installed, changed, rolled back, removed; what it installs is what is run."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tests.api.certificates import Authority
from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.proxies import VendorProxy
from tests.install.helm import CHART, Helm
from tests.install.operators import install_definitions
from tests.install.running import HOOKS, Release, lead_to, serve_webhook, start_installed
from tests.telemetry.prometheuses import prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-system"
CLIENT_FILES = {"ca.crt": "ca.crt", "kube-scheduler.crt": "client.crt", "kube-scheduler.key": "client.key"}
"""Names in scheduler-config/mtls.yaml, and in the Secret."""
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kerf-webhook"
USERS = {"kerf": ACCOUNT, "scheduler": ACCOUNT, "webhook": f"{ACCOUNT}-webhook"}
USERS["cluster-scheduler"] = "system:kube-scheduler"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which Kerf and its kube-scheduler are the chart's service account, with its rights."""
    with ControlPlane(tmp_path_factory.mktemp("install"), users=USERS) as running:
        yield running


@pytest.fixture
def helm(plane: ControlPlane, tmp_path: Path) -> Helm:
    return Helm(tmp_path, plane.kubeconfig("admin"))


def read(plane: ControlPlane, path: str) -> dict[str, Any] | None:
    """An object, None where there is none."""
    return plane.request("GET", path) if plane.exists(path) else None


def deployment(plane: ControlPlane) -> dict[str, Any] | None:
    return read(plane, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf")


@pytest.fixture(scope="module")
def operators(plane: ControlPlane) -> None:
    """The control plane has the kinds of cert-manager and the Prometheus operator."""
    install_definitions(plane)


@pytest.fixture
def installed(helm: Helm) -> Iterator[str]:
    """Installs the chart; gives its notes."""
    yield helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    helm("uninstall", "kerf", "--namespace", NAMESPACE, "--ignore-not-found")


def test_install_upgrade_rollback_uninstall(plane: ControlPlane, helm: Helm, installed: str) -> None:
    assert "schedulerName: kerf-scheduler" in installed
    first = deployment(plane)
    assert first is not None
    assert first["spec"]["replicas"] == 1

    service = ["--set", "mode=service", "--set", "replicas=2"]
    notes = helm("upgrade", "kerf", str(CHART), "--namespace", NAMESPACE, *service)
    told = notes[notes.index("     extenders:") :].partition("   A kube-scheduler in the host")[0]
    shipped = (SCHEDULER_CONFIG / "decisive.yaml").read_text()
    expected = yaml.safe_load(shipped.replace("127.0.0.1", "kerf.kerf-system.svc"))["extenders"]
    assert yaml.safe_load(told)["extenders"] == expected
    second = deployment(plane)
    assert second is not None
    assert second["spec"]["replicas"] == 2
    budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/kerf"
    assert read(plane, budget) is not None

    helm("rollback", "kerf", "1", "--namespace", NAMESPACE)
    third = deployment(plane)
    assert third is not None
    assert third["spec"] == first["spec"]
    assert read(plane, budget) is None

    helm("uninstall", "kerf", "--namespace", NAMESPACE)
    assert deployment(plane) is None
    assert read(plane, "/apis/rbac.authorization.k8s.io/v1/clusterroles/kerf") is None


@pytest.mark.parametrize("suffix", ["-eks-1a2b3c4", "+k3s1", "-gke.1234000"])
def test_on_a_vendors_cluster_the_scheduler_beside_kerf_is_one_that_can_be_pulled(
    plane: ControlPlane, tmp_path: Path, suffix: str
) -> None:
    """Helm drops what a vendor appends from --kube-version, and not from what a live API server says."""
    release = str(plane.request("GET", "/version")["gitVersion"])
    with VendorProxy(plane, f"{release}{suffix}") as vendor:
        helm = Helm(tmp_path, vendor.kubeconfig(tmp_path))
        helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
        found = deployment(plane)
        helm("uninstall", "kerf", "--namespace", NAMESPACE)
    assert found is not None
    images = [container["image"] for container in found["spec"]["template"]["spec"]["containers"]]
    assert f"registry.k8s.io/kube-scheduler:{release}" in images


@pytest.mark.usefixtures("operators")
def test_objects_for_operators_are_installed_and_mean_what_they_should(
    plane: ControlPlane, helm: Helm, tmp_path: Path
) -> None:
    """cert-manager makes the Secrets that pods mount; Prometheus finds the Service, and takes the rules."""
    values = [
        *("mode=service", "replicas=2", "inject.enabled=true", "tls.issuer.name=kerf-ca", "tls.issuer.kind=Issuer"),
        *("webhook.tls.issuer.name=kerf-ca", "webhook.tls.issuer.kind=Issuer", "serviceMonitor.enabled=true"),
        *("prometheusRule.enabled=true", "prometheusRule.labels.release=monitoring"),
    ]
    settings = [part for value in values for part in ("--set", value)]
    helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *settings)
    try:
        plane.apply(
            {
                "apiVersion": "cert-manager.io/v1",
                "kind": "Issuer",
                "metadata": {"name": "kerf-ca", "namespace": NAMESPACE},
                "spec": {"ca": {"secretName": "kerf-ca"}},
            }
        )
        certificates = {
            item["spec"]["secretName"]: item["spec"] for item in listed(plane, "cert-manager.io/v1", "certificates")
        }
        assert set(certificates) == {"kerf-tls", "kerf-client", "kerf-webhook"}
        for spec in certificates.values():
            issuer = spec["issuerRef"]
            kinds = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/{issuer['kind'].lower()}s"
            assert plane.exists(f"{kinds}/{issuer['name']}")
        mounted = {
            volume["secret"]["secretName"]
            for item in listed(plane, "apps/v1", "deployments")
            for volume in item["spec"]["template"]["spec"]["volumes"]
            if "secret" in volume
        }
        assert mounted == {"kerf-tls", "kerf-webhook"}  # kerf-client is kube-scheduler's

        monitors = listed(plane, "monitoring.coreos.com/v1", "servicemonitors")
        (monitor,) = [one for one in monitors if one["metadata"]["name"] == "kerf"]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        services = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/services")["items"]
        (service,) = [item for item in services if wanted <= item["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["spec"]["selector"].items() <= pod_labels(plane).items()

        (rule,) = listed(plane, "monitoring.coreos.com/v1", "prometheusrules")
        assert rule["metadata"]["labels"]["release"] == "monitoring"
        rules = tmp_path / "rules.yaml"
        rules.write_text(yaml.safe_dump(rule["spec"]))  # as the operator writes them
        with prometheus(tmp_path, [], rules=[rules]) as running:
            answer = json.loads(urllib3.request("GET", f"{running.url}/api/v1/rules").data)
        loaded = [item for group in answer["data"]["groups"] for item in group["rules"]]
        shipped = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
        assert [item["name"] for item in loaded] == [item["alert"] for group in shipped for item in group["rules"]]
        assert {item["type"] for item in loaded} == {"alerting"}
    finally:
        helm("uninstall", "kerf", "--namespace", NAMESPACE)


def pod_labels(plane: ControlPlane) -> dict[str, str]:
    """Of Kerf's pods."""
    found = deployment(plane)
    assert found is not None
    labels: dict[str, str] = found["spec"]["template"]["metadata"]["labels"]
    return labels


def listed(plane: ControlPlane, version: str, plural: str) -> list[dict[str, Any]]:
    """All objects of a kind in the chart's namespace."""
    found: list[dict[str, Any]] = plane.request("GET", f"/apis/{version}/namespaces/{NAMESPACE}/{plural}")["items"]
    return found


def created(plane: ControlPlane, labels: dict[str, str], scheduler: str = "kerf-scheduler") -> dict[str, Any]:
    """What becomes of a pod at creation."""
    asks = {"kerf.dev/gpu-count": "1"}
    probe = pod("probe", labels=labels, annotations=asks, scheduler_name=scheduler)
    answer: dict[str, Any] = plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)["spec"]
    return answer


def gated(plane: ControlPlane) -> bool:
    """Whether a pod of Genius waits."""
    return "schedulingGates" in created(plane, {"genius/priority": "3"})


def bundles(plane: ControlPlane, name: str) -> set[str]:
    """By which CAs the API server calls."""
    found = read(plane, f"{HOOKS}/{name}")
    assert found is not None
    return {hook["clientConfig"].get("caBundle", "") for hook in found["webhooks"]}


WEBHOOKS = ("kerf", str(CHART), "--namespace", NAMESPACE, "--set", "inject.enabled=true", "--set", "queue.enabled=true")


def test_g1_what_is_installed_answers_the_api_server(plane: ControlPlane, helm: Helm, tmp_path: Path) -> None:
    """Two replicas by the certificate that one of them makes; through an upgrade, a lost Secret and a wrong CA."""
    helm("install", *WEBHOOKS, "--create-namespace")
    folders = [tmp_path / name for name in "ab"]
    release = Release(plane, NAMESPACE)
    with ExitStack() as running:
        running.callback(helm, "uninstall", "kerf", "--namespace", NAMESPACE)
        assert "data" not in (read(plane, SECRET) or {})
        ports = []
        for folder in folders:
            folder.mkdir()
            ports.append(serve_webhook(release, running, folder, f"kerf-webhook-{folder.name}"))
        lead_back = lead_to(release, ports[0], "kerf-queue", "kerf-webhook")
        wait_until(lambda: gated(plane), WITHIN_S, "pods of Genius wait")
        wait_until(
            lambda: "env" in created(plane, {"kerf.dev/inject": "enabled"})["containers"][0], WITHIN_S, "GPUs are told"
        )
        assert "schedulingGates" not in created(plane, {})
        # A pod of Genius that another scheduler places waits for nobody here.
        assert "schedulingGates" not in created(plane, {"genius/priority": "3"}, "genius-scheduler")

        made = read(plane, SECRET)
        assert made is not None
        assert (folders[0] / "tls.crt").read_bytes() == (folders[1] / "tls.crt").read_bytes()
        lead_back()
        helm("upgrade", *WEBHOOKS)
        kept = read(plane, SECRET)
        assert kept is not None
        assert kept["data"] == made["data"]  # an upgrade makes no other certificate,
        assert bundles(plane, "kerf-queue") == {made["data"]["ca.crt"]}  # and takes no CA away

        plane.request("DELETE", SECRET)
        wait_until(lambda: (read(plane, SECRET) or {}).get("data") == made["data"], WITHIN_S, "the Secret is back")
        wrong = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": made["data"]["tls.crt"]}]
        plane.request("PATCH", f"{HOOKS}/kerf-queue", wrong, "application/json-patch+json")
        wait_until(lambda: bundles(plane, "kerf-queue") == {made["data"]["ca.crt"]}, WITHIN_S, "the CA is back")


def test_kerf_may_touch_no_other_secret_and_no_other_webhook(plane: ControlPlane, helm: Helm) -> None:
    """The right to create a Secret by apply reaches no other name: what RBAC says of `create` holds for POST alone."""
    helm("install", *WEBHOOKS, "--create-namespace", "--set", "mode=service", "--set", "tls.selfSigned=true")
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    apply = "fieldManager=x&force=true"
    try:
        for user, own in (("kerf", "kerf-tls"), ("webhook", "kerf-webhook")):
            api = plane.api(user)
            try:
                head = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
                for name in ("other", "kerf-webhook" if user == "kerf" else "kerf-tls"):
                    body = {**head, "metadata": {"name": name, "namespace": NAMESPACE}}
                    for method, path, kind in (
                        ("GET", f"{secrets}/{name}", "application/json"),
                        ("PATCH", f"{secrets}/{name}?{apply}", "application/apply-patch+yaml"),
                        ("POST", secrets, "application/json"),
                        ("DELETE", f"{secrets}/{own}", "application/json"),
                        ("GET", secrets, "application/json"),
                    ):
                        with pytest.raises(ApiError) as refused:
                            api.request(method, path, None if method in ("GET", "DELETE") else body, kind)
                        assert refused.value.status == 403, (user, method, path)
                assert api.request("GET", f"{secrets}/{own}")["metadata"]["name"] == own
                with pytest.raises(ApiError, match="forbidden"):
                    api.request("GET", HOOKS)
            finally:
                api.close()
    finally:
        helm("uninstall", "kerf", "--namespace", NAMESPACE)


def earlier_chart(folder: Path, authority: Authority) -> dict[str, str]:
    """A chart `kerf` as one before this one: certificates by Helm, kept nowhere but in the Secret. What is in that."""
    certificate, key = authority.issue("kerf-webhook")
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.certificate}
    data = {name: b64encode(path.read_bytes()).decode() for name, path in files.items()}
    metadata = {"name": "kerf-webhook", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}
    hooks: dict[str, Any] = yaml.safe_load((ROOT / "manifests" / "queue" / "webhook.yaml").read_text())
    hooks["metadata"] = {"name": "kerf-queue"}
    for hook in hooks["webhooks"]:
        hook["clientConfig"]["caBundle"] = data["ca.crt"]
        hook["clientConfig"]["service"]["namespace"] = NAMESPACE
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: kerf\nversion: 0.0.1\n")
    (folder / "templates" / "all.yaml").write_text(yaml.safe_dump_all([secret, hooks]))
    return data


def test_what_helm_made_for_an_earlier_chart_goes_on_being_used(
    plane: ControlPlane, helm: Helm, tmp_path: Path
) -> None:
    """Replicas of before serve with it still, and kube-scheduler's files are elsewhere: neither sees a change."""
    data = earlier_chart(tmp_path / "earlier", Authority(tmp_path / "ca", "kerf-webhook-ca"))
    helm("install", "kerf", str(tmp_path / "earlier"), "--namespace", NAMESPACE, "--create-namespace")
    with ExitStack() as running:
        running.callback(helm, "uninstall", "kerf", "--namespace", NAMESPACE)
        for _ in range(2):  # the second time the first's manifest is what Helm compares with
            helm("upgrade", *WEBHOOKS)
            secret = read(plane, SECRET)
            assert secret is not None
            assert (secret["type"], secret["data"]) == ("kubernetes.io/tls", data)
            assert bundles(plane, "kerf-queue") == {data["ca.crt"]}
        folder = tmp_path / "a"
        folder.mkdir()
        serve_webhook(Release(plane, NAMESPACE), running, folder, host="localhost")
        assert b64encode((folder / "tls.crt").read_bytes()).decode() == data["tls.crt"]
        after = read(plane, SECRET)
        assert after is not None
        assert after["data"] == data


def test_what_is_installed_schedules(plane: ControlPlane, installed: str, tmp_path: Path) -> None:
    """Commands, mounted files and rights as installed; only the ports and paths of a pod are those of this machine."""
    del installed
    found = deployment(plane)
    assert found is not None
    spec = found["spec"]["template"]["spec"]
    assert "initContainers" not in spec  # kube-scheduler starts whether Kerf does or not
    kerf, scheduler = spec["containers"]
    assert kerf["args"] == ["serve", "--config=/etc/kerf/kerf.yaml"]
    assert (scheduler["command"], scheduler["args"]) == (["kube-scheduler"], ["--config=/etc/kerf/scheduler.yaml"])

    with ExitStack() as running:
        cluster = start_installed(Release(plane, NAMESPACE), tmp_path, running)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.create(pod("trains", gpus=2, scheduler_name="kerf-scheduler"))
        assert assigned_gpus(cluster.bound("trains")) == [0, 1]
        assert cluster.event("trains", "GPUsAssigned")
        cluster.clean()


def test_certificates_that_kerf_makes_let_kube_scheduler_in(plane: ControlPlane, helm: Helm, tmp_path: Path) -> None:
    """Mode `service`: Kerf fills the Secret; kube-scheduler runs with the files that the notes take from it."""
    service = ("--set", "mode=service", "--set", "tls.selfSigned=true")
    notes = helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *service)
    with ExitStack() as running:
        running.callback(helm, "uninstall", "kerf", "--namespace", NAMESPACE)
        assert "get secret kerf-tls" in notes
        assert 'index .data "client.crt"' in notes
        files = read(plane, f"/api/v1/namespaces/{NAMESPACE}/configmaps/kerf")
        assert files is not None
        tls, client = tmp_path / "tls", tmp_path / "client"
        tls.mkdir()
        client.mkdir()
        config = tmp_path / "kerf.yaml"
        config.write_text(files["data"]["kerf.yaml"].replace("/etc/kerf-tls", str(tls)))
        arguments = ("--config", str(config), "--set", "server.metrics_port=0")
        process = KerfProcess(plane, "kerf-tls", *arguments, certificate=tls / "ca.crt")
        running.callback(process.stop)
        secret = read(plane, f"/api/v1/namespaces/{NAMESPACE}/secrets/kerf-tls")
        assert secret is not None
        for name in CLIENT_FILES.values():
            (client / name).write_bytes(b64decode(secret["data"][name]))
        mounted = {f"/etc/kubernetes/kerf/{name}": str(client / file) for name, file in CLIENT_FILES.items()}
        extender = SCHEDULER_CONFIG / "mtls.yaml"
        scheduler = plane.start_scheduler(
            extender, "scheduler-tls", replace=mounted, extender_url=process.url, user="cluster-scheduler"
        )
        running.callback(scheduler.stop)
        cluster = KerfCluster(plane, process)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.submit("trains", gpus=2)
        assert assigned_gpus(cluster.bound("trains")) == [0, 1]
        cluster.clean()
