"""Devices for the claims of pods that are let go: read, held and written."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from extender.core.dra.allocator import Allocation as DevicesGiven
from extender.core.resources.requests import RequestError
from extender.dra.objects import CLAIMS, RULES, TO_ALLOCATE, Allocation, ResourceClaim
from extender.dra.owned import OwnedDevices
from extender.dra.pod_claims import Hold, PodClaims
from extender.dra.results import allocation_of
from extender.kube.background import all_of
from extender.kube.client import ApiError, Transport
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, commit
from extender.kube.objects import Pod
from extender.kube.watches import Lister
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.parts.dra.maker import ClaimMaker
from extender.parts.dra.whose import Whose
from extender.parts.dra.writer import ClaimWriter, is_protected
from extender.queueing.pods.entries import Entry
from extender.scheduling.fence import Fence

_MAX_CONCURRENT: Final = 16
_TOLD_WITHIN_S: Final = 0.5
"""What a watch has told Kerf, kube-scheduler's has told it, too, or is about to: a pod that it looks at before it knows
of the allocation is refused first."""
_FIRST_REST_S: Final = 1.0
_MAX_REST_S: Final = 60.0
_MAX_RESTS: Final = 10_000
_NO_REST: Final = (0.0, 0.0, "")
_NOTHING_DUE: Final[tuple[str, tuple[str, ...]]] = ("", ())
_MAX_WHY: Final = 300


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
    resolver: Resolver
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
    classes_to_make: Collection[str] = ()
    """Device classes of which claims are created for pods that asked by an extended resource."""
    counts: ClaimCounts = field(default_factory=ClaimCounts, init=False)
    _news: bool = field(default=True, init=False)
    _last_fault: str = field(default="", init=False)
    writing: set[str] = field(default_factory=set, init=False)
    """Claims that are being written, by uid."""
    freeing: set[str] = field(default_factory=set, init=False)
    """Claims whose devices are being taken back."""
    _rests: dict[str, tuple[float, float, str]] = field(default_factory=dict, init=False)
    """By pod: until when it is left alone, for how long that was, and why."""
    _due: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict, init=False)
    """By pod: the term in which its devices were decided on, and the claims to be written."""
    _told: dict[str, asyncio.Event] = field(default_factory=dict, init=False)
    """By claim that was written: set once a watch has told of a change."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def __post_init__(self) -> None:
        self.writer = ClaimWriter(self.transport)
        hub = self.mirror.hub
        self.reflectors = {feed.name: hub.reflector(feed) for feed in TO_ALLOCATE}
        for feed in (*TO_ALLOCATE, RULES):
            hub.cache(feed).subscribe(self._claim_changed if feed is CLAIMS else self._heard, listed=self._heard)
        self.cache = hub.cache(CLAIMS)
        """Of claims: what the API server answers to a write is told to it."""
        self._lister = Lister(self.transport, CLAIMS.path, ResourceClaim)
        self._whose = Whose(self.owned)

    def maker(self) -> ClaimMaker:
        """What creates the claims that pods lack."""
        return ClaimMaker(
            self.transport,
            self.classes_to_make,
            self.entries,
            exists=lambda pod, name: any(claim.metadata.name == name for claim in self.owned.named(pod)),
            fault=lambda: self.fence.fault() or self.fault(),
            clock=self.clock,
        )

    # What the watches tell: the ledger has heard it first

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if (claim := new or old) is not None:
            self.changed(claim.key)
            uid = claim.metadata.uid
            if not self.cache.is_untold(uid) and (told := self._told.pop(uid, None)) is not None:
                told.set()

    def _heard(self, *told: object) -> None:
        """What claims are read by has changed, or a complete list has come."""
        self._news = True
        self.dirty()

    async def anything_new(self) -> bool:
        """Whether what claims may be given, or mean, has changed since this was asked last."""
        if self._whose.looking and await asyncio.to_thread(self._whose.look_further):
            self.dirty()
        self._news, self._whose.news = self._news or self._whose.news, False
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
        found = self.owned.claims_of(pod, partial(self._whose.is_kerfs, namespace=pod.metadata.namespace))
        if found.undecided:
            self.dirty()  # each round looks further
        # What is held for a claim that was not written as it should be may be written on it yet.
        moving = self.freeing | self.owned.holds.keys()
        claims = (*found.allocated, *found.unallocated)
        unsettled = next((claim for claim in claims if claim.metadata.uid in moving), None)
        return found if unsettled is None else PodClaims(missing=unsettled.metadata.name)

    def name_of(self, uid: str) -> str:
        """What a claim is called, "" when it is gone."""
        claim = self.owned.claims.get(uid)
        return "" if claim is None else claim.metadata.name

    # Allocating

    def hold(self, pod: Pod, node: str, allocation: DevicesGiven | None) -> bool:
        """Hold devices of a node for a pod's claims, as they were decided on; whether the claims still ask that."""
        self.let_go(pod)
        try:
            epoch, found = self.fence.enter(), self.read(pod)
        except (FencedError, RequestError):
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
        self._due[pod.metadata.uid] = epoch, tuple(claim.metadata.uid for claim in found.unallocated)
        return True

    def let_go(self, pod: Pod) -> None:
        """Hold nothing for the claims of a pod of which nothing was written."""
        _, due = self._due.pop(pod.metadata.uid, _NOTHING_DUE)
        for uid in due:
            hold = self.owned.holds.get(uid)
            if hold is not None and uid not in self.writing:
                self.ledger.let_go_devices(uid)
                self.changed(hold.claim.key)

    async def allocate(self, pod: Pod) -> bool:
        """Write what is held for the claims of a pod; whether all of it is written.

        Raises ClusterError where the API server refuses, or nobody knows what it did, DecodeError, FencedError.
        """
        epoch, due = self._due.pop(pod.metadata.uid, _NOTHING_DUE)
        try:
            if not await self._secure(pod):
                return False
            for uid in due:
                if not await self._allocate(uid, epoch):
                    return False
        except ApiError as error:
            self._rest(pod.metadata.uid, str(error))
            raise
        self._rests.pop(pod.metadata.uid, None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_WITHIN_S):
                for uid in due:
                    if told := self._told.get(uid):
                        await told.wait()
        return True

    async def _secure(self, pod: Pod) -> bool:
        """Keep the devices that a pod's claims had before it was decided on from being taken back by a write that is on
        its way, of a leader before this one perhaps; whether the claims are as they were."""
        for claim in self.owned.named(pod):
            in_use = any(self.ledger.is_bound(consumer.uid) for consumer in claim.status.reserved_for or ())
            if claim.status.allocation is None or in_use:
                continue
            secured = await self.writer.secure(claim, secrets.token_hex(4))
            if secured is None:
                return False
            self.cache.written(secured)
        return True

    def resting(self, pod: str) -> str:
        """Why a pod is not decided on again yet, by its UID: what the API server said when it refused its devices."""
        until, _, why = self._rests.get(pod, _NO_REST)
        return why if self.clock() < until else ""

    def _rest(self, pod: str, why: str) -> None:
        _, before_s, _ = self._rests.get(pod, _NO_REST)
        if len(self._rests) >= _MAX_RESTS:
            self._rests.clear()
        rest_s = min(max(2 * before_s, _FIRST_REST_S), _MAX_REST_S)
        self._rests[pod] = self.clock() + rest_s, rest_s, why[:_MAX_WHY]

    async def _allocate(self, uid: str, epoch: str) -> bool:
        """Raises ClusterError where the API server refuses, or nobody knows what it did; DecodeError, FencedError."""
        hold = self.owned.holds.get(uid)
        if hold is None:
            return False
        self.writing.add(uid)
        self._told[uid] = asyncio.Event()
        result = await commit(_Allocation(self, uid, hold, epoch), self.fence)
        if result.error is not None and result.outcome not in (Outcome.DONE, Outcome.CONFLICT, Outcome.GONE):
            raise result.error
        return result.outcome is Outcome.DONE

    def settle(self, uid: str, hold: Hold, result: Result[ResourceClaim]) -> None:
        """What became of a write that gives a claim its devices is known."""
        self.writing.discard(uid)
        if self.owned.holds.get(uid) is hold:
            self.ledger.let_go_devices(uid)
        self.counts.allocated += result.outcome is Outcome.DONE
        if result.outcome is not Outcome.DONE:
            self._told.pop(uid, None)
        if result.found is not None:
            self.cache.written(result.found)
        self.changed(hold.claim.key)  # a watch may have told before that, of a claim that was still in doubt

    async def catch_up(self) -> None:
        """Before the first decision of a term: change every claim that a leader before may be about to allocate, so
        that its write fails, then take in what it did allocate. Raises ClusterError, DecodeError.

        Those are the claims with the finalizer: Kerf gives none its devices without it. They are read from the API
        server, whoever names them: watches may lag or not have begun, and pods may be gone by now.
        """
        listed = await self._lister.all()
        doubtful = (claim for claim in listed.items if is_protected(claim))
        await all_of(self._seal(claim) for claim in doubtful if claim.status.allocation is None)
        await self.mirror.list_devices_again(CLAIMS)

    async def _seal(self, claim: ResourceClaim) -> None:
        async with self._slots:
            await self.writer.seal(claim)


