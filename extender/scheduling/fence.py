"""The fence between a leader and its successor.

A deadline that is checked before a write is no fence: the process may be paused between the two, for longer than its
term, and its clock with it. So every Binding of a GPU pod carries the resourceVersion of the pod, is sent only after a
request to the lease, sent later than that version was known, has shown that nobody else led; and a successor, before it
decides anything, changes every pod that may be bound. Whoever succeeds does so after that request, hence changes that
version, and the API server refuses the late Binding: 409. No clock has a part in this. A pod that was changed for
another reason is read again, confirmed again and bound.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from extender.kube import objects
from extender.kube.commit import FencedError, Term
from extender.kube.leadership import Election, Led, Unelected

_MAX_KEPT: Final = 20_000


class Fence:
    """Whether this process may decide and bind now. Shut until opened; never waits."""

    def __init__(self, clock: Callable[[], float], election: Election | None = None) -> None:
        self._clock = clock
        self._election = election or Unelected()
        self._epoch = ""
        self._deadline: Callable[[], float] = lambda: float("-inf")
        self._standing: Callable[[], str] = lambda: "not started"
        self._taking_over = ""
        # By UID: the resourceVersion, and how many requests to the lease had been sent when it was known.
        self._versions: OrderedDict[str, tuple[str, int]] = OrderedDict()

    # Opening and shutting

    def shut(self, standing: Callable[[], str]) -> None:
        """Others lead, or nobody; `standing` tells who."""
        self._epoch, self._taking_over = "", ""
        self._deadline, self._standing = lambda: float("-inf"), standing

    def take_over(self, progress: str, deadline: Callable[[], float], standing: Callable[[], str]) -> None:
        """This process leads, but has to finish something before it may decide."""
        self._epoch, self._taking_over = "", progress
        self._deadline, self._standing = deadline, standing

    def open(self, epoch: str) -> None:
        """The take-over is complete: decide, and bind, under this epoch until the deadline."""
        self._epoch, self._taking_over = epoch, ""

    # What decides whether to go on

    def standby(self) -> str:
        """Why another process has to be asked, "" while this one leads."""
        return "" if self._clock() < self._deadline() else f"standby: {self._standing()}"

    def fault(self) -> str:
        """Why no GPUs may be given away now, "" when they may."""
        return self.standby() or self._taking_over

    def led(self) -> Led:
        """For how long this process has led for certain."""
        return self._election.led()

    def enter(self) -> str:
        """The epoch under which a binding begins. Raises FencedError."""
        fault = self.fault()
        if fault:
            raise FencedError(fault)
        return self._epoch

    def check(self, epoch: str) -> None:
        """To be called right before a write, after all that it rests on was read. Raises FencedError."""
        fault = self.fault()
        if fault or epoch != self._epoch:
            raise FencedError(fault or "the leader's term in which it was decided has ended")

    async def confirm(self, uid: str, version: str) -> None:
        """Wait until it is certain that nobody else led when this version of a pod was known. Raises FencedError."""
        known, since = self._versions.get(uid, ("", 0))
        await self.confirm_since(since if known == version else self._election.num_asked)

    async def confirm_now(self) -> None:
        """Wait until it is certain that nobody else led when this was called. Raises FencedError."""
        await self.confirm_since(self._election.num_asked)

    def as_of_now(self) -> Term:
        """The term as what is known now, and what comes of that, may be written in."""
        return _AsKnown(self, self._epoch, self._election.num_asked)

    async def confirm_since(self, since: int) -> None:
        """The same of a time before, when so many requests to the lease had been sent. Raises FencedError."""
        if not await self._election.confirm(since):
            raise FencedError(self.standby() or "this process can't be sure that it still leads")

    # Pods as they were known

    def note(self, pod: objects.Metadata) -> None:
        """A pod as kube-scheduler, or the API server, has just shown it: a Binding may follow."""
        if not (pod.uid and pod.resource_version):
            self.forget(pod.uid)
        elif self.version_of(pod.uid) != pod.resource_version:
            self._versions[pod.uid] = pod.resource_version, self._election.num_asked
            self._election.hurry()
            if len(self._versions) > _MAX_KEPT:
                self._versions.popitem(last=False)

    def version_of(self, uid: str) -> str:
        """The resourceVersion of a pod as it was last noted, "" when it was not."""
        return self._versions.get(uid, ("", 0))[0]

    def forget(self, uid: str) -> None:
        """A pod is bound, or gone."""
        self._versions.pop(uid, None)


class _AsKnown:
    """A term in which several objects, or one several times, are written on as they were known at one time."""

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
