"""What makes kube-scheduler refuse a pod, and what other device plugins leave on nodes, as the API server takes it."""

from collections.abc import Mapping
from typing import Any, Final

from tests.tools.chaos.faults import Kind
from tests.tools.chaos.plans import NodePlan, PodPlan

REFUSED: Final = "chaos.example.com/refused"
"""A label of pods that the extender behind Kerf refuses."""
WORDS_BEHIND: Final = "no storage for it here"
"""What it says of a node."""
RESIZED_CPU: Final = "95500m"
"""What a pod has before it is made smaller, of the 96 CPUs of its node,"""
SMALL_CPU: Final = "100m"
"""and afterwards."""
_RESOURCE: Final = "example.com/rdma"
_PORT: Final = 9400
_GUARD: Final = {"chaos.example.com/guard": "true"}
_UNBOUND, _ELSEWHERE = "volume-unbound", "volume-elsewhere"
_YEARS_AGO: Final = "2024-01-23T04:30:04Z"

_Object = dict[str, Any]


def hinder(made: _Object, planned: PodPlan) -> None:
    """Write on a pod what keeps it from all nodes, or others from its own."""
    spec, (container,) = made["spec"], made["spec"]["containers"]
    if planned.owner:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": planned.owner, "uid": f"uid-of-{planned.owner}"}
        made["metadata"]["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": False}]
    if planned.guards:
        made["metadata"]["labels"] |= _GUARD
    if planned.guards or planned.obstacle is Kind.HOST_PORT_TAKEN:
        container["ports"] = [{"containerPort": _PORT, "hostPort": _PORT, "protocol": "TCP"}]
    match planned.obstacle:
        case Kind.UNKNOWN_RESOURCE:
            container["resources"].setdefault("limits", {})[_RESOURCE] = "1"
        case Kind.APART_FROM_ALL:
            term = {"labelSelector": {"matchLabels": _GUARD}, "topologyKey": "kubernetes.io/hostname"}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        case Kind.VOLUME_UNBOUND | Kind.VOLUME_ELSEWHERE:
            claim = _UNBOUND if planned.obstacle is Kind.VOLUME_UNBOUND else _ELSEWHERE
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        case Kind.REFUSED_BEHIND:
            made["metadata"]["labels"][REFUSED] = "true"


def volumes() -> list[_Object]:
    """A class of volumes that nobody makes, a claim of it, and one that has a volume on a node that is not there."""
    storage = {"accessModes": ["ReadWriteOnce"], "storageClassName": "nowhere"}
    wanted = {"resources": {"requests": {"storage": "1Gi"}}}
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["not-there"]}
    bound = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    claims: _Object = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return [
        {
            **{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "nowhere"}},
            **{"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"},
        },
        claims | {"metadata": {"name": _UNBOUND, "namespace": "default"}, "spec": storage | wanted},
        {
            **{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": _ELSEWHERE}},
            "spec": storage
            | {
                **{"capacity": {"storage": "1Gi"}, "local": {"path": "/data"}},
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": _ELSEWHERE},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            },
        },
        claims
        | {
            "metadata": {"name": _ELSEWHERE, "namespace": "default", "annotations": bound},
            "spec": storage | wanted | {"volumeName": _ELSEWHERE},
        },
    ]


def leftovers(kind: Kind, node: NodePlan) -> tuple[_Object, _Object]:
    """Patches of a node and of its status: what was left there."""
    if kind is Kind.LEFT_BY_GPUSHARE:
        left = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": str(node.gpus)}
        return {}, {"status": {"capacity": left, "allocatable": left}}
    register = "".join(
        f"GPU-{node.name}-{gpu},10,{node.memory_mib},100,NVIDIA-{node.product},0,true,{gpu},hami-core:"
        for gpu in range(node.gpus)
    )
    written = {"hami.io/node-nvidia-register": register, "hami.io/node-handshake": "Requesting_2024-01-23 04:30:04"}
    if kind is Kind.LEFT_LOCK:
        written["hami.io/mutex.lock"] = f"{_YEARS_AGO},default,long-gone"
    return {"metadata": {"annotations": written}}, {}


def running(cpu: str) -> Mapping[str, Any]:
    """The status of a pod whose container runs with so much CPU."""
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    container = {
        **{"name": "main", "image": "registry.k8s.io/pause:3.10", "imageID": "", "ready": True, "restartCount": 0},
        **{"state": {"running": {}}, "resources": resources, "allocatedResources": resources["requests"]},
    }
    return {"status": {"phase": "Running", "containerStatuses": [container]}}


def smaller() -> Mapping[str, Any]:
    """What is asked of the subresource `resize`."""
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": SMALL_CPU}}}]}}
