"""Plans moves in a separate process, and keeps plans for a while so that they can be carried out as shown."""

import asyncio
import pickle
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.explain.processes import ParentPipe, QuestionQueue, pages
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import BOUND_PODS, PENDING_PODS
from extender.ledger.ledger import AllocationState, Ledger
from extender.ledger.mirror import Mirror
from extender.parts.defrag.facts import BUDGETS, FACTS, HELD, JOBS, NODES, PENDING, PODS, Costs, Held, PlanInputs
from extender.parts.defrag.movable import BUDGETS_PATH, JOBS_PATH
from extender.parts.defrag.plan import RoomPlan
from extender.parts.defrag.questions import Needs
from extender.planning.quotas import Quotas
from extender.queueing.pods.backlog import Backlog

_MAX_KEPT: Final = 16
_KEPT_S: Final = 600.0
_PICKLED_AT_ONCE: Final = 500
_FORBIDDEN, _NOT_FOUND = 403, 404

_needs_decoder: Final = msgspec.json.Decoder(Needs)


class _PlanId(msgspec.Struct):
    id: str
    fits: bool


def queued_in(backlog: Backlog | None) -> dict[str, tuple[str, str]]:
    """Gang and topology of queued pods, by UID, as the queue reads them."""
    entries = backlog.entries.values() if backlog is not None else ()
    return {entry.uid: (entry.planned.gang, entry.planned.topology) for entry in entries if entry.planned is not None}


@dataclass(eq=False)
class RoomAnswers:
    """Answers questions about making room."""

    transport: Transport
    ledger: Ledger
    mirror: Mirror
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    policy: str
    """Name of the default policy."""
    policies: Callable[[], Mapping[str, Policy]] = dict
    """Copies of the configured policies."""
    turns: QuestionQueue = field(default_factory=QuestionQueue)
    quotas: Quotas = field(default_factory=Quotas)
    queued: Callable[[], Mapping[str, tuple[str, str]]] = dict
    """Gang and topology of queued pods, by UID."""
    gated_in: Callable[[], frozenset[str] | None] = lambda: None
    costs: Callable[[], Costs] = Costs
    sick: Callable[[Cluster], Mapping[str, tuple[int, ...]]] = lambda cluster: {}
    """Indices of the GPUs that are unhealthy now, by node."""
    _kept: OrderedDict[str, tuple[float, bytes]] = field(default_factory=OrderedDict, init=False)
    """Time and answer by plan ID."""

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        backing_off: frozenset[str] = frozenset(),
    ) -> bytes:
        """The cheapest moves found, as JSON. Raises QuestionError, BusyError, ClusterError.

        Pods that have run for less than `rest_s` stay, and those of controllers (UIDs) in `backing_off`. `sick` are the
        GPUs to treat as unhealthy, by node; None: those that are unhealthy now.
        """
        async with self.turns.process("extender.parts.defrag.process") as pipe:
            needs = _needs_decoder.decode(await pipe.ask(body))
            async for message in self._lists(needs):
                await pipe.send(message)
            no_jobs = await self._send_jobs(pipe)
            costs = replace(self.costs(), rest_s=rest_s, backing_off=backing_off)
            facts, held = self._snapshot(no_jobs, costs, sick)
            for first in range(0, len(held), _PICKLED_AT_ONCE):
                portion = held[first : first + _PICKLED_AT_ONCE]
                await pipe.send(HELD + pickle.dumps(portion, pickle.HIGHEST_PROTOCOL))
                await asyncio.sleep(0)
            answer = await pipe.ask(FACTS + pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))
        if msgspec.json.decode(answer, type=_PlanId).id:
            self._keep(facts.id, answer)
        return answer

    def kept(self, plan: str) -> RoomPlan | None:
        """An earlier plan by its ID, None if it has expired."""
        known = self._kept.get(plan)
        if known is None or self.clock() - known[0] > _KEPT_S:
            return None
        return msgspec.json.decode(known[1], type=RoomPlan)

    def _keep(self, plan: str, answer: bytes) -> None:
        self._kept[plan] = self.clock(), answer
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)

    async def _lists(self, needs: Needs) -> AsyncIterator[bytes]:
        """The API server's lists that every plan needs, page by page."""
        pending = f"{PENDING_PODS.field_selector},metadata.namespace={needs.namespace}"
        lists = [
            (NODES, NODES_PATH, ""),
            (PODS, PODS_PATH, BOUND_PODS.field_selector),
            *([(PENDING, PODS_PATH, pending)] if needs.namespace else []),
            (BUDGETS, BUDGETS_PATH, ""),
        ]
        for kind, path, selector in lists:
            try:
                async for page in pages(self.transport, path, {"fieldSelector": selector} if selector else {}):
                    yield kind + page
            except ApiError as error:
                if kind != BUDGETS or error.status not in (_FORBIDDEN, _NOT_FOUND):
                    raise
                if error.status == _FORBIDDEN:
                    raise ClusterError(
                        f"disruption budgets can't be read, and no pod is moved without them: {error}; Kerf needs the "
                        "right to list poddisruptionbudgets"
                    ) from None

    async def _send_jobs(self, pipe: ParentPipe) -> str:
        """Send the list of Jobs; returns why they can't be read, so that their pods stay, "" if they can."""
        try:
            async for page in pages(self.transport, JOBS_PATH, {}):
                await pipe.send(JOBS + page)
        except ApiError as error:
            if error.status not in (_FORBIDDEN, _NOT_FOUND):
                raise
            return f"{error}"
        return ""

    def _snapshot(
        self, no_jobs: str, costs: Costs, sick: Mapping[str, tuple[int, ...]] | None
    ) -> tuple[PlanInputs, list[Held]]:
        """A consistent snapshot of Kerf's own state."""
        cluster = self.ledger.snapshot(self.clock())
        held = [
            Held(one.uid, one.pod, one.node, one.held, one.state is AllocationState.BOUND)
            for name in cluster.row_of
            for one in self.ledger.allocations_on(name)
        ]
        facts = PlanInputs(
            cluster=replace(cluster, devices=None),
            pods_on={name: tuple(self.mirror.bound_pods.on(name)) for name in cluster.row_of},
            policy=self.policy,
            # Only what ranks nodes: the other fields are functions, which can't be pickled.
            policies={
                name: replace(policy, apart=None, terms=None, breakdown=None)
                for name, policy in self.policies().items()
            },
            quotas=self.quotas,
            used=self.ledger.held_by_namespace(),
            queued=self.queued(),
            gated_in=self.gated_in(),
            costs=costs,
            now=self.wall_clock(),
            max_s=self.turns.max_s,
            id=secrets.token_hex(8),
            no_jobs=no_jobs,
            sick=self.sick(cluster) if sick is None else sick,
        )
        return facts, held
