"""The Jobs of steps: builds their manifests, and reads Jobs by their labels and status."""

import hashlib
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from extender.kube import objects
from extender.parts.pipelines.specs import API_VERSION, KIND, Pipeline, Stage, Step
from extender.queueing.pods.batches import GANG, GANG_SIZE, GANG_TOPOLOGY
from extender.queueing.pods.nominations import gated_by_kerf
from extender.queueing.pods.objects import ENABLED, PIPELINE_LABEL, QUEUE_LABEL

JOBS_PATH: Final = "/apis/batch/v1/jobs"
# On Jobs and their pods, besides the pipeline's name.
_STAGE_LABEL: Final = "kerf.dev/pipeline-stage"
_STEP_LABEL: Final = "kerf.dev/pipeline-step"
_ATTEMPT_LABEL: Final = "kerf.dev/pipeline-attempt"

_MAX_NAME: Final = 52  # a Job's pods get a suffix, and their names become host names of at most 63 characters

Manifest = dict[str, Any]


class JobPhase(StrEnum):
    """State of a Job."""

    ACTIVE = "active"
    COMPLETE = "complete"
    FAILED = "failed"


class _Spec(objects.Object):
    suspend: bool = False


class _Status(objects.Object):
    conditions: list[objects.Condition] | None = None


class Job(objects.Named):
    """The fields of a Job that are read."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def owner(self) -> str:
        """UID of its controller, "" if it has none."""
        controller = self.metadata.controller
        return controller.uid if controller else ""


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a step."""

    stage: str
    step: str
    attempt: int
    job: str
    """Name of its Job."""
    phase: JobPhase = JobPhase.ACTIVE
    stopped: bool = False
    """Whether its Job is suspended."""
    message: str = ""
    """Why it failed."""


def jobs_path(pipeline: Pipeline) -> str:
    """URL path of the Jobs in a pipeline's namespace."""
    return f"/apis/batch/v1/namespaces/{pipeline.metadata.namespace}/jobs"


def run_of(job: Job) -> Run | None:
    """The attempt that a Job is, None if it lacks the labels."""
    labels, metadata = job.metadata.labels or {}, job.metadata
    stage, step, attempt = (labels.get(label, "") for label in (_STAGE_LABEL, _STEP_LABEL, _ATTEMPT_LABEL))
    if not (stage and step and attempt.isascii() and attempt.isdigit()):
        return None
    phase, message = JobPhase.ACTIVE, ""
    for condition in job.status.conditions or ():
        if condition.status == "True" and condition.type in ("Complete", "Failed"):
            phase = JobPhase.COMPLETE if condition.type == "Complete" else JobPhase.FAILED
            message = f"{condition.reason}: {condition.message}" if phase is JobPhase.FAILED else ""
    return Run(stage, step, int(attempt), metadata.name, phase, job.spec.suspend, message)


def job_name(pipeline: Pipeline, stage: str, step: str, attempt: int) -> str:
    """A deterministic name, so that creating a Job twice is refused."""
    name = f"{pipeline.metadata.name}-{stage}-{step}-{attempt}"
    if len(name) <= _MAX_NAME and "." not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9].replace('.', '-').rstrip('-')}-{digest}"


def job_of(pipeline: Pipeline, stage: Stage, step: Step, attempt: int) -> Manifest:
    """The Job of one attempt; its pods have Kerf's scheduling gate, and those of a gang stage form a gang."""
    metadata = pipeline.metadata
    labels = {
        PIPELINE_LABEL: metadata.name,
        _STAGE_LABEL: stage.name,
        _STEP_LABEL: step.name,
        _ATTEMPT_LABEL: str(attempt),
    }
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata.name, "uid": metadata.uid, "controller": True}
    template = _template(pipeline, stage, step, labels, attempt)
    spec: Manifest = {
        "parallelism": step.parallelism,
        "completions": step.parallelism if step.completions is None else step.completions,
        "backoffLimit": step.backoff_limit,
        "template": template,
    }
    if step.active_deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = step.active_deadline_seconds
    if template["spec"]["restartPolicy"] == "Never":
        # Recreate pods that were evicted, preempted or lost with their node, without counting them as failures.
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": disrupted}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(pipeline, stage.name, step.name, attempt),
            "namespace": metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _template(pipeline: Pipeline, stage: Stage, step: Step, labels: dict[str, str], attempt: int) -> Manifest:
    template: Manifest = deepcopy(step.template)
    metadata = template["metadata"] = template.get("metadata") or {}
    spec = template["spec"] = template.get("spec") or {}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels, QUEUE_LABEL: ENABLED}
    if stage.gang:
        # The UID excludes pods of an earlier pipeline of this name.
        name = f"{pipeline.metadata.name}-{stage.name}-{pipeline.metadata.uid[:8]}-{attempt}"
        gang = {GANG: name, GANG_SIZE: str(stage.num_pods)}
        if stage.topology:
            gang[GANG_TOPOLOGY] = stage.topology
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **gang}
    spec["schedulingGates"] = gated_by_kerf(spec)
    spec.setdefault("restartPolicy", "Never")
    if pipeline.spec.scheduler_name:
        spec.setdefault("schedulerName", pipeline.spec.scheduler_name)
    return template
