"""Pods that start together: who belongs to whom, and whether all are there.

While a gang waits it holds nothing, so no two gangs can ever wait for each other's GPUs. Members that run already, as
after a restart in the middle of opening a gang, count.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.core.requests import RequestError
from extender.queueing.backlogs import Entry
from extender.queueing.batches import gang_of
from extender.queueing.manifests import Pod
from extender.queueing.plans import PlanPod

_ASK_AGAIN_S: Final = 5.0


class _Members(objects.Object, rename="camel"):
    min_member: int = 0


class _PodGroup(objects.Object):
    spec: _Members = msgspec.field(default_factory=_Members)


_group_decoder: Final = msgspec.json.Decoder(_PodGroup)
_pods_decoder: Final = msgspec.json.Decoder(objects.ObjectList[Pod])


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
        return float(sum(max(pod.gpus.count, 1) for pod in self.pods if pod.gpus is not None))


class Gangs:
    """What the API server says of gangs that are not complete: asked now and then, and remembered for a while."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._sizes: dict[str, tuple[float, int]] = {}
        self._running: dict[str, tuple[float, int]] = {}

    async def size(self, gang: str) -> int:
        """Pods that a PodGroup of scheduler-plugins asks for, 0 when it can't be told."""
        return await self._remembered(self._sizes, gang, self._ask_size)

    async def running(self, gang: str) -> int:
        """Pods of a gang that have a node, or have been let go, and are not finished."""
        return await self._remembered(self._running, gang, self._ask_running)

    async def _remembered(
        self, known: dict[str, tuple[float, int]], gang: str, ask: Callable[[str], Awaitable[int]]
    ) -> int:
        now = self._clock()
        asked_at, value = known.get(gang, (float("-inf"), 0))
        if now - asked_at >= _ASK_AGAIN_S:
            for name in [name for name, (at, _) in known.items() if now - at >= 10 * _ASK_AGAIN_S]:
                del known[name]
            try:
                value = await ask(gang)
            except (ClusterError, msgspec.DecodeError):
                value = 0
            known[gang] = now, value
        return value

    async def _ask_size(self, gang: str) -> int:
        namespace, _, name = gang.partition("/")
        path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups/{name}"
        try:
            return _group_decoder.decode(await self._transport.get(path)).spec.min_member
        except ApiError as error:
            if error.status == 404:
                return 0
            raise

    async def _ask_running(self, gang: str) -> int:
        namespace = gang.partition("/")[0]
        query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        found = _pods_decoder.decode(await self._transport.get(f"/api/v1/namespaces/{namespace}/pods", query))
        return sum(_is_member(pod, gang) for pod in found.items or ())


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
    return singles + [Unit(gang, tuple(found), await _missing(gang, found, gangs)) for gang, found in members.items()]


async def _missing(gang: str, found: list[Entry], gangs: Gangs) -> str:
    size = max(entry.gang_size for entry in found) or await gangs.size(gang)
    if not size:
        return f"gang {gang}: its PodGroup is not there, or says no minMember"
    if len(found) >= size:
        return ""
    here = len(found) + await gangs.running(gang)
    return "" if here >= size else f"gang {gang} waits for its pods: {here} of {size} are here"


def _is_member(pod: Pod, gang: str) -> bool:
    try:
        return gang_of(pod)[0] == gang and not pod.gated and not pod.metadata.deletion_timestamp
    except RequestError:
        return False
