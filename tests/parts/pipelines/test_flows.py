"""MLFlow objects against an API server of a test's own: what becomes of them, and of whom nobody takes them."""

import asyncio
import copy
from typing import Any

import msgspec
import yaml

from extender.kube.cache import Cache
from extender.kube.client import ApiError, UnreachableError
from extender.parts.pipelines.mlflow import _FLOW, _FLOW_UID, _TAKES_FLOWS_FROM, BY_FLOW, Flow, Flows
from extender.parts.pipelines.specs import Pipeline
from tests.parts.pipelines.test_mlflow import FLOW as EXAMPLE

Manifest = dict[str, Any]
UID = "0a1b2c3d-0000-4000-8000-000000000000"
PLACE = "openfaas-fn/lstm-pipeline-0a1b2c3d"


class Api:
    """Flows, pipelines and namespaces by key; tells nobody of what is written, as a watch that lags."""

    def __init__(self) -> None:
        self.flows: dict[str, Manifest] = {}
        self.pipelines: dict[str, Manifest] = {}
        self.namespaces: dict[str, str] = {}
        """What each says of whose flows it takes."""
        self.errors: dict[str, Exception] = {}
        """What a call fails with whose path has a text."""
        self.paths: list[str] = []

    def _called(self, path: str) -> None:
        self.paths.append(path)
        for part, error in self.errors.items():
            if part in path:
                raise error

    async def get(self, path: str, query: Any = None) -> bytes:
        self._called(path)
        name = query["fieldSelector"].removeprefix("metadata.name=")
        if path == "/api/v1/namespaces":
            taken = self.namespaces.get(name)
            metadata = {"name": name, "annotations": {_TAKES_FLOWS_FROM: taken}}
            return msgspec.json.encode({"items": [] if taken is None else [{"metadata": metadata}]})
        kept = self.flows if path.endswith("/mlflows") else self.pipelines
        found = kept.get(f"{path.split('/')[-2]}/{name}")
        return msgspec.json.encode({"items": [] if found is None else [found]})

    async def post(self, path: str, body: bytes) -> bytes:
        self._called(path)
        made = msgspec.json.decode(body, type=Manifest)
        key = f"{made['metadata']['namespace']}/{made['metadata']['name']}"
        if key in self.pipelines:
            raise ApiError(409, "AlreadyExists", key)
        made["metadata"] |= {"uid": f"uid-{key}", "resourceVersion": "1"}
        self.pipelines[key] = made
        return msgspec.json.encode(made)

    async def patch(self, path: str, body: bytes) -> bytes:
        self._called(path)
        asked = msgspec.json.decode(body, type=Manifest)
        parts = path.split("/")
        if path.endswith("/status"):
            flow = self.flows[f"{parts[-4]}/{parts[-2]}"]
            if asked["metadata"]["resourceVersion"] != flow["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            flow["metadata"]["resourceVersion"] += "+"
            flow["status"] = asked["status"]
        else:
            self.pipelines[f"{parts[-3]}/{parts[-1]}"]["spec"] |= asked["spec"]
        return b"{}"


class Rig:
    def __init__(self) -> None:
        self.now = 1000.0
        self.api = Api()
        self.pipelines = Cache[Pipeline, Pipeline](lambda pipeline: pipeline, indexes=[BY_FLOW])
        self.flows = Flows(self.api, self.pipelines, lambda: self.now, lambda: 0.0)  # type: ignore[arg-type]
        self._told: dict[str, Manifest] = {}

    def create(self, **changes: Any) -> None:
        """The example, with a change of its spec."""
        made: Manifest = yaml.safe_load(EXAMPLE)
        made["metadata"] |= {"uid": UID, "resourceVersion": "1", "generation": 1}
        made["spec"]["pipeline"] |= changes
        self.api.flows["ml-faas/lstm-pipeline"] = made
        self.tell()

    def tell(self) -> None:
        """What the watches tell: what has changed, once."""
        for key, flow in self.api.flows.items():
            if self._told.get(f"flow {key}") != flow:
                self._told[f"flow {key}"] = copy.deepcopy(flow)
                self.flows.flows.upsert(msgspec.convert(copy.deepcopy(flow), Flow))
        for key, pipeline in self.api.pipelines.items():
            if self._told.get(f"pipeline {key}") != pipeline:
                self._told[f"pipeline {key}"] = copy.deepcopy(pipeline)
                self.pipelines.upsert(msgspec.convert(copy.deepcopy(pipeline), Pipeline))

    def rounds(self, later_s: float = 0.0) -> None:
        self.now += later_s
        for _ in range(3):
            asyncio.run(self.flows.run_round())
            self.tell()

    def deleted(self) -> None:
        """Somebody deletes the pipeline."""
        self.pipelines.remove(msgspec.convert(self.api.pipelines.pop(PLACE), Pipeline))

    @property
    def status(self) -> Manifest:
        found: Manifest = self.api.flows["ml-faas/lstm-pipeline"].get("status", {})
        return found

    @property
    def accepted(self) -> tuple[str, str, str]:
        (condition,) = self.status["conditions"]
        return condition["status"], condition["reason"], condition["message"]


def taking() -> Rig:
    """One whose namespace of functions takes the flow."""
    rig = Rig()
    rig.api.namespaces["openfaas-fn"] = "other, ml-faas"
    return rig


def running() -> Rig:
    """One whose flow has its pipeline."""
    rig = taking()
    rig.create()
    rig.rounds()
    return rig


def test_m8_a_flow_becomes_a_pipeline_whose_phase_it_tells() -> None:
    rig = running()
    (made,) = rig.api.pipelines.values()
    names = [stage["name"] for stage in made["spec"]["stages"]]
    assert names == ["data-preprocess-load-data", "data-preprocess-data-clean", "lstm-model-build"], (
        "a list has an order"
    )
    assert made["metadata"]["annotations"] == {_FLOW: "ml-faas/lstm-pipeline", _FLOW_UID: UID}
    assert "ownerReferences" not in made["metadata"]
    assert (rig.status["phase"], rig.status["pipeline"]) == ("Waiting", PLACE)
    state, reason, notes = rig.accepted
    assert (state, reason) == ("True", "Valid")
    assert "LSTM-model-build is renamed to lstm-model-build" in notes
    assert "rule" not in notes  # the API server has checked it
    rig.api.pipelines[PLACE]["status"] = {"phase": "Succeeded"}
    rig.rounds()
    assert (rig.status["phase"], rig.accepted[2], len(rig.api.pipelines)) == ("Succeeded", notes, 1)
    rig.deleted()
    rig.rounds()
    assert rig.status["phase"] == "Succeeded", "also where somebody tidies up"


def test_in_its_own_namespace_nobody_is_asked_and_the_pipeline_goes_with_it() -> None:
    rig = Rig()
    stage = {"name": "only", "step": [{"mlfun": "example/x"}]}
    rig.create(stage1=stage, stage2={**stage, "name": "then"})
    rig.rounds()
    (made,) = rig.api.pipelines.values()
    assert made["metadata"]["namespace"] == "ml-faas"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("MLFlow", UID)


def test_a_namespace_runs_pods_of_no_flow_that_it_does_not_take() -> None:
    """Who may write flows in one namespace may not run pods in all."""
    for taken in (None, "", "ml-faas2", "team ml-faas", "*"):
        rig = Rig()
        if taken is not None:
            rig.api.namespaces["openfaas-fn"] = taken
        rig.create()
        rig.rounds()
        assert not rig.api.pipelines
        state, reason, message = rig.accepted
        assert (state, reason) == ("False", "NamespaceTakesNoFlows")
        assert message.endswith(f"kubectl annotate namespace openfaas-fn {_TAKES_FLOWS_FROM}=ml-faas")
        rig.api.namespaces["openfaas-fn"] = "ml-faas"
        rig.rounds(later_s=31)
        assert rig.accepted[0] == "True"
        assert len(rig.api.pipelines) == 1


def test_what_is_no_pipeline_says_all_that_is_wrong() -> None:
    rig = taking()
    rig.create(stage1={"name": "%", "step": []}, stage01={"step": [{"mlfun": "image"}]})
    rig.rounds()
    state, reason, message = rig.accepted
    assert (state, reason, rig.status["phase"]) == ("False", "Invalid", "Failed")
    for word in ("stage1.name: '%' has no letter", "stage1.step: at least one", "stage01: the same stage as stage1"):
        assert word in message


def test_what_the_api_server_refuses_is_told_in_its_words() -> None:
    rig = taking()
    rig.api.errors["pipelines"] = ApiError(422, "Invalid", "spec.stages: Too many")
    rig.create()
    rig.rounds()
    assert rig.accepted == ("False", "Refused", "spec.stages: Too many")


def test_whatever_fails_is_tried_again() -> None:
    for where in ("/api/v1/namespaces", "pipelines", "/status"):
        rig = taking()
        rig.api.errors[where] = UnreachableError("cut")
        rig.create()
        rig.rounds()
        assert not rig.status
        rig.api.errors.clear()
        rig.rounds(later_s=60)
        assert rig.accepted[0] == "True"
        assert len(rig.api.pipelines) == 1  # where only the answer was lost, too


def test_a_pipeline_of_the_same_name_that_is_somebody_elses_is_left_alone() -> None:
    rig = taking()
    forged = {"metadata": {"name": PLACE.split("/")[1], "namespace": "openfaas-fn", "uid": "other"}, "spec": {}}
    rig.api.pipelines[PLACE] = forged
    rig.create()
    rig.rounds()
    assert not rig.status
    del rig.api.pipelines[PLACE]
    rig.rounds(later_s=60)
    assert rig.accepted[0] == "True"


def test_who_claims_to_be_a_flows_pipeline_elsewhere_is_not_believed() -> None:
    """Its UID is known to everybody who may read it."""
    rig = taking()
    annotations = {_FLOW: "ml-faas/lstm-pipeline", _FLOW_UID: UID}
    metadata = {"name": PLACE.split("/")[1], "namespace": "hostile", "uid": "other", "annotations": annotations}
    rig.api.pipelines["hostile/x"] = {"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded"}}
    rig.create()
    rig.rounds()
    assert (rig.status["phase"], rig.status["pipeline"]) == ("Waiting", PLACE)


