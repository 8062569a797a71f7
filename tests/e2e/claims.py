"""Device classes, slices, ResourceClaims and pods that name them, on the control plane of a test."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.controlplane.objects import pod
from tests.e2e.clusters import KerfCluster, Manifest

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
DRIVER = "gpu.nvidia.com"
MERGE_PATCH = "application/merge-patch+json"

_VERSION = "resource.k8s.io/v1"


@contextlib.contextmanager
def device_classes(cluster: KerfCluster, specs: Mapping[str, Manifest]) -> Iterator[KerfCluster]:
    """A cluster with device classes; pods, claims, slices and classes are gone afterwards."""
    for name, spec in specs.items():
        body = {"apiVersion": _VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
        cluster.plane.request("POST", f"{API}/deviceclasses", body)
    try:
        yield cluster
    finally:
        _clear(cluster)


def _clear(cluster: KerfCluster) -> None:
    for found in cluster.pods():
        cluster.delete_pod(found["metadata"]["name"])
    for claim in cluster.plane.request("GET", CLAIMS)["items"]:
        free(cluster, claim["metadata"]["name"])
    for kind in ("resourceslices", "deviceclasses"):
        cluster.plane.request("DELETE", f"{API}/{kind}")


def selecting(*expressions: str) -> Manifest:
    """Selectors in CEL, of a class or a request."""
    return {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}


def free(cluster: KerfCluster, name: str) -> None:
    """Delete a claim and what it has, as its controller does when its pod is gone."""
    cluster.plane.request("PATCH", f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}, MERGE_PATCH)
    cluster.plane.request("PATCH", f"{CLAIMS}/{name}/status", {"status": None}, MERGE_PATCH)
    cluster.plane.request("DELETE", f"{CLAIMS}/{name}")


def add_slice(cluster: KerfCluster, node: str, driver: str, devices: Sequence[Manifest], **spec: Any) -> None:
    """The only slice of a node's pool, unless `spec` says something else."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": _VERSION,
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{node}-"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices), **spec},
    }
    if not devices:
        del body["spec"]["devices"]  # type: ignore[attr-defined]
    cluster.plane.request("POST", f"{API}/resourceslices", body)


def make_claim(
    cluster: KerfCluster, name: str, device_class: str, *expressions: str, count: int = 1, request: str = "gpu"
) -> None:
    """A claim of so many devices of a class, under conditions in CEL."""
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    body = {
        "apiVersion": _VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": request, "exactly": exactly | selecting(*expressions)}]}},
    }
    cluster.plane.request("POST", CLAIMS, body)


def submit_naming(cluster: KerfCluster, name: str, claim: str, **options: Any) -> None:
    """A pod that names a claim."""
    manifest = pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}], **options)
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    cluster.create(manifest)
