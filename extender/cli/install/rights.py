"""What Kerf has to be allowed by an API server, and what does not work without: manifests/rbac.yaml, as data."""

from typing import Final, NamedTuple


class Right(NamedTuple):
    """Verbs on a resource; of the one object where a name is given."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    without: str
    """What does not work without it."""
    name: str = ""
    namespace: str = ""
    of_some: bool = False
    """Whether only some users miss what does not work. kube-scheduler's own role lacks some of these: a static pod does
    without, until somebody needs them."""


_SERVING: Final = (
    Right("", "nodes", ("list", "watch"), "no pod is placed"),
    Right("", "nodes", ("get",), "pods of HAMi are not bound", of_some=True),
    Right("", "nodes/status", ("patch",), "pods of HAMi are not bound", of_some=True),
    Right("", "pods", ("list", "watch"), "no pod is placed"),
    Right("", "pods", ("get",), "a pod that changes while it is placed is not bound"),
    Right("", "pods/binding", ("create",), "no pod is bound"),
    Right("", "pods/status", ("patch",), "Kerf never becomes ready, and rejected pods are not woken"),
    Right("", "events", ("create",), "pods have no events that name their GPUs", of_some=True),
    Right("", "services", ("list",), "Prometheus is not discovered (telemetry.url)", of_some=True),
    Right("resource.k8s.io", "resourceslices", ("list", "watch"), "GPUs of DRA drivers are not known"),
    Right("resource.k8s.io", "resourceclaims", ("list", "watch"), "GPUs that ResourceClaims hold count as free"),
    Right(
        "policy", "poddisruptionbudgets", ("list",), "nobody is told how room could be made (kerf defrag)", of_some=True
    ),
    Right("batch", "jobs", ("list",), "pods of Jobs are never moved to make room (kerf defrag)", of_some=True),
)
"""Whatever the mode, apart from what `serving` leaves out."""

_OF_EXTENDERS: Final = ("pods/binding", "nodes/status")


def serving(*, extender: bool) -> tuple[Right, ...]:
    """What Kerf takes; without an extender it binds no pod, and locks no node of HAMi for one."""
    return tuple(right for right in _SERVING if extender or right.resource not in _OF_EXTENDERS)


QUEUEING: Final = (
    Right("", "pods", ("patch",), "pods never leave the queue"),
    Right("", "pods/eviction", ("create",), "gangs that have lost a pod hold what they have (queue.gangs_end_whole)"),
    Right("", "namespaces", ("list", "watch"), "the queue never starts"),
    Right("scheduling.x-k8s.io", "podgroups", ("get",), "gangs of PodGroups wait for ever"),
    Right("scheduling.k8s.io", "podgroups", ("get",), "gangs of Kubernetes' own PodGroups wait for ever"),
)
"""`queue.enabled`."""

ALLOCATING: Final = (
    Right("resource.k8s.io", "deviceclasses", ("list", "watch"), "no device is allocated"),
    Right("resource.k8s.io", "devicetaintrules", ("list", "watch"), "pools that Kerf owns are not known as its own"),
    Right("resource.k8s.io", "resourceclaims", ("get", "patch"), "no device is allocated"),
    Right("resource.k8s.io", "resourceclaims/status", ("patch",), "no device is allocated"),
    Right("resource.k8s.io", "resourceclaims/binding", ("patch",), "no device is allocated"),
)
"""`dra.allocate`."""

CREATING: Final = (
    Right("resource.k8s.io", "resourceclaims", ("create",), "pods that asked by an extended resource wait for ever"),
)
"""`dra.rewrite_extended_resources`."""


def electing(mode: str, namespace: str, lease: str) -> tuple[Right, ...]:
    """What `leader_election.mode` takes."""
    group, resource, without = "coordination.k8s.io", "leases", "Kerf never becomes leader"
    match mode:
        case "own":
            return (
                Right(group, resource, ("create",), without, namespace=namespace),
                Right(group, resource, ("get", "patch"), without, lease, namespace),
            )
        case "scheduler":
            return (Right(group, resource, ("get",), without, lease, namespace),)
    return ()