def test_the_pipeline_of_a_flow_that_is_gone_is_cancelled_and_not_deleted() -> None:
    rig = running()
    rig.flows.flows.remove(msgspec.convert(rig.api.flows.pop("ml-faas/lstm-pipeline"), Flow))
    asyncio.run(rig.flows.run_round())
    assert rig.api.pipelines[PLACE]["spec"]["cancel"] is True


def test_one_that_went_while_nobody_looked_is_noticed() -> None:
    rig = Rig()
    rig.api.pipelines = running().api.pipelines
    rig.tell()
    asyncio.run(rig.flows.run_round())
    assert rig.api.pipelines[PLACE]["spec"]["cancel"] is True


def test_a_flow_that_can_not_be_read_is_not_taken_for_gone() -> None:
    rig = running()
    rig.flows.flows.retain_only(set(), 0.0)  # dropped by the mirror
    asyncio.run(rig.flows.run_round())
    assert "cancel" not in rig.api.pipelines[PLACE]["spec"]


def test_what_an_author_writes_on_a_pipeline_becomes_no_path() -> None:
    for key in ("../../../nodes/x", "a/b/c", "a?limit=1/x", "", "ml-faas/x,y"):
        rig = Rig()
        metadata = {"name": "x", "namespace": "ns", "uid": "x", "annotations": {_FLOW: key, _FLOW_UID: "nobody"}}
        rig.api.pipelines["ns/x"] = {"metadata": metadata, "spec": {}}
        rig.tell()
        asyncio.run(rig.flows.run_round())
        assert rig.api.paths == ["/apis/kerf.dev/v1alpha1/namespaces/ns/pipelines/x"]
        assert rig.api.pipelines["ns/x"]["spec"]["cancel"] is True


def test_a_pipeline_that_somebody_deleted_is_not_made_again() -> None:
    rig = running()
    rig.deleted()
    rig.rounds()
    assert rig.status["phase"] == "Cancelled"
    assert not rig.api.pipelines


def test_what_kerf_says_itself_brings_no_turn_forward() -> None:
    """A refusal in other words each time, as quotas give them."""
    rig = taking()
    rig.create()
    for number in range(10):
        rig.api.errors["pipelines"] = ApiError(403, "Forbidden", f"quota: used {number}")
        rig.rounds()
    assert sum(path.endswith("/pipelines") for path in rig.api.paths) == 1
    rig.rounds(later_s=1.0)
    assert sum(path.endswith("/pipelines") for path in rig.api.paths) == 2


def test_a_status_that_met_another_change_is_written_soon() -> None:
    rig = taking()
    rig.create()
    rig.api.flows["ml-faas/lstm-pipeline"]["metadata"]["resourceVersion"] = "2"  # a label, say
    rig.rounds()
    rig.rounds(later_s=1.0)
    assert rig.status["phase"] == "Waiting"
