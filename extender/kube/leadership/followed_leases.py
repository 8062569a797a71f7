"""The Lease of a kube-scheduler, followed by the process beside it: `leases` has one of Kerf's own."""

from collections.abc import Callable

from extender.kube.client import Transport
from extender.kube.leadership.leases import LeaseName, LeaseSpec, LeaseTimes, Watched
from extender.kube.leadership.terms import NEVER


class FollowedLease(Watched):
    """The lease of a kube-scheduler: a process leads exactly when the scheduler beside it does."""

    def __init__(
        self, transport: Transport, lease: LeaseName, scheduler: str, times: LeaseTimes, clock: Callable[[], float]
    ) -> None:
        super().__init__(transport, lease, times, clock)
        self._scheduler = scheduler
        self._seen_version: str | None = None
        self._looked_at: float | None = None  # when the last look was asked for
        self._changed_at = NEVER  # when it was first seen as others had it last

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
