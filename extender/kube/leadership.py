"""Who leads: elections by a Lease, or none.

The time for which this process leads: begun, prolonged, ended and confirmed.

A term ends for certain before anybody else may begin one. A term that ran out ends for good, though nobody else has
taken the lease: what comes after the next renewal is another.

A clock may stand still, when a virtual machine is paused with it: the term looks good then, and others lead. So a
deadline only says who is to be asked. What must not happen twice waits for a confirmation besides: the answer to a
request that was sent later than what it rests on was known, and that shows the lease to be still this process's.
Requests are numbered, and no clock is asked.

A Lease on the API server by which one of several processes leads is held, or followed: Kerf's own, or that of the
kube-scheduler which this process is beside.

The holder counts its time from the moment *before* it asked for a renewal, everybody else from the moment *after* the
renewal was seen. Nobody compares wall clocks. The record is client-go's (`tools/leaderelection`), written under the
resourceVersion that was read. Not by the official client's election: that trusts the wall clock.
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


class Led(NamedTuple):
    """For how long nobody else has led for certain, by the monotonic clock; two processes never claim the same time."""

    tenure: str
    """In which: as of `Election`."""
    since: float
    """Its predecessor, if there was one, does not claim what comes after."""
    until: float
    """Up to which it has been proven; -inf for never."""


class Election(Protocol):
    """How this process learns whether it leads."""

    contested: bool
    """Whether another process may lead."""
    term: str
    """Names the time of leading that has not been seen to end, each in another way; "" while others lead, or nobody."""
    tenure: str
    """The same for terms between which the lease was nobody else's, though they ran out."""
    num_asked: int
    """Requests to the lease that were sent so far."""

    async def run(self) -> None:
        """Take part until cancelled."""

    async def resign(self) -> None:
        """Let others lead at once, if that is this process's to give."""

    async def change(self) -> None:
        """Wait until `term` has changed since the last call."""

    def deadline(self) -> float:
        """Monotonic time up to which the term is certain, if the clock does not stop."""

    def hurry(self) -> None:
        """Send a request to the lease soon: somebody is about to wait for one."""

    async def confirm(self, since: int) -> bool:
        """Wait for a request sent after the first `since`; whether one has shown that nobody else led until then."""

    def led(self) -> Led:
        """The time of the last tenure."""

    def standing(self) -> str:
        """Who leads, in words."""


class Unelected:
    """No election: the only process leads for as long as it runs."""

    contested = False
    term = tenure = "only"
    num_asked = 0

    async def run(self) -> None:
        """Nothing to take part in."""

    async def resign(self) -> None:
        """Nobody to make room for."""

    async def change(self) -> None:
        """Never."""
        await asyncio.get_running_loop().create_future()

    def deadline(self) -> float:
        return float("inf")

    def hurry(self) -> None:
        """Nobody to ask."""

    async def confirm(self, since: int) -> bool:
        return True

    def led(self) -> Led:
        return Led(self.tenure, float("-inf"), float("inf"))

    def standing(self) -> str:
        return "no leader election"


class Spectator(Unelected):
    """A process that never leads, and writes nothing: it watches, and answers questions."""

    contested = True
    term = tenure = ""

    def led(self) -> Led:
        return Led("", float("-inf"), float("-inf"))

    def standing(self) -> str:
        return "this process never decides"


_NEVER: Final = float("-inf")


class Terms:
    """The terms of one process, one after the other, told by the monotonic clock."""

    contested = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._certain_until = _NEVER
        self._changed = asyncio.Event()
        self._held = ""  # how the lease was held when the term began
        self._led_since = self._led_until = _NEVER
        self._num_tenures = self._num_terms = 0
        self._num_confirmed = 0  # the last request that showed the term to go on
        self._wanted = asyncio.Event()
        self._confirmed = asyncio.Event()  # another one for each confirmation
        self.term = self.tenure = ""
        self.num_asked = 0

    async def change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def deadline(self) -> float:
        return self._certain_until

    def led(self) -> Led:
        return Led(self.tenure, self._led_since, self._led_until)

    def hurry(self) -> None:
        self._wanted.set()

    def _ask(self) -> int:
        """The number of a request that is about to be sent."""
        self.num_asked += 1
        return self.num_asked

    async def _confirmed_after(self, since: int, within_s: float) -> bool:
        """Wait for a request sent after the first `since`; whether one has shown that nobody else led until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._num_confirmed <= since and self.term:
                    self._wanted.set()
                    await self._confirmed.wait()
        return self._num_confirmed > since

    def _confirm(self, number: int) -> None:
        """When this request was answered the lease was still this process's."""
        self._num_confirmed = number
        self._tell_waiting()

    def _prolong(self, held: str, until: float, *, since: float = _NEVER, proven: float = _NEVER) -> None:
        """The lease is `held` in this way, for certain until then. A term that has run out goes on as another one.

        `proven`: up to which nobody else has held it; in a new tenure, `since` when.
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
        """Others lead, or nobody."""
        self._certain_until = _NEVER
        self._set_term("")
        self._tell_waiting()

    def _set_term(self, term: str) -> None:
        if term != self.term:
            self.term = term
            self._changed.set()

    def _tell_waiting(self) -> None:
        self._confirmed.set()
        self._confirmed = asyncio.Event()


_CONFIRM_EVERY_S: Final = 0.02  # many wait for one confirmation


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
    """Which Lease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def collection(self) -> str:
        """Path of the namespace's Leases."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        """Path of this one."""
        return f"{self.collection}/{self.name}"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of an election, in seconds."""

    duration_s: int
    """Others may take the lease when they have seen no renewal for so long."""
    renew_deadline_s: float
    """The holder stops so long after the last renewal that it asked for, if not renewed again. Below `duration_s`."""
    retry_s: float
    """Between two attempts to acquire or renew. Below `renew_deadline_s`."""


