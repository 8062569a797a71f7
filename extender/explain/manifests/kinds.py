"""Kinds of objects that make pods, and how each is read.

What an author has left out is filled in as Kubernetes, or the controller of that kind, does. Of Jobs it is the pods
that run at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from extender.core.faces import faces, named
from extender.explain.manifests import built_in, frameworks
from extender.explain.manifests.batches import Made


def _of_part(where: str) -> Callable[[Any, str], Made]:
    """What reads a kind of a part's, imported when there is such an object."""
    return lambda manifest, name: cast(Made, named(where)(manifest, name))


_VOLCANO: Final = "batch.volcano.sh/"

MAKES: Final[Mapping[str, Callable[[Any, str], Made]]] = {
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
"""Kinds, and how each is read; those of parts last."""
OTHERS: Final = {
    "DaemonSet": "its pods belong to nodes, one to each: they are not planned",
    "TrainJob": "which pods it makes says its runtime: write the JobSet that it makes",
    "PodTemplate": "nothing is made of it by itself",
}
"""Kinds that make pods of which it can't be told how many or where."""


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
"""Kinds that make no pods, and that people write beside those that do."""


def read_made(manifest: dict[str, Any], name: str) -> Made:
    """What an object of a known kind makes, under a name. Raises KindError."""
    kind = manifest["kind"]
    if kind == "Job" and str(manifest.get("apiVersion", "")).startswith(_VOLCANO):
        return frameworks.volcano(manifest, name)
    return MAKES[kind](manifest, name)
