"""Gangs that kube-scheduler preempts a pod of, on a real API server under the admission policy that is shipped."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster
from tests.e2e.fixtures import Clusters
from tests.e2e.kubelets import Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 40.0
PRIORITIES = {"gang-low": -10, "gang-high": 1000}
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[KerfCluster]:
    """Kerf with its queue as it is by default; pods with a node run until they are deleted."""
    clusters.plane.apply(QUEUE_RBAC)
    for name, value in PRIORITIES.items():
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        clusters.plane.apply({**kind, "metadata": {"name": name}, "value": value})
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--set=queue.enabled=true")
    with Kubelet(clusters.plane):
        yield cluster
    clusters.clean()  # what the kubelet would delete at the same time


def start_gang(cluster: KerfCluster, size: int, **options: Any) -> None:
    """Pods m0, m1 and m2 on nodes n0, n1 and n2; so many of them are needed."""
    cluster.add_nodes(*(gpu_node(f"n{number}", gpus=1) for number in range(3)))
    for number in range(3):
        cluster.submit(
            f"m{number}",
            gpus=1,
            annotations={"kerf.dev/gang": "train", "kerf.dev/gang-size": str(size)},
            nodeSelector={"kubernetes.io/hostname": f"n{number}"},
            priorityClassName="gang-low",
            schedulingGates=[{"name": "kerf.dev/queue"}],
            **options,
        )
    for number in range(3):
        assert cluster.node_of(f"m{number}") == f"n{number}"
    wait_until(lambda: running(cluster) == {"m0", "m1", "m2"}, WITHIN_S, "the gang runs")


def running(cluster: KerfCluster) -> set[str]:
    """Names of the pods that run and are not leaving."""
    return {
        pod["metadata"]["name"]
        for pod in cluster.pods()
        if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
    }


def preempt(cluster: KerfCluster) -> None:
    """A pod of a higher priority that only n0 may have."""
    on_n0 = {"kubernetes.io/hostname": "n0"}
    cluster.submit("urgent", gpus=1, priorityClassName="gang-high", nodeSelector=on_n0)


def events_of(cluster: KerfCluster, name: str) -> list[str]:
    events = cluster.plane.request("GET", "/api/v1/namespaces/default/events")["items"]
    told = [event for event in events if event["reason"] == "GangPreempted"]
    return [event["message"] for event in told if event["involvedObject"]["name"] == name]


@pytest.mark.parametrize("grace_s", [30, 0])
def test_a_gang_that_loses_a_pod_it_needs_ends_as_a_whole(cluster: KerfCluster, grace_s: int) -> None:
    start_gang(cluster, size=3, terminationGracePeriodSeconds=grace_s)
    preempt(cluster)
    assert cluster.node_of("urgent") == "n0"
    wait_until(lambda: running(cluster) == {"urgent"}, WITHIN_S, "the others of the gang have ended")
    assert cluster.kerf.metric("kerf_queue_evicted_total") >= 2
    why = "m0 was preempted on n0, and gang default/train can't go on without it: 2 of its pods are left"
    wait_until(
        lambda: all(why in events_of(cluster, name) for name in ("m1", "m2")),
        WITHIN_S,
        "both say why",
    )


def test_an_elastic_gang_goes_on_with_its_least_number(cluster: KerfCluster) -> None:
    start_gang(cluster, size=2)
    preempt(cluster)
    assert cluster.node_of("urgent") == "n0"
    wait_until(lambda: running(cluster) == {"m1", "m2", "urgent"}, WITHIN_S, "the urgent pod runs")
    cluster.submit("later", gpus=1, nodeSelector={"kubernetes.io/hostname": "n0"})
    cluster.pending("later")  # Kerf has gone on meanwhile
    assert running(cluster) == {"m1", "m2", "urgent"}


def test_a_leader_that_is_killed_between_two_evictions_leaves_the_rest_to_the_next(
    cluster: KerfCluster, clusters: Clusters
) -> None:
    """A budget that nobody has counted yet keeps m2, as long as it is there."""
    budget = {"metadata": {"name": "keeps"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"keep": "m2"}}}}
    cluster.plane.request("POST", BUDGETS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **budget})
    try:
        start_gang(cluster, size=3)
        labels = {"metadata": {"labels": {"keep": "m2"}}}
        cluster.plane.request("PATCH", "/api/v1/namespaces/default/pods/m2", labels, "application/merge-patch+json")
        preempt(cluster)
        wait_until(lambda: running(cluster) == {"m2", "urgent"}, WITHIN_S, "m1 has ended, and m2 is kept")
        assert "can't be ended yet" in cluster.event("m2", "GangPreempted")
        cluster.kerf.process.kill()
    finally:
        cluster.plane.request("DELETE", f"{BUDGETS}/keeps")
    wait_until(
        lambda: {pod["metadata"]["name"] for pod in cluster.pods()} == {"m2", "urgent"},
        WITHIN_S,
        "nothing but what Kerf has written tells of the others",
    )
    clusters.restart_kerf()
    wait_until(lambda: running(cluster) == {"urgent"}, WITHIN_S, "the next Kerf has ended m2")
