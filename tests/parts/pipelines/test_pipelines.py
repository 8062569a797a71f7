"""Pipelines on the real API server, Job controller and garbage collector: row M8, refusals, retries, gangs, ends."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import RBAC, ROOT, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.kubelets import Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 40.0
"""Several controllers, one after the other, on a machine that is busy with other tests."""
PATH = "/apis/kerf.dev/v1alpha1/namespaces/default/pipelines"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUEUE = ROOT / "manifests" / "queue"
MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with pipelines, the Job controller and the garbage collector; Kerf has its shipped rights."""
    with ControlPlane(tmp_path_factory.mktemp("pipelines"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE / "rbac.yaml", QUEUE / "pipelines.yaml")
        wait_until(lambda: running.exists(PATH), WITHIN_S, "pipelines are served")
        running.start_controller_manager("job-controller", "garbage-collector-controller")
        yield running


@pytest.fixture
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    with Kubelet(plane) as running:
        yield running


@pytest.fixture
def cluster(module_clusters: Clusters, kubelet: Kubelet) -> Iterator[KerfCluster]:
    """A Kerf that runs pipelines, and one node of eight GPUs; the test's pipelines are deleted at its end."""
    settings = ("--set=queue.enabled=true", "--set=pipelines.enabled=true", "--set=queue.reserve_after_s=3600")
    opened = module_clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)
    opened.add_nodes(gpu_node("node", gpus=8))
    yield opened
    opened.plane.request("DELETE", PATH)
    wait_until(lambda: not names(opened.plane, JOBS), WITHIN_S, "the garbage collector has deleted all Jobs")
    wait_until(lambda: not job_pods(opened), WITHIN_S, "and all their pods")
    module_clusters.clean()


def names(plane: ControlPlane, path: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in plane.request("GET", path)["items"])


