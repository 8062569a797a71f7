"""For which of Kerf's pods an autoscaler adds nodes, and of which pool: Karpenter's own program, and Cluster
Autoscaler's where it is installed, on the real control plane, from a pod's annotation to its GPUs on the node that was
added."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e import cluster_autoscalers
from tests.e2e.cluster_autoscalers import ClusterAutoscaler, cluster_autoscaler
from tests.e2e.clusters import KerfCluster, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.karpenters import Karpenter, karpenter
from tests.e2e.webhooks import gating

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

Scaler = Karpenter | ClusterAutoscaler
WITHIN_S = 60.0
H100, B200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-B200"
POOLS = [
    gpu_node("h100", gpus=8, product=H100, memory_mib=81_559),
    gpu_node("t4", gpus=2, product="Tesla-T4", memory_mib=15_360),
]
QUEUE = ("--set=queue.enabled=true", "--set=queue.reserve_after_s=3600")
RELEASING = (*QUEUE, "--set=autoscaling.enabled=true", "--set=autoscaling.after_s=0")
GATES = [{"name": "kerf.dev/queue"}]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose pods get gate and affinity."""
    with ControlPlane(tmp_path_factory.mktemp("autoscaling"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        products = f'--set=webhook.products=["{H100}","{B200}"]'
        with gating(running, tmp_path_factory.mktemp("webhook"), "--set=webhook.write_affinity=true", products):
            yield running


@pytest.fixture(scope="module", params=["karpenter", cluster_autoscalers.NAME])
def scaler(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Scaler]:
    """Two pools without nodes: one of H100s, one of T4s. One autoscaler runs at a time."""
    start = karpenter if request.param == "karpenter" else cluster_autoscaler
    try:
        with start(plane, tmp_path_factory.mktemp("scaler"), POOLS) as running:
            yield running
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def clusters(module_clusters: Clusters, scaler: Scaler) -> Iterator[Clusters]:
    yield module_clusters
    module_clusters.plane.request("DELETE", f"{PODS}?gracePeriodSeconds=0")
    scaler.remove_nodes()
    module_clusters.clean()


def opened(clusters: Clusters, *settings: str) -> KerfCluster:
    """With a node of two T4s that no pool has made."""
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)
    cluster.add_nodes(gpu_node("own", gpus=2, product="Tesla-T4", memory_mib=15_360))
    return cluster


def submit(cluster: KerfCluster, name: str, gpus: int, **annotations: str) -> None:
    """A pod that the webhook gates, as its user writes it."""
    written = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    cluster.submit(name, gpus, labels={"kerf.dev/queue": "enabled"}, annotations=written)


def node_of(cluster: KerfCluster, name: str) -> str:
    """Wait for a pod's node; one that has to be made first takes longer than any other."""
    wait_until(lambda: cluster.pod(name)["spec"].get("nodeName"), WITHIN_S, f"pod {name} is bound")
    return cluster.node_of(name)


def affinity(cluster: KerfCluster, name: str) -> Any:
    terms = cluster.pod(name)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = terms["nodeSelectorTerms"]
    return term["matchExpressions"]


def said(cluster: KerfCluster, scaler: Scaler, name: str) -> list[str]:
    """What an autoscaler has said of a pod."""
    uid = cluster.pod(name)["metadata"]["uid"]
    events = cluster.plane.request("GET", "/api/v1/namespaces/default/events")["items"]
    about = [event for event in events if event["involvedObject"].get("uid") == uid]
    return [event["message"] for event in about if event.get("source", {}).get("component") == scaler.component]


def looked_at(cluster: KerfCluster, scaler: Scaler) -> None:
    """Wait until all pods that are there have been looked at: a pod has been that came after them, and fits no pool."""
    cluster.submit("witness", 1, nodeSelector={"nvidia.com/gpu.product": B200})
    wait_until(lambda: said(cluster, scaler, "witness"), WITHIN_S, "the pods are looked at")


def test_pods_behind_the_gate_are_none_that_it_looks_at(clusters: Clusters, scaler: Scaler) -> None:
    cluster = opened(clusters, *QUEUE)
    submit(cluster, "waits", 1, gpu_model="h100")
    skipped = "kerf.dev/skipped"
    wait_until(lambda: skipped in cluster.pod("waits")["metadata"]["annotations"], WITHIN_S, "it waits in the queue")
    looked_at(cluster, scaler)
    assert (scaler.nodes(), said(cluster, scaler, "waits")) == ([], [])
    assert cluster.pod("waits")["spec"]["schedulingGates"] == GATES


def test_a_gang_that_is_let_go_gets_as_many_nodes_of_its_model_as_it_takes(clusters: Clusters, scaler: Scaler) -> None:
    """From its annotation to its GPUs; a node of T4s would have GPUs too, and cost less."""
    cluster = opened(clusters, *RELEASING)
    for name in ("g0", "g1"):
        submit(cluster, name, 8, gpu_model="h100", gang="train", gang_size="2")
    nodes = {node_of(cluster, name) for name in ("g0", "g1")}
    assert [(item["key"], item["operator"]) for item in affinity(cluster, "g0")] == [("nvidia.com/gpu.product", "In")]
    assert scaler.nodes() == ["h100", "h100"]
    assert len(nodes) == 2
    assert {scaler.pool_of(node) for node in nodes} == {"h100"}
    assert assigned_gpus(cluster.pod("g0")) == list(range(8))


def test_one_whose_model_no_pool_has_gets_none(clusters: Clusters, scaler: Scaler) -> None:
    cluster = opened(clusters, *RELEASING)
    submit(cluster, "elsewhere", 1, gpu_model="b200")
    wait_until(lambda: said(cluster, scaler, "elsewhere"), WITHIN_S, "it is looked at")
    looked_at(cluster, scaler)
    assert scaler.nodes() == []
    assert not any("node/own" in message for message in said(cluster, scaler, "elsewhere")), "nor has it room on T4s"
    assert "schedulingGates" not in cluster.pod("elsewhere")["spec"]
