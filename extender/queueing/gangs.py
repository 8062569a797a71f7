"""Gangs: their members, their completeness, and their losses to preemption.

A waiting gang holds nothing, so no two gangs can wait for each other's GPUs. Running members count, as after a restart
while a gang's gates are being opened.

kube-scheduler marks a preempted pod with a status condition before it deletes it. Kerf marks the gang's other pods
before it evicts the first of them. Both need the right to write `pods/status`, which authors of pods don't have, and
both survive a restart of Kerf.
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
"""Small, since members may be large."""
_REFRESH_S: Final = 5.0
_MAX_READS: Final = 16
"""Concurrent requests."""
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
    """Spec of a PodGroup: `minMember` is of scheduler-plugins, the others are of Kubernetes."""

    min_member: int = 0
    scheduling_policy: _Policy | None = None
    scheduling_constraints: _Constraints | None = None


class PodGroup(objects.Object):
    """A PodGroup of either API."""

    spec: _GroupSpec = msgspec.field(default_factory=_GroupSpec)


_group_decoder: Final = Decoder(PodGroup)


@dataclass(frozen=True, slots=True)
class Group:
    """The requirements of a PodGroup."""

    size: int = 0
    """Pods that the gang needs, 0 if unknown."""
    topology: str = ""
    """Node label for which all pods must have nodes of one value."""
    together: bool = True
    """Whether its pods start together at all."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A single pod, or the waiting pods of a gang."""

    key: str
    """`namespace/name` of the gang or the pod."""
    entries: tuple[Entry, ...]
    missing: WaitReason | None = None
    """Why it can't be planned yet, None when it can."""

    @property
    def name(self) -> str:
        """A unique name: a gang and a pod may have the same key."""
        return f"gang {self.key}" if any(pod.gang for pod in self.pods) else self.key

    @property
    def pods(self) -> list[PlanPod]:
        """Its pods that can be planned."""
        return [entry.planned for entry in self.entries if entry.planned is not None]

    @property
    def namespace(self) -> str:
        """The namespace of all its pods."""
        return self.entries[0].namespace

    @property
    def gpus(self) -> float:
        """GPUs requested by all its pods."""
        return float(sum(pod.num_gpus for pod in self.pods))


