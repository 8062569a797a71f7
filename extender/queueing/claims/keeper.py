"""Devices for the claims of pods that are let go: held, written, settled where nobody knows, and taken back."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.given import Allocation
from extender.core.resources.requests import RequestError
from extender.kube.background import all_of, repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.objects import Pod
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.plugins.dra.objects import ResourceClaim
from extender.plugins.dra.owned import Hold, OwnedDevices, PodClaims, claim_keys
from extender.plugins.dra.pools import CLAIMS, RULES, TO_ALLOCATE
from extender.plugins.dra.results import allocation_of
from extender.queueing.claims.writer import ClaimWriter
from extender.queueing.pods.entries import Entry, Stage
from extender.scheduling.fence import Fence, FencedError

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_MAX_CONCURRENT: Final = 16
_TOLD_WITHIN_S: Final = 0.5
"""What a watch has told Kerf, kube-scheduler's has told it, too, or is about to: a pod that it looks at before it knows
of the allocation is refused first."""
_NEW_ASKS: Final = 4
_NEW_ASKS_IN_ALL: Final = 32
_MAX_ASKS: Final = 1000
_FREE_AFTER_S: Final = 2.0
"""What is freed too early costs its pod another plan."""
_FREE_ENDED_AFTER_S: Final = 15.0
"""kube-controller-manager frees the claims of pods that have ended; where it does not, this is done for it."""
_ON_ITS_WAY: Final = (Stage.NOMINATING, Stage.OPENING, Stage.RENOMINATING, Stage.OPENED, Stage.UNSETTLED)


@dataclass(slots=True)
class ClaimCounts:
    """What has happened since the start."""

    allocated: int = 0
    freed: int = 0
    """Allocations taken back because no pod on its way needed them."""
    errors: int = 0


@dataclass(eq=False)
class ClaimKeeper:
    """Allocates for the pods that a plan lets go; `entries_of` are those of the queue that name a claim."""

    transport: Transport
    mirror: Mirror
    ledger: Ledger
    owned: OwnedDevices
    fence: Fence
    clock: Callable[[], float]
    entries_of: Callable[[str], Iterable[Entry]]
    """By a claim's `namespace/name`."""
    entries: Callable[[], Iterable[Entry]]
    """All that wait."""
    changed: Callable[[str], None]
    """Hears of claims, by `namespace/name`, that are other than before."""
    dirty: Callable[[], None]
    """Hears that there is something to plan."""
    max_age_s: float
    counts: ClaimCounts = field(default_factory=ClaimCounts, init=False)
    _news: bool = field(default=True, init=False)
    _last_fault: str = field(default="", init=False)
    _known_asks: set[DevicesAsked] = field(default_factory=set, init=False)
    _new_asks: Counter[str] = field(default_factory=Counter, init=False)  # of this round, by namespace
    _writing: set[str] = field(default_factory=set, init=False)  # claims by uid
    _told: dict[str, asyncio.Event] = field(default_factory=dict, init=False)
    """By claim that was written: set once a watch has told of a change."""
    _freeing: set[str] = field(default_factory=set, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)
    _unused_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._writer = ClaimWriter(self.transport)
        self.reflectors = {item.name: self.mirror.hub.subscribe(item, self) for item in TO_ALLOCATE}
        self.mirror.hub.subscribe(RULES, self)

    # What the watches tell: the ledger has heard it first

    def upsert(self, item: object) -> None:
        """A claim, or what claims are read by, was added or changed."""
        if isinstance(item, ResourceClaim):
            self.changed(item.key)
            if (told := self._told.pop(item.metadata.uid, None)) is not None:
                told.set()
        else:
            self._news = True
            self.dirty()

    remove = upsert

    def keep(self, items: set[str], list_began: float) -> None:
        """A complete list has come."""
        self._news = True
        self.dirty()

    def anything_new(self) -> bool:
        """Whether what claims may be given, or mean, has changed since this was asked last."""
        fault = self.fault()
        news, self._news, self._last_fault = self._news or fault != self._last_fault, False, fault
        return news

    def fault(self) -> str:
        """Why no devices can be chosen now, "" when they can."""
        for name, reflector in self.reflectors.items():
            if not reflector.synced:
                return f"{name} are not synced yet" + (f": {reflector.last_error}" if reflector.last_error else "")
            if reflector.age_s() > self.max_age_s:
                return f"{name} were last current {reflector.age_s():.0f} s ago: {reflector.last_error}"
        return ""

    def read(self, pod: Pod) -> PodClaims:
        """The claims of a pod as they are now. Raises RequestError."""
        if self.fault() and pod.spec.resource_claims:
            return PodClaims(missing=pod.spec.resource_claims[0].name)
        found = self.owned.claims_of(pod)
        freeing = next((claim for claim in found.allocated if claim.metadata.uid in self._freeing), None)
        return found if freeing is None else PodClaims(missing=freeing.metadata.name)

    def begin_round(self) -> None:
        """A round of the queue begins."""
        self._new_asks.clear()

    def takes_on(self, entry: Entry) -> bool:
        """Whether what a pod asks is known, or may be searched for the first time in this round: of what is new a round
        takes some of each namespace, so that whoever asks a thousand things that are hard to find holds up nobody."""
        asked = entry.planned.gpus.devices if entry.planned and entry.planned.gpus else None
        if asked is None or asked in self._known_asks:
            return True
        if self._new_asks[entry.namespace] >= _NEW_ASKS or self._new_asks.total() >= _NEW_ASKS_IN_ALL:
            self.dirty()
            return False
        self._new_asks[entry.namespace] += 1
        if len(self._known_asks) >= _MAX_ASKS:
            self._known_asks.clear()
        self._known_asks.add(asked)
        return True

    def name_of(self, uid: str) -> str:
        """What a claim is called, "" when it is gone."""
        claim = self.owned.claims.get(uid)
        return "" if claim is None else claim.metadata.name

    # Allocating

    def hold(self, pod: Pod, node: str, allocation: Allocation | None) -> bool:
        """Hold devices of a node for a pod's claims, as they were decided on; whether the claims still ask that."""
        try:
            found = self.read(pod)
        except RequestError:
            return False
        given = () if allocation is None else allocation.claims
        if len(given) != len(found.unallocated) or found.missing:
            return False
        inventory = self.owned.inventory_on(node)
        for claim, devices in zip(found.unallocated, given, strict=True):
            held = tuple(
                (inventory.devices[one.taking.device].id, one.taking.capacity) for one in devices if not one.admin
            )
            body = allocation_of(claim, devices, inventory, self.owned.classes, node, time.time())
            self.ledger.hold_devices(claim.metadata.uid, Hold(node, held, claim, pod, body))
        return True

    def let_go(self, pod: Pod) -> None:
        """Hold nothing for the claims of a pod of which nothing was written."""
        for claim in self._held_for(pod):
            if claim.metadata.uid not in self._writing:
                self.ledger.let_go_devices(claim.metadata.uid)

    async def allocate(self, pod: Pod) -> bool:
        """Write what is held for the claims of a pod; whether all of it is written.

        Raises ClusterError where the API server refuses, or nobody knows what it did, DecodeError, FencedError.
        """
        held = self._held_for(pod)
        if held:
            await self.fence.confirm_now()  # that nobody else led when these claims were known
        for claim in held:
            if not await self._allocate(claim.metadata.uid):
                return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_WITHIN_S):
                for claim in held:
                    if told := self._told.get(claim.metadata.uid):
                        await told.wait()
        return True

    async def _allocate(self, uid: str) -> bool:
        hold = self.owned.holds.get(uid)
        if hold is None:
            return False
        known = True
        self._writing.add(uid)
        self._told[uid] = asyncio.Event()
        try:
            written = await self._writer.allocate(hold.claim, hold.pod, hold.allocation)
        except ApiError:
            raise
        except (ClusterError, msgspec.DecodeError):
            known = False
            raise
        finally:
            self._writing.discard(uid)
            if known:
                self.ledger.let_go_devices(uid)
        if written is None:
            return False
        self.ledger.claim_written(written)
        self.counts.allocated += 1
        return True

    def _held_for(self, pod: Pod) -> Sequence[ResourceClaim]:
        named = self.owned.named(pod)
        return [claim for claim in named if claim.metadata.uid in self.owned.holds]

    async def catch_up(self) -> None:
        """Before the first decision of a term: change every claim that a leader before may be about to allocate, so
        that its write fails, and take in what it did allocate. Raises ClusterError, DecodeError."""
        await self.mirror.list_devices_again(CLAIMS)
        waiting = {key for entry in self.entries() for key in claim_keys(entry.pod)}
        touched = [claim for claim in self.owned.claims.values() if claim.key in waiting]
        await all_of(self._take_over(claim) for claim in touched if claim.status.allocation is None)

    async def _take_over(self, claim: ResourceClaim) -> None:
        async with self._slots:
            found: ResourceClaim | None = claim
            while found is not None and found.status.allocation is None:
                touched = await self._writer.touch(found, secrets.token_hex(4))
                found = await self._writer.read(claim) if touched is None else None
                if (known := touched or found) is not None:
                    self.ledger.claim_written(known)

    # Settling and taking back

    async def run(self) -> None:
        """Settle and take back, until cancelled."""
        await repeat(self.look, _INTERVAL_S, "settling ResourceClaims")

    async def look(self) -> None:
        """Look once at what is held and at what nobody uses. Who stands by leaves that to the leader."""
        if self.fence.standby():
            for uid in list(self.owned.holds):
                self.ledger.let_go_devices(uid)
            self._unused_since.clear()
            return
        if self.fence.fault() or self.fault():
            return
        for uid, hold in list(self.owned.holds.items()):
            if uid not in self._writing and not self._is_awaited(hold.claim.key, hold.node):
                await self._settle(uid, hold)
        await self._free_unused()

    async def _settle(self, uid: str, hold: Hold) -> None:
        """Find out whether a claim got what is held for it; else make sure that it never will."""
        try:
            found = await self._writer.read(hold.claim)
            if found is not None and found.status.allocation is None:
                await self.fence.confirm_now()
                found = await self._writer.touch(found, secrets.token_hex(4))
                if found is None:
                    return  # it has changed meanwhile: once more
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            logger.warning("claim %s is still in doubt: %s", hold.claim.key, error)
            return
        self.ledger.let_go_devices(uid)
        if found is not None:
            self.ledger.claim_written(found)
        self.changed(hold.claim.key)

    async def _free_unused(self) -> None:
        now = self.clock()
        for uid, claim in list(self.owned.orphans.items()):
            if not any(self.ledger.is_bound(pod) or self._waits(claim, pod) for pod in _pods_of(claim)):
                self.ledger.forget_orphan(uid)
        unused = {
            claim.metadata.uid: self._unused_since.get(claim.metadata.uid, now)
            for claim, node in self.owned.allotted()
            if not self._is_awaited(claim.key, node) and not any(map(self.ledger.is_bound, _pods_of(claim)))
        }
        self._unused_since = unused
        for uid, since in unused.items():
            found = self.owned.claims.get(uid)
            waits = found is not None and all(self._waits(found, pod) for pod in _pods_of(found))
            if now - since >= (_FREE_AFTER_S if waits else _FREE_ENDED_AFTER_S):
                await self._free(uid)

    def _waits(self, claim: ResourceClaim, pod: str) -> bool:
        """Whether a pod that names a claim is in the queue, by its UID."""
        return any(entry.uid == pod for entry in self.entries_of(claim.key))

    async def _free(self, uid: str) -> None:
        claim = self.owned.claims.get(uid)
        if claim is None:
            return
        self._freeing.add(uid)
        try:
            await self.fence.confirm_now()
            freed = await self._writer.free(claim)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self.counts.errors += 1
            logger.warning("the devices of claim %s, which no pod uses, were not taken back: %s", claim.key, error)
            return
        finally:
            self._freeing.discard(uid)
        if freed is not None:
            self.counts.freed += 1
            self.ledger.claim_written(freed)
            self.changed(claim.key)

    def _is_awaited(self, claim: str, node: str) -> bool:
        """Whether a pod is on its way to a node that names this claim."""
        return any(entry.stage in _ON_ITS_WAY and entry.node == node for entry in self.entries_of(claim))


def _pods_of(claim: ResourceClaim) -> list[str]:
    """UIDs of the pods that a claim is reserved for."""
    return [consumer.uid for consumer in claim.status.reserved_for or ()]
