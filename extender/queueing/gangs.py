"""Pods that start together: who belongs to whom, and whether all are there.

While a gang waits it holds nothing, so no two gangs can ever wait for each other's GPUs. Members that run already, as
after a restart in the middle of opening a gang, count.

Pods of gangs that have a node, and what gangs have lost to preemption.

That kube-scheduler has evicted a pod for another one is written on the pod, in its status, before it is deleted; Kerf
writes it on the others of its gang before it ends the first of them. Both take the right to write `pods/status`, which
authors of pods don't have, and both outlive whoever has read them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import floor
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import quote

import msgspec

from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.indexes import Index
from extender.kube.objects import Condition, Pod, unix_time
from extender.kube.turns import in_turn
from extender.kube.watches import PAGE_SIZE, Lister
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import Code, WaitReason
from extender.queueing.pods.batches import POD_GROUP_LABEL, by_gang, gang_of
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import PIPELINE_LABEL, is_gated

logger = logging.getLogger(__name__)
_ValueT = TypeVar("_ValueT")

_PAGE_BYTES: Final = 2**17
"""Small: who makes gangs may make large pods too."""
_ASK_AGAIN_S: Final = 5.0
_MAX_ASKED: Final = 16
"""Questions at once."""
_MAX_WAIT_S: Final = 0.25
_PLUGINS_API: Final = "/apis/scheduling.x-k8s.io/v1alpha1"
_NATIVE_APIS: Final = tuple(f"/apis/scheduling.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha2"))


class _Gang(objects.Object, rename="camel"):
    min_count: int = 0


class _Policy(objects.Object):
    gang: _Gang | None = None


class _Topology(objects.Object):
    key: str = ""


class _Constraints(objects.Object):
    topology: list[_Topology] | None = None


class _GroupSpec(objects.Object, rename="camel"):
    """Of a PodGroup: `minMember` is scheduler-plugins' word, the others are Kubernetes' own."""

    min_member: int = 0
    scheduling_policy: _Policy | None = None
    scheduling_constraints: _Constraints | None = None


class PodGroup(objects.Object):
    """One of either API."""

    spec: _GroupSpec = msgspec.field(default_factory=_GroupSpec)


_group_decoder: Final = Decoder(PodGroup)


@dataclass(frozen=True, slots=True)
class Group:
    """What a PodGroup says."""

    size: int = 0
    """Pods that have to be there, 0 when it can't be told."""
    topology: str = ""
    """Label of nodes of which all pods must find one value."""
    together: bool = True
    """Whether its pods start together at all."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A pod on its own, or the waiting pods of a gang."""

    key: str
    """Of the gang, or of the pod."""
    entries: tuple[Entry, ...]
    missing: WaitReason | None = None
    """Why it can't go yet, None when it can."""

    @property
    def name(self) -> str:
        """Of no other unit: a gang may be called as a pod is."""
        return f"gang {self.key}" if any(pod.gang for pod in self.pods) else self.key

    @property
    def pods(self) -> list[PlanPod]:
        """As planners take them."""
        return [entry.planned for entry in self.entries if entry.planned is not None]

    @property
    def namespace(self) -> str:
        """All members are of one."""
        return self.entries[0].namespace

    @property
    def gpus(self) -> float:
        """GPUs asked, all together."""
        return float(sum(pod.num_gpus for pod in self.pods))


