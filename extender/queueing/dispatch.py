"""Carrying out a plan: reserve, nominate, open. Gangs go whole, and the next round does not wait for the writes.

GPUs of a pod that is let go are reserved in the ledger until it is bound, as those of any decision.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from extender.core.resources.requests import PodRequest
from extender.core.texts import printable
from extender.kube.background import Work, all_of
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.kube.pauses import Pauses
from extender.kube.rights import needed_by
from extender.kube.transport import right_lacking
from extender.ledger.ledger import ClaimState, Ledger
from extender.planning.plans import Plan, PlanPod
from extender.planning.wait_reasons import Code, WaitReason
from extender.queueing.claims.keeper import ClaimKeeper
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import PodWriter, nominated_node
from extender.scheduling.placer import Placement, Placer, PodIdentity

logger = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 16
_MAX_WORDS: Final = 400


@dataclass(eq=False)
class Dispatcher:
    """Lets pods go; `changed` hears of those that have to be planned again."""

    writer: PodWriter
    ledger: Ledger
    placer: Placer
    backlog: Backlog
    nodes: NodeBook
    counts: Counts
    clock: Callable[[], float]
    changed: Callable[[], None]
    """Hears of pods that have to be planned again."""
    taken: Callable[[Entry, str], None] = field(default=lambda entry, node: None, kw_only=True)
    """Hears of pods for which kube-scheduler has found a node."""
    may_hold: Callable[[Collection[Entry]], bool] = field(default=lambda entries: True, kw_only=True)
    """Whether a unit that a plan lets go may still hold what it got."""
    is_asked: ClassVar[bool] = True
    """Whether kube-scheduler asks Kerf about pods that have no nomination."""
    claims: ClaimKeeper | None = field(default=None, kw_only=True)
    """What allocates devices to their ResourceClaims."""
    pauses: Pauses = field(default_factory=Pauses, init=False)
    """Pods that rest because they could not be let go."""
    _withdrawals: Pauses = field(default_factory=Pauses, init=False)
    """Pods whose nominations could not be taken back: not to have them stand is more urgent than to let go."""
    _withdrawn: set[str] = field(default_factory=set, init=False)
    """Of pods that have lost their nodes, those whose nominations are being taken back."""
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
        return no_right(said) or Code.NOT_WRITTEN.reason(error=printable(said))

    def works(self) -> dict[str, Work]:
        """What has to go on in the background, by its name."""
        return {}

    def take_stock(self, now: float) -> None:
        """Find those whose node was lost since the last time, and what else waits again."""
        for entry in (*self.backlog.recall(now), *self.backlog.notice_lost(now)):
            self.placer.release(entry.uid)
        for entry in self.backlog.lost():
            if nominated_node(entry.pod) and entry.uid not in self._withdrawn and self._may_withdraw(entry):
                self._withdrawn.add(entry.uid)
                self.begin(self._withdraw_lost(entry))

    def left(self, entry: Entry) -> None:
        """A pod has its node, or is gone."""
        claim = self.ledger.claim(entry.uid)
        if claim is not None and claim.state is not ClaimState.RESERVED:
            self.taken(entry, claim.node)
        elif claim is None and entry.is_out and not entry.num_gpus and not entry.pod.metadata.deletion_timestamp:
            self.taken(entry, entry.node)  # or gone: nobody asks Kerf to bind what asks for no GPU
        else:
            self.placer.release(entry.uid)  # Kerf has not bound it: it is gone, or the watch tells what it has
        if entry.node and not entry.stage.behind_gate:
            honoured = not entry.lost and (claim is None or claim.node == entry.node)
            self.counts.honoured += honoured
            self.counts.fallbacks += not honoured

    def check(self, pod: PlanPod) -> None:
        """Raises RequestError with a sentence for the author of a pod that can't be let go."""

    def found_open(self, entry: Entry) -> None:
        """Somebody else has let a pod go: kube-scheduler asks about it before it binds it."""

    def forget(self) -> None:
        """Nothing is known of pods that were let go any more: they are listed anew."""

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
        if any(self.found_a_node(entry) or not entry.stage.waits for entry, _ in members):
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
        return True

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
        """Write what is held for the claims of a unit's pods; whether all is written. Raises as `ClaimKeeper`."""
        if self.claims is None:
            return True
        return all(await all_of(self._allocate(entry) for entry in entries if entry.pod.spec.resource_claims))

    async def _allocate(self, entry: Entry) -> bool:
        async with self._pods:
            return self.claims is None or await self.claims.allocate(entry.pod)

    async def open_without_node(self, entry: Entry, why: str, *, by_kerf: bool) -> None:
        """Leave a pod behind the gate to kube-scheduler, and write why."""
        entry.open(self.clock(), by_kerf=by_kerf)
        try:
            if await self.writer.open(entry.pod, "", why):
                self._opened(entry)
        except ClusterError as error:
            self._failed("the gate of pod %s was not opened: %s", entry, error)
        finally:
            if entry.stage is Stage.OPENING:
                entry.put_back(self.clock())

    def withdraw(self, entries: Iterable[Entry]) -> None:
        """Take back the nominations of pods that stay behind the gate, because it could not be opened or whoever
        nominated them is gone: kube-scheduler counts their GPUs as if they ran there."""
        for entry in entries:
            if entry.pod.status.nominated_node_name and self._may_withdraw(entry):
                entry.withdraw()
                self.begin(self._withdraw(entry))

    async def _let_go(self, entries: Sequence[Entry], planner: str) -> None:
        """Nominate all members of a unit, then open all their gates."""
        try:
            async with self._units:  # who is nominated is opened next, whoever else is still to be nominated
                written = await self.allocate(entries)
                nominated = written and await all_of(self._nominate(entry, entry.node) for entry in entries)
                if nominated and all(nominated):  # else one is deleted, or too much is written to it at once
                    await all_of(self._open(entry, planner) for entry in entries)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self._failed("the queue could not release pod %s: %s", entries[0], error)
        finally:
            for entry in entries:
                if entry.stage is not Stage.OPENED:
                    entry.put_back(self.clock())
                    if not entry.node:
                        self.release(entry)  # else it would be in its own way
                    self._read_claims(entry)
                    self.changed()

    async def _nominate(self, entry: Entry, node: str) -> bool:
        async with self._pods:
            return await self.writer.nominate(entry.pod, node)

    async def _open(self, entry: Entry, planner: str) -> None:
        async with self._pods:
            entry.open(self.clock())
            domain = self.nodes.domain_of(entry.node, entry.planned.topology) if entry.planned else None
            if await self.writer.open(entry.pod, entry.node, planner, domain):
                self._opened(entry)
                self.counts.opened += 1

    async def _withdraw(self, entry: Entry) -> None:
        try:
            await self._nominate(entry, "")
            status = msgspec.structs.replace(entry.pod.status, nominated_node_name="")
            entry.pod = msgspec.structs.replace(entry.pod, status=status)  # the watch will tell
            self._withdrawals.succeeded(entry.namespace, entry.uid)
        except ClusterError as error:
            self._withdrawal_failed(entry, error)
        finally:
            entry.put_back(self.clock())

    async def _nominate_anew(self, entries: Sequence[Entry]) -> None:
        """Nominate pods that were let go and have lost their nodes."""
        for entry in entries:
            try:
                if not await self.allocate([entry]):
                    continue
                async with self._pods:
                    note = f"{entry.num_lost}. {entry.lost}"
                    if await self.writer.nominate_anew(entry.pod, entry.node, note):
                        entry.renominated(self.clock())
                        self.counts.nominated_anew += 1
            except (ClusterError, FencedError, msgspec.DecodeError) as error:
                self._failed("the queue could not nominate pod %s again: %s", entry, error)
            finally:
                if entry.stage is Stage.RENOMINATING:
                    entry.stay_lost()
                    self.changed()
                    self.release(entry)
                    self._read_claims(entry)

    async def _withdraw_lost(self, entry: Entry) -> None:
        """Take the nomination of a pod that kube-scheduler has refused off it: others are counted out until then."""
        try:
            async with self._pods:
                await self.writer.nominate(entry.pod, "")
            self._withdrawals.succeeded(entry.namespace, entry.uid)
        except ClusterError as error:
            self._withdrawal_failed(entry, error)
        finally:
            self._withdrawn.discard(entry.uid)

    def _read_claims(self, entry: Entry) -> None:
        """What a pod's claims are now: while it was being written about that was not looked at."""
        if entry.pod.spec.resource_claims:
            self.backlog.read_again(entry)

    def _opened(self, entry: Entry) -> None:
        entry.was_opened()
        self.pauses.succeeded(entry.namespace, _unit_of(entry))

    def _may_withdraw(self, entry: Entry) -> bool:
        return self._withdrawals.why(entry.namespace, entry.uid, self.clock()) is None

    def _withdrawal_failed(self, entry: Entry, error: ClusterError) -> None:
        self.counts.errors += 1
        logger.warning("the nomination of pod %s was not withdrawn: %s", entry.pod.key, error)
        wait_s = self._withdrawals.failed(entry.namespace, entry.uid, error, self.clock())
        asyncio.get_running_loop().call_later(wait_s, self.changed)

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


def no_right(words: str) -> WaitReason | None:
    """That Kerf lacks a right, where that is what the API server says."""
    lacking = right_lacking(words)
    if lacking is None:
        return None
    right, user = lacking
    return Code.NO_RIGHT.reason(right=str(right), user=printable(user), manifest=needed_by(right)[1])
