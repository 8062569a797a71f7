"""Holds devices for the claims of planned pods and writes the allocations."""

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
from extender.kube.background import gather_all
from extender.kube.client import ApiError, Transport
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, commit
from extender.kube.objects import Pod
from extender.kube.watches import Lister
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.parts.dra.allocator_choice import AllocatorChoice
from extender.parts.dra.maker import ClaimMaker
from extender.parts.dra.writer import ClaimWriter, is_protected
from extender.queueing.pods.entries import Entry
from extender.scheduling.fence import Fence

_MAX_CONCURRENT: Final = 16
_MAX_ECHO_S: Final = 0.5
"""How long to wait for the watch event of a write. By then kube-scheduler's watch has it too, or is about to: it would
reject a pod whose allocation it does not know yet."""
_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 60.0
_MAX_BACKOFFS: Final = 10_000
_NO_BACKOFF: Final = (0.0, 0.0, "")
_NOTHING_DUE: Final[tuple[str, tuple[str, ...]]] = ("", ())
_MAX_REASON_CHARS: Final = 300


@dataclass(slots=True)
class ClaimCounts:
    """Counts since the process started."""

    allocated: int = 0
    freed: int = 0
    """Deallocated claims that no pod used."""
    errors: int = 0


@dataclass(eq=False)
class ClaimKeeper:
    """Allocates devices to the claims of pods that a plan releases."""

    transport: Transport
    mirror: Mirror
    ledger: Ledger
    owned: OwnedDevices
    fence: Fence
    resolver: Resolver
    clock: Callable[[], float]
    entries_of: Callable[[str], Iterable[Entry]]
    """The queued pods that name a claim, by the claim's `namespace/name`."""
    entries: Callable[[], Iterable[Entry]]
    """All queued pods."""
    changed: Callable[[str], None]
    """Called with the `namespace/name` of a claim that has changed."""
    dirty: Callable[[], None]
    """Called when a new planning round is due."""
    max_age_s: float
    classes_to_make: Collection[str] = ()
    """Device classes that claims are created with, for pods with rewritten extended resources."""
    counts: ClaimCounts = field(default_factory=ClaimCounts, init=False)
    _changed_inputs: bool = field(default=True, init=False)
    _last_fault: str = field(default="", init=False)
    writing: set[str] = field(default_factory=set, init=False)
    """UIDs of claims whose allocation is being written."""
    freeing: set[str] = field(default_factory=set, init=False)
    """UIDs of claims that are being deallocated."""
    _backoffs: dict[str, tuple[float, float, str]] = field(default_factory=dict, init=False)
    """By pod UID: end of the back-off, its length in seconds, and the reason."""
    _due: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict, init=False)
    """By pod UID: the leader term of the decision, and UIDs of the claims to write."""
    _echoes: dict[str, asyncio.Event] = field(default_factory=dict, init=False)
    """By UID of a written claim: set when the watch reports the write."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def __post_init__(self) -> None:
        self.writer = ClaimWriter(self.transport)
        hub = self.mirror.hub
        self.reflectors = {feed.name: hub.reflector(feed) for feed in TO_ALLOCATE}
        for feed in (*TO_ALLOCATE, RULES):
            hub.cache(feed).subscribe(
                self._claim_changed if feed is CLAIMS else self._inputs_changed, on_list=self._inputs_changed
            )
        self.cache = hub.cache(CLAIMS)
        """The claims' cache; responses to writes are added to it."""
        self._lister = Lister(self.transport, CLAIMS.path, ResourceClaim)
        self._whose = AllocatorChoice(self.owned)

    def maker(self) -> ClaimMaker:
        """Creates claims for pods with rewritten extended resources."""
        return ClaimMaker(
            self.transport,
            self.classes_to_make,
            self.entries,
            exists=lambda pod, name: any(claim.metadata.name == name for claim in self.owned.named(pod)),
            fault=lambda: self.fence.fault() or self.fault(),
            clock=self.clock,
        )

    # Watch events; the ledger handles them first

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if (claim := new or old) is not None:
            self.changed(claim.key)
            uid = claim.metadata.uid
            if not self.cache.is_unconfirmed(uid) and (echo := self._echoes.pop(uid, None)) is not None:
                echo.set()

    def _inputs_changed(self, *event: object) -> None:
        """Slices, classes or rules have changed, or a list is complete."""
        self._changed_inputs = True
        self.dirty()

    async def claims_outdated(self) -> bool:
        """Whether the evaluation of claims may have changed since the last call."""
        if self._whose.looking and await asyncio.to_thread(self._whose.look_further):
            self.dirty()
        fault = self.fault()
        changed = self._changed_inputs or self._whose.news or fault != self._last_fault
        self._changed_inputs, self._whose.news, self._last_fault = False, False, fault
        return changed

    def fault(self) -> str:
        """Why no devices can be allocated now; "" if they can."""
        for name, reflector in self.reflectors.items():
            if not reflector.synced:
                return f"{name} are not synced yet" + (f": {reflector.last_error}" if reflector.last_error else "")
            if reflector.age_s() > self.max_age_s:
                return f"{name} were last current {reflector.age_s():.0f} s ago: {reflector.last_error}"
        return ""

    def read(self, pod: Pod) -> PodClaims:
        """A pod's claims. Raises RequestError."""
        if self.fault() and pod.spec.resource_claims:
            return PodClaims(missing=pod.spec.resource_claims[0].name)
        of_pod = self.owned.claims_of(pod, partial(self._whose.is_kerfs, namespace=pod.metadata.namespace))
        if of_pod.undecided:
            self.dirty()  # each round examines more nodes
        # A hold means that a write is in flight or its outcome is unknown: the claim may still get an allocation.
        moving = self.freeing | self.owned.holds.keys()
        claims = (*of_pod.allocated, *of_pod.unallocated)
        unsettled = next((claim for claim in claims if claim.metadata.uid in moving), None)
        return of_pod if unsettled is None else PodClaims(missing=unsettled.metadata.name)

    def name_of(self, uid: str) -> str:
        """A claim's name; "" if it does not exist."""
        claim = self.owned.claims.get(uid)
        return "" if claim is None else claim.metadata.name

    # Allocating

    def hold(self, pod: Pod, node: str, allocation: DevicesGiven | None) -> bool:
        """Hold the devices decided on for a pod's claims; False if the claims have changed since."""
        self.release_holds(pod)
        try:
            epoch, of_pod = self.fence.enter(), self.read(pod)
        except (FencedError, RequestError):
            return False
        given = () if allocation is None else allocation.claims
        if len(given) != len(of_pod.unallocated) or of_pod.missing:
            return False
        inventory = self.owned.inventory_on(node)
        for claim, devices in zip(of_pod.unallocated, given, strict=True):
            held = tuple(
                (inventory.devices[one.taking.device].id, one.taking.capacity) for one in devices if not one.admin
            )
            body = allocation_of(claim, devices, inventory, self.owned.classes, node, time.time())
            self.ledger.hold_devices(claim.metadata.uid, Hold(node, held, claim, pod, body))
        self._due[pod.metadata.uid] = epoch, tuple(claim.metadata.uid for claim in of_pod.unallocated)
        return True

    def release_holds(self, pod: Pod) -> None:
        """Release the holds of a pod's claims, except those being written."""
        _, due = self._due.pop(pod.metadata.uid, _NOTHING_DUE)
        for uid in due:
            hold = self.owned.holds.get(uid)
            if hold is not None and uid not in self.writing:
                self.ledger.release_devices(uid)
                self.changed(hold.claim.key)

    async def allocate(self, pod: Pod) -> bool:
        """Write the allocations held for a pod's claims; return whether all were written.

        Raises ClusterError if the API server rejects a write or its outcome is unknown; DecodeError, FencedError.
        """
        epoch, due = self._due.pop(pod.metadata.uid, _NOTHING_DUE)
        try:
            if not await self._secure(pod):
                return False
            for uid in due:
                if not await self._allocate(uid, epoch):
                    return False
        except ApiError as error:
            self._back_off(pod.metadata.uid, str(error))
            raise
        self._backoffs.pop(pod.metadata.uid, None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_ECHO_S):
                for uid in due:
                    if echo := self._echoes.get(uid):
                        await echo.wait()
        return True

    async def _secure(self, pod: Pod) -> bool:
        """Change the pod's already allocated claims, so that a deallocation in flight, perhaps of a previous leader,
        fails. Returns False if a claim has changed."""
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
        """The API server's error that a pod backs off for, by pod UID; "" if it does not back off."""
        until, _, why = self._backoffs.get(pod, _NO_BACKOFF)
        return why if self.clock() < until else ""

    def _back_off(self, pod: str, why: str) -> None:
        _, before_s, _ = self._backoffs.get(pod, _NO_BACKOFF)
        if len(self._backoffs) >= _MAX_BACKOFFS:
            self._backoffs.clear()
        backoff_s = min(max(2 * before_s, _FIRST_BACKOFF_S), _MAX_BACKOFF_S)
        self._backoffs[pod] = self.clock() + backoff_s, backoff_s, why[:_MAX_REASON_CHARS]

    async def _allocate(self, uid: str, epoch: str) -> bool:
        """Write one claim's allocation. Raises ClusterError if rejected or of unknown outcome, and like `allocate`."""
        hold = self.owned.holds.get(uid)
        if hold is None:
            return False
        self.writing.add(uid)
        self._echoes[uid] = asyncio.Event()
        result = await commit(_Allocation(self, uid, hold, epoch), self.fence)
        if result.error is not None and result.outcome not in (Outcome.DONE, Outcome.CONFLICT, Outcome.GONE):
            raise result.error
        return result.outcome is Outcome.DONE

    def settle(self, uid: str, hold: Hold, result: Result[ResourceClaim]) -> None:
        """Handle the outcome of writing a claim's allocation."""
        self.writing.discard(uid)
        if self.owned.holds.get(uid) is hold:
            self.ledger.release_devices(uid)
        self.counts.allocated += result.outcome is Outcome.DONE
        if result.outcome is not Outcome.DONE:
            self._echoes.pop(uid, None)
        if result.found is not None:
            self.cache.written(result.found)
        self.changed(hold.claim.key)  # a watch event before this one saw the claim as unsettled

    async def catch_up(self) -> None:
        """Before a term's first decision, make pending writes of the previous leader fail and relist the claims.

        Every unallocated claim with the finalizer is changed: Kerf allocates none without it. All claims are read from
        the API server, since watches may lag and the claims' pods may be gone. Raises ClusterError, DecodeError.
        """
        listed = await self._lister.all()
        protected = (claim for claim in listed.items if is_protected(claim))
        await gather_all(self._seal(claim) for claim in protected if claim.status.allocation is None)
        await self.mirror.list_devices_again(CLAIMS)

    async def _seal(self, claim: ResourceClaim) -> None:
        async with self._slots:
            await self.writer.seal(claim)


class _Allocation(Target[ResourceClaim]):
    """Writes the devices held for a claim to it."""

    def __init__(self, keeper: ClaimKeeper, uid: str, hold: Hold, epoch: str) -> None:
        claim = hold.claim
        super().__init__(claim.metadata.namespace, uid, f"allocating to claim {claim.key}", epoch)
        self._keeper, self._hold = keeper, hold

    async def prepare(self) -> str:
        """Add the finalizer: without it a claim could be deleted along with its allocation."""
        protected = await self._keeper.writer.protect(self._hold.claim)
        return "" if protected is None else protected.metadata.resource_version

    def refusal(self, found: ResourceClaim) -> str:
        return "it has changed since the decision"

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
        wanted = msgspec.convert(self._hold.allocation, Allocation)
        reserved = any(consumer.uid == self._hold.pod.metadata.uid for consumer in found.status.reserved_for or ())
        return Outcome.DONE if reserved and found.status.allocation.devices == wanted.devices else Outcome.REFUSED

    def settle(self, result: Result[ResourceClaim]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._keeper.resolver.add(self)
        else:
            self._keeper.settle(self.uid, self._hold, result)
