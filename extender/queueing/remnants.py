"""Gangs that have lost a member after they were let go: what is left of them is evicted, where that is wanted.

A gate can't be closed again, so a gang is not held back a second time: its pods are given up, and those whose
controller makes new ones come back behind the gate, all of them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from typing import Final

import msgspec

from extender.cluster.placements import PodIdentity
from extender.cluster.tasks import Tasks
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.queueing.gangs import Gangs
from extender.queueing.manifests import Pod

logger = logging.getLogger(__name__)

_LOOKS: Final = 4
"""How often a gang is looked at within its time-out."""
_MAX_NAMESPACES: Final = 16
"""Whose pods are listed in one look."""
_LEFT_ALONE: Final = (404, 409, 422, 429)
"""It is gone, or another one by now; or a PodDisruptionBudget keeps it, and it is tried again."""


class Remnants:
    """Evicts what is left of gangs, from `start` to `stop`; on a standby, nothing."""

    def __init__(
        self,
        transport: Transport,
        gangs: Gangs,
        running: Callable[[], Mapping[str, Sequence[Pod]]],
        *,
        timeout_s: float,
        clock: Callable[[], float],
        standby: Callable[[], str],
    ) -> None:
        """`running` gives the pods with a node of each gang."""
        self._transport = transport
        self._gangs = gangs
        self._running = running
        self._timeout_s = timeout_s
        self._clock = clock
        self._standby = standby
        self._short_since: dict[str, float] = {}
        self.tasks = Tasks()
        self.num_evicted = 0
        """Pods."""

    def start(self) -> None:
        """Begin, in the running event loop."""
        self.tasks.begin("remnants of gangs", self._run, needed=False)

    async def stop(self) -> None:
        """End."""
        await self.tasks.end()

    async def look(self) -> None:
        """Note which gangs are not whole, and evict what is left of those that have not been for too long."""
        if self._standby():
            self._short_since.clear()
            return
        now, running = self._clock(), self._running()
        for gang in self._short_since.keys() - running.keys():
            del self._short_since[gang]
        await self._gangs.learn_groups(running)
        left: list[tuple[str, int]] = []
        for gang, pods in running.items():
            group = self._gangs.group(gang, pods)
            if group is None:
                continue  # the API server is asked about a few at once
            if not group.together or sum(not pod.metadata.deletion_timestamp for pod in pods) >= group.size:
                self._short_since.pop(gang, None)
            elif now - self._short_since.setdefault(gang, now) >= self._timeout_s:
                left.append((gang, group.size))
        by_namespace = groupby(sorted(left), key=lambda item: item[0].partition("/")[0])
        for namespace, gangs in islice(by_namespace, _MAX_NAMESPACES):  # the others at the next look
            await self._give_up(namespace, dict(gangs))

    async def _give_up(self, namespace: str, sizes: Mapping[str, int]) -> None:
        """Evict the pods of gangs that were let go, unless one is whole: those that have succeeded count."""
        for gang in sizes:
            del self._short_since[gang]
        try:
            members = await self._gangs.ask_members(namespace)
            for gang, size in sizes.items():
                pods = members.get(gang, [])
                if sum(bool(pod.spec.node_name) for pod in pods) >= size:
                    continue
                left = [pod for pod in pods if not pod.finished]
                if left:  # else all are going already
                    logger.warning("gang %s: %d of %d pods are left of it; they are evicted", gang, len(left), size)
                for pod in left:
                    await self._evict(pod)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("gangs of %s could not be given up: %s", namespace, error)

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
            await self._transport.post(f"{path}/eviction", msgspec.json.encode(body))
        except ApiError as error:
            if error.status not in _LEFT_ALONE:
                raise
            logger.warning("pod %s was not evicted: %s", pod.key, error)
        else:
            self.num_evicted += 1

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._timeout_s / _LOOKS)
            try:
                await self.look()
            except Exception:
                logger.exception("a look at gangs failed")
