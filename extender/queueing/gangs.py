"""Pods that start together: who belongs to whom, and whether all are there.

While a gang waits it holds nothing, so no two gangs can ever wait for each other's GPUs. Members that run already, as
after a restart in the middle of opening a gang, count.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import msgspec

from extender.cluster import objects
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.core.requests import RequestError
from extender.queueing.backlogs import Entry
from extender.queueing.batches import POD_GROUP_LABEL, gang_of
from extender.queueing.manifests import Pod
from extender.queueing.pipelines.jobs import PIPELINE_LABEL
from extender.queueing.plans import PlanPod

logger = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 5.0
_PLUGINS_API: Final = "/apis/scheduling.x-k8s.io/v1alpha1"
_NATIVE_APIS: Final = tuple(f"/apis/scheduling.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha2"))
_NOT_FOUND: Final = 404
ValueT = TypeVar("ValueT")


class _Gang(objects.Object, rename="camel"):
    min_count: int = 0


class _Policy(objects.Object):
    basic: object | None = None
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


class _PodGroup(objects.Object):
    spec: _GroupSpec = msgspec.field(default_factory=_GroupSpec)


_group_decoder: Final = msgspec.json.Decoder(_PodGroup)
_pods_decoder: Final = msgspec.json.Decoder(objects.ObjectList[Pod])


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
    missing: str = ""
    """Why it can't go yet, "" when it can."""

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
        return self.entries[0].pod.metadata.namespace

    @property
    def gpus(self) -> float:
        """GPUs asked, all together."""
        return float(sum(pod.num_gpus for pod in self.pods))


class Gangs:
    """What the API server says of gangs that are not complete: asked now and then, and remembered for a while."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._groups: dict[str, tuple[float, Group]] = {}
        self._members: dict[str, tuple[float, list[Pod]]] = {}

    async def group(self, gang: str, *, native: bool) -> Group:
        """The PodGroup of that name: Kubernetes' own, or scheduler-plugins'."""
        key = f"{gang} native" if native else gang

        async def ask() -> Group:
            return await self._ask_group(gang, _NATIVE_APIS if native else (_PLUGINS_API,))

        return await self._remembered(self._groups, key, ask, Group())

    async def members(self, gang: str) -> list[Pod]:
        """Pods of a gang that have been let go, those that have succeeded too."""
        return await self._remembered(self._members, gang, lambda: self.ask_members(gang), [])

    async def ask_members(self, gang: str) -> list[Pod]:
        """The same, asked now. Raises ClusterError, DecodeError."""
        namespace = gang.partition("/")[0]
        query = {"fieldSelector": "status.phase!=Failed"}
        found = _pods_decoder.decode(await self._transport.get(f"/api/v1/namespaces/{namespace}/pods", query))
        return [pod for pod in found.items or () if _is_member(pod, gang)]

    async def _remembered(
        self,
        known: dict[str, tuple[float, ValueT]],
        key: str,
        ask: Callable[[], Awaitable[ValueT]],
        nothing: ValueT,
    ) -> ValueT:
        now = self._clock()
        asked_at, value = known.get(key, (float("-inf"), nothing))
        if now - asked_at >= _ASK_AGAIN_S:
            for name in [name for name, (at, _) in known.items() if now - at >= 10 * _ASK_AGAIN_S]:
                del known[name]
            try:
                value = await ask()
            except (ClusterError, msgspec.DecodeError) as error:
                logger.warning("gang %s can't be asked about: %s", key, error)
                value = nothing
            known[key] = now, value
        return value

    async def _ask_group(self, gang: str, apis: Sequence[str]) -> Group:
        namespace, _, name = gang.partition("/")
        for api in apis:
            try:
                found = await self._transport.get(f"{api}/namespaces/{namespace}/podgroups/{name}")
            except ApiError as error:
                if error.status != _NOT_FOUND:
                    raise
                continue  # no such PodGroup, or the API server does not have this version
            return _read_group(_group_decoder.decode(found).spec)
        return Group()


def _read_group(spec: _GroupSpec) -> Group:
    constraints, policy = spec.scheduling_constraints, spec.scheduling_policy
    topology = constraints.topology[0].key if constraints is not None and constraints.topology else ""
    if policy is None:
        return Group(spec.min_member)
    return Group(policy.gang.min_count, topology) if policy.gang is not None else Group(1, together=False)


async def units_of(entries: Iterable[Entry], gangs: Gangs) -> list[Unit]:
    """Waiting pods that can be understood, gangs together; of incomplete gangs what is missing."""
    singles: list[Unit] = []
    members: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.planned is None:
            continue
        if entry.planned.gang:
            members.setdefault(entry.planned.gang, []).append(entry)
        else:
            singles.append(Unit(entry.pod.key, (entry,)))
    for gang, found in members.items():
        group = await group_of(gang, [entry.pod for entry in found], gangs)
        if not group.together:
            for entry in found:
                if entry.planned is not None:
                    entry.planned = replace(entry.planned, gang="")  # of what waits: the pod is not written to
                singles.append(Unit(entry.pod.key, (entry,)))
            continue
        known = {entry.uid for entry in found}  # those that have lost their node are let go, too
        started = await gangs.members(gang) if len(found) < group.size else []
        started = [pod for pod in started if pod.metadata.uid not in known]
        beside = tuple(
            node
            for pod in started
            if not pod.finished and (node := pod.spec.node_name or pod.status.nominated_node_name)
        )
        for entry in found:
            if (planned := entry.planned) is None:
                continue
            topology = planned.topology or group.topology
            if (topology, beside) != (planned.topology, planned.beside):
                entry.planned = replace(planned, topology=topology, beside=beside)
        singles.append(Unit(gang, tuple(found), _missing(gang, found, group.size, started)))
    return singles


async def group_of(gang: str, pods: Sequence[Pod], gangs: Gangs) -> Group:
    """What the pods of a gang say of it, else their PodGroup."""
    size = max((gang_of(pod)[1] for pod in pods), default=0)
    if size:
        return Group(size)
    labelled = any((pod.metadata.labels or {}).get(POD_GROUP_LABEL, "").strip() for pod in pods)
    return await gangs.group(gang, native=not labelled)


def _missing(gang: str, found: list[Entry], size: int, started: list[Pod]) -> str:
    if not size:
        return f"gang {gang}: its PodGroup is not there, or says no minMember or minCount"
    if len(found) >= size:
        return ""
    owners = {owner for entry in found if (owner := _controller(entry.pod))}
    here = len(found) + sum(not pod.finished or _succeeded_with(pod, owners) for pod in started)
    return "" if here >= size else f"gang {gang} waits for its pods: {here} of {size} are here"


def _succeeded_with(pod: Pod, owners: set[str]) -> bool:
    """Whether a pod that has succeeded is of this gang, and not of an earlier one of the same name."""
    return _controller(pod) in owners or PIPELINE_LABEL in (pod.metadata.labels or {})  # named after their attempt


def _controller(pod: Pod) -> str:
    """UID of a pod's controller, "" for none."""
    return next((item.uid for item in pod.metadata.owner_references or () if item.controller), "")


def _is_member(pod: Pod, gang: str) -> bool:
    """Whether a pod is of a gang, and has been let go."""
    try:
        return gang_of(pod)[0] == gang and not pod.gated and not pod.metadata.deletion_timestamp
    except RequestError:
        return False
