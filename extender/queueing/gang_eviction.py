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
        await self.gangs.learn_groups(running)
        left: list[tuple[str, int]] = []
        for gang, pods in running.items():
            group = self.gangs.group(gang, pods)
            if group is None:
                continue  # the API server is asked about a few at once
            if not group.together or sum(not pod.metadata.deletion_timestamp for pod in pods) >= group.size:
                self._short_since.pop(gang, None)
            elif now - self._short_since.setdefault(gang, now) >= self.timeout_s:
                left.append((gang, group.size))
        by_namespace = groupby(sorted(left), key=lambda item: item[0].partition("/")[0])
        for namespace, gangs in islice(by_namespace, _MAX_NAMESPACES):  # the others at the next check
            await self._give_up(namespace, dict(gangs))

    async def _give_up(self, namespace: str, sizes: Mapping[str, int]) -> None:
        """Evict the pods of gangs that were let go, unless one is whole: those that have succeeded count."""
        for gang in sizes:
            del self._short_since[gang]
        try:
            members = await self.gangs.ask_members(namespace)
            for gang, size in sizes.items():
                pods = members.get(gang, [])
                if sum(bool(pod.spec.node_name) for pod in pods) >= size:
                    continue
                left = [pod for pod in pods if not pod.finished]
                if left:  # else all are going already
                    logger.warning("gang %s: evicting the remaining pods, %d of %d", gang, len(left), size)
                for pod in left:
                    await self._evict(pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs of %s could not be evicted: %s", namespace, error)

    async def _evict(self, pod: Pod) -> None:
        metadata = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata.name, "namespace": metadata.namespace},
            "deleteOptions": {"preconditions": {"uid": metadata.uid}},
        }
        path = PodIdentity.of(pod).path
        try:
            await self.transport.post(f"{path}/eviction", msgspec.json.encode(body))
        except ApiError as error:
            if error.status not in _LEFT_ALONE:
                raise
            logger.warning("pod %s was not evicted: %s", pod.key, error)
        else:
            self.num_evicted += 1
