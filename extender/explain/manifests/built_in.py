"""Kubernetes' built-in workload kinds."""

from typing import Any, Final

from extender.explain.manifests.batches import Batch, Count, KindError, Template, WorkloadPods, read
from extender.kube.objects import Object

SUSPENDED: Final = "it is suspended: these are its pods once it is resumed"


class JobSpec(Object, rename="camel"):
    """The fields of a Job's spec that Kerf reads."""

    template: Template
    parallelism: Count | None = None
    completions: Count | None = None
    completion_mode: str | None = None
    suspend: bool | None = None

    @property
    def at_once(self) -> int:
        """Number of pods that run at once."""
        parallelism = 1 if self.parallelism is None else self.parallelism
        return parallelism if self.completions is None else min(parallelism, self.completions)


class Job(Object):
    """A Job, or the template of one."""

    spec: JobSpec


class _CronSpec(Object, rename="camel"):
    job_template: Job


class _Cron(Object):
    spec: _CronSpec


class ReplicasSpec(Object, rename="camel"):
    """A pod template and its number of replicas."""

    template: Template
    replicas: Count | None = None


class _Replicas(Object):
    spec: ReplicasSpec


def one_pod(manifest: Any, name: str) -> WorkloadPods:
    """A bare pod. Raises KindError."""
    template = {"metadata": manifest.get("metadata"), "spec": manifest.get("spec")}
    if not isinstance(template["spec"], dict):
        raise KindError("spec", "a pod needs containers")
    return WorkloadPods([Batch(1, lambda _: name, template, "")])


def replicas(manifest: Any, name: str) -> WorkloadPods:
    """Replicas of a template, by default one. Raises KindError."""
    spec = read(manifest, _Replicas).spec
    count = 1 if spec.replicas is None else spec.replicas
    return WorkloadPods([Batch(count, lambda number: f"{name}-{number}", spec.template, "spec.template")])


def job(manifest: Any, name: str) -> WorkloadPods:
    """A Job. Raises KindError."""
    return of_job(read(manifest, Job).spec, name, "spec.template")


def cron_job(manifest: Any, name: str) -> WorkloadPods:
    """One run of a CronJob. Raises KindError."""
    made = of_job(read(manifest, _Cron).spec.job_template.spec, name, "spec.jobTemplate.spec.template")
    return made._replace(notes=["one run of it", *made.notes])


def of_job(spec: JobSpec, name: str, path: str) -> WorkloadPods:
    """The pods of a Job that run at once; `path` is the path of its pod template. Raises KindError."""
    if spec.completion_mode == "Indexed" and spec.completions is None:
        raise KindError(path.removesuffix("template") + "completions", "an Indexed Job needs this field")
    notes = [SUSPENDED] if spec.suspend else []
    if spec.completions is not None and spec.completions > spec.at_once > 0:
        notes.append(f"{spec.at_once:,} of its {spec.completions:,} pods run at once")
    return WorkloadPods([Batch(spec.at_once, lambda number: f"{name}-{number}", spec.template, path)], notes)
