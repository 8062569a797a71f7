"""One author, or a gang that can't run, stops nobody: on a real control plane, by what they write alone."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import GATED, gang, open_queue

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NUM_NAMESPACES = 300
"""More than `queue.max_open`."""


@pytest.fixture
def queue(clusters: Clusters) -> Iterator[KerfCluster]:
    """An empty cluster whose Kerf has its queue enabled, and keeps nodes soon."""
    cluster = open_queue(clusters, reserve_after_s=1.0)
    yield cluster
    for found in everywhere(cluster):
        metadata = found["metadata"]
        if metadata["namespace"] != "default":
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=0"
            cluster.plane.request("DELETE", path)


def everywhere(cluster: KerfCluster) -> list[dict[str, Any]]:
    """Pods of all namespaces."""
    items: list[dict[str, Any]] = cluster.plane.request("GET", "/api/v1/pods")["items"]
    return items


def namespaces(cluster: KerfCluster, *names: str) -> None:
    cluster.plane.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names))


def num_bound(cluster: KerfCluster, prefix: str) -> int:
    found = [one for one in everywhere(cluster) if one["metadata"]["namespace"].startswith(prefix)]
    return sum(bool(one["spec"].get("nodeName")) for one in found)


def test_a_pod_of_each_of_300_namespaces_is_bound(queue: KerfCluster) -> None:
    names = [f"team-{number}" for number in range(NUM_NAMESPACES)]
    namespaces(queue, *names)
    for name in names:
        queue.create(pod("waits", 1, namespace=name, **GATED))
    queue.add_nodes(*(gpu_node(f"n{number}", gpus=8) for number in range(40)))
    wait_until(lambda: num_bound(queue, "team-") == NUM_NAMESPACES, 6 * WITHIN_S, "a pod of each has its node")


def test_four_namespaces_of_pods_that_nobody_binds_stop_no_round(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("n0", gpus=8, allocatable={"pods": "1000"}))
    names = [f"evil-{number}" for number in range(4)]
    namespaces(queue, *names)
    for number in range(60):
        for name in names:
            queue.create(pod(f"p{number}", namespace=name, cpu="1m", scheduler_name="nobody", **GATED))
    for number in range(4):
        time.sleep(2.0)
        queue.submit(f"good-{number}", gpus=1, **GATED)
        queue.bound(f"good-{number}")


@pytest.mark.parametrize(
    ("size", "gpus", "cpu"),
    [pytest.param(5, 4, "1", id="too large for the cluster"), pytest.param(4, 1, "63", id="that waits for CPU")],
)
def test_a_gang_keeps_no_gpu_that_it_can_not_use(queue: KerfCluster, size: int, gpus: int, cpu: str) -> None:
    queue.add_nodes(*(gpu_node(f"n{number}", gpus=4, cpu="64") for number in range(4)))
    for number in range(4):
        queue.submit(f"runs-{number}", gpus=1, cpu="2", nodeSelector={"kubernetes.io/hostname": f"n{number}"})
        queue.bound(f"runs-{number}")
    for number in range(size):
        labels = {"genius/priority": "90"}
        queue.submit(f"g{number}", gpus=gpus, cpu=cpu, annotations=gang("g", size), labels=labels, **GATED)
    time.sleep(3.0)  # it has waited for long enough to have nodes kept
    for number in range(6):
        queue.submit(f"good-{number}", gpus=1, cpu="1", **GATED)
    for number in range(6):
        queue.bound(f"good-{number}")
