"""MLTaskScheduler's MLFlow objects on a real API server, as they are written: row M8."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import RBAC, ROOT, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.kubelets import Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 60.0
QUEUE = ROOT / "manifests" / "queue"
FLOWS = "/apis/kopf.dev/v1/namespaces/ml-faas/mlflows"
JOBS = "/apis/batch/v1/namespaces/openfaas-fn/jobs"
MERGE = "application/merge-patch+json"
FLOW = """
apiVersion: kopf.dev/v1
kind: MLFlow
metadata:
  name: lstm-pipeline
  namespace: ml-faas
spec:
  pipeline:
    stage1:
      name: data-preprocess
      namespace: openfaas-fn
      schedulerName: default-scheduler
      rule: ['dev', 'user']
      step:
      - name: load-data
        mlfun: example/lstm-load-data:0.0.1
      - name: time-parser
        mlfun: example/lstm-time-parser:0.0.1
    stage2:
      name: LSTM-model-build
      namespace: openfaas-fn
      schedulerName: default-scheduler
      rule: ['dev']
      step:
      - name: train-model
        mlfun: example/lstm-train-model:0.0.1
    stage3:
      name: model-serving
      namespace: openfaas-fn
      schedulerName: default-scheduler
      rule: ['dev', 'user']
      step:
      - name: model-serving-fun
        mlfun: example/lstm-model-serving-fun:0.0.1
"""
"""ml_crd_pipeline_exmaple.yaml of nutc-imac-team/MLTaskScheduler 8b21745, some of its steps."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with what manifests/queue has; Kerf has its shipped rights."""
    with ControlPlane(tmp_path_factory.mktemp("mlflows"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, *(QUEUE / f"{name}.yaml" for name in ("rbac", "pipelines", "mlflows")))
        running.apply(*(namespace(name) for name in ("ml-faas", "openfaas-fn")))
        wait_until(lambda: running.exists(FLOWS), WITHIN_S, "flows are served")
        running.start_controller_manager("job-controller", "garbage-collector-controller")
        yield running


def namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


@pytest.fixture
def cluster(module_clusters: Clusters, plane: ControlPlane) -> Iterator[KerfCluster]:
    """A Kerf that runs flows, and a node."""
    settings = (f"--set=queue.{name}=true" for name in ("enabled", "pipelines", "mlflows"))
    opened = module_clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)
    opened.add_nodes(gpu_node("node", gpus=8))
    yield opened
    plane.request("DELETE", FLOWS)
    plane.request("DELETE", "/apis/kerf.dev/v1alpha1/namespaces/openfaas-fn/pipelines")
    plane.request("DELETE", f"{JOBS}?propagationPolicy=Background")


def speaking_as(plane: ControlPlane, *groups: str) -> Api:
    """A REST client of a user who is in some groups, and may do all that RBAC gives."""
    headers = {"Impersonate-User": "james", "Impersonate-Group": groups[0]}
    return Api(plane.url, plane.certificate, plane.token("admin"), headers)


@pytest.fixture(scope="module", autouse=True)
def _may(plane: ControlPlane) -> None:
    """The groups `dev` and `user` may make flows."""
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["kopf.dev"], "resources": ["mlflows"], "verbs": ["*"]}]
    subjects = [{"apiGroup": group, "kind": "Group", "name": name} for name in ("dev", "user")]
    metadata = {"name": "flows", "namespace": "ml-faas"}
    plane.apply(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "flows"},
        },
    )  # fmt: skip


def flow(**changes: Any) -> Manifest:
    made: Manifest = yaml.safe_load(FLOW)
    made["spec"]["pipeline"] |= changes
    return made


def created(api: Api, made: Manifest, query: str = "") -> str:
    """ "" where it may be created, else why not; created unless the query says otherwise."""
    try:
        api.request("POST", f"{FLOWS}{query}", made)
    except ApiError as error:
        return error.message
    finally:
        api.close()
    return ""


