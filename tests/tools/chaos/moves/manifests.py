"""Controllers, budgets and priorities as the API server takes them."""

from typing import Any, Final

from tests.controlplane.api import Object
from tests.tools.chaos.moves.plans import Owner, OwnerPlan

BUDGETS: Final = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MAPS: Final = "/api/v1/namespaces/default/configmaps"
PATHS: Final = {
    Owner.DEPLOYMENT: "/apis/apps/v1/namespaces/default/deployments",
    Owner.REPLICA_SET: "/apis/apps/v1/namespaces/default/replicasets",
    Owner.JOB: "/apis/batch/v1/namespaces/default/jobs",
}
OWNER: Final = "example.com/owner"
"""Label of a pod: the name of what makes it anew."""
URGENT: Final[Object] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
    "preemptionPolicy": "Never",
}
_BACKOFF_LIMIT: Final = 20


def owner(planned: OwnerPlan) -> Object:
    """A controller as its plan says."""
    labels = {OWNER: planned.name}
    made: Object = {"metadata": {"name": planned.name, "labels": labels}}
    if planned.kind is Owner.JOB:
        # Evictions are no failures to it.
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        return made | {
            "spec": {
                **{"parallelism": planned.replicas, "completions": planned.replicas, "backoffLimit": _BACKOFF_LIMIT},
                "podFailurePolicy": {"rules": [ignored]},
                "template": _template(planned, restartPolicy="Never"),
            }
        }
    return made | {
        "spec": {
            **{"replicas": planned.replicas, "selector": {"matchLabels": labels}},
            "template": _template(planned),
        }
    }


def _template(planned: OwnerPlan, **spec: Any) -> Object:
    limits = {"nvidia.com/gpu": str(planned.gpus)}
    resources = {"limits": limits, "requests": {"cpu": "50m", "memory": "64Mi"}}
    annotations = {}
    if planned.stays:
        annotations["kerf.dev/movable"] = "false"
    if planned.gang:
        annotations |= {"kerf.dev/gang": planned.name, "kerf.dev/gang-size": str(planned.replicas)}
    if planned.urgent:
        spec["priorityClassName"] = URGENT["metadata"]["name"]
    return {
        "metadata": {"labels": {OWNER: planned.name, "kerf.dev/queue": "enabled"}, "annotations": annotations},
        "spec": {
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources}],
            "schedulingGates": [{"name": "kerf.dev/queue"}],
            **spec,
        },
    }


def budget(name: str, keeps: int) -> Object:
    """The budget of the pods of a controller."""
    return {
        "metadata": {"name": name, "labels": {OWNER: name}},
        "spec": {"minAvailable": keeps, "selector": {"matchLabels": {OWNER: name}}},
    }


def scale(kind: Owner, replicas: int) -> Object:
    """What changes how many pods a controller has, as a merge patch."""
    field = "parallelism" if kind is Owner.JOB else "replicas"
    return {"spec": {field: replicas}}
