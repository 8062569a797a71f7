"""Letting pods go where kube-scheduler asks Kerf about each before it binds it: their nodes are nominated, no more.

Nothing that is written has to be certain: whatever kube-scheduler goes by, Kerf's verbs have the last word.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from extender.kube.background import Work
from extender.kube.client import Transport
from extender.kube.commit import Outcome, Resolver, Result, Target, Term
from extender.kube.objects import Pod
from extender.ledger.ledger import ClaimState, Ledger
from extender.planning.plans import PlanPod
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import PodWriter, nominated_node
from extender.scheduling.placer import Placer


class _Withdrawal(Target[Pod]):
    """Taking the nomination of a pod back that stays behind its gate, or was refused."""

    def __init__(self, writer: PodWriter, entry: Entry, ended: Callable[[Entry], None]) -> None:
        super().__init__(entry.namespace, entry.uid, f"withdrawing the nomination of pod {entry.pod.key}")
        self._writer, self._entry, self._ended = writer, entry, ended

    async def send(self, version: str) -> Pod | None:
        """Whatever its version is."""
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
            entry.pod = msgspec.structs.replace(entry.pod, status=status)  # the watch will tell
        self._ended(entry)


@dataclass(eq=False)
class Asked:
    """As of `dispatch.Mode`."""

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
    is_asked: ClassVar[bool] = True
    _withdrawn: set[str] = field(default_factory=set, init=False)
    """Pods whose nominations are being taken back."""

    def __post_init__(self) -> None:
        self._writer = PodWriter(self.transport)

    def works(self) -> Mapping[str, Work]:
        return {}

    def term(self) -> Term | None:
        return None

    def check(self, pod: PlanPod) -> None:
        """kube-scheduler takes what Kerf's verbs take."""

    def hold(self, members: Sequence[tuple[Entry, str]]) -> bool:
        return True

    def take_stock(self, now: float) -> None:
        for entry in (*self.backlog.recall(now), *self.backlog.notice_lost(now)):
            self.placer.release(entry.uid)
        lost = [entry for entry in self.backlog.lost() if nominated_node(entry.pod)]
        self._withdraw(lost)  # others are counted out until then

    def left(self, entry: Entry) -> None:
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

    def found_open(self, entry: Entry) -> None:
        """kube-scheduler asks about it before it binds it."""

    def withdraw(self, entries: Iterable[Entry]) -> None:
        nominated = [entry for entry in entries if entry.pod.status.nominated_node_name]
        self._withdraw([entry for entry in nominated if entry.stage is Stage.GATED])

    def not_written(self, entry: Entry) -> bool:
        if entry.stage is Stage.RENOMINATING:
            entry.stay_lost()
            return True
        entry.put_back(self.clock())
        return not entry.node  # else somebody has opened it meanwhile

    async def nominate(self, entry: Entry, pod: Pod, term: Term | None, *, lost: str) -> Pod | None:
        written = self._writer.nominate_anew(pod, entry.node, lost) if lost else self._writer.nominate(pod, entry.node)
        return entry.pod if await written else None

    async def open(self, entry: Entry, pod: Pod, planner: str, term: Term | None) -> bool:
        domain = self.nodes.domain_of(entry.node, entry.planned.topology) if entry.planned else None
        return await self._writer.open(entry.pod, entry.node, planner, domain)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> bool:
        return await self._writer.open(pod, "", why)

    def _withdraw(self, entries: Iterable[Entry]) -> None:
        """Have nominations taken back: kube-scheduler counts the GPUs of nominated pods as if they ran there."""
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
