"""Pods that ask by an extended resource: the webhook makes them ask by a claim, Kerf creates and allocates it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import dra
from tests.controlplane.objects import pod
from tests.controlplane.processes import wait_until
from tests.e2e.claims import CLAIMS, device_classes
from tests.e2e.clusters import WITHIN_S, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.webhooks import gating
from tests.parts.dra.test_end_to_end import GPU_CLASS, given, gpus, open_owner, publish

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, dra.TAINTS]

RESOURCE = "example.com/gpu"
CLASSES = {RESOURCE: GPU_CLASS}


def asking(name: str, count: int) -> Manifest:
    manifest = pod(name, labels={"kerf.dev/queue": "enabled"})
    manifest["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: str(count)}
    return manifest


def test_a_request_by_extended_resource_gets_devices_that_kerf_chose(clusters: Clusters, tmp_path: Path) -> None:
    setting: dict[str, Any] = {"dra.rewrite_extended_resources": CLASSES}
    cluster = open_owner(clusters, **setting)
    plane = cluster.plane
    plane.grant("kerf", {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create"]})
    with device_classes(cluster, {GPU_CLASS: {"extendedResourceName": RESOURCE}}):
        publish(cluster, "eight", gpus(8))
        publish(cluster, "two", gpus(2))
        with gating(plane, tmp_path, "--set", f"dra.rewrite_extended_resources={json.dumps(CLASSES)}"):
            for name, count, node in (("one", 1, "two"), ("four", 4, "eight")):
                cluster.create(asking(name, count))
                assert cluster.node_of(name) == node
            cluster.create(asking("waits", 9))
        assert len(given(cluster)) == 5
        claims = {item["metadata"]["name"]: item for item in plane.request("GET", CLAIMS)["items"]}
        for found in cluster.pods():
            (entry,) = found["spec"]["resourceClaims"]
            owner = claims[entry["resourceClaimName"]]["metadata"]["ownerReferences"][0]
            assert owner["uid"] == found["metadata"]["uid"]
            assert RESOURCE not in found["spec"]["containers"][0]["resources"].get("limits", {})

        def told() -> bool:
            annotations = plane.request("GET", "/api/v1/namespaces/default/pods/waits")["metadata"]["annotations"]
            return "needs 9 devices" in annotations.get("kerf.dev/skipped", "")

        wait_until(told, WITHIN_S, "why it waits is said")
