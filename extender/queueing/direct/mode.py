"""Releasing pods that kube-scheduler binds by itself: their reservations are persisted on them.

Pods with a write of unknown outcome, a rejection by kube-scheduler, or an assignment of a previous leader are
`Stage.UNSETTLED`. They hold what may be written on them until they have been read, and an assignment that should not
stand is withdrawn. A reservation is released only once the API server has confirmed that nothing of it is written any
more. The withdrawal changes the pod, so that a write still under way fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from extender.core.resources.requests import AskedUnit, RequestError
from extender.core.vendors.registry import DEFAULT
from extender.kube.background import Work
from extender.kube.cache import Group
from extender.kube.client import ApiError, Transport
from extender.kube.commit import Outcome, Resolver, Result, Target, Term, is_permanent_refusal
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.ledger.ledger import Ledger
from extender.planning.plans import PlanPod
from extender.plugins.pods import assigned_node
from extender.queueing.direct.follower import Follower
from extender.queueing.direct.writer import DirectAssignments, DirectWriter, Products, is_blank
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import nominated_node
from extender.queueing.pods.objects import is_gated
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer


@dataclass(eq=False)
class DirectMode:
    """The `dispatch.Mode` without an extender."""

    transport: Transport
    ledger: Ledger
    placer: Placer
    backlog: Backlog
    nodes: NodeBook
    counts: Counts
    clock: Callable[[], float]
    changed: Callable[[], None]
    taken: Callable[[Entry, str], None]
    resolver: Resolver
    fence: Fence
    events: EventRecorder
    pods: Group[Pod]
    """The pods with a node."""
    wall_clock: Callable[[], float]
    has_extender: ClassVar[bool] = False
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.writer = DirectWriter(self.transport)
        self._assignments = DirectAssignments(self.ledger, self.placer, self.clock, self.wall_clock)
        self._products = Products(self.placer, self.nodes)
        self.follower = Follower(
            pods=self.pods,
            writer=self.writer,
            ledger=self.ledger,
            assignments=self._assignments,
            fence=self.fence,
            events=self.events,
            counts=self.counts,
            clock=self.clock,
            taken=self.taken,
        )
        self.pods.subscribe(self.follower.pod_changed)

    def works(self) -> Mapping[str, Work]:
        return {"queue's follower": self.follower.run}

    def term(self) -> Term | None:
        return self.fence.as_of_now()

    def check(self, pod: PlanPod) -> None:
        """Refuse GPUs that kube-scheduler does not count and would give to other pods."""
        if pod.gpus is not None and pod.gpus.unit is AskedUnit.WHOLE:
            raise RequestError(
                f"kube-scheduler counts no GPUs requested by annotation or label alone: ask for {DEFAULT.resource}"
            )

    def hold(self, members: Sequence[tuple[Entry, str]]) -> bool:
        if self.fence.fault():
            return False  # the plan's term has ended
        for entry, _ in members:
            self.ledger.pin(entry.uid)
        return True

    def take_stock(self, now: float) -> None:
        for entry in (*self.backlog.refused(now), *self.backlog.unanswered(now)):
            self._doubt(entry, take_back=True)
        for entry in self.backlog.unseen(now):
            self._doubt(entry)

    def left(self, entry: Entry) -> None:
        self.writer.forget(entry.uid)
        if self.fence.standby():
            self.ledger.release(entry.uid)  # the leader's ledger counts
        else:
            self.follower.left(entry)

    def found_open(self, entry: Entry) -> None:
        """Hold the assignment that a previous leader wrote; a standby lists the pods again before it leads."""
        node = entry.node or assigned_node(entry.pod)
        if not node or self.fence.standby():
            return
        self.ledger.reserve_as_written(entry.pod, node, self.clock())
        if not entry.node:  # rejected, and the leader that should have withdrawn it is gone
            entry.node = node
            self._doubt(entry, take_back=True)

    def withdraw(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.stage is Stage.GATED and not is_blank(entry.pod):
                self._doubt(entry)

    def not_written(self, entry: Entry) -> bool:
        self._doubt(entry)
        return False

    async def nominate(self, entry: Entry, pod: Pod, term: Term | None, *, lost: str) -> Pod | None:
        def reserved() -> dict[str, str] | None:
            assignment = self._assignments.of(pod, entry.node)
            needs_gpus = entry.planned is not None and entry.planned.gpus is not None
            return assignment if assignment or not needs_gpus else None

        return await self.writer.assign(pod, entry.node, reserved, lost, term)

    async def open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> bool:
        kept_to = self._products.kept_to(pod, entry.planned, entry.node) if entry.planned else {}
        return await self.writer.open(pod, planner, kept_to, term) is not None

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> bool:
        return await self.writer.open_without_node(pod, why, term) is not None

    def _doubt(self, entry: Entry, *, take_back: bool = False) -> None:
        entry.doubt(take_back=take_back)
        self.resolver.add(_Doubt(self, entry))


class _Doubt(Target[Pod]):
    """An assignment that may or may not be written on a pod, and may have to be withdrawn."""

    def __init__(self, mode: DirectMode, entry: Entry) -> None:
        super().__init__(entry.namespace, entry.uid, f"pod {entry.pod.key} of the queue")
        self._mode, self._entry = mode, entry
        self._withdrawn_pod: Pod | None = None
        """The pod as returned by the withdrawal."""

    async def send(self, version: str) -> Pod | None:
        """Do nothing: the write in doubt was sent before."""
        return None

    async def read(self) -> Pod | None:
        return await self._mode.writer.read(self._entry.pod)

    async def seal(self) -> Pod | None:
        """Withdraw the assignment unless it stands. Raises FencedError where another process may lead."""
        found = await self.read()
        if found is None or self.judge(found, sealed=True) is not Outcome.UNKNOWN:
            return found
        mode = self._mode
        try:
            self._withdrawn_pod = await mode.writer.take_back(found, self._entry.node, mode.fence.as_of_now())
        except ApiError as error:
            if not (is_permanent_refusal(error) and is_blank(found)):
                raise
            self._withdrawn_pod = found  # earlier writes are refused as well
        return self._withdrawn_pod or found

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome:
        """Return DONE if the assignment stands as intended or the pod has its node, REFUSED if nothing is written."""
        if found is None or found.metadata.deletion_timestamp or found.finished:
            return Outcome.GONE
        if found.spec.node_name or self._stands(found):
            return Outcome.DONE
        clear = found is self._withdrawn_pod or self._mode.writer.is_clear(found)
        return Outcome.REFUSED if clear else Outcome.UNKNOWN

    def is_settled(self) -> bool:
        entry = self._entry
        return entry.stage is not Stage.UNSETTLED or self._mode.backlog.entries.get(entry.uid) is not entry

    def settle(self, result: Result[Pod]) -> None:
        mode, entry, found = self._mode, self._entry, result.found
        if result.outcome is not Outcome.FENCED:
            mode.writer.forget(entry.uid)
        if result.outcome is Outcome.FENCED:
            mode.ledger.release(entry.uid)  # the leader's ledger counts
            mode.resolver.add(self)
        if found is None or result.outcome not in (Outcome.DONE, Outcome.REFUSED):
            return  # the watch reports the pod
        if found.spec.node_name:
            mode.ledger.hold_as_read(found, mode.clock())
            return
        if result.outcome is Outcome.DONE:
            entry.settle_open(found, mode.clock())
            return
        mode.ledger.release(entry.uid)
        if is_gated(found):
            entry.settle_shut(found)
        elif entry.node:
            entry.settle_lost(found)
        else:
            entry.settle_open(found, mode.clock())
        mode.backlog.read_again(entry)
        mode.changed()

    def _stands(self, found: Pod) -> bool:
        """Whether a pod was released as intended."""
        entry = self._entry
        return not is_gated(found) and not entry.take_back and nominated_node(found) == entry.node
