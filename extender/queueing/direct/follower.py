"""Following pods that were let go to their nodes: kube-scheduler binds them, and tells nobody.

A pod that is bound where it was nominated has what is written on it. One that is bound elsewhere has what it can get
there: which GPUs these are is written where somebody goes by that, and taken back where the node's plugin chooses by
itself. What was reserved for a pod that left is free once the watch has told of its node, or once it is known to be
gone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.core.resources.requests import RequestError
from extender.kube.background import repeat
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.kube.pauses import Pauses
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.pods import assigned_node, is_elsewhere
from extender.queueing.direct.assignments import DirectAssignments
from extender.queueing.direct.writer import DirectWriter
from extender.queueing.options import Counts
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import NOMINATION_LOST, PLANNED_BY
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
_TOLD_WITHIN_S: Final = 1.0
"""How long the watch may take to tell of a pod's node before somebody asks."""
_MAX_PER_ROUND: Final = 50


@dataclass(slots=True)
class _Departed:
    entry: Entry
    since: float


@dataclass(eq=False)
class Follower:
    """Hears of pods that leave the queue, and of pods with a node."""

    writer: DirectWriter
    ledger: Ledger
    assignments: DirectAssignments
    fence: Fence
    events: EventRecorder
    counts: Counts
    clock: Callable[[], float]
    taken: Callable[[Entry, str], None]
    _pauses: Pauses = field(default_factory=Pauses, init=False)
    _departed: dict[str, _Departed] = field(default_factory=dict, init=False)
    _elsewhere: dict[str, Pod] = field(default_factory=dict, init=False)
    _unassigned: set[str] = field(default_factory=set, init=False)
    """Pods for which nothing was free where they are: to say so once is enough."""

    async def run(self) -> None:
        """Follow until cancelled."""
        await repeat(self.follow, _INTERVAL_S, "following pods to their nodes")

    async def follow(self) -> None:
        """Ask about those of which nobody has told, and put right what is written on those that went elsewhere."""
        for departed in [one for one in self._departed.values() if self.clock() - one.since >= _TOLD_WITHIN_S]:
            await self._ask(departed)
        self._unassigned = {uid for uid in self._unassigned if self.ledger.claim(uid) is not None}
        if not self.fence.fault():
            now = self.clock()
            due = [
                pod
                for uid, pod in self._elsewhere.items()
                if self._pauses.why(pod.metadata.namespace, uid, now) is None
            ]
            for pod in due[:_MAX_PER_ROUND]:
                await self._put_right(pod)

    def left(self, entry: Entry) -> None:
        """A pod has its node, or is gone."""
        claim = self.ledger.claim(entry.uid)
        if claim is not None and claim.state is ClaimState.BOUND:
            self._arrived(entry, claim.node)
        elif entry.stage in (Stage.GATED, Stage.NOMINATING):
            self.ledger.release(entry.uid)  # shut gates can't be passed: it was deleted
        elif claim is not None or entry.node:
            deleted = entry.pod.metadata.deletion_timestamp
            self._departed[entry.uid] = _Departed(entry, float("-inf") if deleted else self.clock())

    def forget(self) -> None:
        """Pods are listed anew, and those with a node, too."""
        self._departed.clear()

    def pod_changed(self, old: Pod | None, pod: Pod | None) -> None:
        """A pod has a node, whoever has bound it."""
        if pod is None:
            return
        uid = pod.metadata.uid
        departed = self._departed.pop(uid, None)
        if departed is not None:
            self._arrived(departed.entry, pod.spec.node_name)
        if self._is_wrong(pod):
            self._elsewhere[uid] = pod
        else:
            self._elsewhere.pop(uid, None)

    def _arrived(self, entry: Entry, node: str | None) -> None:
        if node:
            self.taken(entry, node)
        if not entry.node:
            return
        if node != entry.node:
            self.counts.fallbacks += 1
            return
        self.counts.honoured += 1
        message = f"Assigned on node {node}, which it was nominated for"
        self.events.emit(entry.namespace, entry.pod.metadata.name, entry.uid, reason="GPUsAssigned", message=message)

    def _is_wrong(self, pod: Pod) -> bool:
        """Whether what is written on a pod is of another node, or nothing is although somebody goes by that."""
        if is_elsewhere(pod):
            return True
        uid = pod.metadata.uid
        annotations, claim = pod.metadata.annotations or {}, self.ledger.claim(uid)
        if assigned_node(pod) or PLANNED_BY not in annotations or claim is None or uid in self._unassigned:
            return False
        return not claim.holding.parts and self.assignments.matters(claim)

    async def _ask(self, departed: _Departed) -> None:
        """Find out what became of a pod."""
        entry = departed.entry
        departed.since = self.clock()
        try:
            found = await self.writer.read(entry.pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("pod %s was let go, and can't be found: %s", entry.pod.key, error)
            return
        if self._departed.get(entry.uid) is not departed:
            return  # the watch has told meanwhile
        if found is not None and found.spec.node_name and not found.finished:
            self.ledger.hold_as_read(found, self.clock())
        elif found is None or found.finished or found.metadata.deletion_timestamp:
            # One that is to be deleted and has no node gets none any more, however long a finalizer keeps it.
            del self._departed[entry.uid]
            self.ledger.remove_pod(entry.uid)
            if found is not None and found.spec.node_name:
                self._arrived(entry, found.spec.node_name)
            elif entry.node:
                self.counts.fallbacks += 1

    async def _look_again(self, pod: Pod) -> None:
        """A pod has changed, or is gone, of which nobody tells. Raises ClusterError, DecodeError."""
        found = await self.writer.read(pod)
        if found is None:
            self._elsewhere.pop(pod.metadata.uid, None)
        elif self._elsewhere.get(pod.metadata.uid) is pod:
            self._elsewhere[pod.metadata.uid] = found

    async def _put_right(self, pod: Pod) -> None:
        """Write on a pod what it has of the node where it is."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        claim = self.ledger.claim(uid)
        try:
            await self.fence.confirm_now()
            wanted = claim is not None and self.assignments.matters(claim)
            assignment = self.assignments.on_its_node(pod, claim) if claim is not None and wanted else None
            written: dict[str, str | None] = {}
            if assignment is not None:
                written |= self.assignments.written(pod, assignment)
                self.ledger.assign_anew(uid, assignment.holding)
            if planned := assigned_node(pod):
                written[NOMINATION_LOST] = f"{planned}: bound to {node}, by kube-scheduler"
            if await self.writer.assign_bound(pod, written) is None:
                await self._look_again(pod)
                return
        except (ClusterError, FencedError, RequestError, msgspec.DecodeError) as error:
            logger.warning("pod %s was bound to node %s, and can't be told what it has there: %s", pod.key, node, error)
            if not isinstance(error, FencedError):
                self._pauses.failed(pod.metadata.namespace, uid, error, self.clock())
            return
        self._pauses.succeeded(pod.metadata.namespace, uid)
        self._elsewhere.pop(uid, None)
        self.counts.reassigned += assignment is not None
        if wanted and assignment is None:
            self._unassigned.add(uid)
            self.counts.unassigned += 1
            message = f"Bound to node {node}, where no GPUs are free for it by Kerf's account"
        else:
            message = str(assignment or f"Bound to node {node}, whose device plugin chooses its GPUs")
        self.events.emit(pod.metadata.namespace, pod.metadata.name, uid, reason="GPUsReassigned", message=message)
