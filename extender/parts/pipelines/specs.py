"""Pipeline objects, and the checks that their schema (manifests/helm/kerf/pipelines.kerf.dev.yaml) can't express."""

from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import msgspec

from extender.kube import objects

_GROUP: Final = "kerf.dev"
API_VERSION: Final = f"{_GROUP}/v1alpha1"
KIND: Final = "Pipeline"
PIPELINES_PATH: Final = f"/apis/{API_VERSION}/pipelines"

_MAX_STEPS: Final = 256
"""Most steps of all stages; each is checked by a dry run before the first one starts."""
ACCEPTED: Final = "Accepted"
"""Condition type: whether the pipeline can be run."""
SUCCEEDED: Final = "Succeeded"
"""Condition type: Unknown while the pipeline runs."""


class Step(objects.Object, rename="camel"):
    """A step, run as a Job."""

    name: str = ""
    parallelism: int = 1
    completions: int | None = None
    backoff_limit: int = 0
    active_deadline_seconds: int | None = None
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    """A PodTemplateSpec."""


class Stage(objects.Object):
    """Steps that run in parallel."""

    name: str = ""
    after: list[str] | None = None
    """Stages that have to succeed first; None for the previous one in the list."""
    gang: bool = False
    """Whether all pods of all steps start together and are retried together."""
    topology: str = ""
    """Topology of the gang: see `kerf.dev/gang-topology`."""
    retries: int = 0
    steps: list[Step] = msgspec.field(default_factory=list)

    @property
    def num_pods(self) -> int:
        """Pods of all steps that run at the same time."""
        return sum(step.parallelism for step in self.steps)


class Spec(objects.Object, rename="camel"):
    scheduler_name: str = ""
    cancel: bool = False
    stages: list[Stage] = msgspec.field(default_factory=list)


class Condition(objects.Condition, rename="camel"):
    last_transition_time: str = ""


class StepStatus(objects.Object, rename="camel"):
    name: str
    phase: str
    attempt: int = 0
    """Number of the latest attempt, from 1; 0 before the first."""
    job: str = ""
    message: str = ""


class StageStatus(objects.Object, rename="camel"):
    name: str
    phase: str
    start_time: str | None = None
    completion_time: str | None = None
    message: str = ""
    steps: list[StepStatus] = msgspec.field(default_factory=list)


class Status(objects.Object, rename="camel"):
    phase: str = ""
    stage: str = ""
    """Names of the running stages, for kubectl's table."""
    observed_generation: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition] = msgspec.field(default_factory=list)
    stages: list[StageStatus] = msgspec.field(default_factory=list)

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type."""
        return next((item for item in self.conditions if item.type == kind), None)


class Metadata(objects.Metadata, rename="camel"):
    generation: int = 0


class Pipeline(objects.Named):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)

    @property
    def path(self) -> str:
        """Path of its URL."""
        return f"/apis/{API_VERSION}/namespaces/{self.metadata.namespace}/pipelines/{self.metadata.name}"


def needs(stages: list[Stage]) -> dict[str, tuple[str, ...]]:
    """By stage, the stages that have to succeed before it starts."""
    before = [None, *(stage.name for stage in stages)]
    return {
        stage.name: tuple(stage.after) if stage.after is not None else (last,) if last else ()
        for stage, last in zip(stages, before, strict=False)
    }


def fault(spec: Spec) -> tuple[str, str] | None:
    """Why a pipeline's stages can't be run, as a condition's reason and message; None if they can."""
    before = needs(spec.stages)
    if (num_steps := sum(len(stage.steps) for stage in spec.stages)) > _MAX_STEPS:
        return "TooManySteps", f"spec.stages: {num_steps} steps in all, at most {_MAX_STEPS}"
    for number, stage in enumerate(spec.stages):
        for name in before[stage.name]:
            if name not in before:
                known = ", ".join(before)
                return "UnknownStage", f"spec.stages[{number}].after: no stage is named {name!r}; there are {known}"
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        return "Cycle", f"spec.stages: {' after '.join(reversed(error.args[1]))}: none of them can ever start"
    return None
