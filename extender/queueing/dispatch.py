"""Carrying out a plan: reserve the GPUs, nominate the nodes, open the gates.

Gangs are released as a whole, and the next round does not wait for the writes. A released pod's GPUs stay reserved in
the ledger until it is bound, as with any decision.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import msgspec

from extender.core.resources.requests import PodRequest, RequestError
from extender.core.texts import printable
from extender.kube.background import Work, gather_all
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError, Term
from extender.kube.objects import Pod
from extender.kube.rights import Grants
from extender.kube.transport import missing_right
from extender.kube.turns import Backoffs
from extender.ledger.ledger import Ledger
from extender.planning.plans import Plan, PlanPod
from extender.planning.wait_reasons import Code, WaitReason
from extender.queueing.devices import DeviceAllocator
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import nominated_node
from extender.scheduling.placer import Placement, Placer, PodIdentity

logger = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 16
_MAX_CHARS: Final = 400
_NOT_WRITTEN: Final = (ClusterError, FencedError, RequestError, msgspec.DecodeError)


class Mode(Protocol):
    """How released pods get bound, which decides what is written on them and what stays reserved meanwhile.

    The methods that write raise ClusterError, FencedError, RequestError, DecodeError.
    """

    has_extender: ClassVar[bool]
    """Whether kube-scheduler calls Kerf about pods without a nomination."""

    def works(self) -> Mapping[str, Work]:
        """Return background work by name."""

    def term(self) -> Term | None:
        """Return the term for writes that are decided now."""

    def check(self, pod: PlanPod) -> None:
        """Raise RequestError with a sentence for the author of a pod that can't be released."""

    def hold(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Keep a unit's new reservations for the writes to come; return whether these are possible."""

    def take_stock(self, now: float) -> None:
        """Find the pods that have lost their nodes since the last call, or that have to wait again."""

    def left(self, entry: Entry) -> None:
        """Handle a pod that has its node or is gone."""

    def found_open(self, entry: Entry) -> None:
        """Handle a pod whose gate is open, though not opened by this process in this term."""

    def withdraw(self, entries: Iterable[Entry]) -> None:
        """Withdraw nominations from gated pods, because a gate could not be opened or their writer is gone."""

    def not_written(self, entry: Entry) -> bool:
        """Handle a write that failed or whose outcome is unknown; return whether the pod's reservation is free."""

    async def nominate(self, entry: Entry, pod: Pod, term: Term | None, *, lost: str) -> Pod | None:
        """Nominate a node on this version of a pod, noting the `lost` one; return the new pod, None if not written."""

    async def open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> bool:
        """Open the gate of a nominated pod; return whether that succeeded."""

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> bool:
        """Open the gate of this version of a pod and leave it to kube-scheduler; return whether that succeeded."""


@dataclass(eq=False)
class Dispatcher:
    """Releases pods from the queue."""

    mode: Mode
    ledger: Ledger
    placer: Placer
    backlog: Backlog
    nodes: NodeBook
    counts: Counts
    clock: Callable[[], float]
    changed: Callable[[], None]
    """Called when pods have to be planned again."""
    may_hold: Callable[[Collection[Entry]], bool] = field(default=lambda entries: True, kw_only=True)
    """Whether a planned unit may still hold what it got."""
    rights: Grants = field(default_factory=Grants, kw_only=True)
    claims: DeviceAllocator | None = field(default=None, kw_only=True)
    """Allocates devices to the pods' ResourceClaims."""
    pauses: Backoffs = field(default_factory=Backoffs, init=False)
    """Pods that back off after a failed write."""
    _writes: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _units: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)
    _pods: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def begin(self, write: Coroutine[Any, Any, None]) -> None:
        """Start a write that runs beside the rounds."""
        task = asyncio.create_task(write, name="queue: write")
        self._writes.add(task)
        task.add_done_callback(self._written)

    async def finish(self) -> None:
        """Wait for the writes under way."""
        await asyncio.gather(*self._writes)

    async def stop(self) -> None:
        """Cancel the writes under way; requests already sent may still take effect."""
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    def found_a_node(self, entry: Entry) -> bool:
        """Whether a pod that lost its nominated node needs no plan: it has an allocation, or its nomination stands."""
        allocated = self.ledger.allocation(entry.uid) is not None
        return entry.stage is Stage.LOST and (allocated or bool(nominated_node(entry.pod)))

    def rests(self, entry: Entry) -> WaitReason | None:
        """Return why writes about a pod back off, None if they don't."""
        error = self.pauses.why(entry.namespace, _unit_of(entry), self.clock())
        if error is None:
            return None
        message = str(error)[:_MAX_CHARS]
        return no_right(message, self.rights) or Code.NOT_WRITTEN.reason(error=printable(message))

    async def carry_out(self, plan: Plan, names: Sequence[str], batch: Sequence[tuple[Entry, PlanPod]]) -> None:
        """Release the pods of a batch that have a node in the plan; `names` are the node names of its rows."""
        units: dict[str, list[tuple[Entry, str]]] = {}
        planned = {entry.uid: pod for entry, pod in batch}
        for (entry, pod), row in zip(batch, plan.rows, strict=True):
            if row >= 0:
                units.setdefault(pod.gang or entry.uid, []).append((entry, names[row]))
        for members in units.values():
            outdated = any(self._has_changed(entry, planned[entry.uid]) for entry, _ in members)
            may_release = not outdated and self.may_hold([entry for entry, _ in members])
            if may_release and self.let_go(members, plan.planner):
                await asyncio.sleep(0)  # let filter and bind run
            else:
                self.counts.outdated += len(members)
                self.changed()

    def let_go(self, members: Sequence[tuple[Entry, str]], planner: str) -> bool:
        """Reserve a unit's GPUs on its nodes and start writing; return whether the nodes have room now."""
        if not self.reserve(members):
            return False
        lost = [entry for entry, _ in members if entry.stage is Stage.LOST]
        gated = [entry for entry, _ in members if entry.stage is Stage.GATED]
        for entry, node in members:
            entry.reserve(node)
        if lost:
            self.begin(self._renominate(lost))
        if gated:
            self.begin(self._nominate_and_open(gated, planner))
        return True

    def _has_changed(self, entry: Entry, planned: PlanPod) -> bool:
        """Whether a pod's restrictions or claims differ from the planned ones: its author may change it while it is
        gated, and its claims' devices may be deallocated."""
        now = self.backlog.current(entry)
        return now is None or (now.kind, now.claims) != (planned.kind, planned.claims)

    def reserve(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Reserve a unit's GPUs if its nodes still fit, as the plan may be outdated; return whether they do."""
        known = self.backlog.entries
        if any(known.get(entry.uid) is not entry or not entry.stage.waits for entry, _ in members):
            return False
        if any(self.found_a_node(entry) for entry, _ in members):
            return False
        for entry, node in members:
            pod = self.backlog.current(entry)
            if pod is None or pod.gpus is None:
                continue
            policy = self.placer.policy_of(PodRequest(pod.gpus, pod.policy))
            request = (
                policy.weighed_request(PodRequest(pod.gpus, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib))
                or pod.gpus
            )
            placement = self.placer.place_on(PodIdentity.of(entry.pod), request, policy, node)
            if placement.node is None or not self._hold(entry, placement):
                for other, _ in members:
                    self.release(other)
                return False
            self.placer.decided.add(placement)  # this is the decision: kube-scheduler will ask for this node alone
            self.placer.reserve(placement)
        if not self.mode.hold(members):
            for entry, _ in members:
                self.release(entry)
            return False
        return True

    def forget(self) -> None:
        """Release the persisted reservations: the pods are about to be listed again."""
        for held in self.ledger.pinned():
            self.ledger.release(held.uid)

    def release(self, entry: Entry) -> None:
        """Release the reservation of a pod on which nothing was written."""
        self.placer.release(entry.uid)
        if self.claims is not None:
            self.claims.release_holds(entry.pod)

    def _hold(self, entry: Entry, placement: Placement) -> bool:
        """Hold the devices of a decision for a pod's claims; return whether the claims' requests are unchanged."""
        if self.claims is None or placement.decision.request.devices is None:
            return True
        return self.claims.hold(entry.pod, placement.node or "", placement.decision.allocation)

    async def allocate(self, entries: Iterable[Entry]) -> bool:
        """Write the allocations of a unit's claims; return whether all are written. Raises as `DeviceAllocator`."""
        if self.claims is None:
            return True
        return all(await gather_all(self._allocate(entry) for entry in entries if entry.pod.spec.resource_claims))

    async def _allocate(self, entry: Entry) -> bool:
        async with self._pods:
            return self.claims is None or await self.claims.allocate(entry.pod)

    async def open_without_node(self, entry: Entry, why: str, *, by_kerf: bool) -> None:
        """Open a pod's gate without a node, leaving it to kube-scheduler, and write why."""
        pod, term = entry.pod, self.mode.term()
        entry.open(self.clock(), by_kerf=by_kerf)
        try:
            if await self.mode.open_without_node(pod, why, term):
                self._opened(entry)
        except _NOT_WRITTEN as error:
            self._failed("the gate of pod %s was not opened: %s", entry, error)
        finally:
            self._put_back(entry)

    async def _nominate_and_open(self, entries: Sequence[Entry], planner: str) -> None:
        """Nominate all members of a unit, then open all their gates."""
        known, term = [(entry, entry.pod) for entry in entries], self.mode.term()
        try:
            async with self._units:  # opens a nominated unit before further units are nominated
                if not await self.allocate(entries):
                    return
                nominated = await gather_all(self._nominate(entry, pod, term) for entry, pod in known)
                if all(nominated):  # else one is deleted, or changes too often
                    pairs = zip(entries, nominated, strict=True)
                    await gather_all(self._open(entry, pod, planner, term) for entry, pod in pairs if pod is not None)
        except _NOT_WRITTEN as error:
            self._failed("the queue could not release pod %s: %s", entries[0], error)
        finally:
            for entry in entries:
                self._put_back(entry)

    async def _nominate(self, entry: Entry, pod: Pod, term: Term | None) -> Pod | None:
        async with self._pods:
            return await self.mode.nominate(entry, pod, term, lost="")

    async def _open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> None:
        async with self._pods:
            entry.open(self.clock())
            if await self.mode.open(entry, pod, planner, term):
                self._opened(entry)
                self.counts.opened += 1

    async def _renominate(self, entries: Sequence[Entry]) -> None:
        """Nominate released pods that have lost their nodes."""
        known, term = [(entry, entry.pod) for entry in entries], self.mode.term()
        for entry, pod in known:
            try:
                if not await self.allocate([entry]):
                    continue
                async with self._pods:
                    if await self.mode.nominate(entry, pod, term, lost=f"{entry.num_lost}. {entry.lost}"):
                        entry.renominated(self.clock())
                        self.counts.nominated_anew += 1
            except _NOT_WRITTEN as error:
                self._failed("the queue could not nominate pod %s again: %s", entry, error)
            finally:
                self._put_back(entry)

    def _put_back(self, entry: Entry) -> None:
        """Make a pod wait again unless it was released."""
        if not entry.stage.is_written:
            return
        if self.mode.not_written(entry):
            self.release(entry)  # else its reservation would block it
        if entry.pod.spec.resource_claims and entry.stage is not Stage.UNSETTLED:
            self.backlog.read_again(entry)  # claim changes were ignored during the write
        self.changed()

    def _opened(self, entry: Entry) -> None:
        entry.was_opened()
        self.pauses.succeeded(entry.namespace, _unit_of(entry))

    def _failed(self, message: str, entry: Entry, error: Exception) -> None:
        """Log a failed write and back off."""
        self.counts.errors += 1
        logger.warning(message, entry.pod.key, error)
        if not isinstance(error, FencedError):
            wait_s = self.pauses.failed(entry.namespace, _unit_of(entry), error, self.clock())
            asyncio.get_running_loop().call_later(wait_s, self.changed)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.counts.errors += 1
            logger.error("a write of the queue failed", exc_info=error)


def _unit_of(entry: Entry) -> str:
    """Return the key of the unit that a pod is released with: its gang, else its UID."""
    return (entry.planned.gang if entry.planned is not None else "") or entry.uid


def no_right(message: str, given: Grants) -> WaitReason | None:
    """Return the reason that Kerf lacks a right if the API server's message says so, else None."""
    lacking = missing_right(message)
    if lacking is None:
        return None
    right, user = lacking
    return Code.NO_RIGHT.reason(right=str(right), user=printable(user), manifest=given.manifest(right))
