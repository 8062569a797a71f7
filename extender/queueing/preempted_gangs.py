"""Gangs that have lost a pod to preemption: the others end too where they can't go on without it.

kube-scheduler evicts pods of one node. What a gang has elsewhere would hold GPUs and do nothing with them, so that the
gang is one victim. Told by what the API server holds: the pod that was evicted, as long as it is there, and then the
condition that Kerf has written on the others before it evicts the first of them. Whoever leads next goes on there.

Gangs that have lost a member after they were let go: what is left of them is evicted, where that is wanted.

A gate can't be closed again, so a gang is not held back a second time: its pods are given up, and those whose
controller makes new ones come back behind the gate, all of them.
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
"""How often a gang is checked within its time-out."""
_MAX_NAMESPACES: Final = 16
"""Whose pods are listed in one check."""
_OF_THE_SERVER: Final = 500
"""Also its answer about a pod with two PodDisruptionBudgets, which keeps that pod alone."""
_LEFT_ALONE: Final = (404, 409, 422, 429)
"""It is gone, or another one by now; or a PodDisruptionBudget keeps it, and it is tried again."""


@dataclass(eq=False)
class GangEviction:
    """Evicts what is left of gangs; on a standby, nothing."""

    transport: Transport
    gangs: Gangs
    running: Callable[[], Mapping[str, Sequence[Pod]]]
    """The pods with a node of each gang."""
    timeout_s: float
    clock: Callable[[], float]
    standby: Callable[[], str]
    _short_since: dict[str, float] = field(default_factory=dict, init=False)
    num_evicted: int = field(default=0, init=False)
    """Pods."""

    async def run(self) -> None:
        """Check now and then, until cancelled."""
        await repeat(self.check, self.timeout_s / _CHECKS, "a check of gangs")

    async def check(self) -> None:
        """Note which gangs are not whole, and evict what is left of those that have not been for too long."""
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
                continue  # the API server is asked about a few at once
            if sum(not pod.metadata.deletion_timestamp for pod in pods) >= max(need or 0 for need in needs):
                self._short_since.pop(gang, None)
            elif now - self._short_since.setdefault(gang, now) >= self.timeout_s:
                left.append(gang)
        by_namespace = groupby(sorted(left), key=lambda gang: gang.partition("/")[0])
        for namespace, gangs in islice(by_namespace, _MAX_NAMESPACES):  # the others at the next check
            await self._give_up(namespace, list(gangs))

    async def _give_up(self, namespace: str, gangs: Sequence[str]) -> None:
        """Evict the pods of gangs that were let go and can't go on with so few: those that have succeeded count."""
        for gang in gangs:
            del self._short_since[gang]
        try:
            members = await self.gangs.ask_members(namespace)
            for gang in gangs:
                pods = members.get(gang, [])
                here = sum(bool(pod.spec.node_name) for pod in pods)
                left = [pod for pod in pods if not pod.finished and here < (self.gangs.needs(gang, pod) or 0)]
                if left:  # else all are going already
                    logger.warning("gang %s: evicting the %d remaining pods", gang, len(left))
                for pod in left:
                    self.num_evicted += not await _evict(self.transport, pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs of %s could not be evicted: %s", namespace, error)


async def _evict(transport: Transport, pod: Pod) -> str:
    """Have a pod of a gang go; why that can't be now, "" where it goes. Raises ClusterError."""
    try:
        await post_eviction(transport, PodIdentity.of(pod))
    except ApiError as error:
        if error.status not in _LEFT_ALONE and error.status < _OF_THE_SERVER:
            raise
        logger.warning("pod %s was not evicted: %s", pod.key, error)
        return error.message
    return ""


async def post_eviction(transport: Transport, pod: PodIdentity, version: str = "") -> None:
    """Have a pod go, whatever has its name by now staying; in that version, "" for any. Raises ClusterError."""
    same = {"uid": pod.uid} | ({"resourceVersion": version} if version else {})
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": same},
    }
    await transport.post(f"{pod.path}/eviction", msgspec.json.encode(body))


_AGAIN_S: Final = 5.0
_AGAIN_MOST_S: Final = 60.0
"""Until what could not be settled is tried again, the longer the older: a PodDisruptionBudget keeps a pod, or the API
server is away."""
_OVERRULED_S: Final = 60.0
"""For so long it is waited for the pod of a higher priority than all of a gang, for which one of them was evicted."""
_TRIES: Final = 5
"""How often a pod may change under the hands of who writes its status."""
_GONE: Final = (404, 409, 422)
_CONFLICT: Final = 409
_pods_decoder: Final = Decoder(ObjectList[Pod])
_any_decoder: Final = Decoder(dict[str, Any])