def test_m8_a_flow_runs_as_it_is_written_where_it_is_taken(plane: ControlPlane, cluster: KerfCluster) -> None:
    wait_until(lambda: created(speaking_as(plane, "user"), flow(), "?dryRun=All"), WITHIN_S, "rules are checked")
    assert created(speaking_as(plane, "dev"), flow()) == ""

    def found() -> Manifest:
        status: Manifest = plane.request("GET", f"{FLOWS}/lstm-pipeline").get("status", {})
        return status

    def conditions() -> dict[str, str]:
        return {item["reason"]: item["message"] for item in found().get("conditions", [])}

    wait_until(lambda: "NamespaceTakesNoFlows" in conditions(), WITHIN_S, "nobody has said that it may run there")
    assert not plane.request("GET", JOBS)["items"]
    command = conditions()["NamespaceTakesNoFlows"].partition("kubectl annotate namespace openfaas-fn ")[2]
    key, _, value = command.partition("=")
    taken = {"metadata": {"annotations": {key: value}}}
    plane.request("PATCH", "/api/v1/namespaces/openfaas-fn", taken, MERGE)

    ran: list[str] = []

    def finished() -> bool:
        """Each Job is ended as it comes, as its pod would."""
        for job in plane.request("GET", JOBS)["items"]:
            labels = job["metadata"]["labels"]
            if labels["kerf.dev/pipeline-step"] not in ran:
                (container,) = job["spec"]["template"]["spec"]["containers"]
                assert labels["kerf.dev/pipeline-step"] in container["image"]
                ran.append(labels["kerf.dev/pipeline-step"])
        return found().get("phase") == "Succeeded"

    with Kubelet(plane, "openfaas-fn") as kubelet:
        kubelet.ends = lambda pod: "Succeeded"
        wait_until(finished, WITHIN_S, "the flow has succeeded")
    assert ran == ["load-data", "time-parser", "train-model", "model-serving-fun"]


def test_m8_who_is_in_no_group_of_a_stages_rule_makes_no_flow(plane: ControlPlane) -> None:
    def refused(*groups: str, **changes: Any) -> str:
        return created(speaking_as(plane, *groups), flow(**changes), "?dryRun=All")

    why = "spec.pipeline.stage2.rule: this stage is for members of dev, and james is in user, system:authenticated"
    wait_until(lambda: why in refused("user"), WITHIN_S, "rules are checked")
    assert refused("dev") == ""
    assert refused("user", stage2={"name": "open", "step": [{"mlfun": "example/x"}]}) == ""
    assert refused("user", stage2={"name": "open", "rule": [], "step": [{"mlfun": "example/x"}]}) == ""


def test_m8_what_is_wrong_the_api_server_refuses_with_its_place(plane: ControlPlane) -> None:
    """The original has no schema."""
    for change, fault in (
        ({"first": {"step": [{"mlfun": "x"}]}}, "stages must be named stage1, stage2"),
        ({"stage1": {"name": "empty"}}, "spec.pipeline.stage1.step: Required value"),
        ({"stage1": {"step": [{"name": "no image"}]}}, "spec.pipeline.stage1.step[0].mlfun: Required value"),
        ({"stage1": {"step": [{"mlfun": "x"}], "namespace": "../x"}}, "spec.pipeline.stage1.namespace"),
    ):
        assert fault in created(speaking_as(plane, "dev"), flow(**change), "?dryRun=All")


def test_m8_what_a_flow_says_stays(plane: ControlPlane, cluster: KerfCluster) -> None:
    """Else who may run no stage of it could write another in its place."""
    plane.request("POST", FLOWS, flow())
    with pytest.raises(ApiError, match="a flow is immutable"):
        changed = {"spec": {"pipeline": {"stage2": {"step": [{"mlfun": "x"}]}}}}
        plane.request("PATCH", f"{FLOWS}/lstm-pipeline", changed, MERGE)
