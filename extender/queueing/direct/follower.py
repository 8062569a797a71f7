"""Following released pods to their nodes, as kube-scheduler binds them without calling Kerf.

A pod bound to its nominated node has the assignment written on it. A pod bound elsewhere gets GPUs there: its
assignment is rewritten if the node's plugin follows it, and removed if the plugin picks GPUs by itself. The reservation
of a pod that left without a node is released: the pod is gone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.core.resources.requests import RequestError
from extender.kube.background import repeat
from extender.kube.cache import Group
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.kube.turns import Backoffs
from extender.ledger.ledger import Ledger
from extender.plugins.pods import assigned_node, is_elsewhere
from extender.queueing.direct.writer import DirectAssignments, DirectWriter
from extender.queueing.options import Counts
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.nominations import NOMINATION_LOST, PLANNED_BY
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
_MAX_PER_ROUND: Final = 50


@dataclass(eq=False)
class Follower:
    """Handles pods that leave the queue, and corrects the assignments of pods that were bound elsewhere."""

    pods: Group[Pod]
    """The pods with a node."""
    writer: DirectWriter
    ledger: Ledger
    assignments: DirectAssignments
    fence: Fence
    events: EventRecorder
    counts: Counts
    clock: Callable[[], float]
    taken: Callable[[Entry, str], None]
    _pauses: Backoffs = field(default_factory=Backoffs, init=False)
    _elsewhere: dict[str, Pod] = field(default_factory=dict, init=False)
    _unassigned: set[str] = field(default_factory=set, init=False)
    """UIDs of pods whose nodes had no free GPUs, which is reported once."""

    async def run(self) -> None:
        """Follow until cancelled."""
        await repeat(self.follow, _INTERVAL_S, "following pods to their nodes")

    async def follow(self) -> None:
        """Correct the assignments of pods that were bound elsewhere; a standby releases its reservations instead."""
        if self.fence.standby():
            for held in self.ledger.pinned():  # the leader's ledger counts
                self.ledger.release(held.uid)
        self._unassigned = {uid for uid in self._unassigned if self.ledger.allocation(uid) is not None}
        if not self.fence.fault():
            now = self.clock()
            due = [
                pod
                for uid, pod in self._elsewhere.items()
                if self._pauses.why(pod.metadata.namespace, uid, now) is None
            ]
            for pod in due[:_MAX_PER_ROUND]:
                await self._correct(pod)

    def left(self, entry: Entry) -> None:
        """Handle a pod that has its node or is gone."""
        pod = self.pods.get(entry.uid)
        if pod is not None:
            self._arrived(entry, pod.spec.node_name or "")
            return
        self.ledger.remove_pod(entry.uid)
        self.counts.fallbacks += bool(entry.node) and not entry.stage.behind_gate

    def pod_changed(self, old: Pod | None, pod: Pod | None) -> None:
        """Note whether a pod's assignment is for another node than its own."""
        if pod is None:
            return
        if self._is_wrong(pod):
            self._elsewhere[pod.metadata.uid] = pod
        else:
            self._elsewhere.pop(pod.metadata.uid, None)

    def _arrived(self, entry: Entry, node: str) -> None:
        self.taken(entry, node)
        if not entry.node:
            return
        if node != entry.node:
            self.counts.fallbacks += 1
            return
        self.counts.honoured += 1
        message = f"Assigned on node {node}, which it was nominated for"
        self.events.emit_placement(entry.namespace, entry.pod.metadata.name, entry.uid, message=message)

    def _is_wrong(self, pod: Pod) -> bool:
        """Whether a pod's assignment is for another node, or missing where it would take effect."""
        if is_elsewhere(pod):
            return True
        uid = pod.metadata.uid
        annotations, held = pod.metadata.annotations or {}, self.ledger.allocation(uid)
        if assigned_node(pod) or PLANNED_BY not in annotations or held is None or uid in self._unassigned:
            return False
        return not held.holding.parts and self.assignments.matters(held)

    async def _refresh(self, pod: Pod) -> None:
        """Read a pod again that has changed or is gone. Raises ClusterError, DecodeError."""
        found = await self.writer.read(pod)
        if found is None:
            self._elsewhere.pop(pod.metadata.uid, None)
        elif self._elsewhere.get(pod.metadata.uid) is pod:
            self._elsewhere[pod.metadata.uid] = found

    async def _correct(self, pod: Pod) -> None:
        """Write a bound pod's assignment on its node, or remove the one for another node."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        held, term = self.ledger.allocation(uid), self.fence.as_of_now()
        try:
            wanted = held is not None and self.assignments.matters(held)
            assignment = self.assignments.on_its_node(pod, held) if held is not None and wanted else None
            written: dict[str, str | None] = {}
            if assignment is not None:
                written |= self.assignments.written(pod, assignment)
                self.ledger.reassign(uid, assignment.holding)
            if planned := assigned_node(pod):
                written[NOMINATION_LOST] = f"{planned}: bound to {node}, by kube-scheduler"
            if await self.writer.assign_bound(pod, written, term) is None:
                await self._refresh(pod)
                return
        except (ClusterError, FencedError, RequestError, msgspec.DecodeError) as error:
            message = "pod %s was bound to node %s, and its assignment there was not written: %s"
            logger.warning(message, pod.key, node, error)
            if not isinstance(error, FencedError):
                self._pauses.failed(pod.metadata.namespace, uid, error, self.clock())
            return
        self._pauses.succeeded(pod.metadata.namespace, uid)
        self._elsewhere.pop(uid, None)
        self.counts.reassigned += assignment is not None
        if wanted and assignment is None:
            self._unassigned.add(uid)
            self.counts.unassigned += 1
            message = f"Bound to node {node}, where Kerf finds no free GPUs for it"
        else:
            message = str(assignment or f"Bound to node {node}, whose device plugin chooses its GPUs")
        self.events.emit(pod.metadata.namespace, pod.metadata.name, uid, reason="GPUsReassigned", message=message)
