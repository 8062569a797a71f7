"""Objects as deep and as large as the real API server takes them: they cost nobody anything."""

import json
from collections.abc import Iterator

import pytest

from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
OPAQUE = (
    '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"NAME","namespace":"default"},'
    '"spec":{"devices":{"requests":[{"name":"gpu","exactly":{"deviceClassName":"none","allocationMode":"All"}}],'
    '"config":[{"opaque":{"driver":"any.example","parameters":PARAMETERS}}]}}}'
)


def nested(levels: int) -> str:
    return '{"f:a":' * levels + "{}" + "}" * levels


def create_claim(cluster: KerfCluster, name: str, parameters: str) -> None:
    content = OPAQUE.replace("NAME", name).replace("PARAMETERS", parameters)
    cluster.plane.request("POST", CLAIMS, content.encode())


def create_pod(cluster: KerfCluster, name: str, levels: int, gpus: int) -> None:
    """A pod whose author writes its managedFields himself."""
    managed = {"manager": "me", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "HERE"}
    manifest = pod(name, gpus)
    manifest["metadata"]["managedFields"] = [managed]
    content = json.dumps(manifest).replace('"HERE"', '{"f:metadata":' + nested(levels) + "}")
    stored = cluster.plane.request("POST", PODS, content.encode())
    assert stored["metadata"]["managedFields"][0]["fieldsV1"] != {}, "the API server keeps them"


@pytest.fixture
def cluster_of_two(cluster: KerfCluster) -> Iterator[KerfCluster]:
    """Two nodes with two GPUs each."""
    cluster.add_nodes(gpu_node("a", gpus=2), gpu_node("b", gpus=2))
    yield cluster
    for found in cluster.plane.request("GET", CLAIMS)["items"]:
        cluster.plane.request("DELETE", f"{CLAIMS}/{found['metadata']['name']}")


def test_claims_with_deep_parameters_stop_nobody(cluster_of_two: KerfCluster) -> None:
    cluster = cluster_of_two
    create_claim(cluster, "deep", nested(1_100))
    create_claim(cluster, "large", '{"a":"%s"}' % ("x" * 9_000))
    cluster.submit("one", gpus=1)
    assert cluster.node_of("one") in "ab"
    assert cluster.kerf.get("/readyz") == {"status": "ok"}


def test_the_largest_pods_are_placed_like_any_others(cluster_of_two: KerfCluster) -> None:
    cluster = cluster_of_two
    manifest = pod("large", 2)
    manifest["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": "x" * 1_000} for n in range(1_300)]
    cluster.create(manifest)
    assert cluster.node_of("large") in "ab"
    cluster.submit("next", gpus=2)
    assert {cluster.node_of("large"), cluster.node_of("next")} == {"a", "b"}


@pytest.mark.parametrize("levels", [1_100, 9_000])
def test_a_pod_with_deep_managed_fields_is_placed_and_holds_its_gpus(cluster_of_two: KerfCluster, levels: int) -> None:
    cluster = cluster_of_two
    create_pod(cluster, "deep", levels, gpus=2)
    node = cluster.node_of("deep")
    cluster.submit("next", gpus=2)
    assert {node, cluster.node_of("next")} == {"a", "b"}
    cluster.submit("last", labels={"genius/gpu-number": "1"})
    cluster.pending("last", "needs 1 GPU")
    assert cluster.kerf.get("/readyz") == {"status": "ok"}
    cluster.delete_pod("deep")
    assert cluster.node_of("last") == node
    wait_until(lambda: cluster.kerf.metric("kerf_task_deaths_total") == 0, WITHIN_S, "nothing has died")
