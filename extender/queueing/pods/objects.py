"""What the queue reads of pods and nodes beyond what placing them takes."""

from typing import Any, Final

from extender.kube.decoding import convert
from extender.kube.objects import Node, Pod

GATE: Final = "kerf.dev/queue"
"""Scheduling gate of pods that wait in the queue."""
PIPELINE_LABEL: Final = "kerf.dev/pipeline"
"""On Jobs of a pipeline and their pods: its name."""


def is_gated(pod: Pod) -> bool:
    """Whether a pod waits in Kerf's queue."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def other_gates(pod: Pod) -> list[str]:
    """Names of the gates that others keep shut."""
    return [gate.name for gate in pod.spec.scheduling_gates or () if gate.name != GATE]


def decode_pod(manifest: dict[str, Any]) -> Pod:
    """A pod from a manifest. Raises msgspec.ValidationError, which names the place."""
    return convert(manifest, Pod)


def decode_node(manifest: dict[str, Any]) -> Node:
    """A node from a manifest. Raises msgspec.ValidationError, which names the place."""
    return convert(manifest, Node)
