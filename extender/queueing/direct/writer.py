"""What is written on a pod that kube-scheduler places by itself: each time on the version that was decided on."""

import secrets
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from extender.kube.client import Transport
from extender.kube.commit import Outcome, Result, Term
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.kube.patches import Annotations, Patch, write
from extender.plugins.kerf import ASSIGNMENT, EXPLANATION
from extender.plugins.registry import plugins
from extender.queueing.pods.nominations import MAX_TEXT, NOMINATION_LOST, PLANNED_BY, PLANNED_NODE, unsaid
from extender.queueing.pods.objects import is_gated, other_gates
from extender.scheduling.binding.marks import SEALED, read, seal
from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking.skips import SKIPPED, SKIPPED_COUNT

Reserved = Callable[[], Annotations | None]
"""Tells what is reserved for a pod as annotations, None where that does not stand any more."""

_pod_decoder: Final = Decoder(Pod)


class _Assignment(Patch[Pod]):
    """The node that a pod gets, and which GPUs of it: not to be written late, when these are somebody else's."""

    seals = True

    def __init__(
        self, transport: Transport, pod: Pod, node: str, reserved: Reserved, lost: str, unsealed: set[str]
    ) -> None:
        status = {"nominatedNodeName": node, **unsaid(pod)}
        path = PodIdentity.of(pod).path
        super().__init__(transport, path, _pod_decoder, uid=pod.metadata.uid, part="/status", status=status)
        self._identity, self._node, self._reserved, self._unsealed = PodIdentity.of(pod), node, reserved, unsealed
        note = {NOMINATION_LOST: lost[:MAX_TEXT]} if lost else {}
        self._notes = {**_blank(pod), PLANNED_NODE: node, SKIPPED: None, SKIPPED_COUNT: None, **note}

    def stands(self) -> str:
        reserved = self._reserved()
        self.metadata = {"annotations": {**self._notes, **(reserved or {})}}
        return "what was reserved does not stand any more" if reserved is None else ""

    async def seal(self) -> Pod | None:
        return await seal(self._transport, self._identity)

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        annotations = found.metadata.annotations or {}
        told = {key: annotations.get(key) for key in self.metadata["annotations"]}
        written = told == self.metadata["annotations"] and found.status.nominated_node_name == self._node
        return Outcome.DONE if written else None

    def settle(self, result: Result[Pod]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._unsealed.add(self.uid)


class DirectWriter:
    """Writes to pods in a term, as they are known. Each method returns the pod as it is then, None where it has changed
    before or is gone.

    They raise FencedError; ClusterError where the API server refuses, or where nobody knows what it did; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._unsealed: set[str] = set()
        """Pods on which an assignment may be written yet, by their UIDs."""

    async def read(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once it is gone."""
        return await read(self._transport, PodIdentity.of(pod))

    async def assign(self, pod: Pod, node: str, reserved: Reserved, lost: str, term: Term | None) -> Pod | None:
        """Nominate a node, and write what is reserved of it, if anything still is, and which one the pod has lost: one
        write to its status."""
        assignment = _Assignment(self._transport, pod, node, reserved, lost, self._unsealed)
        return await write(assignment, term, pod.metadata.resource_version)

    async def open(self, pod: Pod, planner: str, kept_to: Mapping[str, Any], term: Term | None) -> Pod | None:
        """Take Kerf's gate off, and write whose plan it is; `kept_to` is what of its spec keeps it to some nodes."""
        return await self._open(pod, {PLANNED_BY: planner}, kept_to, term)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> Pod | None:
        """Take the gate off a pod that nothing is assigned to."""
        annotations = {**_blank(pod), PLANNED_NODE: "", PLANNED_BY: why, SKIPPED: None, SKIPPED_COUNT: None}
        return await self._open(pod, annotations, {}, term)

    def is_clear(self, pod: Pod) -> bool:
        """Whether nothing of a node is written on a pod, nor will be by what was sent before."""
        return is_blank(pod) and pod.metadata.uid not in self._unsealed

    async def take_back(self, pod: Pod, node: str, term: Term | None) -> Pod | None:
        """Take back what is written of a node, and change the pod, so that nothing sent before is written on it later;
        with an open gate a nomination for another is kube-scheduler's."""
        own = is_gated(pod) or pod.status.nominated_node_name == node
        status = {"status": {"nominatedNodeName": None}} if own else {}
        sealed = {SEALED: secrets.token_hex(4)} if pod.metadata.uid in self._unsealed else {}
        found = await self._write(pod, "/status", {**_blank(pod), **sealed}, term, **status)
        if found is not None:
            self._unsealed.discard(pod.metadata.uid)
        return found

    def forget(self, uid: str) -> None:
        """A pod is gone, or has its node."""
        self._unsealed.discard(uid)

    async def assign_bound(self, pod: Pod, assignment: Annotations, term: Term | None) -> Pod | None:
        """Write which GPUs a pod gets of the node that it has."""
        return await self._write(pod, "/status", {**_blank(pod), **assignment}, term)

    async def _open(self, pod: Pod, annotations: Annotations, spec: Mapping[str, Any], term: Term | None) -> Pod | None:
        others = [{"name": name} for name in other_gates(pod)]
        return await self._write(pod, "", annotations, term, spec={"schedulingGates": others or None, **spec})

    async def _write(
        self, pod: Pod, part: str, annotations: Annotations, term: Term | None, **fields: Any
    ) -> Pod | None:
        metadata, path = {"annotations": annotations}, PodIdentity.of(pod).path
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        patch = Patch(self._transport, path, _pod_decoder, uid=uid, part=part, metadata=metadata, **fields)
        return await write(patch, term, version)


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
