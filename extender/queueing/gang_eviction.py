"""Gangs that have lost a member after they were let go: what is left of them is evicted, where that is wanted.

A gate can't be closed again, so a gang is not held back a second time: its pods are given up, and those whose
controller makes new ones come back behind the gate, all of them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

import msgspec

from extender.kube.background import repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.objects import Pod
from extender.queueing.gangs import Gangs
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
                    self.num_evicted += not await evict(self.transport, pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs of %s could not be evicted: %s", namespace, error)


async def evict(transport: Transport, pod: Pod) -> str:
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
