"""Letting pods go that kube-scheduler binds by itself: what is reserved is written on them, and stands.

A write whose outcome nobody knows, a refusal, and what a Kerf before this one wrote are not guessed at: such pods are
`Stage.UNSETTLED`, hold what may be written on them, and are looked at by the settler.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from extender.core.resources.requests import AskedUnit, RequestError
from extender.kube.background import Work, all_of
from extender.kube.cache import Part
from extender.kube.client import ClusterError, Transport
from extender.kube.commit import FencedError
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import Code
from extender.plugins.pods import assigned_node
from extender.queueing.direct.assignments import DirectAssignments, HandoverError
from extender.queueing.direct.follower import Follower
from extender.queueing.direct.products import Products
from extender.queueing.direct.settler import Settler
from extender.queueing.direct.writer import DirectWriter, is_blank
from extender.queueing.dispatch import Dispatcher
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import NOMINATION_LOST
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class DirectDispatcher(Dispatcher):
    """Lets pods go with their GPUs written on them, and follows them to their nodes."""

    is_asked: ClassVar[bool] = False
    transport: Transport = field(kw_only=True)
    fence: Fence = field(kw_only=True)
    events: EventRecorder = field(kw_only=True)
    pods: Part[Pod] = field(kw_only=True)
    """Those with a node."""
    wall_clock: Callable[[], float] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._direct = DirectWriter(self.transport)
        self._assignments = DirectAssignments(self.ledger, self.placer, self.clock, self.wall_clock)
        self._products = Products(self.placer, self.nodes)
        self.settler = Settler(self._direct, self.backlog, self.ledger, self.fence, self.clock, self.changed)
        self.follower = Follower(
            pods=self.pods,
            writer=self._direct,
            ledger=self.ledger,
            assignments=self._assignments,
            fence=self.fence,
            events=self.events,
            counts=self.counts,
            clock=self.clock,
            taken=self.taken,
        )
        self.pods.subscribe(self.follower.pod_changed)

    def works(self) -> dict[str, Work]:
        """Settling what is in doubt, and following those that have left."""
        return {"queue's settler": self.settler.run, "queue's follower": self.follower.run}

    def take_stock(self, now: float) -> None:
        """Have what was written on pods that kube-scheduler has refused, or does not look at, taken back: they hold it
        until then."""
        for entry in (*self.backlog.refused(now), *self.backlog.unanswered(now)):
            entry.doubt(take_back=True)
        for entry in self.backlog.unseen(now):
            entry.doubt()

    def left(self, entry: Entry) -> None:
        """A pod has its node, or is gone: which of the two is known once the pods with a node tell, or do not."""
        if self.fence.standby():
            self.ledger.release(entry.uid)  # whoever leads knows
        else:
            self.follower.left(entry)

    def check(self, pod: PlanPod) -> None:
        """Raises RequestError for a pod of whose GPUs kube-scheduler knows nothing: it would give them to others."""
        if pod.gpus is not None and pod.gpus.unit is AskedUnit.WHOLE:
            raise RequestError(
                "kube-scheduler counts no GPUs asked by annotation or label alone: ask for nvidia.com/gpu"
            )

    def found_open(self, entry: Entry) -> None:
        """Hold what a Kerf before this one has written on a pod that it let go; one that stands by lists it again."""
        node = entry.node or assigned_node(entry.pod)
        if not node or self.fence.standby():
            return
        self.ledger.reserve_as_written(entry.pod, node, self.clock())
        if not entry.node:  # refused, and whoever was to take it back is gone
            entry.node = node
            entry.doubt(take_back=True)

    def forget(self) -> None:
        """What was reserved for pods that are listed anew."""
        for claim in self.ledger.firm():
            self.ledger.release(claim.uid)

    def reserve(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Hold the GPUs of a unit, and until that is taken back, where its nodes still fit."""
        known = self.backlog.entries
        if self.fence.fault() or any(known.get(entry.uid) is not entry for entry, _ in members):
            return False  # a plan of a term that has ended: what pods hold that have left since is for the next to list
        if not super().reserve(members):
            return False
        for entry, node in members:
            try:
                self._assignments.check(entry.pod, node)
            except HandoverError as error:
                entry.planned, entry.fault = None, Code.UNREADABLE.reason(text=str(error))
                for other, _ in members:
                    self.release(other)
                return False
        for entry, _ in members:
            self.ledger.make_firm(entry.uid)
        return True

    async def open_without_node(self, entry: Entry, why: str, *, by_kerf: bool) -> None:
        """Leave a pod behind the gate to kube-scheduler, and write why."""
        pod = entry.pod
        entry.open(self.clock(), by_kerf=by_kerf)
        try:
            await self.fence.confirm_now()
            if await self._direct.open_without_node(pod, why) is not None:
                self._opened(entry)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self._failed("the gate of pod %s was not opened: %s", entry, error)
        finally:
            if entry.stage is Stage.OPENING:
                entry.doubt()

    def withdraw(self, entries: Iterable[Entry]) -> None:
        """Have what is written on pods that stay behind the gate taken back."""
        for entry in entries:
            if entry.stage is Stage.GATED and not is_blank(entry.pod):
                entry.doubt()

    async def _let_go(self, entries: Sequence[Entry], planner: str) -> None:
        """Write on all members of a unit what they get, then open all their gates."""
        known = [entry.pod for entry in entries]
        try:
            await self.fence.confirm_now()  # that nobody else led when these versions were known
            async with self._units:
                if not await self.allocate(entries):
                    return
                pairs = zip(entries, known, strict=True)
                written = await all_of(self._assign(entry, pod) for entry, pod in pairs)
                if all(written):
                    pairs_ = zip(entries, written, strict=True)
                    await all_of(self._open_written(entry, pod, planner) for entry, pod in pairs_ if pod is not None)
        except (ClusterError, FencedError, RequestError, msgspec.DecodeError) as error:
            self._failed("the queue could not release pod %s: %s", entries[0], error)
        finally:
            self._doubt(entries)

    async def _assign(self, entry: Entry, pod: Pod, **notes: str) -> Pod | None:
        async with self._pods:
            assignment = self._assignments.of(pod, entry.node)
            if not assignment and entry.planned is not None and entry.planned.gpus is not None:
                return None  # what was reserved does not stand any more
            return await self._direct.assign(pod, entry.node, assignment, notes)

    async def _open_written(self, entry: Entry, pod: Pod, planner: str) -> None:
        async with self._pods:
            entry.open(self.clock())
            kept_to = self._products.kept_to(pod, entry.planned, entry.node) if entry.planned else {}
            if await self._direct.open(pod, planner, kept_to) is not None:
                self._opened(entry)
                self.counts.opened += 1

    async def _nominate_anew(self, entries: Sequence[Entry]) -> None:
        """Write on pods that have lost their nodes what they get of others."""
        known = [entry.pod for entry in entries]
        try:
            await self.fence.confirm_now()
            if not await self.allocate(entries):
                return
            for entry, pod in zip(entries, known, strict=True):
                note = {NOMINATION_LOST: f"{entry.num_lost}. {entry.lost}"[:500]}
                if await self._assign(entry, pod, **note) is not None:
                    entry.renominated(self.clock())
                    self.counts.nominated_anew += 1
        except (ClusterError, FencedError, RequestError, msgspec.DecodeError) as error:
            self._failed("the queue could not nominate pod %s again: %s", entries[0], error)
        finally:
            self._doubt(entries)

    def _doubt(self, entries: Iterable[Entry]) -> None:
        """Those that were not let go hold what may be written on them until the settler knows."""
        for entry in entries:
            if entry.stage in (Stage.NOMINATING, Stage.OPENING, Stage.RENOMINATING):
                entry.doubt()
