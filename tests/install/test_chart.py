"""What the chart renders, without a cluster."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from extender.settings.load import load_settings
from tests.install.helm import CHART, MATRIX, Helm, HelmError, only
from tests.install.manifests import render_manifests

ROOT = CHART.parents[2]


MIGRATING = (ROOT / "docs" / "guides" / "migrating.md").read_text()


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


def containers(deployment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Containers of a Deployment by name, sidecars among them."""
    spec = deployment["spec"]["template"]["spec"]
    return {item["name"]: item for item in [*spec.get("initContainers", []), *spec["containers"]]}


def test_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        pytest.param("mode=sidecar", "mode", id="unknown mode"),
        pytest.param("replicas=0", "replicas", id="no replica"),
        pytest.param("replica=2", "replica", id="a key nobody knows"),
        pytest.param("scheduler.name=default-scheduler", "scheduler.name", id="the cluster's own scheduler"),
        pytest.param("scheduler.percentageOfNodesToScore=101", "percentageOfNodesToScore", id="out of range"),
        pytest.param("scheduler.ignoredResources[0]=cpu", "ignoredResources", id="no extended resource"),
        pytest.param("image.repository=", "repository", id="no image"),
        pytest.param("serviceMonitor.enabled=true", "mode=service", id="metrics on loopback"),
        pytest.param("tls.secretName=kerf", "mode=service", id="TLS on loopback"),
        pytest.param("queue.pipelines=true,queue.enabled=false", "queue.enabled", id="pipelines without a queue"),
        pytest.param("queue.optIn.everybody=true", "queue.optIn", id="nobody of that name opts in"),
        pytest.param("webhook.timeoutSeconds=31", "webhook.timeoutSeconds", id="more than the API server allows"),
        pytest.param("mode=service,tls.secretName=kerf,tls.selfSigned=true", "tls: set one of", id="TLS in two ways"),
    ],
)
def test_bad_values_are_refused_by_name(helm: Helm, value: str, fault: str) -> None:
    with pytest.raises(HelmError, match=fault.replace(".", r"[./]")):
        helm.render(value)


def mounts_of(deployment: dict[str, Any]) -> set[str]:
    return {mount["mountPath"] for mount in containers(deployment)["kerf"]["volumeMounts"]}


