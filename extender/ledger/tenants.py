"""Who lives on which node: of each bound pod what an eviction would cost, and what the node has for all of them.

Beside the ledger, which knows GPUs alone. Read only when kube-scheduler asks about evictions: quantities and times
stay as they came until then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.core.resources.quantities import parse_quantity
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.indexes import Index
from extender.ledger.crowd import Crowd
from extender.plugins.pod_resources import requested, while_resized

_PODS: Final = "pods"
_VOLUMES_WITHOUT_LIMIT: Final = frozenset(
    ("name", "configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret")
)
"""Of other volumes a node may take so many only, or this one once."""
_NOTHING: Final[Mapping[str, str | int | float]] = {}


class Port(objects.Object, rename="camel"):
    host_port: int | None = None


class DemandingContainer(objects.Object):
    ports: list[Port] | None = None


class Demands(objects.Object, rename="camel"):
    """What else than resources a pod's spec may want of a node; read only where it matters."""

    containers: list[DemandingContainer] | None = None
    init_containers: list[DemandingContainer] | None = None
    affinity: objects.Affinity | None = None
    topology_spread_constraints: list[objects.SpreadConstraint] | None = None
    volumes: list[dict[str, Any]] | None = None
    host_network: bool | None = None
    resource_claims: list[Any] | None = None


class DemandingPod(objects.Object):
    spec: Demands = msgspec.field(default_factory=Demands)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node."""

    uid: str
    key: str
    """`namespace/name`."""
    priority: int
    started: str
    """RFC 3339, "" when the kubelet has not said so."""
    leaving: bool
    spec: objects.PodSpec

    def ran_s(self, now: float) -> float:
        """Seconds since it was started, given Unix time; 0 when that is not known."""
        started = objects.unix_time(self.started)
        return max(0.0, now - started) if started else 0.0


class Tenants:
    """Pods by node. Not thread-safe; every method returns at once."""

    def __init__(self, ignored_resources: Iterable[str] = ()) -> None:
        """`ignored_resources` are those that kube-scheduler does not count."""
        self._allocatable: dict[str, Mapping[str, str | int | float]] = {}
        self._node_of: dict[str, str] = {}
        self._on: Index[Tenant] = Index()  # by node and UID
        self.crowd = Crowd(ignored_resources)
        """The same pods, as plans look at them."""

    def knows(self, uid: str) -> bool:
        """Whether a pod is on some node."""
        return uid in self._node_of

    def node_of(self, uid: str) -> str:
        """The node of a pod, "" where it is on none that is known."""
        return self._node_of.get(uid, "")

    def on(self, node: str) -> Mapping[str, Tenant]:
        """The pods of a node by UID."""
        return self._on.of(node)

    def upsert_node(self, node: objects.Node) -> None:
        """A node was added or changed."""
        self._allocatable[node.metadata.name] = node.status.allocatable or _NOTHING

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        self._allocatable.pop(name, None)

    def upsert_pod(self, pod: objects.Pod) -> None:
        """A pod was added or changed, whoever scheduled it."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if pod.finished or not node:
            self.remove_pod(uid)
            return
        if self._node_of.get(uid, node) != node:
            self.remove_pod(uid)
        self._node_of[uid] = node
        leaving = pod.metadata.deletion_timestamp is not None
        started = pod.status.start_time or ""
        self._on.put(node, uid, Tenant(uid, pod.key, pod.spec.priority or 0, started, leaving, while_resized(pod)))
        self.crowd.upsert(pod)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        self.crowd.remove(uid)
        node = self._node_of.pop(uid, None)
        if node is not None:
            self._on.pop(node, uid)

    def keep_pods(self, listed: set[str]) -> None:
        """Pods that a complete list does not name are gone."""
        for uid in self._node_of.keys() - listed:
            self.remove_pod(uid)

    def have_room(self, node: str, spec: objects.PodSpec, evicted: Iterable[str]) -> bool:
        """Whether a node has the resources that a pod requests, of every kind, once these pods are gone.

        False where anything can't be read: then nobody can say so.
        """
        gone = set(evicted)
        staying = [tenant.spec for uid, tenant in self.on(node).items() if uid not in gone]
        allocatable = self._allocatable.get(node, _NOTHING)
        try:
            for resource in _requested_names(spec):
                has = parse_quantity(str(allocatable.get(resource, 0)))
                if sum((requested(other, resource) for other in staying), requested(spec, resource)) > has:
                    return False
            return len(staying) < parse_quantity(str(allocatable.get(_PODS, 0)))
        except (RequestError, ValueError):
            return False


def _requested_names(spec: objects.PodSpec) -> set[str]:
    """The resources that a pod requests any of."""
    resources = [container.resources for container in (*(spec.containers or ()), *(spec.init_containers or ()))]
    names: set[str] = set(spec.overhead or ())
    for item in (*resources, spec.resources):
        if item is not None:
            names |= {*(item.requests or ()), *(item.limits or ())}
    return names


def asks_resources_alone(demands: Demands) -> bool:
    """Whether room for a pod is a matter of resources only: no ports, disks, claims or rules about other pods."""
    affinity = demands.affinity
    rules = affinity and (
        (affinity.pod_affinity and affinity.pod_affinity.required)
        or (affinity.pod_anti_affinity and affinity.pod_anti_affinity.required)
    )
    spread = any(item.when_unsatisfiable != "ScheduleAnyway" for item in demands.topology_spread_constraints or ())
    ports = any(
        port.host_port
        for container in (*(demands.containers or ()), *(demands.init_containers or ()))
        for port in container.ports or ()
    )
    disks = any(volume.keys() - _VOLUMES_WITHOUT_LIMIT for volume in demands.volumes or ())
    return not (rules or spread or ports or disks or demands.host_network or demands.resource_claims)


def repels_pods(spec: objects.PodSpec) -> bool:
    """Whether a pod keeps others off its node by a rule."""
    return bool(spec.affinity and spec.affinity.pod_anti_affinity and spec.affinity.pod_anti_affinity.required)
