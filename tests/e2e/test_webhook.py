"""The webhook on a real kube-apiserver, called over TLS, as manifests/webhook.yaml configures it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.api.certificates import Authority
from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.webhooks import served

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

MANIFEST = ROOT / "manifests" / "webhook.yaml"
NAME = "NVIDIA_VISIBLE_DEVICES"
INDICES = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['kerf.dev/assigned-gpus']"}}
TWO_GPUS = {"kerf.dev/gpu-count": "2"}


def documents() -> dict[str, Manifest]:
    """The shipped manifest by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


class Webhook:
    """A Kerf that serves the webhook alone, and the API server that calls it."""

    def __init__(self, plane: ControlPlane, kerf: KerfProcess, namespace: str) -> None:
        self.plane = plane
        self.kerf = kerf
        self.namespace = namespace

    def create(self, name: str, namespace: str = "", **options: Any) -> Manifest:
        """Create a pod; returns what was stored."""
        namespace = namespace or self.namespace
        manifest = pod(name, namespace=namespace, **options)
        stored: Manifest = self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)
        return stored

    def delete(self, stored: Manifest) -> None:
        """Delete a pod at once."""
        metadata = stored["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=0"
        self.plane.request("DELETE", path)

    @property
    def num_calls(self) -> int:
        """How often the API server has called."""
        lines = self.kerf.get("/metrics").splitlines()
        found = [line for line in lines if line.startswith('kerf_request_seconds_count{verb="mutate"}')]
        return int(float(found[0].split()[-1])) if found else 0


@pytest.fixture(scope="module")
def webhook(all_clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The webhook as it is shipped, but for its address; namespace `opted-in` opts in."""
    all_clusters.close()
    plane = all_clusters.plane
    authority = Authority(tmp_path_factory.mktemp("webhook"), "kerf-webhook")
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "opted-in", "labels": {"kerf.dev/inject": "enabled"}},
    }
    plane.apply(namespace)
    shipped = documents()["MutatingWebhookConfiguration"]
    callers = f"--set=server.tls_client_ca_file={authority.certificate}"
    with served(plane, shipped, authority, callers) as kerf:
        found = Webhook(plane, kerf, "opted-in")
        wait_until(lambda: _is_called(found), WITHIN_S, "the API server calls the webhook")
        yield found


def _is_called(webhook: Webhook) -> bool:
    """Whether a pod created now meets the webhook: the API server hears of a configuration some time after."""
    before = webhook.num_calls
    webhook.delete(webhook.create("probe"))
    return webhook.num_calls > before


def env_of(stored: Manifest) -> list[Manifest]:
    """Environment of the first container."""
    found: list[Manifest] = stored["spec"]["containers"][0].get("env", [])
    return found


def test_pods_of_a_namespace_that_opted_in_see_what_they_are_assigned(webhook: Webhook) -> None:
    stored = webhook.create("asking", annotations=TWO_GPUS)
    assert env_of(stored) == [{"name": NAME, "valueFrom": INDICES}]
    unmarked = webhook.create("unmarked", annotations=TWO_GPUS, marked=False)
    assert unmarked["spec"]["containers"][0]["resources"]["limits"] == {"kerf.dev/gpu": "1"}
    assert unmarked["spec"]["containers"][0]["resources"]["requests"]["kerf.dev/gpu"] == "1"
    assert env_of(webhook.create("web")) == []
    assert env_of(webhook.create("by-resource", gpus=2)) == []
    assert env_of(webhook.create("opted-out", annotations=TWO_GPUS, labels={"kerf.dev/inject": "disabled"})) == []
    for name in ("asking", "unmarked", "web", "by-resource", "opted-out"):
        webhook.delete({"metadata": {"name": name, "namespace": webhook.namespace}})


def test_single_pods_opt_in_elsewhere(webhook: Webhook) -> None:
    before = webhook.num_calls
    without = webhook.create("not-asked", "default", annotations=TWO_GPUS)
    assert (env_of(without), webhook.num_calls) == ([], before)
    stored = webhook.create("alone", "default", annotations=TWO_GPUS, labels={"kerf.dev/inject": "enabled"})
    assert env_of(stored) == [{"name": NAME, "valueFrom": INDICES}]
    webhook.delete(without)
    webhook.delete(stored)


def test_what_kerf_cannot_understand_is_created_as_it_is(webhook: Webhook) -> None:
    before = webhook.num_calls
    stored = webhook.create("odd", annotations={"kerf.dev/gpu-count": "zwölf"})
    assert webhook.num_calls > before
    assert env_of(stored) == []
    webhook.delete(stored)


def test_the_port_of_the_webhook_binds_nobody(webhook: Webhook) -> None:
    """Certificates are asked of kube-scheduler's verbs, and not of the API server."""
    assert webhook.num_calls > 0
    for verb in ("filter", "prioritize", "preempt", "bind"):
        with pytest.raises(Exception, match="403"):
            webhook.kerf.post(verb, {})


def test_the_annotation_is_there_when_the_container_starts(webhook: Webhook) -> None:
    """What the kubelet resolves: the field named in the environment is written with the binding."""
    plane = webhook.plane
    deciding = KerfProcess(plane, "kerf-deciding")
    scheduler = plane.start_scheduler(
        SCHEDULER_CONFIG / "decisive.yaml", name="scheduler-webhook", extender_url=deciding.url
    )
    cluster = KerfCluster(plane, deciding)
    try:
        cluster.add_nodes(gpu_node("node", gpus=4))
        opted_in = {"kerf.dev/inject": "enabled"}
        share = {"kerf.dev/gpu-share": "500"}
        stored = webhook.create("asking", "default", annotations=share, labels=opted_in)
        field = env_of(stored)[0]["valueFrom"]["fieldRef"]["fieldPath"]
        bound = cluster.bound("asking")
        key = field.removeprefix("metadata.annotations['").removesuffix("']")
        assert bound["metadata"]["annotations"][key] == "0"
        assert env_of(bound) == env_of(stored)
        cluster.delete_pod("asking")
        # A number of whole GPUs is the device plugin's to give.
        whole = webhook.create("whole", "default", annotations=TWO_GPUS, labels=opted_in)
        resources = whole["spec"]["containers"][0]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "2"
        assert assigned_gpus(cluster.bound("whole")) == [0, 1]
    finally:
        scheduler.stop()
        cluster.clean()
        deciding.stop()


def test_the_manifest_is_opt_in_and_stands_in_nobodys_way() -> None:
    shipped = documents()
    assert shipped.keys() == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Service",
        "Deployment",
        "MutatingWebhookConfiguration",
    }
    for entry in shipped["MutatingWebhookConfiguration"]["webhooks"]:
        assert entry["failurePolicy"] == "Ignore"
        assert entry["sideEffects"] == "None"
        assert entry["timeoutSeconds"] <= 2
        assert "enabled" in json.dumps([entry["namespaceSelector"], entry["objectSelector"]])
        assert entry["clientConfig"]["service"]["name"] == shipped["Service"]["metadata"]["name"]
    template = shipped["Deployment"]["spec"]["template"]
    assert shipped["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env.keys() >= {f"KERF_SERVER__TLS_{name}_FILE" for name in ("CERT", "KEY", "CLIENT_CA")}
    assert env["KERF_LEADER_ELECTION__MODE"] == "never"
    (rule,) = shipped["ClusterRole"]["rules"]
    assert (rule["resources"], rule["verbs"], env["KERF_WEBHOOK__ALONE"]) == (["nodes"], ["list", "watch"], "true")


def test_pods_are_created_while_kerf_is_down(webhook: Webhook) -> None:
    """The last of these tests: the webhook's Kerf is gone afterwards."""
    webhook.kerf.process.stop(grace_s=0)
    stored = webhook.create("meanwhile", annotations=TWO_GPUS)
    assert env_of(stored) == []
    webhook.delete(stored)
