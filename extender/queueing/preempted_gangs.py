"""Evicts gangs that can't continue: after a preemption, or with too few pods for too long.

kube-scheduler preempts pods of one node. The rest of a gang elsewhere would hold GPUs idle, so the gang ends as a whole
if it can't continue. All state is on the API server: the preempted pod while it exists, then the condition that Kerf
writes on the others before it evicts the first of them. The next leader continues from there.

If enabled, gangs that have lost members otherwise are evicted, too. A gate can't be closed again, so a gang can't be
held back a second time; a controller's replacement pods all start gated again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from extender.kube.background import repeat, until_set
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.events import EventRecorder
from extender.kube.objects import ObjectList, Pod
from extender.queueing.gangs import GANG_PREEMPTED, GangMembers, Gangs, Loss, condition_of, succeeded_with
from extender.scheduling.placer import PodIdentity

logger = logging.getLogger(__name__)

_CHECKS: Final = 4
"""Checks of a gang within its timeout."""
_MAX_NAMESPACES: Final = 16
"""Namespaces whose pods are listed in one check."""
_SERVER_ERROR: Final = 500
"""Also the answer for a pod with two PodDisruptionBudgets, which concerns that pod only."""
_NOT_EVICTED: Final = (404, 409, 422, 429)
"""The pod is gone or another one, or a PodDisruptionBudget protects it for now."""


@dataclass(eq=False)
class GangEviction:
    """Evicts incomplete gangs, unless on a standby."""

    transport: Transport
    gangs: Gangs
    running: Callable[[], Mapping[str, Sequence[Pod]]]
    """Returns each gang's pods with a node."""
    timeout_s: float
    clock: Callable[[], float]
    standby: Callable[[], str]
    _short_since: dict[str, float] = field(default_factory=dict, init=False)
    num_evicted: int = field(default=0, init=False)
    """Pods evicted."""

    async def run(self) -> None:
        """Check gangs until cancelled."""
        await repeat(self.check, self.timeout_s / _CHECKS, "a check of gangs")

    async def check(self) -> None:
        """Note which gangs are incomplete, and evict those that have been for `timeout_s`."""
        if self.standby():
            self._short_since.clear()
            return
        now, running = self.clock(), self.running()
        for gang in self._short_since.keys() - running.keys():
            del self._short_since[gang]
        await self.gangs.learn_needs(running)
        left: list[str] = []
        for gang, pods in running.items():
            needs = [self.gangs.needs(gang, pod) for pod in pods]
            if None in needs:
                continue  # not known yet
            if sum(not pod.metadata.deletion_timestamp for pod in pods) >= max(need or 0 for need in needs):
                self._short_since.pop(gang, None)
            elif now - self._short_since.setdefault(gang, now) >= self.timeout_s:
                left.append(gang)
        by_namespace = groupby(sorted(left), key=lambda gang: gang.partition("/")[0])
        for namespace, gangs in islice(by_namespace, _MAX_NAMESPACES):  # the others at the next check
            await self._evict_gangs(namespace, list(gangs))

    async def _evict_gangs(self, namespace: str, gangs: Sequence[str]) -> None:
        """Evict the released pods of gangs that are too few to continue, counting those that have succeeded."""
        for gang in gangs:
            del self._short_since[gang]
        try:
            members = await self.gangs.ask_members(namespace)
            for gang in gangs:
                pods = members.get(gang, [])
                num_bound = sum(bool(pod.spec.node_name) for pod in pods)
                left = [pod for pod in pods if not pod.finished and num_bound < (self.gangs.needs(gang, pod) or 0)]
                if left:  # else all are terminating
                    logger.warning("gang %s: evicting the %d remaining pods", gang, len(left))
                for pod in left:
                    self.num_evicted += not await _evict(self.transport, pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs of %s could not be evicted: %s", namespace, error)


async def _evict(transport: Transport, pod: Pod) -> str:
    """Evict a pod of a gang; return why the API server refuses for now, "" if it does not. Raises ClusterError."""
    try:
        await post_eviction(transport, PodIdentity.of(pod))
    except ApiError as error:
        if error.status not in _NOT_EVICTED and error.status < _SERVER_ERROR:
            raise
        logger.warning("pod %s was not evicted: %s", pod.key, error)
        return error.message
    return ""


async def post_eviction(transport: Transport, pod: PodIdentity, version: str = "") -> None:
    """Evict the pod of this UID, at this resourceVersion unless "". Raises ClusterError."""
    same = {"uid": pod.uid} | ({"resourceVersion": version} if version else {})
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": same},
    }
    await transport.post(f"{pod.path}/eviction", msgspec.json.encode(body))


