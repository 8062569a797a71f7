"""Preemption on a real kube-scheduler: evictions free the very GPUs that a pod needs, or do not happen."""

import pytest

from tests.controlplane.objects import gpu_node, pod, steered
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

PRIORITIES = {"low": -10, "middle": 10, "high": 1000}


@pytest.fixture
def busy(cluster: KerfCluster) -> KerfCluster:
    """A cluster with priority classes, and no node yet."""
    cluster.plane.apply(
        *(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            for name, value in PRIORITIES.items()
        )
    )
    return cluster


def small_node(name: str, gpus: int) -> Manifest:
    """Cards of 16 GiB."""
    return gpu_node(name, gpus=gpus, product="Tesla-V100-SXM2-16GB", memory_mib=16384)


def large_node(name: str, gpus: int) -> Manifest:
    """Cards of 40 GiB, as their driver reports them."""
    return gpu_node(name, gpus=gpus, product="NVIDIA-A100-SXM4-40GB", memory_mib=40536)


def occupy(cluster: KerfCluster, node: str, **priorities: str) -> None:
    """Pods of one GPU on a node, through Kerf, each with its priority class. They end at once when evicted."""
    for name, priority in priorities.items():
        cluster.submit(
            name,
            gpus=1,
            nodeSelector=on(node),
            priorityClassName=priority,
            terminationGracePeriodSeconds=0,
        )
        assert cluster.node_of(name) == node


def on(node: str) -> dict[str, str]:
    """The node selector for one node."""
    return {"kubernetes.io/hostname": node}


def start(cluster: KerfCluster, since: str, *names: str) -> None:
    """What the kubelet reports when a pod starts."""
    for name in names:
        cluster.plane.request(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}/status",
            {"status": {"phase": "Running", "startTime": since}},
            "application/merge-patch+json",
        )


def wait_for_preference(cluster: KerfCluster, gpus: int, better: str, worse: str) -> None:
    """Wait until Kerf has heard of all that makes it prefer evictions on one node to those on another."""
    holders = [found for found in cluster.pods() if found["spec"].get("nodeName") in (better, worse)]
    victims = {
        node: {"Pods": [{"UID": holder["metadata"]["uid"]} for holder in holders if holder["spec"]["nodeName"] == node]}
        for node in (better, worse)
    }
    asking = pod("asking", gpus, priority=PRIORITIES["high"])
    body = {"Pod": asking, "NodeNameToMetaVictims": victims}
    wait_until(
        lambda: list(cluster.kerf.post("preempt", body)["NodeNameToMetaVictims"]) == [better],
        WITHIN_S,
        f"Kerf prefers {better} to {worse}",
    )


def left(cluster: KerfCluster) -> set[str]:
    """Names of the pods that there are and that are not leaving."""
    return {found["metadata"]["name"] for found in cluster.pods() if "deletionTimestamp" not in found["metadata"]}


def preemptions(cluster: KerfCluster) -> int:
    """How often kube-scheduler has asked Kerf about evictions."""
    lines = cluster.kerf.get("/metrics").splitlines()
    found = [line for line in lines if line.startswith('kerf_request_seconds_count{verb="preempt"}')]
    return int(float(found[0].split()[-1])) if found else 0


def test_two_gpus_of_40_gib_are_not_freed_on_a_node_of_16_gib_cards(busy: KerfCluster) -> None:
    busy.add_nodes(small_node("small", 2), large_node("large", 4))
    occupy(busy, "small", s0="low", s1="low")
    occupy(busy, "large", m0="middle", h0="high", m1="middle", m2="middle")
    # By numbers alone the small node is the better one to evict on: its pods have the lowest priority.
    busy.submit("wants-40", gpus=2, priorityClassName="high", annotations={"kerf.dev/gpu-memory-each": "40Gi"})
    assert busy.node_of("wants-40") == "large"
    gone = {"m0", "m1", "m2"} - left(busy)
    assert len(gone) == 2, "no more are evicted than are needed"
    assert left(busy) >= {"s0", "s1", "h0", "wants-40"}


def test_nobody_is_evicted_where_no_eviction_helps(busy: KerfCluster) -> None:
    busy.add_nodes(small_node("small", 2))
    occupy(busy, "small", s0="low", s1="low")
    busy.submit("wants-40", gpus=1, priorityClassName="high", annotations={"kerf.dev/gpu-memory-each": "40Gi"})
    wait_until(lambda: preemptions(busy) > 0, WITHIN_S, "kube-scheduler asks about evictions")
    # The queue goes on, so what was to be evicted has been.
    busy.add_nodes(large_node("large", 1))
    assert busy.node_of("wants-40") == "large"
    assert left(busy) == {"s0", "s1", "wants-40"}


def test_the_least_work_is_lost(busy: KerfCluster) -> None:
    """kube-scheduler by itself would rather evict one pod than two."""
    busy.add_nodes(large_node("old", 2), large_node("young", 2))
    busy.submit("worker", gpus=2, nodeSelector=on("old"), priorityClassName="low", terminationGracePeriodSeconds=0)
    assert busy.node_of("worker") == "old"
    occupy(busy, "young", y0="low", y1="low")
    start(busy, "2026-01-01T00:00:00Z", "worker")
    start(busy, "2026-01-01T12:00:00Z", "y0", "y1")  # two GPUs as well, for half a day less
    wait_for_preference(busy, 2, better="young", worse="old")
    busy.submit("urgent", gpus=2, priorityClassName="high")
    assert busy.node_of("urgent") == "young"
    assert left(busy) == {"worker", "urgent"}


def test_disruption_budgets_count_before_the_work_lost(busy: KerfCluster) -> None:
    busy.add_nodes(large_node("guarded", 1), large_node("open", 1))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "precious", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "precious"}}},
    }
    busy.plane.apply(budget)  # early, so that kube-scheduler has heard of it when it counts
    busy.submit(
        "precious",
        gpus=1,
        nodeSelector=on("guarded"),
        labels={"app": "precious"},
        priorityClassName="low",
        terminationGracePeriodSeconds=0,
    )
    assert busy.node_of("precious") == "guarded"
    occupy(busy, "open", worker="low")
    start(busy, "2026-01-01T00:00:00Z", "worker")
    start(busy, "2026-01-01T12:00:00Z", "precious")
    wait_for_preference(busy, 1, better="guarded", worse="open")  # where budgets don't count
    try:
        busy.submit("urgent", gpus=1, priorityClassName="high")
        assert busy.node_of("urgent") == "open"
        assert left(busy) == {"precious", "urgent"}
    finally:
        busy.plane.request("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/precious")


def test_gpus_asked_by_annotation_alone_are_taken_from_nobody(busy: KerfCluster) -> None:
    """To kube-scheduler such a pod fits as it is: it finds no victim, whatever an extender answers."""
    busy.add_nodes(steered(large_node("large", 1)))
    occupy(busy, "large", l0="low")
    busy.submit("by-annotation", priorityClassName="high", annotations={"kerf.dev/gpu-count": "1"})
    busy.pending("by-annotation", "best here: 0 free")
    assert left(busy) == {"l0", "by-annotation"}
    busy.delete_pod("by-annotation")  # it would be woken for what the next one makes room for, and may be faster
    busy.submit("by-resource", gpus=1, priorityClassName="high")
    assert busy.node_of("by-resource") == "large"
    assert left(busy) == {"by-resource"}
