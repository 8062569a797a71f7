"""What Kerf knows of a real node's GPUs: the truth where the plugin picks, and no GPU with two holders by any way."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.controlplane.objects import pod
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.realnode import Node
from tests.realnode.agent import install
from tests.realnode.fixtures import kerf_places
from tests.realnode.test_agent import EIGHT, GPU, UUIDS, Steered, steering

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

COUNT = "kerf.dev/gpu-count"
ASSIGNED = {"fieldRef": {"fieldPath": "metadata.annotations['kerf.dev/assigned-gpus']"}}


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane) -> Iterator[KerfCluster]:
    install(node_plane)
    with kerf_places(node_plane) as cluster:
        yield cluster


def by_word(cluster: KerfCluster, name: str, number: int) -> None:
    """A pod that asks by annotation alone, and is told of its GPUs as the webhook would."""
    manifest = pod(name, annotations={COUNT: str(number)})
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": ASSIGNED}
    manifest["spec"]["containers"][0]["env"] = [variable]
    cluster.create(manifest)


def indices_seen(node: Node, name: str) -> set[int]:
    """Indices of the GPUs that the container of such a pod sees."""
    return {int(index) for index in node.environments(name)["main"]["NVIDIA_VISIBLE_DEVICES"].split(",")}


def holders_known(steered: Steered, *names: str) -> dict[int, str]:
    """Pods by the GPU that they hold, as Kerf tells them."""
    found: dict[int, str] = {}
    for name in names:
        explained = steered.cluster.kerf.get(f"/explain/pod/default/{name}")
        found |= dict.fromkeys(explained["now"]["held"]["gpus"], name)
    return found


def says_the_truth(steered: Steered, name: str) -> bool:
    """Whether a pod is annotated with what its container sees."""
    return steered.decided(name) == steered.seen(name)


def healthy(steered: Steered) -> list[str]:
    """UUIDs of the GPUs that the report calls well."""
    listed: list[dict[str, Any]] = steered.report().get("gpus", [])
    return [gpu["uuid"] for gpu in listed if gpu.get("healthy", True)]


def test_where_the_plugin_picks_kerf_knows_who_has_which_and_pods_say_so(cluster: KerfCluster, node: Node) -> None:
    with steering(cluster, node, steer=False) as steered:
        wait_until(lambda: healthy(steered) == UUIDS, WITHIN_S, "the node's GPUs are reported")
        for name in ("a", "b"):
            cluster.submit(name, gpus=2)
        for name in ("a", "b"):
            seen = steered.seen(name)
            wait_until(partial(says_the_truth, steered, name), WITHIN_S, f"{name} says the truth")
            annotations = cluster.pod(name)["metadata"]["annotations"]
            assert set(annotations["kerf.dev/assigned-uuids"].split(",")) == seen
        # The first gets others than were chosen: the plugin of the tests never picks the first ones.
        assert "had been chosen" in cluster.event("a", "GPUsCorrected")
        assert holders_known(steered, "a", "b") == {
            index: name for name in ("a", "b") for index, uuid in enumerate(UUIDS) if uuid in steered.seen(name)
        }
        assert cluster.kerf.metric("kerf_assignments_mistaken") == 0
        assert cluster.kerf.metric("kerf_edits_ignored_total") == 0
        cluster.submit("rest", gpus=4)
        assert not steered.seen("rest") & (steered.seen("a") | steered.seen("b"))


def test_without_an_agent_pods_by_annotation_alone_are_beside_no_pod_of_the_plugin(
    cluster: KerfCluster, node: Node
) -> None:
    with node.device_plugin({GPU: EIGHT}) as plugin:
        node.wait_offered(plugin.resources)
        by_word(cluster, "word", 2)
        assert len(indices_seen(node, "word")) == 2
        cluster.submit("served", gpus=1)
        cluster.pending("served", containing="by annotation alone")
        cluster.delete_pod("word", grace_s=1)
        assert node.environments("served")["main"]["NVIDIA_VISIBLE_DEVICES"]
        by_word(cluster, "late", 1)
        cluster.pending("late", containing="serves nvidia.com/gpu")
        cluster.delete_pod("late")  # before there is room for it


def test_beside_an_agent_that_steers_they_share_a_node_and_no_gpu(cluster: KerfCluster, node: Node) -> None:
    with steering(cluster, node) as steered:
        wait_until(lambda: GPU in steered.report().get("steers", ()), WITHIN_S, "the node says that it is steered")
        by_word(cluster, "word", 3)
        own = {UUIDS[index] for index in indices_seen(node, "word")}
        cluster.submit("served", gpus=4)
        assert steered.seen("served") == steered.decided("served")
        assert not steered.seen("served") & own
        foreign = pod("foreign", gpus=1, nodeName=node.name)  # nobody has decided which it gets
        seen = set(node.run(foreign)["main"]["NVIDIA_VISIBLE_DEVICES"].split(","))
        assert not seen & (own | steered.seen("served"))


def test_a_sick_gpu_is_given_to_nobody(cluster: KerfCluster, node: Node) -> None:
    with steering(cluster, node) as steered:
        wait_until(lambda: healthy(steered) == UUIDS, WITHIN_S, "the node's GPUs are reported")
        steered.plugin.set_healthy(UUIDS[0], healthy=False)
        wait_until(lambda: healthy(steered) == UUIDS[1:], WITHIN_S, "the report says which is sick")
        cluster.submit("seven", gpus=7)
        assert steered.seen("seven") == steered.decided("seven") == set(UUIDS[1:])
