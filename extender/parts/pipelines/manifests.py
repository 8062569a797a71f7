"""The pods of Pipeline and MLFlow manifests, for `kerf what-if` and the like."""

from typing import Any

from extender.explain.manifests.batches import Batch, KindError, WorkloadPods, read
from extender.explain.manifests.built_in import Job, of_job
from extender.parts.pipelines.jobs import job_of
from extender.parts.pipelines.mlflow import ConversionError, convert
from extender.parts.pipelines.specs import Pipeline, fault, needs


def pipeline(manifest: Any, name: str) -> WorkloadPods:
    """The pods of the stages that start at once. Raises KindError."""
    parsed = read({**manifest, "metadata": {"name": name, "namespace": "default", "uid": name}}, Pipeline)
    if wrong := fault(parsed.spec):
        raise KindError("spec.stages", wrong[1])
    before = needs(parsed.spec.stages)
    first = [stage for stage in parsed.spec.stages if not before[stage.name]]
    batches: list[Batch] = []
    for number, stage in enumerate(parsed.spec.stages):
        for position, step in enumerate(stage.steps if stage in first else ()):
            path = f"spec.stages[{number}].steps[{position}].template"
            try:
                job = read(job_of(parsed, stage, step, 1), Job, path).spec
            except (TypeError, AttributeError, ValueError, KeyError) as error:
                raise KindError(path, f"is not a pod template ({type(error).__name__})") from None
            batches += of_job(job, f"{name}-{stage.name}-{step.name}", path).batches
    others = len(parsed.spec.stages) - len(first)
    names = ", ".join(stage.name[:80] for stage in first[:4])
    return WorkloadPods(batches, [f"the pods of its first stages ({names}); others follow"] if others else ())


def flow(manifest: Any, name: str) -> WorkloadPods:
    """The pods of the pipeline that an MLFlow becomes. Raises KindError."""
    try:
        converted = convert(manifest, steps_in_order=True, rules_hold=True).manifest
        return pipeline(converted, name)._replace(namespace=converted["metadata"]["namespace"])
    except ConversionError as error:
        path, _, why = error.faults[0].partition(": ")
        raise KindError(path, why) from None
