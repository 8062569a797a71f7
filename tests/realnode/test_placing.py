"""From the decision to the container: pods that Kerf places run on the node."""

from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, assigned_gpus
from tests.realnode import Node, gpus
from tests.realnode.fixtures import kerf_places

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane) -> Iterator[KerfCluster]:
    with kerf_places(node_plane) as cluster:
        yield cluster


def test_a_pod_that_kerf_places_runs_with_as_many_gpus(cluster: KerfCluster, node: Node) -> None:
    eight = gpus(8)
    with node.device_plugin({"nvidia.com/gpu": eight}):
        cluster.submit("placed", gpus=2)
        visible = node.environments("placed")["main"]["NVIDIA_VISIBLE_DEVICES"].split(",")
        found = cluster.bound("placed")
        assert found["spec"]["nodeName"] == node.name
        assert len(set(assigned_gpus(found))) == 2
        assert len(set(visible)) == 2
        assert set(visible) < {device.id for device in eight}
        assert set(node.pod_resources()["default/placed"]["main"]["nvidia.com/gpu"]) == set(visible)


def test_a_pod_waits_until_another_has_ended_on_the_node(cluster: KerfCluster, node: Node) -> None:
    with node.device_plugin({"nvidia.com/gpu": gpus(2)}):
        cluster.submit("first", gpus=2)
        node.environments("first")
        cluster.submit("second", gpus=1)
        cluster.pending("second", containing="nvidia.com/gpu")
        cluster.delete_pod("first", grace_s=1)
        wait_until(lambda: "default/first" not in node.pod_resources(), WITHIN_S, "the kubelet has its devices back")
        assert node.environments("second")["main"]["NVIDIA_VISIBLE_DEVICES"]
