"""A Lease on the API server by which one of several processes leads: held, or followed.

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
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.leadership.terms import NEVER, Terms

logger = logging.getLogger(__name__)

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
        self._seen_at = NEVER  # when the lease was first seen as it is

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
