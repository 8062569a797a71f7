"""Planned without an extender, on a real control plane whose kube-scheduler has its default configuration."""

import json
from typing import Any

import pytest

from extender.plugins.nvidia.gpushare import _COUNT_RESOURCE, INDEX, MEMORY_RESOURCE
from tests.controlplane.kerf import QUEUE_RBAC
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import GATED, annotation, gang, gated, skipped

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.usefixtures("judged")]

PLAIN = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def queue(clusters: Clusters) -> KerfCluster:
    """An empty cluster with the queue, and a kube-scheduler that knows nothing of Kerf."""
    return open_queue(clusters)


def open_queue(clusters: Clusters, **options: Any) -> KerfCluster:
    options = {"enabled": True, "extender": False, "reserve_after_s": 3600, **options}
    clusters.plane.apply(QUEUE_RBAC)
    config = clusters.plane.directory / "plain-scheduler.yaml"
    config.write_text(PLAIN)
    return clusters.open(config, *(f"--set=queue.{name}={json.dumps(value)}" for name, value in options.items()))


def let_go(cluster: KerfCluster, name: str) -> Manifest:
    """Wait until a pod's gate is open, and return it."""
    wait_until(lambda: not gated(cluster, name), WITHIN_S, f"the gate of {name} is open")
    return cluster.pod(name)


def held(cluster: KerfCluster) -> list[tuple[str, int]]:
    """GPUs of all pods with a node, as they say."""
    bound = [found for found in cluster.pods() if found["spec"].get("nodeName")]
    return sorted((found["spec"]["nodeName"], gpu) for found in bound for gpu in assigned_gpus(found))


def test_kube_scheduler_binds_a_pod_with_what_was_written_on_it(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("large", gpus=8), gpu_node("small", gpus=2))
    queue.submit("waits", gpus=1, **GATED)
    found = queue.bound("waits")
    assert found["spec"]["nodeName"] == annotation(found, "planned-node") == annotation(found, "assigned-node")
    assert found["spec"]["nodeName"] == "small"
    assert len(assigned_gpus(found)) == 1
    assert "node small" in queue.event("waits", "GPUsAssigned")
    wait_until(lambda: queue.kerf.metric("kerf_queue_honoured_total") >= 1, WITHIN_S, "the nomination is counted")
    assert not queue.events("waits", "FailedScheduling")
    assert queue.kerf.metric("kerf_queue_fallbacks_total") == 0


def test_many_pods_at_once_all_get_their_gpus_once(queue: KerfCluster) -> None:
    queue.add_nodes(*(gpu_node(f"n{number:02}", gpus=8) for number in range(8)))
    for number in range(70):
        queue.submit(f"p{number:02}", gpus=1, **GATED)
    wait_until(lambda: len(held(queue)) == 64, 4 * WITHIN_S, "64 pods are bound")
    assert len(set(held(queue))) == 64  # no GPU twice, and every GPU once
    assert queue.kerf.metric("kerf_queue_waiting") == 6


def test_a_gang_starts_whole_or_not_at_all(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=4), gpu_node("b", gpus=4))
    for number in range(3):
        queue.submit(f"g{number}", gpus=4, annotations=gang("train", 3), **GATED)
    skipped(queue, "g0", "its gang default/train does not fit as a whole")
    assert all(gated(queue, f"g{number}") for number in range(3))
    queue.add_nodes(gpu_node("c", gpus=8))
    assert len({queue.node_of(f"g{number}") for number in range(3)}) in (2, 3)
    assert len(set(held(queue))) == 12