def step(name: str, gpus: int = 1, **options: Any) -> Manifest:
    container = {"name": "main", "image": "example/work", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {"name": name, "template": {"spec": {"containers": [container]}}} | options


def stage(name: str, *steps: Manifest, **options: Any) -> Manifest:
    return {"name": name, "steps": list(steps), **options}


def pipeline(name: str, *stages: Manifest, **spec: Any) -> Manifest:
    made: Manifest = {"apiVersion": "kerf.dev/v1alpha1", "kind": "Pipeline"}
    return made | {"metadata": {"name": name, "namespace": "default"}, "spec": {"stages": list(stages)} | spec}


def create(cluster: KerfCluster, made: Manifest) -> None:
    cluster.plane.request("POST", PATH, made)


def status(cluster: KerfCluster, name: str) -> Manifest:
    found: Manifest = cluster.plane.request("GET", f"{PATH}/{name}").get("status", {})
    return found


def reaches(cluster: KerfCluster, name: str, phase: str) -> Manifest:
    """Wait until a pipeline is in a phase; its status."""
    wait_until(lambda: status(cluster, name).get("phase") == phase, WITHIN_S, f"pipeline {name} is {phase}")
    return status(cluster, name)


def condition(found: Manifest, kind: str) -> Manifest:
    (item,) = (item for item in found["conditions"] if item["type"] == kind)
    assert isinstance(item, dict)
    return item


def job_pods(cluster: KerfCluster) -> list[Manifest]:
    return [pod for pod in cluster.pods() if "job-name" in pod["metadata"].get("labels", {})]


def running(cluster: KerfCluster) -> set[str]:
    """Jobs of the pods that have a node and have not ended."""
    return {
        str(pod["metadata"]["labels"]["job-name"])
        for pod in job_pods(cluster)
        if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") in ("Pending", "Running")
    }


def test_m8_stages_run_in_order_through_the_queue_also_where_kerf_is_killed_meanwhile(
    cluster: KerfCluster, kubelet: Kubelet, module_clusters: Clusters
) -> None:
    first = stage("prepare", step("load"), step("clean", gpus=0))
    create(cluster, pipeline("flow", first, stage("train", step("fit"))))
    wait_until(lambda: running(cluster) == {"flow-prepare-load-1", "flow-prepare-clean-1"}, WITHIN_S, "stage 1 runs")
    found = status(cluster, "flow")
    assert (found["phase"], found["stage"]) == ("Running", "prepare")
    assert names(cluster.plane, JOBS) == ["flow-prepare-clean-1", "flow-prepare-load-1"]  # nothing of stage 2 yet
    (load,) = (pod for pod in cluster.pods() if pod["metadata"]["labels"]["kerf.dev/pipeline-step"] == "load")
    assert load["metadata"]["annotations"]["kerf.dev/planned-node"] == "node"  # nominated by the queue
    cluster.kerf.process.kill()
    kubelet.ends = lambda pod: "Succeeded" if pod["metadata"]["labels"]["kerf.dev/pipeline-stage"] == "prepare" else ""
    wait_until(lambda: not running(cluster), WITHIN_S, "stage 1 has ended while nobody looked")
    module_clusters.restart_kerf()
    wait_until(lambda: running(cluster) == {"flow-train-fit-1"}, WITHIN_S, "stage 2 runs")
    kubelet.ends = lambda pod: "Succeeded"
    found = reaches(cluster, "flow", "Succeeded")
    assert [item["phase"] for item in found["stages"]] == ["Succeeded", "Succeeded"]
    prepared, trained = found["stages"]
    assert prepared["completionTime"] <= trained["startTime"]
    assert condition(found, "Accepted")["status"] == condition(found, "Succeeded")["status"] == "True"
    assert names(cluster.plane, JOBS) == ["flow-prepare-clean-1", "flow-prepare-load-1", "flow-train-fit-1"]


def test_a_gang_of_steps_starts_whole(cluster: KerfCluster, kubelet: Kubelet) -> None:
    cluster.submit("other", gpus=4)
    cluster.bound("other")
    steps = (step("leader", gpus=2), step("worker", gpus=2, parallelism=2))
    create(cluster, pipeline("gang", stage("train", *steps, gang=True)))

    def told() -> list[str]:
        return [pod["metadata"]["annotations"].get("kerf.dev/skipped", "") for pod in job_pods(cluster)]

    wait_until(lambda: [text for text in told() if "does not fit as a whole" in text], WITHIN_S, "the gang waits")
    assert not running(cluster)
    cluster.set_phase("other", "Succeeded")
    wait_until(lambda: running(cluster) == {"gang-train-leader-1", "gang-train-worker-1"}, WITHIN_S, "the gang runs")
    kubelet.ends = lambda pod: "Succeeded"
    reaches(cluster, "gang", "Succeeded")


def test_cancelling_ends_what_runs_and_can_not_be_taken_back(cluster: KerfCluster) -> None:
    create(cluster, pipeline("stop", stage("a", step("x", parallelism=2)), stage("b", step("x"))))
    wait_until(lambda: running(cluster) == {"stop-a-x-1"}, WITHIN_S, "it runs")
    with pytest.raises(ApiError, match="stages are immutable"):
        body = [{"op": "replace", "path": "/spec/stages/0/steps/0/parallelism", "value": 3}]
        cluster.plane.request("PATCH", f"{PATH}/stop", body, "application/json-patch+json")
    cluster.plane.request("PATCH", f"{PATH}/stop", {"spec": {"cancel": True}}, MERGE)
    found = reaches(cluster, "stop", "Cancelled")
    assert condition(found, "Succeeded")["reason"] == "Cancelled"
    wait_until(lambda: not running(cluster), WITHIN_S, "its pods have ended")
    with pytest.raises(ApiError, match="stays cancelled"):
        cluster.plane.request("PATCH", f"{PATH}/stop", {"spec": {"cancel": False}}, MERGE)
    cluster.plane.request("DELETE", f"{PATH}/stop?propagationPolicy=Background")
    wait_until(lambda: not names(cluster.plane, JOBS) and not cluster.pods(), WITHIN_S, "its Job and pods are gone")


def test_an_evicted_pod_is_created_again_and_is_no_failure(cluster: KerfCluster, kubelet: Kubelet) -> None:
    create(cluster, pipeline("moved", stage("a", step("x"))))
    wait_until(lambda: running(cluster) == {"moved-a-x-1"}, WITHIN_S, "it runs")
    (first,) = cluster.pods()
    name = first["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    cluster.plane.request("POST", f"{PODS}/{name}/eviction", eviction)
    wait_until(lambda: name not in names(cluster.plane, PODS) and running(cluster), WITHIN_S, "another pod runs")
    kubelet.ends = lambda pod: "Succeeded"
    assert reaches(cluster, "moved", "Succeeded")["stages"][0]["steps"][0]["attempt"] == 1


def test_malformed_ones_are_refused_by_the_api_server_with_the_place(plane: ControlPlane) -> None:
    first, its_step = ["stages", 0], ["stages", 0, "steps", 0]
    pod = [*its_step, "template", "spec"]
    twice = [stage("a", step("x"))] * 2
    for keys, value, place in (
        (["stages"], None, "spec.stages: Required value"),
        (["stages"], [], "spec.stages: Invalid value"),
        (["stages"], twice, "spec.stages[1]: Duplicate value"),
        ([*first, "name"], "Stage One", "spec.stages[0].name: Invalid value"),
        ([*first, "retries"], -1, "spec.stages[0].retries: Invalid value"),
        ([*first, "gang"], "yes", "spec.stages[0].gang: Invalid value"),
        ([*first, "after"], ["nobody"], "after: no stage has that name"),
        ([*first, "after"], ["a"], "spec.stages[0].after: Invalid value"),
        ([*first, "topology"], "rack", "topology needs gang to be true"),
        ([*its_step, "parallelism"], 0, "steps[0].parallelism: Invalid value"),
        ([*its_step, "template"], None, "spec.stages[0].steps[0].template: Required value"),
        ([*pod, "containers", 0, "image"], None, "steps[0].template.spec.containers[0].image: Required value"),
        ([*pod, "restartPolicy"], "Always", "steps[0].template.spec.restartPolicy: Unsupported value"),
    ):
        made = pipeline("bad", stage("a", step("x")))
        within = made["spec"]
        for key in keys[:-1]:
            within = within[key]
        if value is None:
            del within[keys[-1]]
        else:
            within[keys[-1]] = value
        with pytest.raises(ApiError) as refused:
            plane.request("POST", PATH, made)
        assert refused.value.status == 422
        assert place in refused.value.message


def test_the_documented_example_is_taken(plane: ControlPlane) -> None:
    text = (ROOT / "docs" / "guides" / "pipelines.md").read_text()
    example = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    example["metadata"]["namespace"] = "default"
    plane.request("POST", f"{PATH}?dryRun=All&fieldValidation=Strict", example)


def test_what_no_schema_tells_is_refused_with_a_condition(cluster: KerfCluster) -> None:
    create(cluster, pipeline("cycle", stage("a", step("x"), after=["b"]), stage("b", step("x"))))
    odd = step("x")
    odd["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "many"}
    create(cluster, pipeline("template", stage("a", step("x")), stage("b", odd)))
    misspelt = step("x")
    misspelt["template"]["spec"]["nodeSelektor"] = {}
    create(cluster, pipeline("misspelt", stage("a", misspelt)))
    expected = {
        "cycle": ("Cycle", "spec.stages: "),
        "template": ("InvalidTemplate", "spec.stages[1].steps[0]: "),
        "misspelt": ("InvalidTemplate", 'unknown field "spec.template.spec.nodeSelektor"'),
    }
    for name, (reason, words) in expected.items():
        accepted = condition(reaches(cluster, name, "Failed"), "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", reason)
        assert words in accepted["message"]
    assert not names(cluster.plane, JOBS)
