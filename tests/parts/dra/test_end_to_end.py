"""Devices of pools that Kerf owns: it chooses them for the ResourceClaims of waiting pods, kube-scheduler binds."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from model.workloads.nvidia import GPUS, resource_slices
from tests.controlplane import dra
from tests.controlplane.kerf import DRA_RBAC, QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.claims import API, CLAIMS, DRIVER, MERGE_PATCH, add_slice, device_classes, make_claim, submit_naming
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
    """An empty cluster whose kube-scheduler knows nothing of Kerf, and Kerf with the queue, which may allocate."""
    with device_classes(open_owner(clusters), ANY_DEVICE) as cluster:
        yield cluster


@pytest.fixture
def extended(clusters: Clusters) -> Iterator[KerfCluster]:
    """The same with a kube-scheduler that asks Kerf."""
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
    return [
        {
            "name": f"gpu-{minor}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{minor}"},
                "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        }
        for minor in range(count)
    ]


def submit(cluster: KerfCluster, name: str, count: int = 1, **options: Any) -> None:
    """A gated pod with a claim of its own."""
    make_claim(cluster, name, GPU_CLASS, count=count)
    submit_gated(cluster, name, name, **options)


def submit_gated(cluster: KerfCluster, name: str, claim: str, **options: Any) -> None:
    """A gated pod that names a claim."""
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
    """Pods that have a node."""
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


def test_a_gang_gets_all_its_devices_or_none(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(2))
    for number in range(2):
        submit(owner, f"g{number}", 2, annotations=gang("train", 2))
    skipped(owner, "g0", "its gang default/train does not fit as a whole")
    assert all(gated(owner, f"g{number}") for number in range(2))
    assert not given(owner)
    publish(owner, "b", gpus(2))
    assert {owner.node_of(f"g{number}") for number in range(2)} == {"a", "b"}


def test_a_claim_of_two_pods_is_allocated_once_and_both_go_where_it_is(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(1))
    publish(owner, "b", gpus(1))
    submit(owner, "first")
    submit_gated(owner, "second", "first")
    assert owner.node_of("first") == owner.node_of("second")
    assert len(given(owner)) == 1


def test_the_devices_of_a_claim_whose_pod_is_deleted_are_free_again(owner: KerfCluster, clusters: Clusters) -> None:
    publish(owner, "a", gpus(1))
    with clusters.without_scheduler():
        submit(owner, "p")
        wait_until(lambda: len(given(owner)) == 1, WITHIN_S, "it is allocated")
        owner.delete_pod("p")
        wait_until(lambda: not given(owner), 4 * WITHIN_S, "it is freed")
    submit(owner, "q")
    assert owner.node_of("q") == "a"


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


def test_a_claim_that_comes_later_than_its_pod(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(1))
    submit_gated(owner, "p", "p-gpu")
    skipped(owner, "p", "waits for its ResourceClaim p-gpu")
    make_claim(owner, "p-gpu", GPU_CLASS)
    assert owner.node_of("p") == "a"


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
    half = {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "20Gi"}}}]}
    whole = {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]}
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    owner.add_nodes(cpu_node("a"))
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    add_slice(owner, "a", DRIVER, [], pool=pool, sharedCounters=counters)
    devices = [{"name": "gpu-0", **whole}, {"name": "half-0", **half}, {"name": "half-1", **half}]
    owned = [{**device, "taints": [OWNED]} for device in devices]
    add_slice(owner, "a", DRIVER, owned, pool=pool)
    for number in range(2):
        submit(owner, f"g{number}", annotations=gang("train", 2))
    wait_until(lambda: len(bound(owner)) == 2, 4 * WITHIN_S, "both are bound")
    assert given(owner) == [("a", "half-0"), ("a", "half-1")]


def publish_partitioned(cluster: KerfCluster, node: str, num_gpus: int) -> None:
    """A node of A100s whose driver publishes all their MIG partitions, owned by Kerf."""
    cluster.add_nodes(cpu_node(node))
    for item in resource_slices(GPUS["a100-40gb"], num_gpus, node):
        for device in item["spec"].get("devices", ()):
            device["taints"] = [OWNED]
        cluster.plane.request("POST", f"{API}/resourceslices", item)


def submit_partition(cluster: KerfCluster, name: str, profile: str) -> None:
    """A gated pod that asks a MIG partition by its profile."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '{profile}'"
    make_claim(cluster, name, GPU_CLASS, expression, request="mig")
    submit_gated(cluster, name, name)


def test_partitions_go_where_they_leave_most_room(owner: KerfCluster) -> None:
    """First fit would take the first slice for the smallest, and have room for no half of the GPU that begins there."""
    publish_partitioned(owner, "a", 1)
    submit_partition(owner, "small", "1g.5gb")
    assert owner.node_of("small") == "a"
    submit_partition(owner, "four", "4g.20gb")
    assert owner.node_of("four") == "a"
    submit_partition(owner, "two", "2g.10gb")
    assert owner.node_of("two") == "a"
    assert given(owner) == [
        ("a", "gpu-0-mig-1g5gb-19-6"),
        ("a", "gpu-0-mig-2g10gb-14-4"),
        ("a", "gpu-0-mig-4g20gb-5-0"),
    ]
    submit_partition(owner, "more", "2g.10gb")
    skipped(owner, "more", "request mig")
