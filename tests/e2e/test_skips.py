"""S1: a skip outside the queue, on a real control plane."""

import pytest

from extender.scheduling.skips import _REASON
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def test_s1_outside_the_queue_a_pod_is_skipped_for_a_larger_one_then_woken(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--set=decisions.skip_s=600")
    cluster.add_nodes(gpu_node("a", gpus=2, labels={"pool": "large"}))
    one, two = ({"kerf.dev/gpu-count": str(count)} for count in (1, 2))  # what kube-scheduler itself does not count
    cluster.submit("runs", annotations=one)
    cluster.bound("runs")
    cluster.submit("large", annotations=two, nodeSelector={"pool": "large"})
    cluster.pending("large", "needs 2 GPUs")
    # Its place becomes free, but kube-scheduler does not come to it yet: a smaller one might take it.
    relabel(cluster, "a", "elsewhere")
    cluster.pending("large", "didn't match Pod's node affinity/selector")
    cluster.set_phase("runs", "Succeeded")
    wait_until(lambda: cluster.kerf.metric("kerf_gpu_units_free") == 2, WITHIN_S, "Kerf knows that it is free")
    cluster.submit("small", annotations=one)
    message = cluster.pending("small", "skipped for now")
    assert message.startswith(f"0/1 nodes are available: 1 {_REASON}. ")
    assert "Preemption is not helpful" in message
    relabel(cluster, "a", "large")
    assert cluster.node_of("large") == "a"
    cluster.set_phase("large", "Succeeded")
    found = cluster.bound("small")
    notes = found["metadata"]["annotations"]
    assert (notes["kerf.dev/skipped"], int(notes["kerf.dev/skipped-count"]) >= 1) == (_REASON, True)


def relabel(cluster: KerfCluster, node: str, pool: str) -> None:
    body = {"metadata": {"labels": {"pool": pool}}}
    cluster.plane.request("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json")
