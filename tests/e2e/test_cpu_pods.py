"""Pods without GPUs go where they cost those who ask for GPUs the least, by a real kube-scheduler."""

from collections import Counter

import pytest

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NODES = [f"node-{number}" for number in range(6)]
FULL = NODES[:2]


@pytest.fixture
def cluster(clusters: Clusters) -> KerfCluster:
    """Six nodes of four GPUs; those of two are held. Kerf leaves kube-scheduler two nodes."""
    arguments = "--set=decisions.near_best_nodes=2", "--set=decisions.policy=tightest"
    found = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *arguments)
    found.add_nodes(*(gpu_node(name, gpus=4) for name in NODES))
    for name in FULL:
        found.submit(f"holds-{name}", gpus=4, nodeName=name)
    wait_until(lambda: found.kerf.metric("kerf_gpus_booked") == 8, WITHIN_S, "Kerf knows who holds what")
    return found


def test_they_fill_the_nodes_whose_gpus_are_gone(cluster: KerfCluster) -> None:
    for number in range(8):
        cluster.submit(f"web-{number}", cpu="100m")
    found = Counter(cluster.node_of(f"web-{number}") for number in range(8))
    assert found.keys() == set(FULL)  # both: kube-scheduler spreads over what it is left


def test_a_node_without_gpus_goes_before(cluster: KerfCluster) -> None:
    cluster.add_nodes(cpu_node("plain"))
    cluster.submit("web", cpu="100m")
    assert cluster.node_of("web") == "plain"
