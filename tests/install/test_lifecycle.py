"""The chart in a real cluster: installed, changed, rolled back, removed; what it installs is what is run."""

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import free_port, start_process, wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, assigned_gpus
from tests.install.helm import CHART, Helm
from tests.install.operators import install_definitions
from tests.install.running import start_installed
from tests.telemetry.prometheuses import prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-system"
CLIENT_FILES = {"ca.crt": "ca.crt", "kube-scheduler.crt": "tls.crt", "kube-scheduler.key": "tls.key"}
"""Names in scheduler-config/mtls.yaml, and in the Secret."""
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"
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

        (monitor,) = listed(plane, "monitoring.coreos.com/v1", "servicemonitors")
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        services = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/services")["items"]
        (service,) = [item for item in services if wanted <= item["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        name, tls = service["metadata"]["name"], endpoint["tlsConfig"]
        assert tls["serverName"] == f"{name}.{NAMESPACE}.svc"
        assert tls["serverName"] in certificates[tls["ca"]["secret"]["name"]]["dnsNames"]

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


def listed(plane: ControlPlane, version: str, plural: str) -> list[dict[str, Any]]:
    """All objects of a kind in the chart's namespace."""
    found: list[dict[str, Any]] = plane.request("GET", f"/apis/{version}/namespaces/{NAMESPACE}/{plural}")["items"]
    return found


def serve_webhook(plane: ControlPlane, running: ExitStack, secret: Path, environment: dict[str, str]) -> int:
    """Run Kerf as the webhook's container does, with the files of its Secret; its port, once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "extender", "serve", "--port", str(port)]
    command += ["--kubeconfig", str(plane.kubeconfig("webhook"))]
    mounted = {name: value.replace("/etc/kerf-webhook", str(secret)) for name, value in environment.items()}
    process = start_process("kerf-webhook", command, plane.directory / "kerf-webhook.log", env=os.environ | mounted)
    running.callback(process.stop)
    name = f"kerf-webhook.{NAMESPACE}.svc"
    pool = urllib3.HTTPSConnectionPool(
        *("127.0.0.1", port), ca_certs=str(secret / "ca.crt"), server_hostname=name, assert_hostname=name, retries=False
    )
    running.callback(pool.close)

    def ready() -> bool:
        try:
            return bool(pool.request("GET", "/syncz").status == 200)
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProtocolError):
            return False  # a certificate that does not fit is another error, and no reason to wait

    process.wait_ready(ready)
    return port


def test_g1_what_is_installed_answers_the_api_server(plane: ControlPlane, helm: Helm, tmp_path: Path) -> None:
    """The chart's own certificate, CA and webhooks; only the Service leads here. Pods of Genius wait as shipped."""
    chart = ("kerf", str(CHART), "--namespace", NAMESPACE, "--set", "inject.enabled=true")
    helm("install", *chart, "--create-namespace")
    service = f"/api/v1/namespaces/{NAMESPACE}/services/kerf-webhook"
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/kerf-webhook"
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    with ExitStack() as running:
        running.callback(helm, "uninstall", "kerf", "--namespace", NAMESPACE)
        made = read(plane, secret)
        helm("upgrade", *chart)
        kept = read(plane, secret)
        assert made is not None
        assert kept is not None
        assert kept["data"] == made["data"]  # an upgrade makes no other certificate
        for name, text in kept["data"].items():
            (tmp_path / name).write_bytes(base64.b64decode(text))
        found = read(plane, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf-webhook")
        assert found is not None
        (container,) = found["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["serve", "--host=0.0.0.0", "--port=8443"]
        given = {item["name"]: item["value"] for item in container["env"]}
        port = serve_webhook(plane, running, tmp_path, given)
        to_localhost = [
            {"op": "replace", "path": "/spec", "value": {"type": "ExternalName", "externalName": "localhost"}}
        ]
        plane.request("PATCH", service, to_localhost, "application/json-patch+json")
        for name in ("kerf-queue", "kerf-webhook"):
            configuration = read(plane, f"{hooks}/{name}")
            assert configuration is not None
            for hook in configuration["webhooks"]:
                hook["clientConfig"]["service"]["port"] = port
                hook["failurePolicy"] = "Fail"  # so that whatever is wrong is said
                hook["timeoutSeconds"] = 10
            plane.request("PUT", f"{hooks}/{name}", configuration)

        def created(labels: dict[str, str]) -> dict[str, Any]:
            probe = pod("probe", labels=labels, annotations={"kerf.dev/gpu-count": "1"})
            answer: dict[str, Any] = plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)["spec"]
            return answer

        wait_until(lambda: "schedulingGates" in created({"genius/priority": "3"}), WITHIN_S, "pods of Genius wait")
        wait_until(lambda: "env" in created({"kerf.dev/inject": "enabled"})["containers"][0], WITHIN_S, "GPUs are told")
        assert "schedulingGates" not in created({})


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
        cluster = start_installed(plane, NAMESPACE, tmp_path, running)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.create(pod("trains", gpus=2, scheduler_name="kerf-scheduler"))
        assert assigned_gpus(cluster.bound("trains")) == [0, 1]
        assert cluster.event("trains", "GPUsAssigned")
        cluster.clean()


def test_certificates_that_the_chart_makes_let_kube_scheduler_in_and_are_kept(
    plane: ControlPlane, helm: Helm, installed: str, tmp_path: Path
) -> None:
    """Mode `service`: both sides run with the files of the Secrets, on each side its own."""
    del installed
    service = ("--set", "mode=service", "--set", "tls.selfSigned=true")
    notes = helm("upgrade", "kerf", str(CHART), "--namespace", NAMESPACE, *service)
    assert "get secret kerf-client" in notes
    secrets = [read(plane, f"/api/v1/namespaces/{NAMESPACE}/secrets/kerf-{what}") for what in ("tls", "client")]
    helm("upgrade", "kerf", str(CHART), "--namespace", NAMESPACE, *service, "--set", "replicas=2")
    for what, secret in zip(("tls", "client"), secrets, strict=True):
        assert secret is not None
        again = read(plane, f"/api/v1/namespaces/{NAMESPACE}/secrets/kerf-{what}")
        assert again is not None
        assert again["data"] == secret["data"], "a certificate that is in use stays"
        (tmp_path / what).mkdir()
        for name, text in secret["data"].items():
            (tmp_path / what / name).write_bytes(base64.b64decode(text))
    files = read(plane, f"/api/v1/namespaces/{NAMESPACE}/configmaps/kerf")
    assert files is not None
    config = tmp_path / "kerf.yaml"
    config.write_text(files["data"]["kerf.yaml"].replace("/etc/kerf-tls", str(tmp_path / "tls")))
    extender = SCHEDULER_CONFIG / "mtls.yaml"
    mounted = {f"/etc/kubernetes/kerf/{name}": str(tmp_path / "client" / file) for name, file in CLIENT_FILES.items()}
    with ExitStack() as running:
        process = KerfProcess(plane, "kerf-tls", "--config", str(config), certificate=tmp_path / "client" / "ca.crt")
        running.callback(process.stop)
        scheduler = plane.start_scheduler(
            extender, "scheduler-tls", replace=mounted, extender_url=process.url, user="cluster-scheduler"
        )
        running.callback(scheduler.stop)
        cluster = KerfCluster(plane, process)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.submit("trains", gpus=2)
        assert assigned_gpus(cluster.bound("trains")) == [0, 1]
        cluster.clean()
