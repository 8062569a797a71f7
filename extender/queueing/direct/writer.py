"""What is written on a pod that kube-scheduler places by itself: each time on the version that was decided on."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from extender.kube.client import ApiError, Transport
from extender.kube.commit import Outcome, Result, Target, Term, commit
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
Reserved = Callable[[], Notes | None]
"""Tells what is reserved for a pod as annotations, None where that does not stand any more."""

_NOT_THIS: Final = (404, 422)
"""The pod is gone, or is another one of its name."""

_pod_decoder: Final = Decoder(Pod)


class _Write(Target[Pod]):
    """Annotations, and what else, of a pod. Where nobody knows what became of it whoever writes reads the pod, and
    takes back what is not to stand."""

    seals = False

    def __init__(
        self, transport: Transport, pod: Pod, part: str, annotations: Notes, **parts: Mapping[str, Any]
    ) -> None:
        super().__init__(pod.metadata.namespace, pod.metadata.uid, f"writing on pod {pod.key}")
        self._transport, self._pod = transport, PodIdentity.of(pod)
        self._annotations = annotations
        self._part, self._parts = part, parts

    async def send(self, version: str) -> Pod:
        metadata = {"uid": self.uid, "resourceVersion": version, "annotations": self._annotations}
        body = msgspec.json.encode({"metadata": metadata, **self._parts})
        return _pod_decoder.decode(await self._transport.patch(self._pod.path + self._part, body))

    async def read(self) -> Pod | None:
        return await read(self._transport, self._pod)

    seal = read

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        return Outcome.GONE if found is None else None

    def settle(self, result: Result[Pod]) -> None:
        """Nothing is held by it alone."""


class _Assignment(_Write):
    """The node that a pod gets, and which GPUs of it."""

    def __init__(self, transport: Transport, pod: Pod, node: str, reserved: Reserved, notes: Notes) -> None:
        super().__init__(transport, pod, "/status", {}, status={"nominatedNodeName": node, **unsaid(pod)})
        self._reserved = reserved
        self._notes = {**_blank(pod), PLANNED_NODE: node, SKIPPED: None, SKIPPED_COUNT: None, **notes}

    def stands(self) -> str:
        reserved = self._reserved()
        self._annotations = {**self._notes, **(reserved or {})}
        return "what was reserved does not stand any more" if reserved is None else ""


class DirectWriter:
    """Writes to pods in a term, as they are known. Each method returns the pod as it is then, None where it has changed
    before or is gone.

    They raise FencedError; ClusterError where the API server refuses, or where nobody knows what it did; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once it is gone."""
        return await read(self._transport, PodIdentity.of(pod))

    async def assign(self, pod: Pod, node: str, reserved: Reserved, notes: Notes, term: Term | None) -> Pod | None:
        """Nominate a node, and write what is reserved of it, if anything still is: one write to the pod's status."""
        return await self._write(_Assignment(self._transport, pod, node, reserved, notes), pod, term)

    async def open(self, pod: Pod, planner: str, kept_to: Mapping[str, Any], term: Term | None) -> Pod | None:
        """Take Kerf's gate off, and write whose plan it is; `kept_to` is what of its spec keeps it to some nodes."""
        spec = {"schedulingGates": _others(pod), **kept_to}
        return await self._write(_Write(self._transport, pod, "", {PLANNED_BY: planner}, spec=spec), pod, term)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> Pod | None:
        """Take the gate off a pod that nothing is assigned to."""
        annotations = {**_blank(pod), PLANNED_NODE: "", PLANNED_BY: why, SKIPPED: None, SKIPPED_COUNT: None}
        spec = {"schedulingGates": _others(pod)}
        return await self._write(_Write(self._transport, pod, "", annotations, spec=spec), pod, term)

    async def take_back(self, pod: Pod, node: str, term: Term) -> Pod | None:
        """Take back what is written of a node. With an open gate a nomination for another is kube-scheduler's."""
        own = is_gated(pod) or pod.status.nominated_node_name == node
        status = {"status": {"nominatedNodeName": None}} if own else {}
        return await self._write(_Write(self._transport, pod, "/status", _blank(pod), **status), pod, term)

    async def assign_bound(self, pod: Pod, assignment: Notes, term: Term) -> Pod | None:
        """Write which GPUs a pod gets of the node that it has."""
        annotations = {**_blank(pod), **assignment}
        return await self._write(_Write(self._transport, pod, "/status", annotations), pod, term)

    async def _write(self, target: _Write, pod: Pod, term: Term | None) -> Pod | None:
        result = await commit(target, term, version=pod.metadata.resource_version)
        error = result.error
        if result.outcome is Outcome.DONE:
            return result.found
        if result.outcome in (Outcome.CONFLICT, Outcome.GONE) or error is None:
            return None
        if isinstance(error, ApiError) and error.status in _NOT_THIS and await self.read(pod) is None:
            return None
        raise error


def _others(pod: Pod) -> list[dict[str, str]] | None:
    """The gates that others keep shut, None for none."""
    return [{"name": name} for name in other_gates(pod)] or None


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