class _Answers(Generic[_ValueT]):
    """A cache of reads from the API server by key, refreshed after `_REFRESH_S`.

    A bounded number of keys is read at once: namespaces in turn, within each the keys never read, or longest ago,
    first. Callers wait for `_MAX_WAIT_S` at most; later answers serve later rounds.
    """

    def __init__(self, ask: Callable[[str], Awaitable[_ValueT]], nothing: _ValueT, clock: Callable[[], float]) -> None:
        self._ask = ask
        self._nothing = nothing
        self._clock = clock
        self._known: dict[str, tuple[float, _ValueT]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def get(self, key: str) -> _ValueT | None:
        """Return the cached answer, None before the first."""
        known = self._known.get(key)
        return None if known is None else known[1]

    async def learn(self, keys: Iterable[str]) -> None:
        """Read those of the keys that are due."""
        now = self._clock()
        for key in [key for key, (at, _) in self._known.items() if now - at >= 10 * _REFRESH_S]:
            del self._known[key]
        read_at = {key: self._known[key][0] if key in self._known else float("-inf") for key in keys}
        due = [key for key, at in read_at.items() if now - at >= _REFRESH_S and key not in self._asking]
        due = in_turn(sorted(due, key=read_at.__getitem__), _namespace)[: _MAX_READS - len(self._asking)]
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
    """PodGroups and members of gangs, read from the API server when needed and cached for a while.

    One list of a namespace's pods gives the members of all its gangs.
    """

    def __init__(self, transport: Transport, clock: Callable[[], float], page_size: int = PAGE_SIZE) -> None:
        self._transport = transport
        self._page_size = page_size
        self._groups = _Answers(self._ask_group, Group(), clock)
        self._members = _Answers[Mapping[str, list[Pod]]](self.ask_members, {}, clock)

    async def learn_groups(self, gangs: Mapping[str, Sequence[Pod]]) -> None:
        """Read the PodGroups of gangs whose pods don't state their size."""
        await self._groups.learn([group_key(gang, pods) for gang, pods in gangs.items() if not size_of(pods)])

    async def learn_needs(self, gangs: Mapping[str, Sequence[Pod]]) -> None:
        """Read the PodGroups of those pods that don't state the size themselves."""
        without_size = {gang: [pod for pod in pods if not gang_of(pod)[1]] for gang, pods in gangs.items()}
        await self._groups.learn([group_key(gang, pods) for gang, pods in without_size.items() if pods])

    def needs(self, gang: str, pod: Pod) -> int | None:
        """Return how many pods of its gang, including itself, a released pod needs to continue; None while unknown.

        It is the size stated by the pod itself, else by its PodGroup: a pod that claims to be in another author's gang
        with a large size must not end that gang's pods. 0 if they don't start together, or there is no PodGroup.
        """
        size = gang_of(pod)[1]
        group = Group(size) if size else self._groups.get(group_key(gang, [pod]))
        return None if group is None else group.size

    def group(self, gang: str, pods: Sequence[Pod]) -> Group | None:
        """Return the requirements stated by a gang's pods, else by their PodGroup; None while unknown."""
        size = size_of(pods)
        return Group(size) if size else self._groups.get(group_key(gang, pods))

    async def learn_members(self, gangs: Iterable[str]) -> None:
        """Read the members of gangs."""
        await self._members.learn(dict.fromkeys(map(_namespace, gangs)))

    def members(self, gang: str) -> list[Pod] | None:
        """Return the released pods of a gang, including succeeded ones; None while unknown."""
        members = self._members.get(_namespace(gang))
        return None if members is None else members.get(gang, [])

    async def ask_members(self, namespace: str) -> Mapping[str, list[Pod]]:
        """List the released pods of all gangs of a namespace. Raises ClusterError, DecodeError."""
        query = {"fieldSelector": "status.phase!=Failed"}
        members: dict[str, list[Pod]] = {}
        path = f"/api/v1/namespaces/{namespace}/pods"
        lister = Lister(self._transport, path, Pod, query, self._page_size, page_bytes=_PAGE_BYTES)
        async for page in lister.pages():
            released = (pod for pod in page.items if not is_gated(pod) and not pod.metadata.deletion_timestamp)
            for gang, pods in by_gang(released).items():
                members.setdefault(gang, []).extend(pods)
        return members

    async def _ask_group(self, key: str) -> Group:
        """Read the PodGroup of a key, of Kubernetes or of scheduler-plugins."""
        gang, _, native = key.partition(" ")
        namespace, _, name = gang.partition("/")
        for api in _NATIVE_APIS if native else (_PLUGINS_API,):
            try:
                answer = await self._transport.get(f"{api}/namespaces/{namespace}/podgroups/{quote(name, safe='')}")
            except ApiError as error:
                if error.status != 404:
                    raise
                continue  # no such PodGroup, or the API server does not serve this version
            return read_group(_group_decoder.decode(answer))
        return Group()


def _namespace(gang: str) -> str:
    return gang.partition("/")[0]


def size_of(pods: Sequence[Pod]) -> int:
    """Return the size of a gang as stated by its pods, 0 if they leave it to their PodGroup."""
    return max(gang_of(pod)[1] for pod in pods)


def group_key(gang: str, pods: Sequence[Pod]) -> str:
    """Return a key for the PodGroup of a gang that is distinct for the two APIs."""
    labelled = any((pod.metadata.labels or {}).get(POD_GROUP_LABEL, "").strip() for pod in pods)
    return gang if labelled else f"{gang} native"


def read_group(group: PodGroup) -> Group:
    """Return the requirements of a PodGroup."""
    spec = group.spec
    constraints, policy = spec.scheduling_constraints, spec.scheduling_policy
    topology = constraints.topology[0].key if constraints is not None and constraints.topology else ""
    if policy is None:
        return Group(spec.min_member)
    return Group(policy.gang.min_count, topology) if policy.gang is not None else Group(together=False)


async def units_of(entries: Iterable[Entry], gangs: Gangs) -> list[Unit]:
    """Group waiting pods that can be planned into units; incomplete gangs get a `missing` reason."""
    units: list[Unit] = []
    members: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.planned is not None and entry.planned.gang:
            members.setdefault(entry.planned.gang, []).append(entry)
        elif entry.planned is not None:
            units.append(Unit(entry.pod.key, (entry,)))
    pods_of = {gang: [entry.pod for entry in waiting] for gang, waiting in members.items()}
    await gangs.learn_groups(pods_of)
    groups = {gang: gangs.group(gang, pods) for gang, pods in pods_of.items()}
    await gangs.learn_members(gang for gang, group in groups.items() if group and len(members[gang]) < group.size)
    for gang, waiting in members.items():
        units += _units_of_gang(gang, waiting, groups[gang], gangs)
    return units


def _units_of_gang(gang: str, waiting: list[Entry], group: Group | None, gangs: Gangs) -> list[Unit]:
    """Return one unit for the waiting pods of a gang, or one for each if they don't start together."""
    if group is not None and not group.together:
        for entry in waiting:
            _replan(entry, gang="")  # the pod itself is not changed
        return [Unit(entry.pod.key, (entry,)) for entry in waiting]
    started = gangs.members(gang) if group is not None and len(waiting) < group.size else []
    if group is None or started is None:
        return [Unit(gang, tuple(waiting), Code.GANG_UNKNOWN.reason(gang=gang))]
    known = {entry.uid for entry in waiting}  # those that have lost their nodes are released, too
    started = [pod for pod in started if pod.metadata.uid not in known]
    running = [pod for pod in started if not pod.finished]
    beside = tuple(node for pod in running if (node := pod.spec.node_name or pod.status.nominated_node_name))
    for entry in waiting:
        topology = (entry.planned and entry.planned.topology) or group.topology
        _replan(entry, topology=topology, beside=beside)
    return [Unit(gang, tuple(waiting), _missing(gang, waiting, group.size, started))]


def _replan(entry: Entry, **changes: Any) -> None:
    """Change fields of a waiting pod for planners."""
    if entry.planned is not None:
        entry.planned = replace(entry.planned, **changes)


def _missing(gang: str, waiting: list[Entry], size: int, started: list[Pod]) -> WaitReason | None:
    if not size:
        return Code.GANG_WITHOUT_GROUP.reason(gang=gang)
    owners = {owner.uid for entry in waiting if (owner := entry.pod.metadata.controller)}
    present = len(waiting) + sum(not pod.finished or succeeded_with(pod, owners) for pod in started)
    return None if present >= size else Code.GANG_INCOMPLETE.reason(gang=gang, here=present, size=size)


def succeeded_with(pod: Pod, owners: set[str]) -> bool:
    """Whether a finished pod belongs to the gang with these owners, and not to an earlier one of the same name."""
    owner = pod.metadata.controller
    return (owner and owner.uid in owners) or PIPELINE_LABEL in (pod.metadata.labels or {})  # a new name each attempt


GANG_PREEMPTED: Final = "kerf.dev/GangPreempted"
"""Condition of a pod that is evicted because a pod of its gang was preempted."""
_TARGET: Final = "DisruptionTarget"
_BY_SCHEDULER: Final = "PreemptionByScheduler"
_MAX_LOSSES: Final = 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """The preemption of a gang's pod."""

    gang: str
    """`namespace/name`."""
    source: str
    """Where it is known from: the pod's UID, or the mark on another pod."""
    at: int
    """Unix time of the preemption. Pods created since belong to a later start of the gang."""
    why: str
    """The pod and its node, in words."""
    node: str = ""
    priority: int | None = None
    """The pod's priority, None if the priorities were already checked."""
    beside: frozenset[str] = frozenset()
    """UIDs of the members with a node when the loss was seen: the API server's times have whole seconds."""

    @property
    def key(self) -> tuple[str, str]:
        """A unique key of the loss."""
        return self.gang, self.source

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod of the gang belongs to the same start of it as the lost one."""
        mark = condition_of(pod, GANG_PREEMPTED)
        marked = mark is not None and mark.message == self.mark
        return unix_time(pod.metadata.creation_timestamp) < self.at or pod.metadata.uid in self.beside or marked

    @property
    def mark(self) -> str:
        """Message of the condition written on the gang's other pods."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%dT%H:%M:%SZ}: {self.why}"

    @classmethod
    def of_mark(cls, gang: str, message: str) -> Self | None:
        """Parse a mark, None if invalid."""
        at, _, why = message.partition(": ")
        return cls(gang, message, int(unix_time(at)), why) if unix_time(at) else None


class GangMembers:
    """The gangs' pods with a node, and the gangs' losses."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._gang_of: dict[str, str] = {}
        """By UID: the gang as first read; later edits by the author are ignored."""
        self._by_gang: Index[Pod] = Index()
        self.losses: OrderedDict[tuple[str, str], Loss] = OrderedDict()
        """Losses that are not settled yet."""
        self._settled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.news = asyncio.Event()
        """Set when there is a new loss."""

    def gangs(self) -> dict[str, list[Pod]]:
        """Return the pods by gang."""
        return {gang: self.of(gang) for gang in self._by_gang.groups()}

    def gang_of(self, uid: str) -> str:
        """Return the gang of a pod, "" for none."""
        return self._gang_of.get(uid, "")

    def of(self, gang: str) -> list[Pod]:
        """Return the pods of a gang."""
        return list(self._by_gang.of(gang).values())

    def settle(self, loss: Loss) -> None:
        """Mark a loss as settled."""
        self.losses.pop(loss.key, None)
        self._settled[loss.key] = None
        if len(self._settled) > _MAX_LOSSES:
            self._settled.popitem(last=False)

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a bound pod; one without a grace period disappears without a deletion timestamp."""
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
            deletion_seen = old is not None and not old.metadata.deletion_timestamp
            self._note(_preempted(new, gang, None, self._by_gang.of(gang) if deletion_seen else ()))
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
    """Return a pod's condition of a type, None if it has none."""
    return next((item for item in pod.status.conditions or () if item.type == kind), None)


def _gang_of(pod: Pod) -> str:
    try:
        return gang_of(pod)[0]
    except RequestError:
        return ""


def _preempted(pod: Pod, gang: str, at: int | None, beside: Iterable[str]) -> Loss | None:
    """Return the loss if a leaving pod was preempted, else None.

    `at` is the Unix time of the loss if the pod has no deletion timestamp; `beside` as in `Loss`.
    """
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
