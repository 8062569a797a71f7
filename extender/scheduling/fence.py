"""The fence between a leader and its successor.

Checking a deadline before a write is no fence: the process, with its clock, may be paused between the two for longer
than its term. Instead, every Binding of a GPU pod carries the pod's resourceVersion. It is sent only after a lease
request, sent once that version was known, has shown that no other process led. A successor changes every pod that may
be bound before it decides anything, and it takes over after that request, so the API server refuses a late Binding
(409). No clock is involved. A pod changed for another reason is read again, confirmed again and bound.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from extender.kube import objects
from extender.kube.commit import FencedError, Term
from extender.kube.leadership import Election, LeadTime, Unelected

_MAX_KEPT: Final = 20_000


class Fence:
    """Says whether this process may decide and bind now. Shut until opened."""

    def __init__(self, clock: Callable[[], float], election: Election | None = None) -> None:
        self._clock = clock
        self._election = election or Unelected()
        self._epoch = ""
        self._deadline: Callable[[], float] = lambda: float("-inf")
        self._standing: Callable[[], str] = lambda: "not started"
        self._taking_over = ""
        # By UID: the resourceVersion, and the number of lease requests sent by the time it was known.
        self._versions: OrderedDict[str, tuple[str, int]] = OrderedDict()

    # Opening and shutting

    def shut(self, standing: Callable[[], str]) -> None:
        """Shut the fence while this process does not lead; `standing` returns which one does."""
        self._epoch, self._taking_over = "", ""
        self._deadline, self._standing = lambda: float("-inf"), standing

    def take_over(self, progress: str, deadline: Callable[[], float], standing: Callable[[], str]) -> None:
        """Mark this process as the leader that must finish `progress` before it may decide."""
        self._epoch, self._taking_over = "", progress
        self._deadline, self._standing = deadline, standing

    def open(self, epoch: str) -> None:
        """Allow deciding and binding under this epoch until the deadline: the take-over is complete."""
        self._epoch, self._taking_over = epoch, ""

    # Checks

    def standby(self) -> str:
        """Return why this process does not lead, "" while it leads."""
        return "" if self._clock() < self._deadline() else f"standby: {self._standing()}"

    def fault(self) -> str:
        """Return why no GPUs may be allocated now, "" when they may."""
        return self.standby() or self._taking_over

    def led(self) -> LeadTime:
        """Return how long this process has certainly led."""
        return self._election.led()

    def enter(self) -> str:
        """Return the epoch for a new Binding. Raises FencedError."""
        fault = self.fault()
        if fault:
            raise FencedError(fault)
        return self._epoch

    def check(self, epoch: str) -> None:
        """Check the term right before a write, after all its inputs were read. Raises FencedError."""
        fault = self.fault()
        if fault or epoch != self._epoch:
            raise FencedError(fault or "the leader's term in which it was decided has ended")

    async def confirm(self, uid: str, version: str) -> None:
        """Wait until it is certain that no other process led when this pod version was noted. Raises FencedError."""
        known, since = self._versions.get(uid, ("", 0))
        await self.confirm_since(since if known == version else self._election.num_asked)

    async def confirm_now(self) -> None:
        """Wait until it is certain that no other process led at this call. Raises FencedError."""
        await self.confirm_since(self._election.num_asked)

    def as_of_now(self) -> Term:
        """Return the term in which decisions based on the current state may be written."""
        return _TermAsOf(self, self._epoch, self._election.num_asked)

    async def confirm_since(self, since: int) -> None:
        """Wait until it is certain that no other process led after `since` lease requests. Raises FencedError."""
        if not await self._election.confirm(since):
            raise FencedError(self.standby() or "this process can't be sure that it still leads")

    # Pod versions

    def note(self, pod: objects.Metadata) -> None:
        """Note the version of a pod that kube-scheduler or the API server has just sent, for a Binding to carry."""
        if not (pod.uid and pod.resource_version):
            self.forget(pod.uid)
        elif self.version_of(pod.uid) != pod.resource_version:
            self._versions[pod.uid] = pod.resource_version, self._election.num_asked
            self._election.request_confirmation()
            if len(self._versions) > _MAX_KEPT:
                self._versions.popitem(last=False)

    def version_of(self, uid: str) -> str:
        """Return the resourceVersion last noted for a pod, "" for none."""
        return self._versions.get(uid, ("", 0))[0]

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._versions.pop(uid, None)


class _TermAsOf:
    """The term of decisions made at one time, for writes to any number of objects."""

    def __init__(self, fence: Fence, epoch: str, num_asked: int) -> None:
        self._fence, self._epoch, self._num_asked = fence, epoch, num_asked

    async def confirm(self, uid: str, version: str) -> None:
        await self._fence.confirm_since(self._num_asked)

    async def confirm_now(self) -> None:
        await self._fence.confirm_now()

    def check(self, epoch: str) -> None:
        self._fence.check(self._epoch)

    def standby(self) -> str:
        return self._fence.standby()
