"""A node on which pods of several tenants fail within seconds gets no more of them, on a real control plane.

The test plays the kubelet: it writes what that would tell of its pods.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACES = ("tenant-a", "tenant-b", "tenant-c")
KEY = "kerf.dev/set-aside"
NODE = "/api/v1/nodes/black-hole"
MERGE = "application/merge-patch+json"
WHY = "quarantined: 9 pods failed here soon after starting"
ONLY_THERE = {"pool": "small"}


def pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


class Tenants:
    """Pods of several namespaces, and what becomes of them."""

    def __init__(self, cluster: KerfCluster) -> None:
        self.cluster = cluster
        self._num = 0

    def submit(self, namespace: str, **spec: Any) -> str:
        """A pod of one GPU; its path."""
        self._num += 1
        self.cluster.create(pod(f"p-{self._num}", 1, namespace=namespace, **spec))
        return f"{pods_in(namespace)}/p-{self._num}"

    def get(self, path: str) -> Manifest:
        found: Manifest = self.cluster.plane.request("GET", path)
        return found

    def node_of(self, path: str) -> str:
        """Where it is bound to."""
        return wait_until(lambda: str(self.get(path)["spec"].get("nodeName", "")), WITHIN_S, f"{path} is bound")

    def report(self, path: str, phase: str) -> None:
        """A pod runs, or failed two seconds after its start."""
        state: Manifest = {"running": {"startedAt": "2026-11-26T10:00:00Z"}}
        if phase == "Failed":
            times = {"startedAt": "2026-11-26T10:00:00Z", "finishedAt": "2026-11-26T10:00:02Z"}
            state = {"terminated": {"exitCode": 1, "reason": "Error", **times}}
        told = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": phase, "containerStatuses": [told]}
        self.cluster.plane.request("PATCH", f"{path}/status", {"status": status}, MERGE)

    def fail(self, namespace: str) -> None:
        """A pod starts where it is put, and fails; the black hole is where GPUs are left least."""
        path, before = self.submit(namespace), self.num_failed
        assert self.node_of(path) == "black-hole"
        self.report(path, "Running")
        self.report(path, "Failed")
        wait_until(lambda: self.num_failed == before + 1, WITHIN_S, "Kerf has seen how it ended")

    def pending(self, path: str) -> None:
        """It gets no node, and is told why."""

        def told() -> bool:
            conditions = self.get(path).get("status", {}).get("conditions", [])
            return any(WHY in condition.get("message", "") for condition in conditions)

        wait_until(told, WITHIN_S, f"{path} is told why it waits")

    @property
    def num_failed(self) -> float:
        return self.cluster.kerf.metric("kerf_early_failures_total")

    @property
    def num_aside(self) -> float:
        return self.cluster.kerf.metric("kerf_nodes_set_aside")

    @property
    def events(self) -> list[str]:
        """Reasons of the events about the node."""
        items = self.get("/api/v1/namespaces/default/events")["items"]
        return [item["reason"] for item in items if item["involvedObject"].get("name") == "black-hole"]

    @property
    def note(self) -> str:
        return str(self.get(NODE)["metadata"].get("annotations", {}).get(KEY, ""))


@pytest.fixture
def tenants(clusters: Clusters) -> Iterator[Tenants]:
    """A node of two GPUs, which pods get first, and one of eight."""
    arguments = "--set=set_aside.mode=act", "--set=decisions.policy=tightest"
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *arguments)
    cluster.plane.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES))
    cluster.add_nodes(gpu_node("black-hole", gpus=2, labels=ONLY_THERE), gpu_node("sound", gpus=8))
    found = Tenants(cluster)
    assert found.num_failed == 0
    yield found
    for namespace in NAMESPACES:
        for item in cluster.plane.request("GET", pods_in(namespace))["items"]:
            cluster.plane.request("DELETE", f"{pods_in(namespace)}/{item['metadata']['name']}?gracePeriodSeconds=0")
    clusters.close()  # what Kerf remembers of them is no other test's


def test_three_tenants_pods_fail_on_a_node_and_the_next_goes_elsewhere(tenants: Tenants, clusters: Clusters) -> None:
    a, b, c = NAMESPACES
    for namespace in (a, b) * 4:
        tenants.fail(namespace)
    assert (tenants.note, tenants.num_aside) == ("", 0), "two namespaces of a tenant are no weapon"
    tenants.fail(c)
    wait_until(lambda: tenants.num_aside == 1, WITHIN_S, "the node is quarantined")
    assert tenants.note.startswith('{"pods":9,"namespaces":3,')
    assert tenants.node_of(tenants.submit(a)) == "sound"
    wait_until(lambda: "SetAside" in tenants.events, WITHIN_S, "the node has its event")
    waits = tenants.submit(b, nodeSelector=ONLY_THERE)
    tenants.pending(waits)

    tenants.cluster.kerf.stop()
    clusters.restart_kerf()
    wait_until(lambda: tenants.num_aside == 1, WITHIN_S, "a restart forgets nothing")
    assert tenants.node_of(tenants.submit(c)) == "sound"
    assert not tenants.get(waits)["spec"].get("nodeName")

    tenants.cluster.plane.request("PATCH", NODE, {"metadata": {"annotations": {KEY: None}}}, MERGE)
    assert tenants.node_of(waits) == "black-hole"
    assert (tenants.num_aside, tenants.note) == (0, "")
