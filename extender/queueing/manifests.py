"""What the queue reads of pods and nodes beyond what placing them takes."""

from typing import Any, Final

import msgspec

from extender.cluster import objects

GATE: Final = "kerf.dev/queue"
"""Scheduling gate of pods that wait in the queue."""


class Gate(objects.Object):
    name: str = ""


class Toleration(objects.Object):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Expression(objects.Object):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Term(objects.Object, rename="camel"):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(objects.Object, rename="camel"):
    node_selector_terms: list[Term] | None = None


class NodeAffinity(objects.NodeAffinity):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(objects.Affinity):
    node_affinity: NodeAffinity | None = msgspec.field(name="nodeAffinity", default=None)


class Container(objects.Container):
    image: str = ""


class PodSpec(objects.PodSpec, rename="camel"):
    containers: list[Container] | None = None  # type: ignore[assignment]
    affinity: Affinity | None = None
    scheduling_gates: list[Gate] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    priority: int | None = None
    scheduler_name: str = ""


class Terminated(objects.Object, rename="camel"):
    finished_at: str | None = None


class ContainerState(objects.Object):
    terminated: Terminated | None = None


class ContainerStatus(objects.Object):
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(objects.Object):
    type: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(objects.PodStatus, rename="camel"):
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    start_time: str = ""
    container_statuses: list[ContainerStatus] | None = None


class Metadata(objects.Metadata, rename="camel"):
    creation_timestamp: str = ""


class Pod(objects.Pod):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def gated(self) -> bool:
        """Whether it waits in Kerf's queue."""
        return any(gate.name == GATE for gate in self.spec.scheduling_gates or ())

    @property
    def refusal(self) -> str:
        """Why kube-scheduler found no node for it when it tried last, "" where it has not tried or has found one."""
        return next((item.message or item.reason for item in self.status.conditions or () if _is_refusal(item)), "")

    @property
    def finished_at(self) -> str:
        """When its last container ended, "" where that is not told."""
        ends = [status.state.terminated for status in self.status.container_statuses or ()]
        return max((end.finished_at or "" for end in ends if end is not None), default="")


def _is_refusal(condition: Condition) -> bool:
    return condition.type == "PodScheduled" and condition.reason == "Unschedulable"


class Taint(objects.Object):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(objects.Object):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class Node(objects.Node):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)


def decode_pod(manifest: dict[str, Any]) -> Pod:
    """A pod from a manifest. Raises msgspec.ValidationError, which names the place."""
    return msgspec.convert(manifest, Pod)


def decode_node(manifest: dict[str, Any]) -> Node:
    """A node from a manifest. Raises msgspec.ValidationError, which names the place."""
    return msgspec.convert(manifest, Node)
