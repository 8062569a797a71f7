"""HAMi's device plugin, as Kerf asks about it."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from extender.core.annotations import MODEL, MODEL_EXCLUDE, UUID, UUID_EXCLUDE
from extender.core.resources.nodes import NodeOffer, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.kube import objects
from extender.kube.client import Transport
from extender.plugins.formats import asks_any, containers_of, with_conditions
from extender.plugins.holdings import Holding
from extender.plugins.nvidia.hami import nodes, pods
from extender.plugins.nvidia.hami.locks import NODE_LOCK, NodeLocks
from extender.plugins.protocol import AssignedGpu, DevicePlugin, Handover, Locks, PluginGoneError

_CHOICES: Final = {
    MODEL: (pods.USE_TYPE, pods.type_pattern),
    MODEL_EXCLUDE: (pods.NO_USE_TYPE, pods.type_pattern),
    UUID: (pods.USE_UUID, lambda text: ",".join(pods.uuids(text))),
    UUID_EXCLUDE: (pods.NO_USE_UUID, lambda text: ",".join(pods.uuids(text))),
}
"""HAMi's words for Kerf's annotations."""


class Hami(DevicePlugin):
    """Nodes that carry HAMi's register."""

    name = "hami"
    resources = pods.OWN_RESOURCES
    written = pods.WRITTEN
    leftovers = (nodes.REGISTER, nodes.HANDSHAKE, NODE_LOCK)
    told = led = parts = True

    def owns(self, node: objects.Node) -> bool:
        return nodes.REGISTER in (node.metadata.annotations or ()) and not self.left_behind(node)

    def left_behind(self, node: objects.Node) -> str:
        annotations = node.metadata.annotations or {}
        return nodes.why_left_behind(annotations, _evidence(node)) if nodes.REGISTER in annotations else ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        annotations = node.metadata.annotations or {}
        if told := nodes.silence(annotations, _clock(node)):
            raise PluginGoneError(f"{told}: the plugin is silent, its GPUs are not offered")
        return nodes.read_register(annotations, node.status.allocatable or {}, reading)

    def request(self, pod: objects.Pod) -> PodRequest | None:
        annotations = pod.metadata.annotations or {}
        chosen = {
            key: written
            for key, (theirs, translate) in _CHOICES.items()
            if theirs in annotations and (written := translate(annotations[theirs]))
        }
        own = asks_any(pod.spec, self.resources)
        policy = annotations.get(pods.GPU_POLICY, "").strip()
        asked = pods.read_request(containers_of(pod.spec), policy) if own or chosen else None
        if asked is None:
            return None
        mode = annotations.get(pods.MODE, "")
        if mode and pods.MODE_SHARED not in mode:
            raise RequestError(f'{pods.MODE}: "{mode[:80]}" is not supported by Kerf; use {pods.MODE_SHARED}')
        return with_conditions(pod, asked if own else GpuRequest(asked.count, AskedUnit.GPU), chosen)

    def concerns(self, pod: objects.Pod) -> bool:
        annotations = pod.metadata.annotations
        return annotations is not None and (pods.ALLOCATED in annotations or pods.TO_ALLOCATE in annotations)

    def holding(self, pod: objects.Pod) -> Holding | None:
        return pods.read_holding(pod.metadata.annotations or {}, pod.spec.node_name or "", containers_of(pod.spec))

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        init_slots = nodes.has_init_slots(node.metadata.annotations or {})
        containers, name = containers_of(pod.spec), node.metadata.name
        annotations = pods.binding_annotations(containers, gpus, name, decided_at, init_slots=init_slots)
        return Handover(annotations, locks_node=pods.TO_ALLOCATE in annotations)

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        return NodeLocks(transport, clock, wall_clock)


def _evidence(node: objects.Node) -> nodes.Evidence:
    status, labels = node.status, node.metadata.labels or {}
    return nodes.Evidence(status.allocatable or {}, status.capacity or {}, labels, _clock(node))


def _clock(node: objects.Node) -> float:
    """The node's own clock, as its kubelet has told it last: the plugin goes by it too, and Kerf's may be another. By
    Kerf's where the kubelet has not told."""
    told = (objects.unix_time(condition.last_heartbeat_time) for condition in node.status.conditions or ())
    return max(told, default=0.0) or time.time()