class Watched(Terms):
    """What holding a lease and following one (`followed_leases`) have in common: look at it again and again."""

    def __init__(self, transport: Transport, lease: LeaseName, times: LeaseTimes, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._transport = transport
        self._name = lease
        self._times = times
        self._holder: str | None = None  # of the lease as last seen, None before the first look
        self._last_error = ""

    async def run(self) -> None:
        while True:
            await self.attempt()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pause_s()):
                    await self._answer()

    async def attempt(self) -> None:
        """Try once to acquire or renew; what comes of it is in the term and in `standing`."""
        await self._try(self._renew)

    async def _answer(self) -> None:
        """Confirm the term for those who wait, until cancelled."""
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
        except Exception:  # whatever the lease looks like, it is looked at again
            logger.exception("lease %s could not be read", self._name)
            self._last_error = "see the log"

    async def resign(self) -> None:
        """Nothing to give."""

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
        """Find out whether the term goes on."""
        await self._renew()

    def pause_s(self) -> float:
        """Until the next attempt."""
        return self._times.retry_s

    async def _read(self) -> Lease | None:
        try:
            return _decoder.decode(await self._transport.get(self._name.path))
        except ApiError as error:
            if error.status == 404:
                return None
            raise


class HeldLease(Watched):
    """A lease of Kerf's own: acquired, renewed, and released at a stop in order."""

    def __init__(
        self, transport: Transport, lease: LeaseName, identity: str, times: LeaseTimes, clock: Callable[[], float]
    ) -> None:
        super().__init__(transport, lease, times, clock)
        self._identity = identity
        self._lease: Lease | None = None
        self._seen_at = _NEVER  # when the lease was first seen as it is

    async def resign(self) -> None:
        """Release the lease. Whatever was decided has to be written, or given up, before."""
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
        return max(0.01, min(retry_s * random.uniform(0.8, 1.2), self._others_until() - self._clock()))

    def _others_until(self) -> float:
        """Until when the lease is to be left to its holder; inf when there is nobody to wait for."""
        if self._lease is None or not self._lease.spec.holder_identity:
            return float("inf")
        duration_s = self._lease.spec.lease_duration_seconds or self._times.duration_s
        return self._seen_at + duration_s

    async def _renew(self) -> None:
        if self.term and self._lease is not None:
            try:
                await self._acquire(self._lease)  # as it was written last: one call, as long as nobody interferes
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
        if holder not in ("", self._identity) and self._clock() < self._others_until():
            self._lose(holder)
            return
        await self._acquire(lease)

    async def _look(self) -> None:
        if not self.term or self._lease is None:
            return  # the next attempt tells
        number, lease = self._ask(), await self._read()
        if lease is not None and self._held_as(lease) == self._held_as(self._lease):
            self._confirm(number)
        else:
            await self._renew()

    def _held_as(self, lease: Lease) -> tuple[str, str | None]:
        """Whose turn it is. A lease deleted and made again counts its transitions from 0."""
        return f"{lease.metadata.uid[:8]}-{lease.spec.lease_transitions or 0}", lease.spec.holder_identity

    async def _acquire(self, lease: Lease) -> None:
        now, mine = _now(), lease.spec.holder_identity == self._identity
        sent = self._clock()
        # Whoever had it has not renewed it since it was first seen as it is: this write would fail otherwise.
        since = sent if mine else self._seen_at
        transitions = (lease.spec.lease_transitions or 0) + (not mine)
        acquired_at = lease.spec.acquire_time if mine else now
        number = self._ask()
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._times.duration_s,
            acquire_time=acquired_at,
            renew_time=now,
            lease_transitions=transitions,
        )
        self._hold(_decoder.decode(await self._patch(spec, lease.metadata.resource_version)), sent, number, since)

    async def _create(self) -> None:
        now, sent, number = _now(), self._clock(), self._ask()
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
    """The wall clock, for people who read the lease."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FollowedLease(Watched):
    """The lease of a kube-scheduler: a process leads exactly when the scheduler beside it does."""

    def __init__(
        self, transport: Transport, lease: LeaseName, scheduler: str, times: LeaseTimes, clock: Callable[[], float]
    ) -> None:
        super().__init__(transport, lease, times, clock)
        self._scheduler = scheduler
        self._seen_version: str | None = None
        self._looked_at: float | None = None  # when the last look was asked for
        self._changed_at = _NEVER  # when it was first seen as others had it last

    async def _renew(self) -> None:
        asked, number = self._clock(), self._ask()
        lease = await self._read()
        spec = LeaseSpec() if lease is None else lease.spec
        version = "" if lease is None else lease.metadata.resource_version
        self._holder = spec.holder_identity or ""
        held = f"{self._holder}-{spec.lease_transitions or 0}"
        if self._holder != self._scheduler and not self._holder.startswith(f"{self._scheduler}_"):
            self._end()
            if version != self._seen_version:
                self._changed_at = self._clock()
        elif version != self._seen_version and self._looked_at is not None:
            # It was renewed after the look before this one: that is all that is known of when.
            duration_s = spec.lease_duration_seconds or 0
            until = self._looked_at + duration_s
            self._prolong(held, until, since=self._since(duration_s), proven=self._looked_at)
        if self.term and held == self._held:
            self._confirm(number)
        self._seen_version, self._looked_at = version, asked

    def _since(self, duration_s: float) -> float:
        """From when on whoever led before claims no time: from its last renewal where the lease has expired since, and
        where it was released, which may have been after another renewal, from now."""
        now = self._clock()
        return self._changed_at if self._changed_at <= now - duration_s else now
