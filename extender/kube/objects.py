"""The few fields of Kubernetes objects that Kerf reads, decoded by msgspec.

20,000 pods decode in 0.4 s, with the official client's models in 28 s.
"""

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")
Quantities = dict[str, str | int | float]


class Object(msgspec.Struct, gc=False):
    """Base class: unknown fields are skipped, missing ones have defaults."""


class OwnerReference(Object, rename="camel"):
    name: str = ""
    uid: str = ""
    controller: bool = False
    kind: str = ""
    api_version: str = ""


class Metadata(Object, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """Owner with `controller: true`, or None."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)

    @property
    def belongs_to_a_node(self) -> bool:
        """Whether a pod belongs to a DaemonSet or is the mirror pod of a static one."""
        return any(owner.controller and owner.kind in ("DaemonSet", "Node") for owner in self.owner_references or ())


class Named(Object):
    """Base of objects with metadata."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def place(self) -> str:
        """A place that never changes once set, such as a pod's node; "" before."""
        return ""


class Resources(Object):
    requests: Quantities | None = None
    limits: Quantities | None = None


class ActualResources(Object):
    requests: Quantities | None = None


def requests_of(resources: Resources | None) -> Quantities:
    """Return the requests; a limit without a request counts as one, as the API server defaults it."""
    return {} if resources is None else {**(resources.limits or {}), **(resources.requests or {})}


class ContainerPort(Object, rename="camel"):
    host_port: int | None = None
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = ""
    container_port: int = 0


class Container(Object, rename="camel"):
    resources: Resources | None = None
    restart_policy: str | None = None
    image: str = ""
    ports: list[ContainerPort] | None = None
    name: str = ""


class Expression(Object):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Term(Object, rename="camel"):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Object, rename="camel"):
    node_selector_terms: list[Term] | None = None


class NodeAffinity(Object):
    preferred: list[Any] | None = msgspec.field(name="preferredDuringSchedulingIgnoredDuringExecution", default=None)
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class LabelSelector(Object, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class PodAffinityTerm(Object, rename="camel"):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinity(Object):
    preferred: list[Any] | None = msgspec.field(name="preferredDuringSchedulingIgnoredDuringExecution", default=None)
    required: list[PodAffinityTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Object, rename="camel"):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(Object, rename="camel"):
    when_unsatisfiable: str = ""
    topology_key: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""


class Toleration(Object):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Gate(Object):
    """A scheduling gate; kube-scheduler ignores pods that have one."""

    name: str = ""


class PodClaim(Object, rename="camel"):
    """A pod's entry for a ResourceClaim, and the claim's name."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None
    """Template of the claim, if no claim is named."""


class SchedulingGroup(Object, rename="camel"):
    """A pod's gang since Kubernetes 1.36: a PodGroup of `scheduling.k8s.io`."""

    pod_group_name: str = ""


class Volume(Object, rename="camel"):
    """A pod's volume that may be bound to some nodes."""

    persistent_volume_claim: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None


class PodSpec(Object, rename="camel"):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    node_name: str | None = None
    affinity: Affinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    resource_claims: list[PodClaim] | None = None
    scheduling_gates: list[Gate] | None = None
    scheduler_name: str = ""
    priority: int | None = None
    resources: Resources | None = None
    """Pod-level CPU, memory and huge pages, which replace the containers' sum."""
    scheduling_group: SchedulingGroup | None = None
    volumes: list[Volume] | None = None
    runtime_class_name: str | None = None
    host_network: bool | None = None

    @property
    def pod_group(self) -> str:
        """Name of the PodGroup, "" for none."""
        return self.scheduling_group.pod_group_name if self.scheduling_group is not None else ""


class Condition(Object):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = msgspec.field(name="lastHeartbeatTime", default=None)
    """Set for nodes, by the node's clock."""


class Ended(Object, rename="camel"):
    """How a container, or one start of it, ended."""

    exit_code: int = 0
    reason: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class Waiting(Object):
    reason: str = ""


class ContainerState(Object):
    waiting: Waiting | None = None
    terminated: Ended | None = None


class ContainerStatus(Object, rename="camel"):
    name: str = ""
    allocated_resources: Quantities | None = None
    """What the kubelet has granted, during a resize."""
    resources: ActualResources | None = None
    """What the container actually has."""
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(Object, rename="camel"):
    phase: str = ""
    reason: str = ""
    """Why the kubelet rejected or ended the pod."""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Quantities | None = None
    resources: ActualResources | None = None
    """Pod-level counterpart of `ContainerStatus.resources`."""
    conditions: list[Condition] | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    start_time: str | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[PodClaim] | None = None


class Pod(Named, gc=True, dict=True):
    """A version of a pod. `plugins.pods.once` caches derived values in its `__dict__`."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def place(self) -> str:
        """The pod's node, "" without one."""
        return self.spec.node_name or ""

    @property
    def finished(self) -> bool:
        """Whether all containers have ended for good and the GPUs are free; a terminating pod is not finished."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        """Whether the pod's Ready condition is true."""
        return any(item.type == "Ready" and item.status == "True" for item in self.status.conditions or ())

    @property
    def refusal(self) -> str:
        """Why kube-scheduler last found no node for the pod, "" if it has not tried or has found one.

        An extender doubles percent signs for the Event, so the condition has them doubled.
        """
        return next(
            (
                (item.message or item.reason).replace("%%", "%")
                for item in self.status.conditions or ()
                if item.type == "PodScheduled" and item.reason == "Unschedulable"
            ),
            "",
        )


class NodeAddress(Object):
    type: str = ""
    address: str = ""


class Taint(Object):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Object):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeInfo(Object):
    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(Object, rename="camel"):
    allocatable: Quantities | None = None
    addresses: list[NodeAddress] | None = None
    capacity: Quantities | None = None
    conditions: list[Condition] | None = None
    node_info: NodeInfo | None = None


class Node(Named):
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is true; a node without one counts as ready."""
        return all(item.status == "True" for item in self.status.conditions or () if item.type == "Ready")


class ListMetadata(Object, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ObjectList(Object, Generic[ItemT]):
    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[ItemT] | None = None


class Status(Object):
    """The API server's response to a failed request."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(Object):
    """One line of a watch; the kind of `object` depends on `type` and on the watch."""

    type: str
    object: msgspec.Raw


def unix_time(text: str | None) -> float:
    """Convert an RFC 3339 timestamp to Unix seconds, 0 if missing or invalid."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except (ValueError, OverflowError):
        return 0.0
