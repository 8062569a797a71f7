"""What the queue reads of pods and nodes beyond what placing them takes."""

from typing import Any, Final

import msgspec

from extender.cluster import objects, unbound

GATE: Final = "kerf.dev/queue"
"""Scheduling gate of pods that wait in the queue."""


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


class PodSpec(unbound.PodSpec, rename="camel"):
    containers: list[Container] | None = None  # type: ignore[assignment]
    affinity: Affinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    priority: int | None = None


class Terminated(objects.Object, rename="camel"):
    finished_at: str | None = None


class ContainerState(objects.Object):
    terminated: Terminated | None = None


class ContainerStatus(objects.Object):
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodStatus(unbound.PodStatus, rename="camel"):
    nominated_node_name: str = ""
    start_time: str = ""
    container_statuses: list[ContainerStatus] | None = None


class Pod(unbound.Pod):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def gated(self) -> bool:
        """Whether it waits in Kerf's queue."""
        return any(gate.name == GATE for gate in self.spec.scheduling_gates or ())

    @property
    def other_gates(self) -> list[str]:
        """Names of the gates that others keep shut."""
        return [gate.name for gate in self.spec.scheduling_gates or () if gate.name != GATE]

    @property
    def finished_at(self) -> str:
        """When its last container ended, "" where that is not told."""
        ends = [status.state.terminated for status in self.status.container_statuses or ()]
        return max((end.finished_at or "" for end in ends if end is not None), default="")


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
