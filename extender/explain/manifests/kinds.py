"""Kinds of objects that create pods, and how each is read.

Missing fields get the defaults of Kubernetes or of the kind's controller. For Jobs, only pods that run at once count.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from extender.core.faces import faces, named
from extender.explain.manifests import built_in, frameworks
from extender.explain.manifests.batches import WorkloadPods


def _of_part(where: str) -> Callable[[Any, str], WorkloadPods]:
    """A reader for a kind of a Kerf part, imported when such an object is given."""
    return lambda manifest, name: cast(WorkloadPods, named(where)(manifest, name))


_VOLCANO: Final = "batch.volcano.sh/"

MAKES: Final[Mapping[str, Callable[[Any, str], WorkloadPods]]] = {
    "Pod": built_in.one_pod,
    "Job": built_in.job,
    "CronJob": built_in.cron_job,
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"), built_in.replicas),
    "JobSet": frameworks.job_set,
    "LeaderWorkerSet": frameworks.leader_worker_set,
    **dict.fromkeys(("PyTorchJob", "TFJob", "MPIJob", "JAXJob", "PaddleJob", "XGBoostJob"), frameworks.kubeflow),
    "RayCluster": frameworks.ray_cluster,
    "RayJob": frameworks.ray_job,
    "RayService": frameworks.ray_service,
    **{kind: _of_part(where) for face in faces().values() for kind, where in face.kinds.items()},
}
"""Reader of each kind; those of Kerf's parts last."""
OTHERS: Final = {
    "DaemonSet": "each of its pods belongs to one node: they are not planned",
    "TrainJob": "its runtime defines its pods: give the JobSet that it creates",
    "PodTemplate": "it creates no pods by itself",
}
"""Kinds whose pods can't be determined, and why."""


PASSIVE: Final = frozenset(
    {
        *("Namespace", "ServiceAccount", "Service", "Endpoints", "EndpointSlice", "ConfigMap", "Secret", "Event"),
        *("PersistentVolumeClaim", "PersistentVolume", "StorageClass", "ResourceQuota", "LimitRange", "PriorityClass"),
        *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "PodDisruptionBudget", "RuntimeClass"),
        *("HorizontalPodAutoscaler", "VerticalPodAutoscaler", "ScaledObject", "Ingress", "IngressClass"),
        *("NetworkPolicy", "Gateway", "HTTPRoute", "CustomResourceDefinition", "DeviceClass", "Workload"),
        *("ServiceMonitor", "PodMonitor", "LocalQueue", "ClusterQueue", "ResourceFlavor", "Queue"),
    }
)
"""Kinds without pods that are commonly given along with workloads."""


def read_made(manifest: dict[str, Any], name: str) -> WorkloadPods:
    """The pods of an object of a known kind, under a name. Raises KindError."""
    kind = manifest["kind"]
    if kind == "Job" and str(manifest.get("apiVersion", "")).startswith(_VOLCANO):
        return frameworks.volcano(manifest, name)
    return MAKES[kind](manifest, name)