@dataclass(eq=False)
class PreemptedGangs:
    """Ends them, pod by pod, by the Eviction API; on a standby, nothing."""

    transport: Transport
    gangs: Gangs
    members: GangMembers
    events: EventRecorder | None
    clock: Callable[[], float]
    standby: Callable[[], str]
    num_evicted: int = field(default=0, init=False)
    """Pods."""
    _looks: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict, init=False)
    """When a loss was looked at first, and last."""
    _told: dict[str, str] = field(default_factory=dict, init=False)
    """What was said last of a pod that can't be ended, or of a namespace, so that it is said once."""

    async def run(self) -> None:
        """Settle what is lost, until cancelled."""
        while True:
            await until_set(self.members.news, _AGAIN_S)
            self.members.news.clear()
            try:
                await self.check()
            except Exception:
                logger.exception("a check of preempted gangs failed")
            await asyncio.sleep(0)  # whatever the check sets off again, others have their turn

    async def check(self) -> None:
        """Look at each gang that has lost somebody; as long as this replica does not lead, what it knows is kept."""
        if self.standby():
            return
        losses, now = self.members.losses, self.clock()
        self._looks = {key: times for key, times in self._looks.items() if key in losses}
        if not losses:
            self._told.clear()
        due: dict[str, list[Loss]] = {}
        for key, loss in losses.items():
            first, last = self._looks.get(key, (now, float("-inf")))
            if now - last >= min(max(_AGAIN_S, (last - first) / 2), _AGAIN_MOST_S):
                due.setdefault(loss.gang.partition("/")[0], []).append(loss)
        for namespace, of_namespace in islice(due.items(), _MAX_NAMESPACES):
            self._looks |= {loss.key: (self._looks.get(loss.key, (now,))[0], now) for loss in of_namespace}
            try:
                found = await self.gangs.ask_members(namespace)
                tried = set[str]()
                for loss in of_namespace:
                    if loss.gang not in tried and await self._tries_to_end(loss, found.get(loss.gang, [])):
                        tried.add(loss.gang)
            except (ClusterError, msgspec.DecodeError) as error:
                if self._is_news(namespace, str(error)):
                    logger.warning("gangs of %s that were preempted can't be ended: %s", namespace, error)
            else:
                self._told.pop(namespace, None)

    async def _tries_to_end(self, loss: Loss, pods: Sequence[Pod]) -> bool:
        """End the pods of a gang that can't go on; whether there are any. `pods` were let go and are not leaving."""
        pods = [pod for pod in pods if loss.concerns(pod)]
        owners = {owner.uid for pod in pods if not pod.finished and (owner := pod.metadata.controller)}
        # Of those that have ended some may be of an earlier gang; `owners` are those of all others.
        here = [pod for pod in pods if pod.metadata.controller is None or succeeded_with(pod, owners)]
        await self.gangs.learn_needs({loss.gang: here})
        needs = {pod.metadata.uid: self.gangs.needs(loss.gang, pod) for pod in here}
        if None in needs.values():
            return False  # asked again
        ending = [pod for pod in here if not pod.finished and len(here) < (needs[pod.metadata.uid] or 0)]
        if not ending:
            for pod in here:
                if (mark := condition_of(pod, GANG_PREEMPTED)) is not None and mark.status == "True":
                    await self._mark(pod, loss, "False")
            self.members.settle(loss)
            return False
        if await self._may_end(loss, ending):
            await self._end(loss, ending, len(here))
            return True
        if self.clock() - self._looks[loss.key][0] >= _OVERRULED_S:
            logger.warning("gang %s: %s; the others have a higher priority, and stay", loss.gang, loss.why)
            self.members.settle(loss)
        return False

    async def _may_end(self, loss: Loss, ending: Sequence[Pod]) -> bool:
        """Whether no pod of them has a priority that the one they make room for may not have."""
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
        logger.warning("gang %s: %s; ending the %d pods that are left", loss.gang, loss.why, num_left)
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
        """Write on a pod whether it ends ("True", "False")."""
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

    def _is_news(self, of: str, message: str) -> bool:
        """Whether something else was said of it last."""
        if self._told.get(of) == message:
            return False
        self._told[of] = message
        return True
