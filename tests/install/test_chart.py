"""What the chart renders, without a cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.kube.rights import serving
from extender.settings import tree
from extender.settings.load import load_settings
from extender.settings.tree import allocates
from tests.install.helm import CHART, MATRIX, Helm, HelmError, only
from tests.install.manifests import SCHEMA, render_manifests, render_schema

ROOT = CHART.parents[2]
LEARNING = next(values for values in MATRIX if "learning.enabled=true" in values)
"""Of a chart whose nightly job fits ranks."""
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
        pytest.param("image.repository=", "--set image.repository=REGISTRY/kerf", id="no image"),
        pytest.param("config.server.prot=80", "prot", id="a setting nobody knows"),
        pytest.param("config.sever.port=80", "sever", id="a section nobody knows"),
        pytest.param("config.server.port=many", "config.server.port", id="a setting of another kind"),
        pytest.param("config.queue.max_open=0", "config.queue.max_open", id="a setting out of range"),
        pytest.param("resources.limit.memory=1Gi", "limit", id="no such resources"),
        pytest.param("tolerations[0].opperator=Exists", "opperator", id="no such toleration"),
        pytest.param("env[0].name=A,env[0].vaule=b", "vaule", id="a variable without value"),
        pytest.param("fullnameOverride=No_Name", "fullnameOverride", id="no name of an object"),
        pytest.param("prometheusRule.enabled=true", "needs serviceMonitor.enabled", id="alerts without metrics"),
        pytest.param("tls.secretName=kerf", "mode=service", id="TLS on loopback"),
        pytest.param("mode=planner", "queue.enabled", id="a planner without a queue"),
        pytest.param("mode=planner,queue.enabled=true,tls.selfSigned=true", "mode=service", id="TLS for nobody"),
        pytest.param("queue.pipelines=true", "queue.enabled", id="pipelines without a queue"),
        pytest.param("queue.enabled=true,queue.mlflows=true", "queue.pipelines", id="flows without pipelines"),
        pytest.param("learning.enabled=true", "history.enabled", id="learning without a history"),
        pytest.param("history.enabled=true,learning.enabled=true", "history.volume", id="learning from what is lost"),
        pytest.param(
            "history.enabled=true,history.volume.emptyDir=null,history.volume.persistentVolumeClaim.claimName=h,"
            "learning.enabled=true",
            "learning.image.repository is not set",
            id="learning without an image",
        ),
        pytest.param("mode=planner,dra.enabled=true", "queue.enabled", id="devices for pods that do not wait"),
        pytest.param(
            "queue.enabled=true,dra.enabled=true", "dra.enabled needs", id="kube-scheduler with Kerf's account"
        ),
        pytest.param("queue.optIn.everybody=true", "queue.optIn", id="nobody of that name opts in"),
        pytest.param("webhook.timeoutSeconds=31", "webhook.timeoutSeconds", id="more than the API server allows"),
        pytest.param("mode=service,tls.secretName=kerf,tls.selfSigned=true", "tls: set one of", id="TLS in two ways"),
    ],
)
def test_bad_values_are_refused_by_name(helm: Helm, value: str, fault: str) -> None:
    with pytest.raises(HelmError, match=fault.replace(".", r"[./]")):
        helm.render(value)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (("config.autoscaling.enabled=true",), "config.autoscaling.enabled needs queue.enabled"),
        (("queue.enabled=true", r"config.dra.rewrite_extended_resources.nvidia\.com/gpu=gpu"), "needs dra.enabled"),
        (("learning.enabled=true", "config.learning.enabled=false"), "needs config.learning.enabled"),
    ],
)
def test_what_kerf_would_not_start_with_is_refused(helm: Helm, values: tuple[str, ...], fault: str) -> None:
    with pytest.raises(HelmError, match=fault):
        helm.render(*(LEARNING if "learning.enabled=true" in values else ()), *values)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [("model.learned=a/b", "learning.config_map", "a/b"), ("queue.mlflows=true", "pipelines.mlflows", True)],
)
def test_what_settings_say_by_a_former_name_holds(helm: Helm, tmp_path: Path, old: str, new: str, told: object) -> None:
    objects = helm.render(*LEARNING, "queue.enabled=true", "queue.pipelines=true", f"config.{old}")
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap", "kerf")["data"]["kerf.yaml"])
    section, _, key = new.partition(".")
    assert getattr(getattr(load_settings(settings), section), key) == told


def mounts_of(deployment: dict[str, Any]) -> set[str]:
    return {mount["mountPath"] for mount in containers(deployment)["kerf"]["volumeMounts"]}


def names_of_kind(objects: list[dict[str, Any]], kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in objects if item["kind"] == kind}


def names_of(wanted: dict[str, bool]) -> set[str]:
    return {name for name, is_wanted in wanted.items() if is_wanted}


def test_the_job_that_fits_reads_what_kerf_writes_and_may_hand_in_alone(helm: Helm) -> None:
    objects = helm.render(*LEARNING)
    deployment, job = only(objects, "Deployment", "kerf"), only(objects, "CronJob", "kerf-fit")
    settings = yaml.safe_load(only(objects, "ConfigMap", "kerf")["data"]["kerf.yaml"])
    claim = {"persistentVolumeClaim": {"claimName": "history"}}
    pods = [deployment["spec"]["template"]["spec"], job["spec"]["jobTemplate"]["spec"]["template"]["spec"]]
    for spec in pods:
        assert {"name": "history", **claim} in spec["volumes"]
        assert spec["securityContext"]["fsGroup"] == 65532
    (fit,) = pods[1]["containers"]
    (mounted,) = [mount for mount in fit["volumeMounts"] if mount["name"] == "history"]
    assert mounted == {"name": "history", "mountPath": "/var/lib/kerf", "readOnly": True}
    assert "/var/lib/kerf" in mounts_of(deployment)
    assert settings["history"]["path"] == "/var/lib/kerf/history"
    assert f"--history {settings['history']['path']} " in fit["args"][0]
    learned = settings["learning"]["config_map"]
    namespace, _, name = learned.partition("/")
    assert f"--to {learned}\n" in fit["args"][0]
    assert only(objects, "ConfigMap", name)["metadata"]["namespace"] == namespace
    rules = {role: only(objects, "Role", role)["rules"] for role in ("kerf-fit", "kerf-learned")}
    for rule in rules.values():
        assert rule == [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "patch"]}
        ]


def test_probes_start_nothing_and_have_a_port_of_their_own(helm: Helm, tmp_path: Path) -> None:
    """In both modes all that is synced is ready: what leads to the leader alone is the Service's selector."""
    for values in ((), ("mode=service", "replicas=2"), ("mode=service", "tls.secretName=mine")):
        objects = helm.render(*values)
        kerf = containers(only(objects, "Deployment", "kerf"))["kerf"]
        paths = {}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert kerf[probe]["httpGet"]["port"] == "metrics"  # without TLS, and without a process in the container
            paths[probe] = kerf[probe]["httpGet"]["path"]
        assert paths == {"startupProbe": "/healthz", "readinessProbe": "/syncz", "livenessProbe": "/healthz"}
        settings = tmp_path / "kerf.yaml"
        settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
        (port,) = (item["containerPort"] for item in kerf["ports"] if item["name"] == "metrics")
        assert load_settings(settings).server.metrics_port == port
        given = {item["name"]: item for item in kerf["env"]}
        assert given["KERF_SERVER__METRICS_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_the_service_leads_to_whoever_holds_the_lease(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render("mode=service", "replicas=2", release="gpus", namespace="gpu")
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
    lease = load_settings(settings).leader_election.lease_name
    service = only(objects, "Service", "gpus-kerf")
    assert service["spec"]["selector"]["kerf.dev/leads"] == lease
    given = {item["name"]: item for item in containers(only(objects, "Deployment", "gpus-kerf"))["kerf"]["env"]}
    assert given["KERF_LEADER_ELECTION__POD"]["value"] == "gpu/$(POD_NAME)"
    # One that leads alone gives no label.
    alone = only(helm.render("mode=service", "config.leader_election.mode=never"), "Service", "kerf")
    assert "kerf.dev/leads" not in alone["spec"]["selector"]


def test_a_rollout_ends_nobody_before_another_is_ready(helm: Helm) -> None:
    for objects in (helm.render("mode=service"), helm.render("queue.enabled=true")):
        for deployment in (item for item in objects if item["kind"] == "Deployment"):
            assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


OVERRIDES = [
    ((), "own", "own-kerf"),
    (("nameOverride=gpus",), "own", "own-gpus"),
    (("nameOverride=gpus",), "gpus-here", "gpus-here"),
    (("fullnameOverride=all-else",), "own", "all-else"),
]


@pytest.mark.parametrize(("values", "release", "name"), OVERRIDES)
def test_names_can_be_overridden_everywhere(helm: Helm, values: tuple[str, ...], release: str, name: str) -> None:
    everything = (
        "replicas=2",
        "queue.pipelines=true",
        "queue.mlflows=true",
        "queue.enabled=true",
        "inject.enabled=true",
    )
    more = ("mode=service", "tls.selfSigned=true", "serviceMonitor.enabled=true", "dashboard.enabled=true")
    for mode in (everything, (*everything, *more)):
        objects = helm.render(*mode, *values, release=release, namespace="gpu")
        for item in objects:
            if item["kind"] != "CustomResourceDefinition":
                assert item["metadata"]["name"].startswith(name), item["kind"]
                assert item["metadata"].get("namespace", "gpu") in ("gpu", "kube-system")
        settings = yaml.safe_load(only(objects, "ConfigMap", name)["data"]["kerf.yaml"])
        assert settings["leader_election"]["lease"] == name
        policy = only(objects, "ValidatingAdmissionPolicy", f"{name}-assignments")
        assert f"kerf.dev/epoch-{name}" in str(policy)
        assert f"system:serviceaccount:gpu:{name}" in str(policy)
        for item in (item for item in objects if item["kind"] == "MutatingWebhookConfiguration"):
            assert {hook["clientConfig"]["service"]["name"] for hook in item["webhooks"]} == {f"{name}-webhook"}
        text = yaml.safe_dump_all(objects)
        if values:
            assert "own-kerf" not in text


def test_metrics_are_scraped_in_every_mode_from_every_replica(helm: Helm) -> None:
    for values in ((), ("mode=service",), ("mode=service", "tls.secretName=mine")):
        objects = helm.render(*values, "serviceMonitor.enabled=true", "networkPolicy.enabled=true")
        service = only(objects, "Service", "kerf-metrics")
        (port,) = service["spec"]["ports"]
        monitor = only(objects, "ServiceMonitor")["spec"]
        found = [
            item["metadata"]["name"]
            for item in objects
            if item["kind"] == "Service"
            and monitor["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
        ]
        assert (found, monitor["endpoints"][0]["port"]) == (["kerf-metrics"], port["name"])
        pods = only(objects, "Deployment", "kerf")["spec"]["template"]
        assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
        ingress = only(objects, "NetworkPolicy")["spec"]["ingress"]
        assert ingress == [{"ports": [{"port": "metrics"}]}]


@pytest.mark.parametrize("values", MATRIX, ids=" ".join)
def test_every_way_of_installing(helm: Helm, tmp_path: Path, values: tuple[str, ...]) -> None:
    objects = helm.render(*values)
    called, planner = "mode=service" in values, "mode=planner" in values
    sidecar = not (called or planner)
    deployment = only(objects, "Deployment", "kerf")
    spec = deployment["spec"]["template"]["spec"]
    assert set(containers(deployment)) == ({"kerf", "kube-scheduler"} if sidecar else {"kerf"})
    names = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    queue = "queue.enabled=true" in values
    learns = "learning.enabled=true" in values
    assert names == names_of({spec["serviceAccountName"]: True, "kerf-webhook": queue, "kerf-fit": learns})

    settings = tmp_path / "kerf.yaml"
    maps = {item["metadata"]["name"]: item.get("data", {}) for item in objects if item["kind"] == "ConfigMap"}
    assert ("kerf-learned" in maps) == learns
    defrag = "defrag.enabled=true" in values
    assert ("kerf-defrag" in maps) == defrag == ("kerf-defrag" in names_of_kind(objects, "Role"))
    settings.write_text(maps["kerf"]["kerf.yaml"])
    assert ("kerf-dashboard" in maps) == ("dashboard.enabled=true" in values)
    loaded = load_settings(settings)
    assert loaded.defrag.record.endswith("/kerf-defrag") == defrag  # type: ignore[attr-defined]
    assert loaded.server.host == ("0.0.0.0" if called else "127.0.0.1")  # noqa: S104 - what the Service needs
    assert loaded.queue.extender != planner
    assert allocates(loaded) == ("dra.enabled=true" in values)
    assert ("kerf-dra" in names_of_kind(objects, "ClusterRole")) == allocates(loaded)
    assert ("kerf-dra-tolerations" in names_of_kind(objects, "ValidatingAdmissionPolicyBinding")) == allocates(loaded)
    assert loaded.leader_election.mode == ("scheduler" if sidecar else "own")
    tls = any(value.startswith("tls.") for value in values)
    assert (loaded.server.tls_client_ca_file is not None) == tls
    assert (loaded.access.token_file is not None) == ("access.tokensSecret=readers" in values)
    assert (loaded.access.apply_token_file is not None) == ("access.operatorsSecret=operators" in values)
    assert (str(loaded.model.path) == "/etc/kerf-model") == ("model.volume.configMap.name=rank" in values)
    assert loaded.model.path is None or str(loaded.model.path) in mounts_of(deployment)
    mounts = mounts_of(deployment)
    server = loaded.server
    for file in (loaded.access.token_file, server.tls_cert_file, server.tls_key_file, server.tls_client_ca_file):
        assert file is None or str(file.parent) in mounts, f"{file} is not mounted"
    assert {mount["name"] for item in containers(deployment).values() for mount in item["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    replicas = deployment["spec"]["replicas"]
    kinds = {item["kind"] for item in objects}
    budgets = {item["metadata"]["name"] for item in objects if item["kind"] == "PodDisruptionBudget"}
    assert budgets == names_of({"kerf": replicas > 1, "kerf-webhook": queue})
    assert ("topologySpreadConstraints" in spec) == (replicas > 1)
    services = {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
    monitored = "serviceMonitor.enabled=true" in values
    assert services == names_of({"kerf": called, "kerf-webhook": queue, "kerf-metrics": monitored})
    assert ("ClusterRole" in kinds) == ("rbac.create=false" not in values)


@pytest.mark.parametrize(
    "values",
    [(), ("mode=planner", "queue.enabled=true"), ("config.defrag.enabled=false",)],
    ids=["", "planner", "without-making-room"],
)
def test_the_rights_are_those_that_a_check_looks_for(helm: Helm, values: tuple[str, ...], tmp_path: Path) -> None:
    given = {
        (group, resource, verb)
        for rule in only(helm.render(*values), "ClusterRole", "kerf")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    settings, binds = tmp_path / "kerf.yaml", "mode=planner" not in values
    settings.write_text(only(helm.render(*values), "ConfigMap", "kerf")["data"]["kerf.yaml"])
    of_parts = [need for rights in tree.rights_of(load_settings(settings)) for need in rights.needs]
    wanted = (*serving(extender=binds), *of_parts)
    assert given == {(right.group, right.resource, verb) for right in wanted for verb in right.verbs}
    assert (("", "pods/binding", "create") in given) == binds  # without an extender Kerf binds no pod


def hooks(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Path by name of every webhook."""
    return {
        hook["name"]: hook["clientConfig"]["service"]["path"]
        for item in objects
        if item["kind"] == "MutatingWebhookConfiguration"
        for hook in item["webhooks"]
    }


GATES = {f"{who}.queue.kerf.dev": "/gate" for who in ("namespaces", "pods", "genius")}


QUEUE = "queue.enabled=true"
INJECTS = {f"{who}.webhook.kerf.dev": "/mutate" for who in ("namespaces", "pods")}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), {}),
        ((QUEUE,), GATES),
        ((QUEUE, "queue.optIn.genius=false", "queue.optIn.pods=false"), {"namespaces.queue.kerf.dev": "/gate"}),
        ((QUEUE, "inject.enabled=true"), GATES | INJECTS),
        (("inject.enabled=true",), INJECTS),
        ((QUEUE, "queue.optIn.genius=false", "queue.optIn.pods=false", "queue.optIn.namespaces=false"), {}),
    ],
)
def test_g1_who_opts_in(helm: Helm, tmp_path: Path, values: tuple[str, ...], expected: dict[str, str]) -> None:
    """As shipped there is no queue and no right for it; once on, pods of Genius wait in it."""
    objects = helm.render(*values)
    assert hooks(objects) == expected
    served = {item["metadata"]["name"] for item in objects if item["kind"] == "Deployment"}
    assert ("kerf-webhook" in served) == bool(expected)  # nothing runs for nobody
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
    enabled = QUEUE in values
    assert load_settings(settings).queue.enabled == enabled
    assert (("ClusterRole", "kerf-queue") in {(item["kind"], item["metadata"]["name"]) for item in objects}) == enabled


def bundles(objects: list[dict[str, Any]]) -> set[str | None]:
    found = [item for item in objects if item["kind"] == "MutatingWebhookConfiguration"]
    return {hook["clientConfig"].get("caBundle") for item in found for hook in item["webhooks"]}


def test_whose_certificate_the_webhook_has(helm: Helm) -> None:
    given = helm.render(QUEUE, "webhook.tls.secretName=mine", "webhook.tls.caBundle=Q0E=")
    assert bundles(given) == {"Q0E="}
    by_issuer = helm.render(QUEUE, "webhook.tls.issuer.name=ca", "webhook.tls.issuer.kind=ClusterIssuer")
    certificate = only(by_issuer, "Certificate")["spec"]
    assert certificate["dnsNames"] == ["kerf-webhook.kube-system.svc"]
    assert bundles(by_issuer) == {""}  # cert-manager fills it in
    for objects, name in ((given, "mine"), (by_issuer, certificate["secretName"])):
        assert "Secret" not in {item["kind"] for item in objects}
        deployment = only(objects, "Deployment", "kerf-webhook")
        (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
        assert volume["secret"]["secretName"] == name
        assert "kerf-webhook-certificates" not in str(objects)  # no right to any Secret


def rights_of(objects: list[dict[str, Any]], account: str) -> list[dict[str, Any]]:
    """All rules that a service account is given."""
    roles = {
        item["roleRef"]["name"]
        for item in objects
        if item["kind"].endswith("Binding") and any(one["name"] == account for one in item.get("subjects", ()))
    }
    return [
        rule
        for item in objects
        if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in roles
        for rule in item["rules"]
    ]


def test_kerf_makes_its_certificates_with_the_right_to_that_secret_alone(helm: Helm) -> None:
    """What it may do, the settings by which it does it, and a volume to keep them in; nothing of it in the chart."""
    values = ("mode=service", "tls.selfSigned=true", "tls.addresses[0]=10.0.0.7", QUEUE, "inject.enabled=true")
    objects = helm.render(*values, namespace="gpu")
    assert bundles(objects) == {None}
    settings = yaml.safe_load(only(objects, "ConfigMap", "kerf")["data"]["kerf.yaml"])["certificates"]
    webhook = {
        item["name"]: item.get("value")
        for item in containers(only(objects, "Deployment", "kerf-webhook"))["kerf"]["env"]
    }
    hooks_of = json.loads(webhook["KERF_CERTIFICATES__WEBHOOKS"])
    assert settings["client"] == "kube-scheduler"
    assert {"kerf.gpu.svc", "10.0.0.7"} <= set(settings["hosts"])
    assert json.loads(webhook["KERF_CERTIFICATES__HOSTS"]) == ["kerf-webhook.gpu.svc"]
    assert set(hooks_of) == {
        item["metadata"]["name"] for item in objects if item["kind"] == "MutatingWebhookConfiguration"
    }
    for name, account, secret in (
        ("kerf", "kerf", settings["secret"]),
        ("kerf-webhook", "kerf-webhook", webhook["KERF_CERTIFICATES__SECRET"]),
    ):
        found = only(objects, "Secret", secret.removeprefix("gpu/"))
        assert (found["type"], "data" in found) == ("Opaque", False)
        rules = [rule for rule in rights_of(objects, account) if "secrets" in rule["resources"]]
        names = [found["metadata"]["name"]]
        assert rules == [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get", "patch", "create"]}
        ]
        spec = only(objects, "Deployment", name)["spec"]["template"]["spec"]
        assert {"medium": "Memory", "sizeLimit": "1Mi"} in [volume.get("emptyDir") for volume in spec["volumes"]]
    (rule,) = [
        rule for rule in rights_of(objects, "kerf-webhook") if "mutatingwebhookconfigurations" in rule["resources"]
    ]
    assert (rule["resourceNames"], rule["verbs"]) == (hooks_of, ["get", "patch"])
    assert not [rule for rule in rights_of(objects, "kerf") if "mutatingwebhookconfigurations" in rule["resources"]]


@pytest.mark.parametrize("values", MATRIX, ids=" ".join)
def test_equal_renders_are_equal(helm: Helm, values: tuple[str, ...]) -> None:
    """Who compares what is rendered with what is there, as Argo CD does, sees no change where there is none."""
    more = () if any("queue.enabled" in value for value in values) else (QUEUE, "inject.enabled=true")
    assert helm.render(*values, *more) == helm.render(*values, *more)


def test_pipelines_bring_their_definition_and_rights_and_run(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(QUEUE, "queue.pipelines=true")
    definition = only(objects, "CustomResourceDefinition")
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert only(objects, "ClusterRole", "kerf-pipelines")
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["kerf.yaml"])
    assert yaml.safe_load(settings.read_text())["pipelines"] == {"enabled": True, "mlflows": False}
    assert "CustomResourceDefinition" not in {item["kind"] for item in helm.render()}


def test_who_rewrites_extended_resources_may_create_claims_and_tells_the_webhook(helm: Helm, tmp_path: Path) -> None:
    planner = ("mode=planner", QUEUE, "dra.enabled=true")
    classes = {"nvidia.com/gpu": "gpu.nvidia.com"}
    key, value = r"config.dra.rewrite_extended_resources.nvidia\.com/gpu", "gpu.nvidia.com"
    objects = helm.render(*planner, f"{key}={value}")
    (webhook,) = containers(only(objects, "Deployment", "kerf-webhook")).values()
    (variable,) = (item for item in webhook["env"] if item["name"] == "KERF_DRA__REWRITE_EXTENDED_RESOURCES")
    assert json.loads(variable["value"]) == classes
    settings = tmp_path / "kerf.yaml"
    settings.write_text(only(objects, "ConfigMap", "kerf")["data"]["kerf.yaml"])
    assert load_settings(settings).dra.rewrite_extended_resources == classes  # type: ignore[attr-defined]

    def verbs(found: list[dict[str, Any]]) -> set[str]:
        rules = only(found, "ClusterRole", "kerf-dra")["rules"]
        return {verb for rule in rules if "resourceclaims" in rule["resources"] for verb in rule["verbs"]}

    assert verbs(objects) - verbs(helm.render(*planner)) == {"create"}


def test_certificates_of_cert_manager_are_for_the_service_and_for_kube_scheduler(helm: Helm) -> None:
    objects = helm.render("mode=service", "tls.issuer.name=ca", "tls.addresses[0]=10.0.0.7", namespace="gpu")
    asked = {item["spec"]["secretName"]: item["spec"] for item in objects if item["kind"] == "Certificate"}
    assert set(asked) == {"kerf-tls", "kerf-client"}
    assert {spec["issuerRef"]["name"] for spec in asked.values()} == {"ca"}
    assert "kerf.gpu.svc" in asked["kerf-tls"]["dnsNames"]
    assert asked["kerf-tls"]["ipAddresses"] == ["10.0.0.7", "127.0.0.1"]
    assert "Secret" not in {item["kind"] for item in objects}


@pytest.mark.parametrize(
    ("options", "user"),
    [
        ((), 65532),
        (("--set", "podSecurityContext.runAsUser=1000680000"), 1000680000),
        (("--set", "podSecurityContext.runAsUser=null"), None),
        (("--api-versions", "security.openshift.io/v1"), None),
        (("--api-versions", "security.openshift.io/v1", "--set", "podSecurityContext.runAsUser=7"), 7),
    ],
    ids=["as shipped", "a user of one's own", "whom the image names", "OpenShift", "OpenShift, a user of one's own"],
)
def test_as_whom_pods_run(helm: Helm, options: tuple[str, ...], user: int | None) -> None:
    objects = helm.render(*LEARNING, "queue.enabled=true", options=options)
    pods = [only(objects, "Deployment", name)["spec"]["template"]["spec"] for name in ("kerf", "kerf-webhook")]
    pods.append(only(objects, "CronJob", "kerf-fit")["spec"]["jobTemplate"]["spec"]["template"]["spec"])
    for spec in pods:
        assert spec["securityContext"].get("runAsUser") == user
        assert spec["securityContext"]["runAsNonRoot"] is True
        assigned = "security.openshift.io/v1" in options
        assert ("runAsGroup" in spec["securityContext"]) != assigned


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.36.1", "v1.36.1"),
        ("v1.36.2-eks-1a2b3c4", "v1.36.2"),
        ("v1.36.1+k3s1", "v1.36.1"),
        ("v1.35.3-gke.1234000", "v1.35.3"),
        ("1.34.0+rke2r1", "v1.34.0"),
    ],
)
def test_the_scheduler_beside_kerf_is_of_the_clusters_version(helm: Helm, version: str, tag: str) -> None:
    deployment = only(helm.render(options=("--kube-version", version)), "Deployment", "kerf")
    assert containers(deployment)["kube-scheduler"]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"
    named = only(helm.render("scheduler.tag=v1.33.9"), "Deployment", "kerf")
    assert containers(named)["kube-scheduler"]["image"] == "registry.k8s.io/kube-scheduler:v1.33.9"


def test_services_have_all_families_of_addresses_that_the_cluster_has(helm: Helm) -> None:
    objects = helm.render("mode=service", "queue.enabled=true")
    for name in ("kerf", "kerf-webhook"):
        assert only(objects, "Service", name)["spec"]["ipFamilyPolicy"] == "PreferDualStack"


def test_a_quota_lets_critical_pods_in_where_a_cluster_asks_for_one(helm: Helm) -> None:
    assert "ResourceQuota" not in {item["kind"] for item in helm.render()}  # there they may be
    quota = only(helm.render(namespace="kerf-system"), "ResourceQuota")
    (classes,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert classes["values"] == ["system-cluster-critical", "system-node-critical"]
    assert "ResourceQuota" not in {item["kind"] for item in helm.render("priorityClassName=", namespace="kerf-system")}


@pytest.mark.parametrize("name", ["kerf", "kerf-webhook"])
def test_pods_are_restricted(helm: Helm, name: str) -> None:
    """The profile `restricted` of the pod security standards."""
    deployment = only(helm.render(QUEUE), "Deployment", name)
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
    text = (CHART / "alerts.yaml").read_text()
    alerts, shown = yaml.safe_load(text), ("prometheusRule.enabled=true", "serviceMonitor.enabled=true")
    where = "https://git.example.com/kerf/blob/main/"
    page = "https://kerf.example.com/gpus"
    linked = helm.render(*shown, f"prometheusRule.runbooks={where}", f"page.url={page}/")
    expected = text.replace(" docs/", f" {where}docs/").replace('_url: "#', f'_url: "{page}/#')
    assert only(linked, "PrometheusRule")["spec"] == yaml.safe_load(expected)
    # Without an address there is no link that leads nowhere.
    told = yaml.safe_load(text.replace("runbook_url:", "runbook:"))
    for rule in told["groups"][0]["rules"]:
        rule["annotations"].pop("dashboard_url", None)
    assert only(helm.render(*shown), "PrometheusRule")["spec"] == told
    headings = [
        line[3:]
        for line in (ROOT / "docs" / "reference" / "alerts.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == headings
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/reference/alerts.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("url", ["kerf.example.com", "https://a b", 'https://a"', "https://a/#b", "https://{{ a }}"])
def test_an_address_that_is_none_is_refused(helm: Helm, url: str) -> None:
    with pytest.raises(HelmError, match="page"):
        helm.render(f"page.url={url}".replace("{", "\\{").replace("}", "\\}"))


def test_of_the_webhook_nothing_is_scraped_but_its_certificate(helm: Helm) -> None:
    """It knows nodes too: what it told of them would hide that Kerf is down."""
    objects = helm.render("serviceMonitor.enabled=true", "inject.enabled=true", "webhook.tls.issuer.name=ca")
    monitor = only(objects, "ServiceMonitor", "kerf-webhook")["spec"]
    service = only(objects, "Service", "kerf-webhook-metrics")
    (endpoint,) = monitor["endpoints"]
    assert endpoint["metricRelabelings"] == [
        {"sourceLabels": ["__name__"], "regex": "kerf_certificate_.*", "action": "keep"}
    ]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    container = containers(only(objects, "Deployment", "kerf-webhook"))["kerf"]
    assert {"name": "metrics", "containerPort": 8889} in container["ports"]


def test_prometheus_keeps_the_labels_that_kerf_gives(helm: Helm) -> None:
    """A `namespace` of Kerf's is its pods'; without this the operator's Prometheus calls it `exported_namespace`."""
    (endpoint,) = only(helm.render("serviceMonitor.enabled=true"), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True


def test_manifests_are_rendered_from_the_chart(helm: Helm) -> None:
    """`make manifests` writes them, and what the chart's schema says of Kerf's settings."""
    assert SCHEMA.read_text() == render_schema()
    for path, text in render_manifests(helm).items():
        assert path.read_text() == text, path
