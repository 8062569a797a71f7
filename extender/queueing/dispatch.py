"""Carrying out a plan: reserve, nominate, open. Gangs go whole, and the next round does not wait for the writes.

GPUs of a pod that is let go are reserved in the ledger until it is bound, as those of any decision.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import msgspec

from extender.core.resources.requests import PodRequest, RequestError
from extender.core.texts import printable
from extender.kube.background import Work, all_of
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError, Term
from extender.kube.objects import Pod
from extender.kube.rights import Given
from extender.kube.transport import right_lacking
from extender.kube.turns import Pauses
from extender.ledger.ledger import Ledger
from extender.planning.plans import Plan, PlanPod
from extender.planning.wait_reasons import Code, WaitReason
from extender.queueing.devices import KeepsDevices
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import nominated_node
from extender.scheduling.placer import Placement, Placer, PodIdentity

logger = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 16
_MAX_WORDS: Final = 400
_NOT_WRITTEN: Final = (ClusterError, FencedError, RequestError, msgspec.DecodeError)


class Mode(Protocol):
    """How kube-scheduler comes to bind what is let go, and so what is written on a pod and what is held meanwhile."""

    is_asked: ClassVar[bool]
    """Whether kube-scheduler asks Kerf about pods that have no nomination."""

    def works(self) -> Mapping[str, Work]:
        """What has to go on in the background, by its name."""

    def term(self) -> Term | None:
        """In which pods may be written on as they are known now."""

    def check(self, pod: PlanPod) -> None:
        """Raises RequestError with a sentence for the author of a pod that can't be let go."""

    def hold(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Keep what was just reserved for a unit, as what is written on it has to be; whether that can be written."""

    def take_stock(self, now: float) -> None:
        """Find those whose node was lost since the last time, and what else waits again."""

    def left(self, entry: Entry) -> None:
        """A pod has its node, or is gone."""

    def found_open(self, entry: Entry) -> None:
        """The gate of a pod is open, and this Kerf has not opened it since it began to lead."""

    def withdraw(self, entries: Iterable[Entry]) -> None:
        """Take back what is written of nodes on pods that stay behind the gate, because it could not be opened or
        whoever wrote that is gone."""

    def not_written(self, entry: Entry) -> bool:
        """What was to be written on a pod is not, or nobody knows; whether what is reserved for it is free."""

    async def nominate(self, entry: Entry, pod: Pod, term: Term | None, *, lost: str) -> Pod | None:
        """Write the node of a pod, as it was known, on it, and which one it `lost` before; the pod after that, None
        where it is not written. Raises ClusterError, FencedError, RequestError, DecodeError, as all that write."""

    async def open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> bool:
        """Open the gate of a pod that is nominated; whether that is done."""

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> bool:
        """Open the gate of a pod, as it was known, that is left to kube-scheduler; whether that is done."""


@dataclass(eq=False)
class Dispatcher:
    """Lets pods go."""

    mode: Mode
    ledger: Ledger
    placer: Placer
    backlog: Backlog
    nodes: NodeBook
    counts: Counts
    clock: Callable[[], float]
    changed: Callable[[], None]
    """Hears of pods that have to be planned again."""
    may_hold: Callable[[Collection[Entry]], bool] = field(default=lambda entries: True, kw_only=True)
    """Whether a unit that a plan lets go may still hold what it got."""
    rights: Given = field(default_factory=Given, kw_only=True)
    claims: KeepsDevices | None = field(default=None, kw_only=True)
    """What allocates devices to their ResourceClaims."""
    pauses: Pauses = field(default_factory=Pauses, init=False)
    """Pods that rest because they could not be let go."""
    _writes: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _units: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)
    _pods: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def begin(self, write: Coroutine[Any, Any, None]) -> None:
        """Have something written while the rounds go on."""
        task = asyncio.create_task(write, name="queue: write")
        self._writes.add(task)
        task.add_done_callback(self._written)

    async def finish(self) -> None:
        """Wait for the writes that have begun."""
        await asyncio.gather(*self._writes)

    async def stop(self) -> None:
        """Give up the writes that have begun; what has been sent may take effect yet."""
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    def found_a_node(self, entry: Entry) -> bool:
        """Whether there is nothing to plan for a pod that lost the node nominated: kube-scheduler has found one since,
        or that nomination still stands."""
        claimed = self.ledger.claim(entry.uid) is not None
        return entry.stage is Stage.LOST and (claimed or bool(nominated_node(entry.pod)))

    def rests(self, entry: Entry) -> WaitReason | None:
        """Why nothing is written on a pod for a while, None where it may be."""
        error = self.pauses.why(entry.namespace, _unit_of(entry), self.clock())
        if error is None:
            return None
        said = str(error)[:_MAX_WORDS]
        return no_right(said, self.rights) or Code.NOT_WRITTEN.reason(error=printable(said))

    async def carry_out(self, plan: Plan, names: Sequence[str], batch: Sequence[tuple[Entry, PlanPod]]) -> None:
        """Let go the pods of a batch that have a node in the plan; `names` are those of its rows."""
        units: dict[str, list[tuple[Entry, str]]] = {}
        asked = {entry.uid: pod for entry, pod in batch}
        for (entry, pod), row in zip(batch, plan.rows, strict=True):
            if row >= 0:
                units.setdefault(pod.gang or entry.uid, []).append((entry, names[row]))
        for members in units.values():
            outdated = any(not self._asks_still(entry, asked[entry.uid]) for entry, _ in members)
            may = not outdated and self.may_hold([entry for entry, _ in members])
            if may and self.let_go(members, plan.planner):
                await asyncio.sleep(0)  # filter and bind go on meanwhile
            else:
                self.counts.outdated += len(members)
                self.changed()

    def let_go(self, members: Sequence[tuple[Entry, str]], planner: str) -> bool:
        """Reserve what a unit gets of its nodes, and begin to write that; whether they have room now."""
        if not self.reserve(members):
            return False
        lost = [entry for entry, _ in members if entry.stage is Stage.LOST]
        gated = [entry for entry, _ in members if entry.stage is Stage.GATED]
        for entry, node in members:
            entry.reserve(node)
        if lost:
            self.begin(self._nominate_anew(lost))
        if gated:
            self.begin(self._let_go(gated, planner))
        return True

    def _asks_still(self, entry: Entry, planned: PlanPod) -> bool:
        """Whether a pod may go where it might when it was planned: its author can change it until it is let go, and
        what devices its claims have, which it can't go without, may have been taken back."""
        now = self.backlog.current(entry)
        return now is not None and (now.kind, now.claims) == (planned.kind, planned.claims)

    def reserve(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Hold the GPUs of a unit if its nodes still fit: the plan may be of a version that has gone by."""
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
            asked = policy.asked(PodRequest(pod.gpus, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)) or pod.gpus
            placement = self.placer.place_on(PodIdentity.of(entry.pod), asked, policy, node)
            if placement.node is None or not self._hold(entry, placement):
                for other, _ in members:
                    self.release(other)
                return False
            self.placer.decided.add(placement)  # the decision on it: kube-scheduler asks for this node alone
            self.placer.reserve(placement)
        if not self.mode.hold(members):
            for entry, _ in members:
                self.release(entry)
            return False
        return True

    def forget(self) -> None:
        """What is held for pods that are listed anew."""
        for claim in self.ledger.firm():
            self.ledger.release(claim.uid)

    def release(self, entry: Entry) -> None:
        """Give back what is reserved for a pod of which nothing was written."""
        self.placer.release(entry.uid)
        if self.claims is not None:
            self.claims.let_go(entry.pod)

    def _hold(self, entry: Entry, placement: Placement) -> bool:
        """Hold the devices of a decision for a pod's claims; whether they still ask what was decided on."""
        if self.claims is None or placement.decision.request.devices is None:
            return True
        return self.claims.hold(entry.pod, placement.node or "", placement.decision.allocation)

    async def allocate(self, entries: Iterable[Entry]) -> bool:
        """Write what is held for the claims of a unit's pods; whether all is written. Raises as `KeepsDevices`."""
        if self.claims is None:
            return True
        return all(await all_of(self._allocate(entry) for entry in entries if entry.pod.spec.resource_claims))

    async def _allocate(self, entry: Entry) -> bool:
        async with self._pods:
            return self.claims is None or await self.claims.allocate(entry.pod)

    async def open_without_node(self, entry: Entry, why: str, *, by_kerf: bool) -> None:
        """Leave a pod behind the gate to kube-scheduler, and write why."""
        pod, term = entry.pod, self.mode.term()
        entry.open(self.clock(), by_kerf=by_kerf)
        try:
            if await self.mode.open_without_node(pod, why, term):
                self._opened(entry)
        except _NOT_WRITTEN as error:
            self._failed("the gate of pod %s was not opened: %s", entry, error)
        finally:
            self._put_back(entry)

    async def _let_go(self, entries: Sequence[Entry], planner: str) -> None:
        """Nominate all members of a unit, then open all their gates."""
        known, term = [(entry, entry.pod) for entry in entries], self.mode.term()
        try:
            async with self._units:  # who is nominated is opened next, whoever else is still to be nominated
                if not await self.allocate(entries):
                    return
                nominated = await all_of(self._nominate(entry, pod, term) for entry, pod in known)
                if all(nominated):  # else one is deleted, or too much is written to it at once
                    pairs = zip(entries, nominated, strict=True)
                    await all_of(self._open(entry, pod, planner, term) for entry, pod in pairs if pod is not None)
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

    async def _nominate_anew(self, entries: Sequence[Entry]) -> None:
        """Nominate pods that were let go and have lost their nodes."""
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
        """A pod waits again unless it was let go."""
        if not entry.stage.is_written:
            return
        if self.mode.not_written(entry):
            self.release(entry)  # else it would be in its own way
        if entry.pod.spec.resource_claims and entry.stage is not Stage.UNSETTLED:
            self.backlog.read_again(entry)  # while it was being written about its claims were not looked at
        self.changed()

    def _opened(self, entry: Entry) -> None:
        entry.was_opened()
        self.pauses.succeeded(entry.namespace, _unit_of(entry))

    def _failed(self, message: str, entry: Entry, error: Exception) -> None:
        """A write about a pod has failed: it is tried again, ever later."""
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
    """Pods that are let go together, or not at all."""
    return (entry.planned.gang if entry.planned is not None else "") or entry.uid


def no_right(words: str, given: Given) -> WaitReason | None:
    """That Kerf lacks a right, where that is what the API server says."""
    lacking = right_lacking(words)
    if lacking is None:
        return None
    right, user = lacking
    return Code.NO_RIGHT.reason(right=str(right), user=printable(user), manifest=given.manifest(right))