def test_a_pod_whose_node_goes_is_bound_elsewhere_and_says_so(clusters: Clusters, queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=1), gpu_node("b", gpus=4))
    before = queue.kerf.metric("kerf_queue_fallbacks_total")
    with clusters.without_scheduler():
        queue.submit("p", gpus=1, **GATED)
        assert let_go(queue, "p")["status"]["nominatedNodeName"] == "a"
        queue.remove_node("a")
    assert queue.node_of("p") == "b"
    wait_until(lambda: not annotation(queue.pod("p"), "assigned-gpus"), WITHIN_S, "what was written is taken back")
    assert annotation(queue.pod("p"), "nomination-lost") == "a: bound to b, by kube-scheduler"
    wait_until(lambda: queue.kerf.metric("kerf_queue_fallbacks_total") == before + 1, WITHIN_S, "it is counted")
    assert "chooses its GPUs" in queue.event("p", "GPUsReassigned")


def test_a_pod_that_asks_for_a_model_finds_no_other_one_where_its_node_goes(
    clusters: Clusters, queue: KerfCluster
) -> None:
    queue.add_nodes(gpu_node("a", gpus=1), gpu_node("old", gpus=4, product="Tesla-V100-SXM2-16GB", memory_mib=16384))
    with clusters.without_scheduler():
        queue.submit("p", gpus=1, annotations={"kerf.dev/gpu-model": "a100"}, **GATED)
        assert let_go(queue, "p")["status"]["nominatedNodeName"] == "a"
        queue.remove_node("a")
    queue.pending("p", "didn't match Pod's node affinity")
    queue.add_nodes(gpu_node("c", gpus=1))
    found = queue.bound("p")
    assert found["spec"]["nodeName"] == "c"


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_pod_whose_gpus_another_one_takes_keeps_its_turn_and_is_nominated_anew(
    clusters: Clusters, queue: KerfCluster, restarted: bool
) -> None:
    queue.add_nodes(gpu_node("a", gpus=1))
    with clusters.without_scheduler():
        queue.submit("p", gpus=1, **GATED)
        assert annotation(let_go(queue, "p"), "assigned-gpus") == "0"
        queue.submit("thief", gpus=1, nodeName="a")  # past the queue, and past kube-scheduler
        if restarted:
            queue.kerf.process.kill()
            clusters.restart_kerf()
    queue.pending("p", "nodes are available")
    wait_until(lambda: not annotation(queue.pod("p"), "assigned-gpus"), WITHIN_S, "what was written is taken back")
    assert queue.kerf.metric("kerf_gpu_units_free") == 0
    queue.submit("next", gpus=1, **GATED)
    skipped(queue, "next", "needs 1 GPU")
    queue.set_phase("thief", "Succeeded")
    found = queue.bound("p")
    assert found["spec"]["nodeName"] == "a"
    assert gated(queue, "next")


def test_a_restart_knows_what_was_written_on_pods_without_a_node(clusters: Clusters, queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=4))
    with clusters.without_scheduler():
        for number in range(3):
            queue.submit(f"p{number}", gpus=1, **GATED)
            let_go(queue, f"p{number}")
        queue.kerf.process.kill()
        clusters.restart_kerf()
        queue.submit("next", gpus=1, **GATED)
        let_go(queue, "next")
        queue.submit("none", gpus=1, **GATED)
        skipped(queue, "none", "needs 1 GPU")
    for name in ("p0", "p1", "p2", "next"):
        queue.bound(name)
    assert held(queue) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]


def test_no_reservation_of_a_pod_without_a_node_ends_by_time(clusters: Clusters) -> None:
    queue = open_queue(clusters, skip_s=7200)  # else the Kerf of the other tests is used again
    queue.kerf.stop()
    clusters.restart_kerf("--set=decisions.reservation_ttl_s=1")
    queue.add_nodes(gpu_node("a", gpus=1))
    with clusters.without_scheduler():
        queue.submit("p", gpus=1, **GATED)
        let_go(queue, "p")
        queue.submit("next", gpus=1, **GATED)
        assert "0 free" in skipped(queue, "next", "needs 1 GPU")
        with pytest.raises(TimeoutError):
            wait_until(lambda: not gated(queue, "next"), 3.0, "the gate of next is open")
    assert queue.node_of("p") == "a"
    queue.delete_pod("p")
    assert queue.node_of("next") == "a"