class _Answers(Generic[_ValueT]):
    """What the API server said, by key; asked again now and then.

    A few keys at once, whoever makes up how many: namespaces in turn, of each first those that were never asked about,
    or longest ago. Nobody waits for long: what is not known by then is so in a round to come.
    """

    def __init__(self, ask: Callable[[str], Awaitable[_ValueT]], nothing: _ValueT, clock: Callable[[], float]) -> None:
        self._ask = ask
        self._nothing = nothing
        self._clock = clock
        self._known: dict[str, tuple[float, _ValueT]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def get(self, key: str) -> _ValueT | None:
        """The answer, None before it was asked for."""
        known = self._known.get(key)
        return None if known is None else known[1]

    async def learn(self, keys: Iterable[str]) -> None:
        """Ask about those of the keys that are due."""
        now = self._clock()
        for key in [key for key, (at, _) in self._known.items() if now - at >= 10 * _ASK_AGAIN_S]:
            del self._known[key]
        asked_at = {key: self._known[key][0] if key in self._known else float("-inf") for key in keys}
        due = [key for key, at in asked_at.items() if now - at >= _ASK_AGAIN_S and key not in self._asking]
        due = in_turn(sorted(due, key=asked_at.__getitem__), _namespace)[: _MAX_ASKED - len(self._asking)]
        self._asking |= {key: asyncio.create_task(self._learn(key), name=f"gangs: {key}") for key in due}
        if due:
            done, _ = await asyncio.wait([self._asking[key] for key in due], timeout=_MAX_WAIT_S)
            for task in done:
                task.result()

    async def _learn(self, key: str) -> None:
        try:
            value = await self._ask(key)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs: %s can't be read: %s", key, error)
            value = self._nothing
        finally:
            self._asking.pop(key, None)
        self._known[key] = self._clock(), value


class Gangs:
    """What the API server says of gangs that are not complete: asked now and then, and remembered for a while.

    Who belongs to a gang is asked by one list for all gangs of a namespace.
    """

    def __init__(self, transport: Transport, clock: Callable[[], float], page_size: int = PAGE_SIZE) -> None:
        self._transport = transport
        self._page_size = page_size
        self._groups = _Answers(self._ask_group, Group(), clock)
        self._members = _Answers[Mapping[str, list[Pod]]](self.ask_members, {}, clock)

    async def learn_groups(self, gangs: Mapping[str, Sequence[Pod]]) -> None:
        """Ask for PodGroups, of those gangs whose pods don't say all there is to say."""
        await self._groups.learn([group_key(gang, pods) for gang, pods in gangs.items() if not size_of(pods)])

    async def learn_needs(self, gangs: Mapping[str, Sequence[Pod]]) -> None:
        """Ask for PodGroups, of those pods that don't say themselves how many their gang is."""
        unsaid = {gang: [pod for pod in pods if not gang_of(pod)[1]] for gang, pods in gangs.items()}
        await self._groups.learn([group_key(gang, pods) for gang, pods in unsaid.items() if pods])

    def needs(self, gang: str, pod: Pod) -> int | None:
        """How many pods of its gang a pod that was let go needs to go on, itself among them; None while nobody knows.

        By its own word, or its PodGroup's: who claims to be of somebody else's gang, and of what size that is, ends
        none of its pods. 0 where they don't start together, or there is no such group.
        """
        size = gang_of(pod)[1]
        group = Group(size) if size else self._groups.get(group_key(gang, [pod]))
        return None if group is None else group.size

    def group(self, gang: str, pods: Sequence[Pod]) -> Group | None:
        """What the pods of a gang say of it, else their PodGroup; None while nobody knows yet."""
        size = size_of(pods)
        return Group(size) if size else self._groups.get(group_key(gang, pods))

    async def learn_members(self, gangs: Iterable[str]) -> None:
        """Ask who belongs to gangs."""
        await self._members.learn(dict.fromkeys(map(_namespace, gangs)))

    def members(self, gang: str) -> list[Pod] | None:
        """Pods of a gang that have been let go, those that have succeeded too; None while nobody knows yet."""
        found = self._members.get(_namespace(gang))
        return None if found is None else found.get(gang, [])

    async def ask_members(self, namespace: str) -> Mapping[str, list[Pod]]:
        """The same for all gangs of a namespace, asked now. Raises ClusterError, DecodeError."""
        query = {"fieldSelector": "status.phase!=Failed"}
        found: dict[str, list[Pod]] = {}
        path = f"/api/v1/namespaces/{namespace}/pods"
        lister = Lister(self._transport, path, Pod, query, self._page_size, page_bytes=_PAGE_BYTES)
        async for page in lister.pages():
            let_go = (pod for pod in page.items if not is_gated(pod) and not pod.metadata.deletion_timestamp)
            for gang, pods in by_gang(let_go).items():
                found.setdefault(gang, []).extend(pods)
        return found

    async def _ask_group(self, key: str) -> Group:
        """The PodGroup of a key: Kubernetes' own, or scheduler-plugins'."""
        gang, _, native = key.partition(" ")
        namespace, _, name = gang.partition("/")
        for api in _NATIVE_APIS if native else (_PLUGINS_API,):
            try:
                found = await self._transport.get(f"{api}/namespaces/{namespace}/podgroups/{quote(name, safe='')}")
            except ApiError as error:
                if error.status != 404:
                    raise
                continue  # no such PodGroup, or the API server does not have this version
            return read_group(_group_decoder.decode(found))
        return Group()


def _namespace(gang: str) -> str:
    return gang.partition("/")[0]


def size_of(pods: Sequence[Pod]) -> int:
    """The size of a gang as its pods say it, 0 where they leave it to their PodGroup."""
    return max(gang_of(pod)[1] for pod in pods)


def group_key(gang: str, pods: Sequence[Pod]) -> str:
    """What tells the PodGroup of a gang from one of the other API."""
    labelled = any((pod.metadata.labels or {}).get(POD_GROUP_LABEL, "").strip() for pod in pods)
    return gang if labelled else f"{gang} native"


def read_group(group: PodGroup) -> Group:
    """What a PodGroup says."""
    spec = group.spec
    constraints, policy = spec.scheduling_constraints, spec.scheduling_policy
    topology = constraints.topology[0].key if constraints is not None and constraints.topology else ""
    if policy is None:
        return Group(spec.min_member)
    return Group(policy.gang.min_count, topology) if policy.gang is not None else Group(together=False)


async def units_of(entries: Iterable[Entry], gangs: Gangs) -> list[Unit]:
    """Waiting pods that can be understood, gangs together; of incomplete gangs what is missing."""
    singles: list[Unit] = []
    members: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.planned is not None and entry.planned.gang:
            members.setdefault(entry.planned.gang, []).append(entry)
        elif entry.planned is not None:
            singles.append(Unit(entry.pod.key, (entry,)))
    pods_of = {gang: [entry.pod for entry in found] for gang, found in members.items()}
    await gangs.learn_groups(pods_of)
    groups = {gang: gangs.group(gang, pods) for gang, pods in pods_of.items()}
    await gangs.learn_members(gang for gang, group in groups.items() if group and len(members[gang]) < group.size)
    for gang, found in members.items():
        singles += _units_of_gang(gang, found, groups[gang], gangs)
    return singles


def _units_of_gang(gang: str, found: list[Entry], group: Group | None, gangs: Gangs) -> list[Unit]:
    """One for the waiting pods of a gang, or one for each where they don't start together."""
    if group is not None and not group.together:
        for entry in found:
            _replan(entry, gang="")  # of what waits: the pod is not written to
        return [Unit(entry.pod.key, (entry,)) for entry in found]
    started = gangs.members(gang) if group is not None and len(found) < group.size else []
    if group is None or started is None:
        return [Unit(gang, tuple(found), Code.GANG_UNKNOWN.reason(gang=gang))]
    known = {entry.uid for entry in found}  # those that have lost their node are let go, too
    started = [pod for pod in started if pod.metadata.uid not in known]
    running = [pod for pod in started if not pod.finished]
    beside = tuple(node for pod in running if (node := pod.spec.node_name or pod.status.nominated_node_name))
    for entry in found:
        topology = (entry.planned and entry.planned.topology) or group.topology
        _replan(entry, topology=topology, beside=beside)
    return [Unit(gang, tuple(found), _missing(gang, found, group.size, started))]


def _replan(entry: Entry, **what: Any) -> None:
    """Take a waiting pod as planners are to see it from now on."""
    if entry.planned is not None:
        entry.planned = replace(entry.planned, **what)


def _missing(gang: str, found: list[Entry], size: int, started: list[Pod]) -> WaitReason | None:
    if not size:
        return Code.GANG_WITHOUT_GROUP.reason(gang=gang)
    owners = {owner.uid for entry in found if (owner := entry.pod.metadata.controller)}
    here = len(found) + sum(not pod.finished or succeeded_with(pod, owners) for pod in started)
    return None if here >= size else Code.GANG_INCOMPLETE.reason(gang=gang, here=here, size=size)


def succeeded_with(pod: Pod, owners: set[str]) -> bool:
    """Whether a pod that has succeeded is of this gang, and not of an earlier one of the same name."""
    owner = pod.metadata.controller
    return (owner and owner.uid in owners) or PIPELINE_LABEL in (pod.metadata.labels or {})  # named after their attempt


GANG_PREEMPTED: Final = "kerf.dev/GangPreempted"
"""Condition of a pod that ends because others of its gang were preempted."""
_TARGET: Final = "DisruptionTarget"
_BY_SCHEDULER: Final = "PreemptionByScheduler"
_MAX_LOSSES: Final = 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod of a gang was evicted for another one of a higher priority."""

    gang: str
    """`namespace/name`."""
    source: str
    """By what it is known: the pod's UID, or the mark that tells of it."""
    at: int
    """Unix time at which that was asked for: pods made since are of a later start of the gang."""
    why: str
    """Which pod, and where."""
    node: str = ""
    priority: int | None = None
    """Of the pod; None where somebody has looked at that already."""
    beside: frozenset[str] = frozenset()
    """UIDs of those that had a node when it was seen to go: the API server's times are whole seconds."""

    @property
    def key(self) -> tuple[str, str]:
        """Of no other loss."""
        return self.gang, self.source

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod of the gang is of the same start of it as the one that was lost."""
        mark = condition_of(pod, GANG_PREEMPTED)
        marked = mark is not None and mark.message == self.mark
        return unix_time(pod.metadata.creation_timestamp) < self.at or pod.metadata.uid in self.beside or marked

    @property
    def mark(self) -> str:
        """Message of the condition that is written on the others."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%dT%H:%M:%SZ}: {self.why}"

    @classmethod
    def of_mark(cls, gang: str, message: str) -> Self | None:
        """What a mark tells, None where that can't be read."""
        at, _, why = message.partition(": ")
        return cls(gang, message, int(unix_time(at)), why) if unix_time(at) else None


class GangMembers:
    """The pods of gangs that have a node, and what gangs have lost."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._gang_of: dict[str, str] = {}
        """By UID: of which gang a pod is stays as it was read first, whatever its author writes later."""
        self._by_gang: Index[Pod] = Index()
        self.losses: OrderedDict[tuple[str, str], Loss] = OrderedDict()
        """What is not settled yet."""
        self._settled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.news = asyncio.Event()
        """Set when a gang has lost somebody."""

    def gangs(self) -> dict[str, list[Pod]]:
        """The pods by their gang."""
        return {gang: self.of(gang) for gang in self._by_gang.groups()}

    def gang_of(self, uid: str) -> str:
        """The gang of a pod, "" for none."""
        return self._gang_of.get(uid, "")

    def of(self, gang: str) -> list[Pod]:
        """The pods of a gang."""
        return list(self._by_gang.of(gang).values())

    def settle(self, loss: Loss) -> None:
        """There is nothing to do about a loss any more."""
        self.losses.pop(loss.key, None)
        self._settled[loss.key] = None
        if len(self._settled) > _MAX_LOSSES:
            self._settled.popitem(last=False)

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod has its node, has changed, or is gone: a pod that has no time to end was not seen to leave."""
        if new is not None:
            self._upsert(old, new)
        elif old is not None and (gang := self._gang_of.pop(old.metadata.uid, "")):
            self._by_gang.pop(gang, old.metadata.uid)
            if not old.metadata.deletion_timestamp:
                self._note(_preempted(old, gang, floor(self._wall_clock()), self._by_gang.of(gang)))

    def _upsert(self, old: Pod | None, new: Pod) -> None:
        uid = new.metadata.uid
        if not (gang := self._gang_of.get(uid) or _gang_of(new)):
            return
        if new.metadata.deletion_timestamp:
            seen_to_go = old is not None and not old.metadata.deletion_timestamp
            self._note(_preempted(new, gang, None, self._by_gang.of(gang) if seen_to_go else ()))
        elif (mark := condition_of(new, GANG_PREEMPTED)) is not None and mark.status == "True":
            self._note(Loss.of_mark(gang, mark.message))
        self._gang_of[uid] = gang
        self._by_gang.put(gang, uid, new)

    def _note(self, loss: Loss | None) -> None:
        if loss is None or loss.key in self._settled or loss.key in self.losses:
            return
        self.losses[loss.key] = loss
        if len(self.losses) > _MAX_LOSSES:
            self.losses.popitem(last=False)
        self.news.set()


def condition_of(pod: Pod, kind: str) -> Condition | None:
    """A condition of a pod, None where it has none of the kind."""
    return next((item for item in pod.status.conditions or () if item.type == kind), None)


def _gang_of(pod: Pod) -> str:
    try:
        return gang_of(pod)[0]
    except RequestError:
        return ""


def _preempted(pod: Pod, gang: str, at: int | None, beside: Iterable[str]) -> Loss | None:
    """What a gang has lost with a pod that is leaving; at that time where the API server tells of none. `beside` as of
    `Loss`."""
    target, metadata = condition_of(pod, _TARGET), pod.metadata
    if target is None or target.status != "True" or target.reason != _BY_SCHEDULER:
        return None
    if at is None:
        at = int(unix_time(metadata.deletion_timestamp)) - (metadata.deletion_grace_period_seconds or 0)
    node = pod.spec.node_name or ""
    return Loss(
        gang=gang,
        source=metadata.uid,
        at=at,
        why=f"{metadata.name} was preempted on {node}",
        node=node,
        priority=pod.spec.priority or 0,
        beside=frozenset(beside),
    )
