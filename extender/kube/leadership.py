"""Leader election by a Lease, or none: Kerf holds its own Lease, or follows that of the kube-scheduler beside it.

A term ends for certain before another process can begin one. An expired term is over for good, even if no other
process has taken the lease: the next renewal begins another term.

If a virtual machine is paused, its clock may stand still: the term seems valid while another process leads. So
deadlines are no proof. A write that must not happen twice waits for a confirmation: the response to a lease request,
sent after the facts it depends on were known, that shows this process as the holder. Requests are numbered; no clock is
involved.

The holder counts its time from *before* it requested a renewal, the others from *after* they saw it, and no wall clocks
are compared. The record is client-go's (`tools/leaderelection`), written under the resourceVersion that was read. The
official Python client's election trusts the wall clock.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

import msgspec

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder

logger = logging.getLogger(__name__)


class LeadTime(NamedTuple):
    """A span of monotonic time in which no other process led; those of two processes never overlap."""

    tenure: str
    """As `Election.tenure`."""
    since: float
    """Start; a predecessor claims nothing later."""
    until: float
    """Proven up to here; -inf if never."""


class Election(Protocol):
    """Tells this process whether it leads."""

    contested: bool
    """Whether other processes may lead."""
    term: str
    """Unique name of the current term, not seen to end yet; "" while this process does not lead."""
    tenure: str
    """Name of a tenure: terms between which no other process held the lease, though they expired."""
    num_asked: int
    """Number of requests to the lease so far."""

    async def run(self) -> None:
        """Take part until cancelled."""

    async def resign(self) -> None:
        """Release the lease, if this process holds its own."""

    async def wait_for_change(self) -> None:
        """Wait until `term` has changed since the last call."""

    def deadline(self) -> float:
        """Return the monotonic time at which the term expires, if the clock does not stop."""

    def request_confirmation(self) -> None:
        """Send a request to the lease soon, since a `confirm` is about to follow."""

    async def confirm(self, since: int) -> bool:
        """Wait for a request after the first `since`; return whether it shows that this process still led."""

    def led(self) -> LeadTime:
        """Return the time of the last tenure."""

    def standing(self) -> str:
        """Return who leads, in words."""


class Unelected:
    """No election: the only process always leads."""

    contested = False
    term = tenure = "only"
    num_asked = 0

    async def run(self) -> None:
        """Nothing to take part in."""

    async def resign(self) -> None:
        """Nothing to release."""

    async def wait_for_change(self) -> None:
        """Never returns."""
        await asyncio.get_running_loop().create_future()

    def deadline(self) -> float:
        return float("inf")

    def request_confirmation(self) -> None:
        """Nothing to request."""

    async def confirm(self, since: int) -> bool:
        return True

    def led(self) -> LeadTime:
        return LeadTime(self.tenure, float("-inf"), float("inf"))

    def standing(self) -> str:
        return "no leader election"


class Spectator(Unelected):
    """A process that never leads and writes nothing: it watches and answers queries."""

    contested = True
    term = tenure = ""

    def led(self) -> LeadTime:
        return LeadTime("", float("-inf"), float("-inf"))

    def standing(self) -> str:
        return "this process never decides"


_NEVER: Final = float("-inf")


class Terms:
    """The successive terms of one process, by the monotonic clock."""

    contested = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._certain_until = _NEVER
        self._changed = asyncio.Event()
        self._held = ""  # state of the lease when the term began
        self._led_since = self._led_until = _NEVER
        self._num_tenures = self._num_terms = 0
        self._last_confirmed = 0  # the last request that confirmed the term
        self._wanted = asyncio.Event()
        self._confirmed = asyncio.Event()  # replaced after each confirmation
        self.term = self.tenure = ""
        self.num_asked = 0

    async def wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def deadline(self) -> float:
        return self._certain_until

    def led(self) -> LeadTime:
        return LeadTime(self.tenure, self._led_since, self._led_until)

    def request_confirmation(self) -> None:
        self._wanted.set()

    def _next_request(self) -> int:
        """Number the next request."""
        self.num_asked += 1
        return self.num_asked

    async def _confirmed_after(self, since: int, within_s: float) -> bool:
        """Wait for a request after the first `since`; return whether it shows that this process still led."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._last_confirmed <= since and self.term:
                    self._wanted.set()
                    await self._confirmed.wait()
        return self._last_confirmed > since

    def _confirm(self, number: int) -> None:
        """Record that the response to a request shows this process as the holder."""
        self._last_confirmed = number
        self._notify_waiters()

    def _prolong(self, held: str, until: float, *, since: float = _NEVER, proven: float = _NEVER) -> None:
        """Extend the term to `until`, or begin another if it has expired; a new `held` begins a new tenure.

        No other process held the lease up to `proven`, and in a new tenure from `since`.
        """
        now = self._clock()
        if until <= now:
            if self._held != held:
                self._end()
            return
        if not self.term or self._held != held:
            self._held = held
            self._num_tenures += 1
            self.tenure = f"{held}.{self._num_tenures}"
            self._led_since, self._led_until = since, _NEVER
            self._certain_until = _NEVER
        if now >= self._certain_until:
            self._num_terms += 1
            self._set_term(f"{self.tenure}.{self._num_terms}")
        self._certain_until, self._led_until = until, max(self._led_until, proven)

    def _end(self) -> None:
        """End the term."""
        self._certain_until = _NEVER
        self._set_term("")
        self._notify_waiters()

    def _set_term(self, term: str) -> None:
        if term != self.term:
            self.term = term
            self._changed.set()

    def _notify_waiters(self) -> None:
        self._confirmed.set()
        self._confirmed = asyncio.Event()


