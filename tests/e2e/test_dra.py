"""Pods that ask for GPUs by ResourceClaims: kube-scheduler allocates the devices, Kerf says on which node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
DRIVER = "gpu.nvidia.com"
MERGE_PATCH = "application/merge-patch+json"
A100 = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')"


@pytest.fixture
def dra(cluster: KerfCluster) -> Iterator[KerfCluster]:
    """An empty cluster with the device class that NVIDIA's driver installs."""
    selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    cluster.plane.request(
        "POST",
        f"{API}/deviceclasses",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": selector}}]},
        },
    )
    yield cluster
    for found in cluster.pods():
        cluster.delete_pod(found["metadata"]["name"])
    for claim in cluster.plane.request("GET", CLAIMS)["items"]:
        free(cluster, claim["metadata"]["name"])
    for kind in ("resourceslices", "deviceclasses"):
        cluster.plane.request("DELETE", f"{API}/{kind}")


def free(cluster: KerfCluster, name: str) -> None:
    """Delete a claim and what it has, as its controller does when its pod is gone."""
    cluster.plane.request("PATCH", f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}, MERGE_PATCH)
    cluster.plane.request("PATCH", f"{CLAIMS}/{name}/status", {"status": None}, MERGE_PATCH)
    cluster.plane.request("DELETE", f"{CLAIMS}/{name}")


def add_driver_node(
    cluster: KerfCluster, name: str, gpus: int, product: str = "Tesla T4", memory: str = "15Gi"
) -> None:
    """A node without any device plugin, whose driver has published its GPUs; waits until Kerf knows them."""
    cluster.add_nodes(cpu_node(name))
    known = cluster.kerf.metric("kerf_gpus")
    devices = [
        {
            "name": f"gpu-{minor}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{name}-{minor}"},
                "productName": {"string": product},
                "driverVersion": {"version": "580.65.6"},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for minor in range(gpus)
    ]
    cluster.plane.request(
        "POST",
        f"{API}/resourceslices",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-gpus"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        },
    )
    wait_until(lambda: cluster.kerf.metric("kerf_gpus") == known + gpus, WITHIN_S, f"Kerf knows the GPUs of {name}")


def submit(cluster: KerfCluster, name: str, count: int, *expressions: str, **spec: Any) -> None:
    """A pod with a claim of its own."""
    exactly = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}} for expression in expressions],
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    cluster.plane.request("POST", CLAIMS, claim)
    manifest = pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}], **spec)
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    cluster.create(manifest)


def devices_of(cluster: KerfCluster, name: str) -> list[str]:
    """What kube-scheduler has allocated to a claim."""
    claim: Manifest = cluster.plane.request("GET", f"{CLAIMS}/{name}")
    return [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]]


def test_pods_with_claims_are_packed(dra: KerfCluster) -> None:
    add_driver_node(dra, "eight", 8)
    add_driver_node(dra, "two", 2)
    for name, count, node in (("four", 4, "eight"), ("one", 1, "two")):
        submit(dra, name, count, nodeSelector={"kubernetes.io/hostname": node})
        assert dra.node_of(name) == node
        assert len(devices_of(dra, name)) == count
    submit(dra, "next", 1)
    assert dra.node_of("next") == "two"  # leaves 0 of 2, against 3 of 8
    submit(dra, "last", 2)
    assert dra.node_of("last") == "eight"
    submit(dra, "waiting", 3)
    dra.pending("waiting", "cannot allocate all claims")
    dra.delete_pod("four")
    free(dra, "four")
    assert dra.node_of("waiting") == "eight"


def test_conditions_of_claims_are_ranked_by(dra: KerfCluster) -> None:
    add_driver_node(dra, "large", 4, product="NVIDIA A100-SXM4-40GB", memory="40Gi")
    add_driver_node(dra, "small", 4)
    submit(dra, "any", 1)
    assert dra.node_of("any") == "small"  # the smaller GPUs, for those who do not need larger ones
    submit(dra, "a100", 1, A100)
    assert dra.node_of("a100") == "large"
    submit(dra, "memory", 1, f"device.capacity['{DRIVER}'].memory.compareTo(quantity('20Gi')) >= 0")
    assert dra.node_of("memory") == "large"


def test_claims_and_device_plugins_live_side_by_side(dra: KerfCluster) -> None:
    add_driver_node(dra, "claimed", 1)
    dra.add_nodes(gpu_node("plugin", gpus=1))
    submit(dra, "by-claim", 1)
    assert dra.node_of("by-claim") == "claimed"
    dra.submit("by-resource", gpus=1)
    assert dra.node_of("by-resource") == "plugin"
    dra.submit("by-label", labels={"genius/gpu-number": "1"})
    dra.pending("by-label", "needs 1 GPU")
