"""On a real node without an extender: containers have what Kerf wrote on their pods before kube-scheduler saw them."""

from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.controlplane.kerf import QUEUE_RBAC
from tests.e2e.clusters import KerfCluster
from tests.e2e.test_direct import PLAIN
from tests.e2e.test_queueing import GATED, annotation
from tests.realnode import Node
from tests.realnode.agent import install
from tests.realnode.fixtures import kerf_places
from tests.realnode.test_agent import holders, steering, waves

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane) -> Iterator[KerfCluster]:
    install(node_plane)
    node_plane.apply(QUEUE_RBAC)
    settings = ("--set=queue.enabled=true", "--set=queue.extender=false")
    with kerf_places(node_plane, *settings, config=PLAIN) as cluster:
        yield cluster


def test_with_the_agent_containers_have_what_was_written_and_without_it_what_the_plugin_chose(
    cluster: KerfCluster, node: Node
) -> None:
    with steering(cluster, node) as steered:
        tally = waves(steered, 4, **GATED)
        assert (tally.exact, tally.told, tally.shared) == (tally.total, tally.total, 0)
    assert cluster.kerf.metric("kerf_queue_honoured_total") == tally.total


def test_pods_past_the_queue_share_no_gpu_with_those_of_the_queue(cluster: KerfCluster, node: Node) -> None:
    """They take GPUs that nobody wrote; which those are is known once the node has reported it."""
    with steering(cluster, node) as steered:
        for number in range(4):
            cluster.submit(f"past-{number}", gpus=1)
            cluster.submit(f"queued-{number}", gpus=1, **GATED)
        names = [f"{kind}-{number}" for number in range(4) for kind in ("past", "queued")]
        seen = {name: steered.seen(name) for name in names}
        assert len(set().union(*seen.values())) == 8
        assert not {device: pods for device, pods in holders(steered.node).items() if len(pods) > 1}
        for name in names:
            if name.startswith("queued"):
                told = lambda name=name: steered.decided(name) == seen[name]  # noqa: E731
                wait_until(told, 20.0, f"what is written on {name} is what it has")
                assert annotation(cluster.pod(name), "assigned-node") == node.name
