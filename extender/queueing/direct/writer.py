"""What is written on a pod that kube-scheduler places by itself: each time on the version that was decided on."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from extender.kube.client import ApiError, Transport
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.plugins.kerf import ASSIGNMENT, EXPLANATION
from extender.plugins.registry import plugins
from extender.queueing.pods.nominations import PLANNED_BY, PLANNED_NODE, unsaid
from extender.queueing.pods.objects import is_gated, other_gates
from extender.scheduling.binding.marks import read
from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking.skips import SKIPPED, SKIPPED_COUNT

Notes = Mapping[str, str | None]

_NOT_WRITTEN: Final = (404, 409, 422)
"""The pod is gone, has changed, or is another one of its name."""

_pod_decoder: Final = Decoder(Pod)


class DirectWriter:
    """Writes to pods. Each method returns the pod as it is then, None where it has changed before or is gone.

    They raise ClusterError where the API server refuses, or where nobody knows what it did; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once it is gone."""
        return await read(self._transport, PodIdentity.of(pod))

    async def assign(self, pod: Pod, node: str, assignment: Notes, notes: Notes) -> Pod | None:
        """Nominate a node, and write which GPUs of it the pod gets: one write to its status."""
        told = {PLANNED_NODE: node, SKIPPED: None, SKIPPED_COUNT: None}
        annotations = {**_blank(pod), **told, **notes, **assignment}
        return await self._patch(pod, "/status", annotations, status={"nominatedNodeName": node, **unsaid(pod)})

    async def open(self, pod: Pod, planner: str, kept_to: Mapping[str, Any]) -> Pod | None:
        """Take Kerf's gate off, and write whose plan it is; `kept_to` is what of its spec keeps it to some nodes."""
        others = [{"name": name} for name in other_gates(pod)]
        return await self._patch(pod, "", {PLANNED_BY: planner}, spec={"schedulingGates": others or None, **kept_to})

    async def open_without_node(self, pod: Pod, why: str) -> Pod | None:
        """Take the gate off a pod that nothing is assigned to."""
        others = [{"name": name} for name in other_gates(pod)]
        notes = {PLANNED_NODE: "", PLANNED_BY: why, SKIPPED: None, SKIPPED_COUNT: None}
        return await self._patch(pod, "", {**_blank(pod), **notes}, spec={"schedulingGates": others or None})

    async def take_back(self, pod: Pod, node: str) -> Pod | None:
        """Take back what is written of a node. With an open gate a nomination for another is kube-scheduler's."""
        own = is_gated(pod) or pod.status.nominated_node_name == node
        status = {"status": {"nominatedNodeName": None}} if own else {}
        return await self._patch(pod, "/status", _blank(pod), **status)

    async def assign_bound(self, pod: Pod, assignment: Notes) -> Pod | None:
        """Write which GPUs a pod gets of the node that it has."""
        return await self._patch(pod, "/status", {**_blank(pod), **assignment})

    async def _patch(self, pod: Pod, part: str, annotations: Notes, **parts: Mapping[str, Any]) -> Pod | None:
        metadata = {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": annotations,
        }
        body = msgspec.json.encode({"metadata": metadata, **parts})
        try:
            return _pod_decoder.decode(await self._transport.patch(PodIdentity.of(pod).path + part, body))
        except ApiError as error:
            if error.status == 409 or (error.status in _NOT_WRITTEN and await self.read(pod) is None):
                return None
            raise


def is_blank(pod: Pod) -> bool:
    """Whether nothing of a node is written on a pod."""
    annotations = pod.metadata.annotations or {}
    return not pod.status.nominated_node_name and not any(annotations.get(key) for key in _assigned())


def _blank(pod: Pod) -> dict[str, str | None]:
    """What takes away all that is assigned to a pod, whoever wrote it."""
    return dict.fromkeys((_assigned() | {EXPLANATION}) & (pod.metadata.annotations or {}).keys())


@cache
def _assigned() -> frozenset[str]:
    return frozenset(ASSIGNMENT).union(*(plugin.written for plugin in plugins()))
