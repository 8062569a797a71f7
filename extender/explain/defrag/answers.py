"""Questions of how room could be made, answered in a process of its own; plans are kept for a while, to be carried out
as they were shown.

What `POST /defrag` answers.

What is asked: for whom room is to be made. Read strictly, and bounded.
"""

import asyncio
import pickle
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.explain.defrag.facts import (
    BUDGETS,
    FACTS,
    HELD,
    JOBS,
    NODES,
    PENDING,
    PODS,
    Costs,
    Facts,
    Held,
)
from extender.explain.defrag.movable import BUDGETS_PATH, JOBS_PATH
from extender.explain.manifests.objects import Texts
from extender.explain.processes import QuestionError, Talk, Turns, pages
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.transport import NODES_PATH, PODS_PATH, is_name
from extender.kube.watches import BOUND_PODS, PENDING_PODS
from extender.ledger.ledger import ClaimState, Ledger
from extender.ledger.mirror import Mirror
from extender.planning.quotas import Quotas
from extender.queueing.defrag.record import RoomPlan
from extender.queueing.pods.backlog import Backlog


class Figures(msgspec.Struct, rename="camel"):
    """Of the cluster at one moment."""

    free_nodes: int
    """Nodes with GPUs, all of which are free."""
    usable_gpus: int | None
    """Free GPUs on nodes where the target's first pod fits, in multiples of what it asks; None where the target has no
    pods, or they ask for no number of GPUs."""


class LeftPod(msgspec.Struct):
    """A pod without GPUs that stays on a node to be emptied."""

    pod: str
    """`namespace/name`."""
    node: str
    why: str
    """Kerf does not move it."""


class RoomAnswer(RoomPlan):
    """What `POST /defrag` answers: the plan, and what it changes."""

    id: str = ""
    """By which `POST /defrag/apply` knows it, for a while; "" where there is nothing to carry out."""
    before: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    after: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    left: list[LeftPod] = msgspec.field(default_factory=list)
    """Where nodes are to be emptied: pods that `kubectl drain` has to evict."""
    open: list[str] = msgspec.field(default_factory=list)
    """Of those nodes the ones that take pods again afterwards, since they are not cordoned."""
    gpus: float = 0.0
    """That it makes usable: those that the target asks for, shares as parts, or those of nodes that it empties."""
    on_sick: list[str] = msgspec.field(default_factory=list)
    """Where pods shall leave sick GPUs: all that are on one, `namespace/name`."""


MAX_PODS: Final = 1_000
_MAX_NODES: Final = 1_000
_MAX_GPUS: Final = 1_024
_MAX_MOVES: Final = 100_000
_Nodes = Annotated[int, msgspec.Meta(ge=1, le=_MAX_NODES)]


class RoomQuestion(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """For whom room is to be made: one of `for`, `pods`, `gpus`, `freeNodes`, `empty` and `heal`.

    Beside or instead of `pods` there may be `objects` and `manifest`.
    """

    for_: str = msgspec.field(name="for", default="")
    """A pod that waits, `namespace/name`, or a gang by its name as the queue tells it."""
    pods: list[dict[str, Any]] = []
    """Manifests of pods that do not exist yet."""
    objects: list[dict[str, Any]] = []
    """The same of objects that make pods, such as Jobs, with their PodGroups."""
    manifest: Texts = ""
    """The same as text, YAML or JSON, of one document or several; or as several texts."""
    namespace: str = "default"
    """Of objects that name none."""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=_MAX_GPUS)] | None = None
    """So many whole GPUs of one node, on as many nodes as `nodes` says."""
    nodes: _Nodes | None = None
    """1 where it is left out."""
    free_nodes: _Nodes | None = None
    """So many nodes with GPUs and without pods, those included that are so already."""
    empty: list[str] = []
    """Names of nodes that shall have no pods."""
    heal: bool = False
    """Whether pods shall leave sick GPUs."""
    max_moves: Annotated[int, msgspec.Meta(ge=0, le=_MAX_MOVES)] | None = None
    """Most pods to move."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Of the target, where no pod says one: nobody of a higher one is moved for it."""

    @property
    def given(self) -> bool:
        """Whether it is for pods that do not exist."""
        return bool(self.pods or self.objects or self.manifest)


_TARGETS: Final = "for, pods (or objects, manifest), gpus (with nodes), freeNodes, empty and heal"
_decoder: Final = msgspec.json.Decoder(RoomQuestion)


class Needs(msgspec.Struct):
    """What a question needs to know of the cluster beside what runs."""

    namespace: str
    """Whose pending pods matter, "" for none."""