def test_a_pod_deleted_before_it_has_a_node_leaks_nothing(clusters: Clusters, queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=1))
    with clusters.without_scheduler():
        queue.submit("p", gpus=1, **GATED)
        let_go(queue, "p")
        queue.delete_pod("p")
        queue.submit("next", gpus=1, **GATED)
        let_go(queue, "next")
    assert queue.node_of("next") == "a"
    wait_until(lambda: queue.kerf.metric("kerf_gpu_units_free") == 0, WITHIN_S, "it holds the GPU")


def gpushare_node(name: str, gpus: int, gib: int = 16) -> Manifest:
    """A node of gpushare's plugin, of which kube-scheduler counts the memory of all GPUs together."""
    return cpu_node(name, allocatable={_COUNT_RESOURCE: str(gpus), MEMORY_RESOURCE: str(gpus * gib)})


def submit_gpushare(queue: KerfCluster, name: str, gib: int) -> None:
    """A pod behind the gate that asks for so much of one GPU."""
    manifest = pod(name, **GATED)
    manifest["spec"]["containers"][0]["resources"]["limits"] = {MEMORY_RESOURCE: str(gib)}
    queue.create(manifest)


def indices(found: Manifest) -> tuple[str, str, str]:
    """The index that gpushare's plugin goes by, and the node and index that Kerf has written."""
    return (
        found["metadata"]["annotations"].get(INDEX, ""),
        annotation(found, "assigned-node"),
        annotation(found, "assigned-gpus"),
    )


def test_a_part_of_a_gpu_is_written_anew_where_kube_scheduler_places_its_pod_elsewhere(
    clusters: Clusters, queue: KerfCluster
) -> None:
    queue.add_nodes(gpushare_node("b", gpus=2))
    submit_gpushare(queue, "first", 12)
    assert indices(queue.bound("first")) == ("0", "b", "0")
    queue.add_nodes(gpushare_node("a", gpus=1, gib=9))
    before = queue.kerf.metric("kerf_queue_reassigned_total")
    with clusters.without_scheduler():
        submit_gpushare(queue, "p", 8)
        assert indices(let_go(queue, "p")) == ("0", "a", "0")
        queue.remove_node("a")
    assert queue.node_of("p") == "b"
    wait_until(lambda: indices(queue.pod("p")) == ("1", "b", "1"), WITHIN_S, "a GPU with room is written")
    assert annotation(queue.pod("p"), "nomination-lost") == "a: bound to b, by kube-scheduler"
    assert "node b" in queue.event("p", "GPUsReassigned")
    assert queue.kerf.metric("kerf_queue_reassigned_total") == before + 1


def test_a_part_that_fits_no_single_gpu_where_its_pod_went_is_written_nowhere_and_counted(
    clusters: Clusters, queue: KerfCluster
) -> None:
    """kube-scheduler knows the memory of all GPUs of a node together: 2 GPUs have 4 GiB left each, which is 8."""
    queue.add_nodes(gpushare_node("b", gpus=2))
    for name in ("first", "second"):
        submit_gpushare(queue, name, 12)
    assert sorted(indices(queue.bound(name)) for name in ("first", "second")) == [("0", "b", "0"), ("1", "b", "1")]
    queue.add_nodes(gpushare_node("a", gpus=1))
    before = queue.kerf.metric("kerf_queue_unassigned_total")
    with clusters.without_scheduler():
        submit_gpushare(queue, "p", 8)
        assert indices(let_go(queue, "p")) == ("0", "a", "0")
        queue.remove_node("a")
    assert queue.node_of("p") == "b"
    wait_until(lambda: indices(queue.pod("p")) == ("", "", ""), WITHIN_S, "what was written for a is taken back")
    assert "no free GPUs for it" in queue.event("p", "GPUsReassigned")
    assert queue.kerf.metric("kerf_queue_unassigned_total") == before + 1
    queue.add_nodes(gpushare_node("c", gpus=1, gib=4))
    submit_gpushare(queue, "next", 4)  # what p has of b is held, wherever it is
    assert queue.node_of("next") == "c"
