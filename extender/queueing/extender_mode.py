"""Releasing pods where kube-scheduler calls Kerf as an extender: only their nodes are nominated.

No write has to be certain: whatever kube-scheduler decides, it has to call Kerf's filter and bind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from extender.kube.background import Work
from extender.kube.client import Transport
from extender.kube.commit import Outcome, Resolver, Result, Target, Term
from extender.kube.objects import Pod
from extender.ledger.ledger import AllocationState, Ledger
from extender.planning.plans import PlanPod
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import PodWriter, nominated_node
from extender.scheduling.placer import Placer


class _Withdrawal(Target[Pod]):
    """Withdraws the nomination of a pod that stays gated or was rejected."""

    def __init__(self, writer: PodWriter, entry: Entry, ended: Callable[[Entry], None]) -> None:
        super().__init__(entry.namespace, entry.uid, f"withdrawing the nomination of pod {entry.pod.key}")
        self._writer, self._entry, self._ended = writer, entry, ended

    async def send(self, version: str) -> Pod | None:
        """Write without a resourceVersion."""
        return self._entry.pod if await self._writer.nominate(self._entry.pod, "") else None

    async def read(self) -> Pod | None:
        return await self._writer.read(self._entry.pod)

    async def seal(self) -> Pod | None:
        return await self.send("")

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome:
        return Outcome.GONE if found is None else Outcome.DONE

    def settle(self, result: Result[Pod]) -> None:
        entry = self._entry
        if result.outcome is not Outcome.FENCED:
            status = msgspec.structs.replace(entry.pod.status, nominated_node_name="")
            entry.pod = msgspec.structs.replace(entry.pod, status=status)  # ahead of the watch
        self._ended(entry)


@dataclass(eq=False)
class ExtenderMode:
    """The `dispatch.Mode` with an extender."""

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
    has_extender: ClassVar[bool] = True
    _withdrawn: set[str] = field(default_factory=set, init=False)
    """UIDs of pods whose nominations are being withdrawn."""

    def __post_init__(self) -> None:
        self._writer = PodWriter(self.transport)

    def works(self) -> Mapping[str, Work]:
        return {}

    def term(self) -> Term | None:
        return None

    def check(self, pod: PlanPod) -> None:
        """Accept every pod: Kerf's filter judges its request."""

    def hold(self, members: Sequence[tuple[Entry, str]]) -> bool:
        return True

    def take_stock(self, now: float) -> None:
        for entry in (*self.backlog.recall(now), *self.backlog.notice_lost(now)):
            self.placer.release(entry.uid)
        lost = [entry for entry in self.backlog.lost() if nominated_node(entry.pod)]
        self._withdraw(lost)  # until then kube-scheduler counts their GPUs as used

    def left(self, entry: Entry) -> None:
        held = self.ledger.allocation(entry.uid)
        if held is not None and held.state is not AllocationState.RESERVED:
            self.taken(entry, held.node)
        elif held is None and entry.is_out and not entry.num_gpus and not entry.pod.metadata.deletion_timestamp:
            self.taken(entry, entry.node)  # bound or gone: pods without GPUs are not bound by Kerf
        else:
            self.placer.release(entry.uid)  # not bound by Kerf: gone, or the watch reports its GPUs
        if entry.node and not entry.stage.behind_gate:
            honoured = not entry.lost and (held is None or held.node == entry.node)
            self.counts.honoured += honoured
            self.counts.fallbacks += not honoured

    def found_open(self, entry: Entry) -> None:
        """Do nothing: kube-scheduler calls Kerf before it binds the pod."""

    def withdraw(self, entries: Iterable[Entry]) -> None:
        nominated = [entry for entry in entries if entry.pod.status.nominated_node_name]
        self._withdraw([entry for entry in nominated if entry.stage is Stage.GATED])

    def not_written(self, entry: Entry) -> bool:
        if entry.stage is Stage.RENOMINATING:
            entry.stay_lost()
            return True
        entry.put_back(self.clock())
        return not entry.node  # else its gate was opened meanwhile

    async def nominate(self, entry: Entry, pod: Pod, term: Term | None, *, lost: str) -> Pod | None:
        written = self._writer.nominate_anew(pod, entry.node, lost) if lost else self._writer.nominate(pod, entry.node)
        return entry.pod if await written else None

    async def open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> bool:
        domain = self.nodes.domain_of(entry.node, entry.planned.topology) if entry.planned else None
        return await self._writer.open(entry.pod, entry.node, planner, domain)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> bool:
        return await self._writer.open(pod, "", why)

    def _withdraw(self, entries: Iterable[Entry]) -> None:
        """Withdraw nominations, since kube-scheduler counts the GPUs of nominated pods as used."""
        for entry in entries:
            if entry.uid in self._withdrawn:
                continue
            if entry.stage is Stage.GATED:
                entry.withdraw()
            self._withdrawn.add(entry.uid)
            self.resolver.add(_Withdrawal(self._writer, entry, self._withdrawal_ended))

    def _withdrawal_ended(self, entry: Entry) -> None:
        self._withdrawn.discard(entry.uid)
        if entry.stage is Stage.WITHDRAWING:
            entry.put_back(self.clock())
        self.changed()