_CONFIRM_EVERY_S: Final = 0.02  # one confirmation serves many waiters


class LeaseSpec(objects.Object, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(objects.Object):
    metadata: objects.Metadata = msgspec.field(default_factory=objects.Metadata)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


_decoder = Decoder(Lease)


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Namespace and name of a Lease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def collection(self) -> str:
        """Path of the Leases in the namespace."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        """Path of the Lease."""
        return f"{self.collection}/{self.name}"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of an election, in seconds."""

    duration_s: int
    """Others may take the lease after seeing no renewal for this time."""
    renew_deadline_s: float
    """The holder stops this long after requesting its last successful renewal. Below `duration_s`."""
    retry_s: float
    """Pause between attempts to acquire or renew. Below `renew_deadline_s`."""


class Watched(Terms):
    """Base of `HeldLease` and `FollowedLease`: polls a Lease."""

    def __init__(self, transport: Transport, lease: LeaseName, times: LeaseTimes, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._transport = transport
        self._name = lease
        self._times = times
        self._holder: str | None = None  # as last seen, None before the first read
        self._last_error = ""

    async def run(self) -> None:
        while True:
            await self.attempt()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pause_s()):
                    await self._serve_confirmations()

    async def attempt(self) -> None:
        """Try once to acquire or renew; the result is in `term` and `standing`."""
        await self._try(self._renew)

    async def _serve_confirmations(self) -> None:
        """Confirm the term for waiters, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._try(self._look)
            await asyncio.sleep(_CONFIRM_EVERY_S)

    async def _try(self, attempt: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._times.renew_deadline_s):
                await attempt()
            self._last_error = ""
        except (ClusterError, TimeoutError, msgspec.DecodeError) as error:
            fault = str(error) or "timed out"
            if fault != self._last_error:
                logger.warning("lease %s: %s", self._name, fault)
            self._last_error = fault
        except Exception:  # retried, whatever the lease contains
            logger.exception("lease %s could not be read", self._name)
            self._last_error = "see the log"

    async def resign(self) -> None:
        """Nothing to release."""

    async def confirm(self, since: int) -> bool:
        return await self._confirmed_after(since, self._times.renew_deadline_s)

    def standing(self) -> str:
        error = f": {self._last_error}" if self._last_error else ""
        if self._holder is None:
            return f"lease {self._name} has not been read yet{error}"
        if self.term:
            return f"lease {self._name} was not renewed in time{error}"
        return f"lease {self._name} is held by {self._holder or 'nobody'}{error}"

    async def _renew(self) -> None:
        """Acquire or renew."""
        raise NotImplementedError

    async def _look(self) -> None:
        """Check whether the term continues."""
        await self._renew()

    def pause_s(self) -> float:
        """Return the seconds until the next attempt."""
        return self._times.retry_s

    async def _read(self) -> Lease | None:
        try:
            return _decoder.decode(await self._transport.get(self._name.path))
        except ApiError as error:
            if error.status == 404:
                return None
            raise


class HeldLease(Watched):
    """Kerf's own lease: acquired, renewed, and released on shutdown."""

    def __init__(
        self, transport: Transport, lease: LeaseName, identity: str, times: LeaseTimes, clock: Callable[[], float]
    ) -> None:
        super().__init__(transport, lease, times, clock)
        self._identity = identity
        self._lease: Lease | None = None
        self._seen_at = _NEVER  # when its current version was first seen

    async def resign(self) -> None:
        """Release the lease. All decisions must be written or dropped before."""
        lease, held = self._lease, bool(self.term)
        self._end()
        if lease is None or not held:
            return
        now = _now()
        spec = LeaseSpec(
            holder_identity="",
            lease_duration_seconds=1,
            acquire_time=now,
            renew_time=now,
            lease_transitions=lease.spec.lease_transitions,
        )
        try:
            async with asyncio.timeout(self._times.renew_deadline_s):
                await self._patch(spec, lease.metadata.resource_version)
            logger.info("lease %s is released", self._name)
        except (ClusterError, TimeoutError) as error:
            logger.warning("lease %s was not released and will expire: %s", self._name, error)

    def pause_s(self) -> float:
        retry_s = self._times.retry_s
        if self.term:
            return retry_s
        return max(0.01, min(retry_s * random.uniform(0.8, 1.2), self._expires_at() - self._clock()))

    def _expires_at(self) -> float:
        """Return when the holder's lease expires; inf without a holder."""
        if self._lease is None or not self._lease.spec.holder_identity:
            return float("inf")
        duration_s = self._lease.spec.lease_duration_seconds or self._times.duration_s
        return self._seen_at + duration_s

    async def _renew(self) -> None:
        if self.term and self._lease is not None:
            try:
                await self._acquire(self._lease)  # on the version written last: one call without a conflict
                return
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
        lease = await self._read()
        if lease is None:
            self._lose(None)
            await self._create()
            return
        if self._lease is None or lease.metadata.resource_version != self._lease.metadata.resource_version:
            self._seen_at = self._clock()
        holder = lease.spec.holder_identity or ""
        self._lease = lease
        if holder not in ("", self._identity) and self._clock() < self._expires_at():
            self._lose(holder)
            return
        await self._acquire(lease)

    async def _look(self) -> None:
        if not self.term or self._lease is None:
            return  # left to the next attempt
        number, lease = self._next_request(), await self._read()
        if lease is not None and self._held_as(lease) == self._held_as(self._lease):
            self._confirm(number)
        else:
            await self._renew()

    def _held_as(self, lease: Lease) -> tuple[str, str | None]:
        """Return the tenure's name and the holder. The UID is included since a recreated lease counts from 0."""
        return f"{lease.metadata.uid[:8]}-{lease.spec.lease_transitions or 0}", lease.spec.holder_identity

    async def _acquire(self, lease: Lease) -> None:
        now, mine = _now(), lease.spec.holder_identity == self._identity
        sent = self._clock()
        # The previous holder has not renewed since this version was first seen, or this write would fail.
        since = sent if mine else self._seen_at
        transitions = (lease.spec.lease_transitions or 0) + (not mine)
        acquired_at = lease.spec.acquire_time if mine else now
        number = self._next_request()
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._times.duration_s,
            acquire_time=acquired_at,
            renew_time=now,
            lease_transitions=transitions,
        )
        self._hold(_decoder.decode(await self._patch(spec, lease.metadata.resource_version)), sent, number, since)

    async def _create(self) -> None:
        now, sent, number = _now(), self._clock(), self._next_request()
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._times.duration_s,
            acquire_time=now,
            renew_time=now,
            lease_transitions=0,
        )
        metadata = {"name": self._name.name, "namespace": self._name.namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        created = await self._transport.post(self._name.collection, msgspec.json.encode(body))
        self._hold(_decoder.decode(created), sent, number, sent)

    async def _patch(self, spec: LeaseSpec, resource_version: str) -> bytes:
        body = {"metadata": {"resourceVersion": resource_version}, "spec": spec}
        return await self._transport.patch(self._name.path, msgspec.json.encode(body))

    def _hold(self, lease: Lease, sent: float, number: int, since: float) -> None:
        self._lease, self._holder, self._seen_at = lease, self._identity, self._clock()
        term = self.term
        until = sent + self._times.renew_deadline_s
        self._prolong(self._held_as(lease)[0], until, since=since, proven=sent)
        if term != self.term:
            logger.info("lease %s is acquired as %s", self._name, self._identity)
        self._confirm(number)

    def _lose(self, holder: str | None) -> None:
        if self.term:
            logger.warning("lease %s is lost to %s", self._name, holder or "nobody")
        if holder is None:
            self._lease = None
        self._holder = holder or ""
        self._end()


def _now() -> str:
    """Return the wall-clock time, for people who read the lease."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FollowedLease(Watched):
    """The lease of a kube-scheduler: this process leads exactly when the scheduler beside it does."""

    def __init__(
        self, transport: Transport, lease: LeaseName, scheduler: str, times: LeaseTimes, clock: Callable[[], float]
    ) -> None:
        super().__init__(transport, lease, times, clock)
        self._scheduler = scheduler
        self._seen_version: str | None = None
        self._read_at: float | None = None  # when the last read was requested
        self._changed_at = _NEVER  # when another holder's last version was first seen

    async def _renew(self) -> None:
        requested_at, number = self._clock(), self._next_request()
        lease = await self._read()
        spec = LeaseSpec() if lease is None else lease.spec
        version = "" if lease is None else lease.metadata.resource_version
        self._holder = spec.holder_identity or ""
        held = f"{self._holder}-{spec.lease_transitions or 0}"
        if self._holder != self._scheduler and not self._holder.startswith(f"{self._scheduler}_"):
            self._end()
            if version != self._seen_version:
                self._changed_at = self._clock()
        elif version != self._seen_version and self._read_at is not None:
            # All that is known is that it was renewed after the previous read.
            duration_s = spec.lease_duration_seconds or 0
            until = self._read_at + duration_s
            self._prolong(held, until, since=self._since(duration_s), proven=self._read_at)
        if self.term and held == self._held:
            self._confirm(number)
        self._seen_version, self._read_at = version, requested_at

    def _since(self, duration_s: float) -> float:
        """Return when the previous holder's claim ended: at its last renewal if the lease has expired since, else now,
        since it may have renewed again before releasing."""
        now = self._clock()
        return self._changed_at if self._changed_at <= now - duration_s else now