@pytest.mark.parametrize("values", MATRIX, ids=" ".join)
def test_every_way_of_installing(helm: Helm, tmp_path: Path, values: tuple[str, ...]) -> None:
    objects = helm.render(*values)
    sidecar = "mode=service" not in values
    deployment = only(objects, "Deployment", "kerf")
    spec = deployment["spec"]["template"]["spec"]
    assert set(containers(deployment)) == ({"kerf", "kube-scheduler"} if sidecar else {"kerf"})
    names = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    assert {spec["serviceAccountName"], "kerf-webhook"} == names

    settings = tmp_path / "kerf.yaml"
    maps = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    settings.write_text(maps["kerf"]["kerf.yaml"])
    assert ("kerf-dashboard" in maps) == ("dashboard.enabled=true" in values)
    loaded = load_settings(settings)
    assert loaded.server.host == ("127.0.0.1" if sidecar else "0.0.0.0")  # noqa: S104 - what the Service needs
    assert loaded.leader_election.mode == ("scheduler" if sidecar else "own")
    tls = any(value.startswith("tls.") for value in values)
    assert (loaded.server.tls_client_ca_file is not None) == tls
    assert (loaded.access.token_file is not None) == ("access.tokensSecret=readers" in values)
    assert (str(loaded.model.path) == "/etc/kerf-model") == ("model.volume.configMap.name=rank" in values)
    assert loaded.model.path is None or str(loaded.model.path) in mounts_of(deployment)
    mounts = mounts_of(deployment)
    server = loaded.server
    for file in (loaded.access.token_file, server.tls_cert_file, server.tls_key_file, server.tls_client_ca_file):
        assert file is None or str(file.parent) in mounts, f"{file} is not mounted"
    assert {mount["name"] for item in containers(deployment).values() for mount in item["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    probe = containers(deployment)["kerf"]["readinessProbe"]["exec"]["command"]
    assert ("HTTPSConnection" in probe[2], probe[3]) == (tls, "/syncz" if sidecar else "/readyz")
    replicas = deployment["spec"]["replicas"]
    kinds = {item["kind"] for item in objects}
    assert ("PodDisruptionBudget" in kinds) == (replicas > 1)
    assert ("topologySpreadConstraints" in spec) == (replicas > 1)
    services = {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
    assert services == ({"kerf-webhook"} if sidecar else {"kerf-webhook", "kerf"})
    assert ("ClusterRole" in kinds) == ("rbac.create=false" not in values)


def hooks(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Path by name of every webhook."""
    return {
        hook["name"]: hook["clientConfig"]["service"]["path"]
        for item in objects
        if item["kind"] == "MutatingWebhookConfiguration"
        for hook in item["webhooks"]
    }


GATES = {f"{who}.queue.kerf.dev": "/gate" for who in ("namespaces", "pods", "genius")}


INJECTS = {f"{who}.webhook.kerf.dev": "/mutate" for who in ("namespaces", "pods")}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), GATES),
        (("queue.optIn.genius=false", "queue.optIn.pods=false"), {"namespaces.queue.kerf.dev": "/gate"}),
        (("inject.enabled=true",), GATES | INJECTS),
        (("queue.enabled=false", "inject.enabled=true"), INJECTS),
        (("queue.enabled=false",), {}),
        (("queue.optIn.genius=false", "queue.optIn.pods=false", "queue.optIn.namespaces=false"), {}),
    ],
)
def test_g1_who_opts_in(helm: Helm, tmp_path: Path, values: tuple[str, ...], expected: dict[str, str]) -> None:
    """As shipped the queue is on, and pods of Genius wait in it."""
    objects = helm.render(*values)
    assert hooks(objects) == expected
    served = {item["metadata"]["name"] for item in objects if item["kind"] == "Deployment"}
    assert ("kerf-webhook" in served) == bool(expected)  # nothing runs for nobody
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
    enabled = "queue.enabled=false" not in values
    assert load_settings(settings).queue.enabled == enabled
    assert (("ClusterRole", "kerf-queue") in {(item["kind"], item["metadata"]["name"]) for item in objects}) == enabled


def bundles(objects: list[dict[str, Any]]) -> set[str]:
    found = [item for item in objects if item["kind"] == "MutatingWebhookConfiguration"]
    return {hook["clientConfig"]["caBundle"] for item in found for hook in item["webhooks"]}


def test_whose_certificate_the_webhook_has(helm: Helm) -> None:
    made = helm.render("inject.enabled=true")
    secret = only(made, "Secret")
    assert bundles(made) == {secret["data"]["ca.crt"]}
    assert b"PRIVATE KEY" in base64.b64decode(secret["data"]["tls.key"])
    given = helm.render("webhook.tls.secretName=mine", "webhook.tls.caBundle=Q0E=")
    assert bundles(given) == {"Q0E="}
    by_issuer = helm.render("webhook.tls.issuer.name=ca", "webhook.tls.issuer.kind=ClusterIssuer")
    certificate = only(by_issuer, "Certificate")["spec"]
    assert certificate["dnsNames"] == ["kerf-webhook.kube-system.svc"]
    assert bundles(by_issuer) == {""}  # cert-manager fills it in
    for objects, name in ((given, "mine"), (by_issuer, certificate["secretName"])):
        assert "Secret" not in {item["kind"] for item in objects}
        deployment = only(objects, "Deployment", "kerf-webhook")
        (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
        assert volume["secret"]["secretName"] == name


def test_pipelines_bring_their_definition_and_rights_and_run(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render("queue.pipelines=true")
    definition = only(objects, "CustomResourceDefinition")
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert only(objects, "ClusterRole", "kerf-pipelines")
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
    assert load_settings(settings).queue.pipelines
    assert "CustomResourceDefinition" not in {item["kind"] for item in helm.render()}


def test_certificates_are_for_the_service_and_for_kube_scheduler(helm: Helm) -> None:
    """Those that the chart makes, and those that it asks cert-manager for."""
    made = helm.render("mode=service", "tls.selfSigned=true", "tls.addresses[0]=10.0.0.7", namespace="gpu")
    named = {item["metadata"]["name"]: item["data"] for item in made if item["kind"] == "Secret"}
    secrets = {name: named[name] for name in ("kerf-tls", "kerf-client")}
    pairs = {name: {key: base64.b64decode(text) for key, text in data.items()} for name, data in secrets.items()}
    assert pairs["kerf-tls"]["ca.crt"] == pairs["kerf-client"]["ca.crt"]
    ca = x509.load_pem_x509_certificate(pairs["kerf-tls"]["ca.crt"])
    server, client = (x509.load_pem_x509_certificate(pairs[name]["tls.crt"]) for name in ("kerf-tls", "kerf-client"))
    for certificate in (server, client):
        certificate.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kerf.gpu.svc" in names.get_values_for_type(x509.DNSName)
    assert "10.0.0.7" in map(str, names.get_values_for_type(x509.IPAddress))

    values = ("mode=service", "queue.enabled=false", "tls.issuer.name=ca")
    asked = [item for item in helm.render(*values) if item["kind"] == "Certificate"]
    assert {item["spec"]["secretName"] for item in asked} == {"kerf-tls", "kerf-client"}
    assert {item["spec"]["issuerRef"]["name"] for item in asked} == {"ca"}


@pytest.mark.parametrize("name", ["kerf", "kerf-webhook"])
def test_pods_are_restricted(helm: Helm, name: str) -> None:
    """The profile `restricted` of the pod security standards."""
    deployment = only(helm.render(), "Deployment", name)
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(deployment).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_in_hamis_place_the_scheduler_is_configured_as_the_file_for_it(helm: Helm) -> None:
    """With the values that docs/guides/migrating.md names."""
    (profiles,) = re.findall(
        r"`(scheduler\.name=hami-scheduler)`.*?`(scheduler\.ignoredResources=\{[^`]*\})`", MIGRATING, re.S
    )
    config = yaml.safe_load(only(helm.render(*profiles), "ConfigMap", "kerf")["data"]["scheduler.yaml"])
    shipped = yaml.safe_load((ROOT / "scheduler-config" / "hami.yaml").read_text())
    assert config["profiles"] == [
        profile for profile in shipped["profiles"] if profile["schedulerName"] == "hami-scheduler"
    ]
    assert in_order(config["extenders"]) == in_order(shipped["extenders"])


def in_order(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Extender entries with their resources in the order of their names."""
    names = {"managedResources": [], **entries[0]}["managedResources"]
    return [{**entries[0], "managedResources": sorted(names, key=lambda item: str(item["name"]))}, *entries[1:]]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((), ["kerf-scheduler"]),
        (("scheduler.name=gpus",), ["gpus"]),
        (("admissionPolicy.schedulerNames={a,b}",), ["a", "b"]),
        (("mode=service",), None),
    ],
)
def test_whose_pods_need_the_marker(helm: Helm, values: tuple[str, ...], names: list[str] | None) -> None:
    """Pods of other schedulers are nobody's business here; in mode `service` nobody knows who asks Kerf."""
    policy = only(helm.render(*values), "ValidatingAdmissionPolicy", "kerf-marker")
    conditions = {item["name"]: item["expression"] for item in policy["spec"]["matchConditions"]}
    expected = None if names is None else f"object.spec.schedulerName in {json.dumps(names, separators=(',', ':'))}"
    assert conditions.get("by-a-scheduler-that-asks-kerf") == expected


def test_the_marker_can_be_left_to_others(helm: Helm) -> None:
    assert "kerf-marker" not in {item["metadata"]["name"] for item in helm.render("admissionPolicy.marker=false")}


def test_other_settings_make_other_pods(helm: Helm) -> None:
    def checksum(*values: str) -> str:
        annotations = only(helm.render(*values), "Deployment", "kerf")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/config"])

    assert checksum() == checksum("resources.limits.memory=2Gi")
    assert checksum() != checksum("config.decisions.policy=spread")


def test_alerts_are_the_file_s_and_each_has_its_page(helm: Helm) -> None:
    alerts = yaml.safe_load((CHART / "alerts.yaml").read_text())
    assert only(helm.render("prometheusRule.enabled=true"), "PrometheusRule")["spec"] == alerts
    headings = [
        line[3:]
        for line in (ROOT / "docs" / "reference" / "alerts.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == headings
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/reference/alerts.md#{rule['alert'].lower()}"


def test_manifests_are_rendered_from_the_chart(helm: Helm) -> None:
    """`make manifests` writes them."""
    for path, text in render_manifests(helm).items():
        assert path.read_text() == text, path