_RETRY_S: Final = 5.0
_MAX_RETRY_S: Final = 60.0
"""Bounds of the time until an unsettled loss is tried again, longer for older ones: a PodDisruptionBudget may protect a
pod, or the API server be unavailable."""
_OVERRULED_S: Final = 60.0
"""How long to wait for the preemptor, a nominated pod of a higher priority than all of the gang."""
_TRIES: Final = 5
"""Writes of a pod's status under resourceVersion conflicts."""
_GONE: Final = (404, 409, 422)
_CONFLICT: Final = 409
_pods_decoder: Final = Decoder(ObjectList[Pod])
_any_decoder: Final = Decoder(dict[str, Any])


@dataclass(eq=False)
class PreemptedGangs:
    """Evicts preempted gangs pod by pod, unless on a standby."""

    transport: Transport
    gangs: Gangs
    members: GangMembers
    events: EventRecorder | None
    clock: Callable[[], float]
    standby: Callable[[], str]
    num_evicted: int = field(default=0, init=False)
    """Pods evicted."""
    _looks: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict, init=False)
    """By loss: the monotonic times of the first and last check."""
    _last_message: dict[str, str] = field(default_factory=dict, init=False)
    """Last message about a namespace, or a pod that can't be evicted, so that each is reported once."""

    async def run(self) -> None:
        """Check losses until cancelled."""
        while True:
            await until_set(self.members.news, _RETRY_S)
            self.members.news.clear()
            try:
                await self.check()
            except Exception:
                logger.exception("a check of preempted gangs failed")
            await asyncio.sleep(0)  # a check may set `news` again: let other tasks run

    async def check(self) -> None:
        """Handle the losses of gangs that are due; a standby keeps them for when it leads."""
        if self.standby():
            return
        losses, now = self.members.losses, self.clock()
        self._looks = {key: times for key, times in self._looks.items() if key in losses}
        if not losses:
            self._last_message.clear()
        due: dict[str, list[Loss]] = {}
        for key, loss in losses.items():
            first, last = self._looks.get(key, (now, float("-inf")))
            if now - last >= min(max(_RETRY_S, (last - first) / 2), _MAX_RETRY_S):
                due.setdefault(loss.gang.partition("/")[0], []).append(loss)
        for namespace, of_namespace in islice(due.items(), _MAX_NAMESPACES):
            self._looks |= {loss.key: (self._looks.get(loss.key, (now,))[0], now) for loss in of_namespace}
            try:
                found = await self.gangs.ask_members(namespace)
                tried = set[str]()
                for loss in of_namespace:
                    if loss.gang not in tried and await self._try_to_end(loss, found.get(loss.gang, [])):
                        tried.add(loss.gang)
            except (ClusterError, msgspec.DecodeError) as error:
                if self._is_news(namespace, str(error)):
                    logger.warning("gangs of %s that were preempted can't be ended: %s", namespace, error)
            else:
                self._last_message.pop(namespace, None)

    async def _try_to_end(self, loss: Loss, pods: Sequence[Pod]) -> bool:
        """Evict a gang's pods that can't continue; return whether it tried. `pods` are released and not terminating."""
        pods = [pod for pod in pods if loss.concerns(pod)]
        owners = {owner.uid for pod in pods if not pod.finished and (owner := pod.metadata.controller)}
        # Finished pods may be of an earlier gang, with another owner.
        members = [pod for pod in pods if pod.metadata.controller is None or succeeded_with(pod, owners)]
        await self.gangs.learn_needs({loss.gang: members})
        needs = {pod.metadata.uid: self.gangs.needs(loss.gang, pod) for pod in members}
        if None in needs.values():
            return False  # not known yet
        ending = [pod for pod in members if not pod.finished and len(members) < (needs[pod.metadata.uid] or 0)]
        if not ending:
            for pod in members:
                if (mark := condition_of(pod, GANG_PREEMPTED)) is not None and mark.status == "True":
                    await self._mark(pod, loss, "False")
            self.members.settle(loss)
            return False
        if await self._may_end(loss, ending):
            await self._end(loss, ending, len(members))
            return True
        if self.clock() - self._looks[loss.key][0] >= _OVERRULED_S:
            logger.warning("gang %s: %s; the others have a higher priority, and stay", loss.gang, loss.why)
            self.members.settle(loss)
        return False

    async def _may_end(self, loss: Loss, ending: Sequence[Pod]) -> bool:
        """Whether the preemptor may have a higher priority than all pods to be evicted."""
        highest = max(pod.spec.priority or 0 for pod in ending)
        if loss.priority is None or highest <= loss.priority:
            return True
        nominated = {"fieldSelector": f"status.nominatedNodeName={loss.node}"}
        found = _pods_decoder.decode(await self.transport.get("/api/v1/pods", nominated)).items or ()
        return any((pod.spec.priority or 0) > highest for pod in found)

    async def _end(self, loss: Loss, ending: Sequence[Pod], num_left: int) -> None:
        for pod in ending:
            mark = condition_of(pod, GANG_PREEMPTED)
            if mark is None or (mark.status, mark.message) != ("True", loss.mark):
                await self._mark(pod, loss, "True")
        logger.warning("gang %s: %s; evicting the %d remaining pods", loss.gang, loss.why, len(ending))
        for pod in ending:
            if self.standby():
                return
            refused = await _evict(self.transport, pod)
            why = f"{loss.why}, and gang {loss.gang} can't go on without it: {num_left} of its pods are left"
            if not refused:
                self.num_evicted += 1
                self._emit(pod, why)
            elif self._is_news(pod.metadata.uid, refused):
                self._emit(pod, f"{why}. This one can't be ended yet: {refused}")

    async def _mark(self, pod: Pod, loss: Loss, status: str) -> None:
        """Set the condition that a pod ends with its gang to "True" or "False"."""
        condition = {"type": GANG_PREEMPTED, "status": status, "reason": "MemberPreempted", "message": loss.mark}
        path = PodIdentity.of(pod).path
        for tries_left in reversed(range(_TRIES)):
            try:
                found = _any_decoder.decode(await self.transport.get(path))
                metadata, conditions = found["metadata"], (found.get("status") or {}).get("conditions") or []
                others = [item for item in conditions if item.get("type") != GANG_PREEMPTED]
                same = {"uid": pod.metadata.uid, "resourceVersion": metadata.get("resourceVersion")}
                body = {"metadata": same, "status": {"conditions": [*others, condition]}}
                await self.transport.patch(f"{path}/status", msgspec.json.encode(body))
            except ApiError as error:
                if error.status == _CONFLICT and tries_left:
                    continue
                if error.status not in _GONE:
                    raise
            return

    def _emit(self, pod: Pod, message: str) -> None:
        if self.events is not None:
            metadata = pod.metadata
            self.events.emit(metadata.namespace, metadata.name, metadata.uid, reason="GangPreempted", message=message)

    def _is_news(self, key: str, message: str) -> bool:
        """Remember a message for a key; return whether it differs from the last one."""
        if self._last_message.get(key) == message:
            return False
        self._last_message[key] = message
        return True
