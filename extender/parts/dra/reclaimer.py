"""Deallocates claims that no pod uses, and releases stale holds."""

import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.dra.objects import ResourceClaim
from extender.kube.background import repeat
from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.kube.turns import Backoffs
from extender.parts.dra.keeper import ClaimKeeper
from extender.queueing.pods.entries import Stage
from extender.scheduling.binding import read
from extender.scheduling.placer import PodIdentity

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_FREE_AFTER_S: Final = 2.0
"""For claims of queued pods; deallocating too early costs the pod another plan."""
_FREE_ENDED_AFTER_S: Final = 15.0
"""For other pods' claims, which kube-controller-manager normally deallocates."""
_FORGET_AFTER_S: Final = 5.0
"""A pod leaves the watch of unbound pods before the watch of bound pods reports it."""
_RELEASING: Final = (Stage.NOMINATING, Stage.OPENING, Stage.RENOMINATING, Stage.OPENED, Stage.UNSETTLED)


@dataclass(eq=False)
class Reclaimer:
    """Periodically checks held and allocated claims."""

    keeper: ClaimKeeper
    _pauses: Backoffs = field(default_factory=Backoffs, init=False)
    _unused_since: dict[str, float] = field(default_factory=dict, init=False)  # claims by uid
    _orphaned_since: dict[str, float] = field(default_factory=dict, init=False)  # deleted claims, by uid

    async def run(self) -> None:
        """Reclaim until cancelled."""
        await repeat(self.look, _INTERVAL_S, "settling ResourceClaims")

    async def look(self) -> None:
        """Reclaim once. A standby replica only releases its holds."""
        keeper = self.keeper
        if keeper.fence.standby():
            for uid in list(keeper.owned.holds):
                keeper.ledger.release_devices(uid)
            self._unused_since.clear()
            self._orphaned_since.clear()
            return
        if keeper.fence.fault() or keeper.fault() or keeper.mirror.fault():
            self._unused_since.clear()  # running pods are unknown, also for a moment afterwards
            self._orphaned_since.clear()
            return
        for uid, hold in list(keeper.owned.holds.items()):
            if uid not in keeper.writing and not self._is_awaited(hold.claim.key, hold.node):
                keeper.ledger.release_devices(uid)  # nothing was ever written
                keeper.changed(hold.claim.key)
        self._forget_orphans()
        await self._free_unused()

    def _backs_off(self, claim: ResourceClaim) -> bool:
        """Whether writes to a claim back off after a failure."""
        metadata = claim.metadata
        return self._pauses.why(metadata.namespace, metadata.uid, self.keeper.clock()) is not None

    def _failed(self, claim: ResourceClaim, error: Exception) -> None:
        if not isinstance(error, FencedError):
            self._pauses.failed(claim.metadata.namespace, claim.metadata.uid, error, self.keeper.clock())

    def _forget_orphans(self) -> None:
        keeper, now = self.keeper, self.keeper.clock()
        self._orphaned_since = {
            uid: self._orphaned_since.get(uid, now)
            for uid, claim in keeper.owned.orphans.items()
            if not any(keeper.ledger.is_bound(pod) or self._may_be_bound(claim, pod) for pod in _pods_of(claim))
        }
        for uid, since in self._orphaned_since.items():
            if now - since >= _FORGET_AFTER_S:
                keeper.ledger.forget_orphan(uid)

    async def _free_unused(self) -> None:
        keeper, now = self.keeper, self.keeper.clock()
        unused = {claim.metadata.uid: node for claim, node in keeper.owned.allotted() if not self._is_used(claim, node)}
        self._unused_since = {uid: self._unused_since.get(uid, now) for uid in unused}
        for uid, since in self._unused_since.items():
            claim = keeper.owned.claims.get(uid)
            if claim is None or self._is_used(claim, unused[uid]):
                continue  # changed while earlier claims were deallocated
            queued = all(self._is_queued(claim, pod) for pod in _pods_of(claim))
            if now - since >= (_FREE_AFTER_S if queued else _FREE_ENDED_AFTER_S) and not self._backs_off(claim):
                await self._free(claim)

    def _is_used(self, claim: ResourceClaim, node: str) -> bool:
        """Whether a pod of a claim is bound, or is being released to the node."""
        return self._is_awaited(claim.key, node) or any(map(self.keeper.ledger.is_bound, _pods_of(claim)))

    async def _free(self, claim: ResourceClaim) -> None:
        keeper, uid = self.keeper, claim.metadata.uid
        keeper.freeing.add(uid)
        keeper.changed(claim.key)  # readers treat its allocation as unsettled from now on
        try:
            if await self._has_bound_pod(claim):
                return  # the watch of pods lags
            freed = await keeper.writer.free(claim, keeper.fence.as_of_now())
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            keeper.counts.errors += 1
            logger.warning("claim %s, which no pod uses, was not deallocated: %s", claim.key, error)
            self._failed(claim, error)
            return
        else:
            self._pauses.succeeded(claim.metadata.namespace, uid)
            if freed is not None:
                keeper.counts.freed += 1
                keeper.cache.written(freed)
        finally:
            keeper.freeing.discard(uid)
            keeper.changed(claim.key)  # freed or not: pods that read it meanwhile wait for this

    async def _has_bound_pod(self, claim: ResourceClaim) -> bool:
        """Whether a pod that a claim is reserved for is bound and not finished. Raises ClusterError, DecodeError."""
        for consumer in claim.status.reserved_for or ():
            identity = PodIdentity(claim.metadata.namespace, consumer.name, consumer.uid)
            pod = await read(self.keeper.transport, identity)
            if pod is not None and pod.spec.node_name and not pod.finished:
                return True
        return False

    def _is_queued(self, claim: ResourceClaim, pod: str) -> bool:
        """Whether a pod of a claim is in the queue, by UID."""
        return any(entry.uid == pod for entry in self.keeper.entries_of(claim.key))

    def _may_be_bound(self, claim: ResourceClaim, pod: str) -> bool:
        """Whether a pod may still be bound with a deleted claim: not if a new claim has its name."""
        is_replaced = self.keeper.owned.claim_at(claim.key) is not None
        named = () if is_replaced else self.keeper.entries_of(claim.key)
        return any(entry.uid == pod and entry.stage in _RELEASING for entry in named)

    def _is_awaited(self, claim: str, node: str) -> bool:
        """Whether a pod that names a claim is being released to a node."""
        return any(entry.stage in _RELEASING and entry.node == node for entry in self.keeper.entries_of(claim))


def _pods_of(claim: ResourceClaim) -> list[str]:
    """UIDs of the pods that a claim is reserved for."""
    return [consumer.uid for consumer in claim.status.reserved_for or ()]
