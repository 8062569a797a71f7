"""JobSets on the real API server, with their own controller and the Job controller: the queue starts them whole."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e import jobsets
from tests.e2e.clusters import KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.kubelets import Kubelet
from tests.e2e.webhooks import gates_of, gating

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 40.0
"""Three controllers, one after the other, on a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with JobSets and all that makes pods of them."""
    directory = tmp_path_factory.mktemp("jobsets")
    with ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.start_controller_manager("job-controller", "garbage-collector-controller")
        with jobsets.controller(running, tmp_path_factory.mktemp("controller")):
            yield running


@pytest.fixture
def cluster(module_clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerfCluster]:
    """A Kerf with its queue, and the webhook that gates pods that opt in."""
    settings = ("--set=queue.enabled=true", "--set=queue.reserve_after_s=3600")
    opened = module_clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)
    with gating(opened.plane, tmp_path_factory.mktemp("webhook")):
        yield opened
    module_clusters.clean()


def replicated(name: str, replicas: int, gpus: int) -> Manifest:
    """Jobs of one pod each; in the template is all that the user of a queue adds."""
    container = {"name": "main", "image": "example/work", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    metadata = {
        "labels": {"kerf.dev/queue": "enabled"},
        "annotations": {"kerf.dev/gang": "train", "kerf.dev/gang-size": "3"},
    }
    template = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def on_nodes(cluster: KerfCluster) -> dict[str, str]:
    """UIDs of the pods that have not ended, with their nodes."""
    alive = [pod for pod in cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")]
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in alive}


def state(cluster: KerfCluster) -> str:
    found: str = cluster.plane.request("GET", f"{jobsets.PATH}/train").get("status", {}).get("terminalState", "")
    return found


def test_a5_a_job_set_starts_whole_and_again_whole_after_a_failure(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("a", gpus=8))
    spec: dict[str, Any] = {
        "replicatedJobs": [replicated("leader", 1, 1), replicated("workers", 2, 8)],
        "network": {"enableDNSHostnames": False},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": {"maxRestarts": 1},
    }
    metadata = {"name": "train", "namespace": "default"}
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
    cluster.plane.request("POST", jobsets.PATH, made)

    def whole() -> bool:
        """Whether the leader has the small node, and each worker one of eight."""
        return sorted(on_nodes(cluster).values()) == ["a", "b", "c"]

    def waiting() -> bool:
        pods = cluster.pods()
        told = [pod["metadata"].get("annotations", {}).get("kerf.dev/skipped", "") for pod in pods]
        return len(pods) == 3 and all(told)

    with Kubelet(cluster.plane) as kubelet:
        wait_until(waiting, WITHIN_S, "all three are there and are told why they wait")
        assert all(gates_of(pod) for pod in cluster.pods())  # though there is room for one of them
        cluster.add_nodes(gpu_node("b", gpus=8), gpu_node("c", gpus=1))
        wait_until(whole, WITHIN_S, "the set runs")
        assert sorted(len(assigned_gpus(pod)) for pod in cluster.pods()) == [1, 8, 8]
        first = set(on_nodes(cluster))
        failing = cluster.pods()[0]["metadata"]["uid"]
        kubelet.ends = lambda pod: "Failed" if pod["metadata"]["uid"] == failing else ""
        wait_until(lambda: whole() and not first & set(on_nodes(cluster)), WITHIN_S, "all were made again and run")
        kubelet.ends = lambda pod: "Succeeded"
        wait_until(lambda: state(cluster) == "Completed", WITHIN_S, "the set is complete")
        cluster.plane.request("DELETE", f"{jobsets.PATH}/train")
        wait_until(lambda: not cluster.pods(), WITHIN_S, "the garbage collector has deleted its pods")
