"""Devices of pools that Kerf owns: it chooses them for the ResourceClaims of waiting pods, kube-scheduler binds."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import dra
from tests.controlplane.kerf import DRA_RBAC, QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.claims import CLAIMS, DRIVER, MERGE_PATCH, add_slice, device_classes, make_claim, submit_naming
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.test_direct import PLAIN
from tests.e2e.test_queueing import GATED, gang, gated, skipped

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, dra.TAINTS]

OWNED = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}
GPU_CLASS = "gpu.example.com"
ANY_DEVICE: dict[str, Manifest] = {GPU_CLASS: {}}
IS_NIC = "device.driver == 'nic.example.com'"


@pytest.fixture
def owner(clusters: Clusters) -> Iterator[KerfCluster]:
    """An empty cluster whose kube-scheduler does not call Kerf, and Kerf with the queue, which may allocate."""
    with device_classes(open_owner(clusters), ANY_DEVICE) as cluster:
        yield cluster


@pytest.fixture
def extended(clusters: Clusters) -> Iterator[KerfCluster]:
    """The same with a kube-scheduler that calls Kerf."""
    opened = open_owner(clusters, SCHEDULER_CONFIG / "decisive.yaml", **{"queue.extender": True})
    with device_classes(opened, ANY_DEVICE) as cluster:
        yield cluster


def open_owner(clusters: Clusters, config: Path | None = None, **options: Any) -> KerfCluster:
    """Kerf with the queue, which may allocate; `config` is kube-scheduler's, its default where there is none."""
    settings = {"queue.enabled": True, "queue.extender": False, "dra.allocate": True, **options}
    clusters.plane.apply(QUEUE_RBAC)
    clusters.plane.apply(DRA_RBAC)
    plain = clusters.plane.directory / "plain-scheduler.yaml"
    plain.write_text(PLAIN)
    return clusters.open(config or plain, *(f"--set={name}={json.dumps(value)}" for name, value in settings.items()))


def publish(cluster: KerfCluster, node: str, devices: Sequence[Manifest], **spec: Any) -> None:
    """A node without a device plugin, and what its driver publishes of it: all of it owned by Kerf."""
    cluster.add_nodes(cpu_node(node))
    owned = [{**device, "taints": [OWNED]} for device in devices]
    add_slice(cluster, node, DRIVER, owned, **spec)


def gpus(count: int) -> list[Manifest]:
    """Whole GPUs as NVIDIA's driver publishes them."""
    model = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA A100-SXM4-40GB"}}
    memory = {"capacity": {"memory": {"value": "40Gi"}}}
    return [
        {"name": f"gpu-{minor}", "attributes": model | {"uuid": {"string": f"GPU-{minor}"}}, **memory}
        for minor in range(count)
    ]


def submit(cluster: KerfCluster, name: str, count: int = 1, **options: Any) -> None:
    """A gated pod with a claim of its own."""
    make_claim(cluster, name, GPU_CLASS, count=count)
    submit_gated(cluster, name, name, **options)


def submit_gated(cluster: KerfCluster, name: str, claim: str, **options: Any) -> None:
    submit_naming(cluster, name, claim, **options, **GATED)


def given(cluster: KerfCluster) -> list[tuple[str, str]]:
    """Pools and devices of all claims."""
    claims = cluster.plane.request("GET", CLAIMS)["items"]
    return sorted(
        (result["pool"], result["device"])
        for claim in claims
        if "allocation" in claim.get("status", {})
        for result in claim["status"]["allocation"]["devices"]["results"]
    )


def bound(cluster: KerfCluster) -> list[Manifest]:
    return [found for found in cluster.pods() if found["spec"].get("nodeName")]