def read_question(body: bytes) -> RoomQuestion:
    """Raises QuestionError."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"invalid request: {error}") from None
    targets = [
        *(name for name, is_there in (("for", asked.for_), ("pods", asked.given), ("empty", asked.empty)) if is_there),
        *(["gpus"] if asked.gpus is not None else []),
        *(["freeNodes"] if asked.free_nodes is not None else []),
        *(["heal"] if asked.heal else []),
    ]
    if asked.nodes is not None and asked.gpus is None:
        raise QuestionError("nodes: says on how many nodes `gpus` are wanted; write gpus too")
    if len(targets) != 1:
        found = f"{' and '.join(targets)} are two questions" if targets else "room for what?"
        raise QuestionError(f"{found}: write one of {_TARGETS}")
    if asked.for_:
        namespace, _, name = asked.for_.partition("/")
        if not is_name(namespace) or not name or "/" in name:
            raise QuestionError(f"for: {asked.for_[:80]!r} names no pod or gang; write NAMESPACE/NAME")
        if asked.priority is not None:
            raise QuestionError("priority: what waits says its own; leave it out")
    if len(asked.pods) > MAX_PODS:
        raise QuestionError(f"pods: more than {MAX_PODS}")
    if len(asked.empty) > _MAX_NODES:
        raise QuestionError(f"empty: more than {_MAX_NODES} nodes")
    return asked


def needs_of(asked: RoomQuestion) -> Needs:
    """What a question needs."""
    return Needs(asked.for_.partition("/")[0])


_MAX_KEPT: Final = 16
_KEPT_S: Final = 600.0
_PICKLED_AT_ONCE: Final = 500
_FORBIDDEN, _NOT_FOUND = 403, 404

_needs_decoder: Final = msgspec.json.Decoder(Needs)


class _Named(msgspec.Struct):
    id: str
    fits: bool


def queued_in(backlog: Backlog | None) -> dict[str, tuple[str, str]]:
    """Gang and topology of the pods in a queue, by UID, as it takes them."""
    entries = backlog.entries.values() if backlog is not None else ()
    return {entry.uid: (entry.planned.gang, entry.planned.topology) for entry in entries if entry.planned is not None}


@dataclass(eq=False)
class RoomAnswers:
    """Answers how room could be made."""

    transport: Transport
    ledger: Ledger
    mirror: Mirror
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    policy: str
    """The default one."""
    policies: Callable[[], Mapping[str, Policy]] = dict
    """The configured ones, for use elsewhere."""
    turns: Turns = field(default_factory=Turns)
    quotas: Quotas = field(default_factory=Quotas)
    queued: Callable[[], Mapping[str, tuple[str, str]]] = dict
    """Of pods in the queue, by UID: gang and topology."""
    gated_in: Callable[[], frozenset[str] | None] = lambda: None
    costs: Callable[[], Costs] = Costs
    sick: Callable[[Cluster], Mapping[str, tuple[int, ...]]] = lambda cluster: {}
    """Indices of the GPUs that are sick now, by node."""
    _kept: OrderedDict[str, tuple[float, bytes]] = field(default_factory=OrderedDict, init=False)
    """Answers by their plan's id, with the time of each."""

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        resting: frozenset[str] = frozenset(),
    ) -> bytes:
        """The cheapest moves found, as JSON. Raises QuestionError, BusyError, ClusterError.

        Pods that have run for less than `rest_s` stay, and those of the controllers `resting`, by UID. `sick` are the
        GPUs taken for sick, by node; None: all that are.
        """
        async with self.turns.process("extender.explain.defrag.process") as talk:
            needs = _needs_decoder.decode(await talk.ask(body))
            async for message in self._lists(needs):
                await talk.send(message)
            no_jobs = await self._send_jobs(talk)
            costs = replace(self.costs(), rest_s=rest_s, resting=resting)
            facts, held = self._moment(no_jobs, costs, sick)
            for first in range(0, len(held), _PICKLED_AT_ONCE):
                portion = held[first : first + _PICKLED_AT_ONCE]
                await talk.send(HELD + pickle.dumps(portion, pickle.HIGHEST_PROTOCOL))
                await asyncio.sleep(0)
            told = await talk.ask(FACTS + pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))
        if msgspec.json.decode(told, type=_Named).id:
            self._keep(facts.id, told)
        return told

    def kept(self, plan: str) -> RoomPlan | None:
        """A plan as it was answered, by its id; None where it is not known any more."""
        known = self._kept.get(plan)
        if known is None or self.clock() - known[0] > _KEPT_S:
            return None
        return msgspec.json.decode(known[1], type=RoomPlan)

    def _keep(self, plan: str, told: bytes) -> None:
        self._kept[plan] = self.clock(), told
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)

    async def _lists(self, needs: Needs) -> AsyncIterator[bytes]:
        """What every plan takes of the API server, page by page."""
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
                if error.status == _FORBIDDEN:  # a plan that breaks budgets which nobody has read would be no plan
                    raise ClusterError(
                        f"disruption budgets can't be read, and nobody is moved without them: {error}; Kerf needs the "
                        "right to list poddisruptionbudgets"
                    ) from None

    async def _send_jobs(self, talk: Talk) -> str:
        """Why Jobs can't be read, "" where they were: then their pods stay."""
        try:
            async for page in pages(self.transport, JOBS_PATH, {}):
                await talk.send(JOBS + page)
        except ApiError as error:
            if error.status not in (_FORBIDDEN, _NOT_FOUND):
                raise
            return f"{error}"
        return ""

    def _moment(
        self, no_jobs: str, costs: Costs, sick: Mapping[str, tuple[int, ...]] | None
    ) -> tuple[Facts, list[Held]]:
        """What Kerf knows itself, all of one moment."""
        cluster = self.ledger.snapshot(self.clock())
        held = [
            Held(claim.uid, claim.pod, claim.node, claim.held, claim.state is ClaimState.BOUND)
            for name in cluster.row_of
            for claim in self.ledger.claims_on(name)
        ]
        facts = Facts(
            cluster=replace(cluster, devices=None),
            pods_on={name: tuple(self.mirror.tenants.on(name)) for name in cluster.row_of},
            policy=self.policy,
            # Only what ranks nodes: the rest are functions, which can't be sent.
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
