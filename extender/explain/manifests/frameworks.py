"""Workload kinds of JobSet, LeaderWorkerSet, Kubeflow, Volcano and KubeRay."""

from typing import Any

from extender.explain.manifests.batches import (
    NOT_READ,
    Batch,
    Count,
    KindError,
    Template,
    WorkloadPods,
    numbered,
    read,
    within,
)
from extender.explain.manifests.built_in import SUSPENDED, Job, ReplicasSpec
from extender.kube.objects import Object


class _ReplicatedJob(Object, rename="camel"):
    name: str
    template: Job
    replicas: Count | None = None
    depends_on: list[Any] | None = None


class _JobSetSpec(Object, rename="camel"):
    replicated_jobs: list[_ReplicatedJob]
    suspend: bool | None = None


class _JobSet(Object):
    spec: _JobSetSpec


class _LeaderWorkers(Object, rename="camel"):
    worker_template: Template
    leader_template: Template | None = None
    size: Count | None = None


class _LeaderWorkerSetSpec(Object, rename="camel"):
    leader_worker_template: _LeaderWorkers
    replicas: Count | None = None


class _LeaderWorkerSet(Object):
    spec: _LeaderWorkerSetSpec


class _Task(ReplicasSpec, rename="camel"):
    name: str = ""


class _VolcanoSpec(Object, rename="camel"):
    tasks: list[_Task]
    min_available: Count | None = None


class _VolcanoJob(Object):
    spec: _VolcanoSpec


class _RayHead(Object):
    template: Template


class _RayWorkers(Object, rename="camel"):
    template: Template
    group_name: str = "workers"
    replicas: Count | None = None
    min_replicas: Count | None = None
    num_of_hosts: Count | None = None
    suspend: bool | None = None

    @property
    def count(self) -> int:
        """Number of pods at the start."""
        replicas = max(self.replicas or 0, self.min_replicas or 0)
        return 0 if self.suspend else replicas * (1 if self.num_of_hosts is None else self.num_of_hosts)


class _RaySpec(Object, rename="camel"):
    head_group_spec: _RayHead
    worker_group_specs: list[_RayWorkers] | None = None
    enable_in_tree_autoscaling: bool | None = None


def job_set(manifest: Any, name: str) -> WorkloadPods:
    """All jobs of a JobSet. Raises KindError."""
    spec = read(manifest, _JobSet).spec
    batches: list[Batch] = []
    notes = [SUSPENDED] if spec.suspend else []
    for position, job in enumerate(spec.replicated_jobs):
        each = job.template.spec.at_once
        count = each * (1 if job.replicas is None else job.replicas)

        def pod_name(number: int, stem: str = f"{name}-{job.name}", each: int = each) -> str:
            return f"{stem}-{number // each}-{number % each}"

        path = f"spec.replicatedJobs[{position}].template.spec.template"
        batches.append(Batch(count, pod_name, job.template.spec.template, path))
        if job.depends_on:
            notes.append(f"{job.name[:80]} starts after other jobs, but is counted together with them here")
    return WorkloadPods(batches, notes)


def leader_worker_set(manifest: Any, name: str) -> WorkloadPods:
    """Groups of a leader and its workers. Raises KindError."""
    spec = read(manifest, _LeaderWorkerSet).spec
    groups = 1 if spec.replicas is None else spec.replicas
    group, path = spec.leader_worker_template, "spec.leaderWorkerTemplate"
    workers = max((1 if group.size is None else group.size) - 1, 0)
    led = group.leader_template
    leader = Batch(
        num_pods=groups,
        name=lambda number: f"{name}-{number}",
        template=group.worker_template if led is None else led,
        path=f"{path}.{'workerTemplate' if led is None else 'leaderTemplate'}",
    )
    others = Batch(
        num_pods=groups * workers,
        name=lambda number: f"{name}-{number // workers}-{number % workers + 1}",
        template=group.worker_template,
        path=f"{path}.workerTemplate",
    )
    return WorkloadPods([leader, others])


def kubeflow(manifest: Any, name: str) -> WorkloadPods:
    """PyTorchJob, MPIJob and their like: `pytorchReplicaSpecs: {Master: {replicas, template}}`. Raises KindError."""
    spec = manifest.get("spec")
    key = next((str(key) for key in spec if str(key).endswith("ReplicaSpecs")), "") if isinstance(spec, dict) else ""
    if not key:
        raise KindError("spec", "its replicas are missing, such as pytorchReplicaSpecs")
    path = f"spec.{key}"
    roles = read(spec[key], dict[str, ReplicasSpec], path)
    batches: list[Batch] = []
    for role, replicas in roles.items():
        count = 1 if replicas.replicas is None else replicas.replicas
        stem = f"{name}-{role.lower()}"
        batches.append(Batch(count, numbered(stem), replicas.template, f"{path}.{role}.template"))
    policy = spec.get("runPolicy")
    is_gang = isinstance(policy, dict) and policy.get("schedulingPolicy")
    return WorkloadPods(batches, [f"runPolicy.schedulingPolicy {NOT_READ}"] if is_gang else ())


def volcano(manifest: Any, name: str) -> WorkloadPods:
    """The tasks of a Volcano Job. Raises KindError."""
    spec = read(manifest, _VolcanoJob).spec
    batches = [
        Batch(
            1 if task.replicas is None else task.replicas,
            numbered(f"{name}-{task.name or f'default{position}'}"),
            template=task.template,
            path=f"spec.tasks[{position}].template",
        )
        for position, task in enumerate(spec.tasks)
    ]
    return WorkloadPods(batches, [f"minAvailable {NOT_READ}"] if spec.min_available else ())


def ray_cluster(manifest: Any, name: str) -> WorkloadPods:
    """A head and its workers. Raises KindError."""
    return _ray(manifest.get("spec"), name, "spec")


def ray_job(manifest: Any, name: str) -> WorkloadPods:
    """The cluster of a RayJob. Raises KindError."""
    made = _ray(within(manifest, "rayClusterSpec"), name, "spec.rayClusterSpec")
    return made._replace(notes=["its submitter pod is not counted", *made.notes])


def ray_service(manifest: Any, name: str) -> WorkloadPods:
    """The cluster of a RayService. Raises KindError."""
    return _ray(within(manifest, "rayClusterConfig"), name, "spec.rayClusterConfig")


def _ray(manifest: Any, name: str, path: str) -> WorkloadPods:
    spec = read(manifest, _RaySpec, path)
    batches = [Batch(1, lambda _: f"{name}-head", spec.head_group_spec.template, f"{path}.headGroupSpec.template")]
    for position, group in enumerate(spec.worker_group_specs or ()):
        where = f"{path}.workerGroupSpecs[{position}].template"
        batches.append(Batch(group.count, numbered(f"{name}-{group.group_name}"), group.template, where))
    notes = ["counted with the workers that it starts with"] if spec.enable_in_tree_autoscaling else []
    return WorkloadPods(batches, notes)