def test_kube_scheduler_binds_a_pod_with_the_devices_that_kerf_chose(owner: KerfCluster) -> None:
    publish(owner, "eight", gpus(8))
    publish(owner, "two", gpus(2))
    submit(owner, "one")
    assert owner.node_of("one") == "two"
    assert len(given(owner)) == 1
    submit(owner, "four", 4)
    assert owner.node_of("four") == "eight"
    submit(owner, "waits", 5)
    skipped(owner, "waits", "needs 5 devices by ResourceClaim")


def test_many_pods_at_once_all_get_a_device_of_their_own(owner: KerfCluster) -> None:
    for number in range(4):
        publish(owner, f"n{number}", gpus(8))
    for number in range(36):
        submit(owner, f"p{number:02}")
    wait_until(lambda: len(given(owner)) == 32, 4 * WITHIN_S, "32 claims are allocated")
    assert len(set(given(owner))) == 32
    wait_until(lambda: len(bound(owner)) == 32, 4 * WITHIN_S, "their pods are bound")
    assert owner.kerf.metric("kerf_queue_waiting") == 4


def test_a_claim_of_two_pods_is_allocated_once_and_both_go_where_it_is(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(1))
    publish(owner, "b", gpus(1))
    submit(owner, "first")
    submit_gated(owner, "second", "first")
    assert owner.node_of("first") == owner.node_of("second")
    assert len(given(owner)) == 1


def test_a_node_that_is_cordoned_while_the_pod_is_on_its_way_costs_another_plan(
    owner: KerfCluster, clusters: Clusters
) -> None:
    publish(owner, "a", gpus(1))
    publish(owner, "b", gpus(2))
    with clusters.without_scheduler():
        submit(owner, "p")
        wait_until(lambda: not gated(owner, "p"), WITHIN_S, "its gate is open")
        owner.plane.request("PATCH", "/api/v1/nodes/a", {"spec": {"unschedulable": True}}, MERGE_PATCH)
    assert owner.node_of("p") == "b"
    assert [pool for pool, _ in given(owner)] == ["b"]


def test_pools_of_others_are_left_to_kube_scheduler(owner: KerfCluster) -> None:
    publish(owner, "kerfs", gpus(1))
    owner.add_nodes(cpu_node("others"))
    add_slice(owner, "others", "nic.example.com", [{"name": "nic-0"}])
    make_claim(owner, "nic", GPU_CLASS, IS_NIC, request="nic")
    submit_gated(owner, "p", "nic")
    assert owner.node_of("p") == "others"
    assert owner.pod("p")["metadata"]["annotations"]["kerf.dev/planned-by"].startswith("kube-scheduler allocates")


def test_a_kube_scheduler_that_asks_kerf_binds_pods_likewise(extended: KerfCluster) -> None:
    publish(extended, "a", gpus(2))
    publish(extended, "b", gpus(2))
    for number in range(4):
        submit(extended, f"p{number}")
    wait_until(lambda: len(bound(extended)) == 4, 4 * WITHIN_S, "all are bound")
    assert len(set(given(extended))) == 4
    for found in bound(extended):
        allocation = extended.plane.request("GET", f"{CLAIMS}/{found['metadata']['name']}")["status"]["allocation"]
        assert allocation["devices"]["results"][0]["pool"] == found["spec"]["nodeName"]


def test_two_halves_of_one_gpu_are_a_gang(owner: KerfCluster) -> None:
    """k/k #138765: kube-scheduler's own allocation fails though both fit."""

    def consuming(memory: str) -> Manifest:
        return {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]}

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    halves = [{"name": f"half-{number}", **consuming("20Gi")} for number in range(2)]
    publish(owner, "a", [{"name": "gpu-0", **consuming("40Gi")}, *halves], pool=pool)
    add_slice(owner, "a", DRIVER, [], pool=pool, sharedCounters=counters)
    for number in range(2):
        submit(owner, f"g{number}", annotations=gang("train", 2))
    wait_until(lambda: len(bound(owner)) == 2, 4 * WITHIN_S, "both are bound")
    assert given(owner) == [("a", "half-0"), ("a", "half-1")]
