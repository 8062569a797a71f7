"""Creates the ResourceClaims of pods that asked by an extended resource: see `asked`."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.kube.background import repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.objects import Pod
from extender.queueing.claims.asked import AskedClaim, asked_of, manifest_of
from extender.queueing.pods.entries import Entry

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
_AGAIN_S: Final = 10.0
"""A namespace may be at its quota of claims."""
_CONFLICT: Final = 409


@dataclass(eq=False)
class ClaimMaker:
    """Looks again and again at what waits."""

    transport: Transport
    classes: Collection[str]
    """Device classes that claims may be made of."""
    entries: Callable[[], Iterable[Entry]]
    exists: Callable[[Pod, str], bool]
    """Whether a pod's claim of a name is known."""
    fault: Callable[[], str]
    """Why this process may write nothing now, "" when it may."""
    clock: Callable[[], float]
    _next: dict[str, float] = field(default_factory=dict, init=False)  # by pod: when it is looked at again
    _rests: dict[str, float] = field(default_factory=dict, init=False)  # by namespace that has refused one: until when

    async def run(self) -> None:
        """Until cancelled."""
        await repeat(self.look, _INTERVAL_S, "creating ResourceClaims")

    async def look(self) -> None:
        """Create what is missing, once."""
        if self.fault():
            return
        now = self.clock()
        wanted = [
            (entry.pod, asked)
            for entry in list(self.entries())
            if entry.pod.spec.resource_claims and (asked := asked_of(entry.pod, self.classes)) is not None
        ]
        known = {pod.metadata.uid for pod, _ in wanted}
        self._rests = {namespace: until for namespace, until in self._rests.items() if now < until}
        self._next = {uid: due for uid, due in self._next.items() if uid in known}
        for pod, asked in wanted:
            namespace = pod.metadata.namespace
            if now < max(self._next.get(pod.metadata.uid, now), self._rests.get(namespace, now)):
                continue
            if self.exists(pod, asked.name):
                continue
            if self.fault():
                return
            self._next[pod.metadata.uid] = now + _AGAIN_S
            if not await self._create(pod, asked):
                self._rests[namespace] = now + _AGAIN_S  # the others of it would hold everybody up

    async def _create(self, pod: Pod, asked: AskedClaim) -> bool:
        """Whether it is there."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{pod.metadata.namespace}/resourceclaims"
        try:
            await self.transport.post(path, msgspec.json.encode(manifest_of(asked, pod)))
        except ClusterError as error:
            if isinstance(error, ApiError) and error.status == _CONFLICT:
                return True  # created before; the watch is about to tell
            logger.warning("no ResourceClaim was created for pod %s: %s", pod.key, error)
            return False
        return True