class _Allocation(Target[ResourceClaim]):
    """Gives a claim the devices that are held for it."""

    def __init__(self, keeper: ClaimKeeper, uid: str, hold: Hold, epoch: str) -> None:
        claim = hold.claim
        super().__init__(claim.metadata.namespace, uid, f"allocating to claim {claim.key}", epoch)
        self._keeper, self._hold = keeper, hold

    async def prepare(self) -> str:
        """Without its finalizer a claim may be deleted with the devices that it is about to get."""
        protected = await self._keeper.writer.protect(self._hold.claim)
        return "" if protected is None else protected.metadata.resource_version

    def accepts(self, found: ResourceClaim) -> str:
        return "it has changed since it was decided on"

    async def send(self, version: str) -> ResourceClaim | None:
        hold = self._hold
        return await self._keeper.writer.allocate(hold.claim, version, hold.pod, hold.allocation)

    async def read(self) -> ResourceClaim | None:
        return await self._keeper.writer.read(self._hold.claim)

    async def seal(self) -> ResourceClaim | None:
        return await self._keeper.writer.seal(self._hold.claim)

    def judge(self, found: ResourceClaim | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        if found.status.allocation is None:
            return None
        own = msgspec.convert(self._hold.allocation, Allocation)
        mine = any(consumer.uid == self._hold.pod.metadata.uid for consumer in found.status.reserved_for or ())
        return Outcome.DONE if mine and found.status.allocation.devices == own.devices else Outcome.REFUSED

    def settle(self, result: Result[ResourceClaim]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._keeper.resolver.add(self)
        else:
            self._keeper.settle(self.uid, self._hold, result)
