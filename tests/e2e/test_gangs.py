"""Gangs on the real API server and Job controller: Kubernetes' own PodGroups, and gangs that lose a member."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane import podgroups
from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.kubelets import Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, podgroups.NEEDED]

WITHIN_S = 40.0
GATED: dict[str, Any] = {"schedulingGates": [{"name": "kerf.dev/queue"}]}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that serves PodGroups, with the Job controller."""
    directory = tmp_path_factory.mktemp("gangs")
    with ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT}, flags=podgroups.SERVER_FLAGS) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.start_controller_manager("job-controller")
        yield running


@pytest.fixture
def cluster(module_clusters: Clusters) -> Iterator[KerfCluster]:
    """A Kerf whose queue gives gangs up that are not whole for two seconds."""
    settings = ("--set=queue.enabled=true", "--set=queue.gang_timeout_s=2", "--set=queue.reserve_after_s=3600")
    yield module_clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)
    module_clusters.clean()


def pod_group(cluster: KerfCluster, name: str, policy: Manifest) -> None:
    cluster.plane.request("POST", podgroups.path(), podgroups.pod_group(name, policy))


def why(cluster: KerfCluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"].get("annotations", {}).get("kerf.dev/skipped", ""))


def test_a5_pods_of_kubernetes_own_pod_groups_start_together(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("a", gpus=4))
    group: dict[str, Any] = {"schedulingGroup": {"podGroupName": "pair"}, **GATED}
    cluster.submit("p0", gpus=1, **group)
    wait_until(lambda: "its PodGroup does not exist" in why(cluster, "p0"), WITHIN_S, "the group is missing")
    pod_group(cluster, "pair", {"gang": {"minCount": 2}})
    wait_until(lambda: "1 of 2 exist" in why(cluster, "p0"), WITHIN_S, "the second pod is missing")
    cluster.submit("p1", gpus=1, **group)
    assert cluster.node_of("p0") == cluster.node_of("p1") == "a"


def test_pods_of_a_basic_pod_group_go_one_by_one(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("a", gpus=1))
    pod_group(cluster, "loose", {"basic": {}})
    for name in ("p0", "p1"):
        cluster.submit(name, gpus=1, schedulingGroup={"podGroupName": "loose"}, **GATED)
    assert cluster.node_of("p0") == "a"
    wait_until(lambda: "needs 1 GPU" in why(cluster, "p1"), WITHIN_S, "the second waits for room of its own")


def test_a5_a_gang_that_loses_a_member_is_given_up_and_formed_anew(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("a", gpus=1), gpu_node("b", gpus=1))
    annotations = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
    container = {"name": "main", "image": "example/work", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"restartPolicy": "Never", "containers": [container], **GATED}
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "default"}}
    made["spec"] = {"parallelism": 2, "completions": 2, "backoffLimit": 5, "template": template}
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    cluster.plane.request("POST", jobs, made)

    def on_nodes() -> dict[str, str]:
        """Names of pods that live, with their nodes."""
        alive = [pod for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in alive}

    with Kubelet(cluster.plane):
        wait_until(lambda: sorted(on_nodes().values()) == ["a", "b"], WITHIN_S, "the gang runs")
        first = set(on_nodes())
        lost = next(name for name, node in on_nodes().items() if node == "b")
        cluster.remove_node("b")
        cluster.delete_pod(lost)
        wait_until(
            lambda: len(on_nodes()) == 2 and not first & set(on_nodes()), WITHIN_S, "both were replaced", interval_s=0.2
        )
        assert set(on_nodes().values()) == {""}  # a alone is not enough for both
        assert cluster.kerf.metric("kerf_queue_evicted_total") == 1
        cluster.add_nodes(gpu_node("c", gpus=1))
        wait_until(lambda: sorted(on_nodes().values()) == ["a", "c"], WITHIN_S, "the gang runs again")
        cluster.plane.request("DELETE", f"{jobs}/train?propagationPolicy=Orphan")
        for name in on_nodes():
            cluster.delete_pod(name)
