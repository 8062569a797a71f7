"""The fence between a leader and its successor.

A deadline that is checked before a write is no fence: the process may be paused between the two, for longer than its
term. So every Binding of a GPU pod carries the resourceVersion of the pod as it was known *before* the last check, and
a successor changes every pod that may be bound, before it decides anything. The API server then refuses the late
Binding: 409. A pod that was changed for another reason is read again, checked again and bound.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from extender.cluster import objects

_MAX_KEPT: Final = 20_000


class FencedError(Exception):
    """This process may not write any more; says why."""


class Fence:
    """Whether this process may decide and bind now. Shut until opened; never waits."""

    def __init__(self, clock: Callable[[], float], epoch_key: str = "") -> None:
        """`epoch_key` is the annotation by which leaders of one election mark pods, "" where there is no election."""
        self._clock = clock
        self._epoch_key = epoch_key
        self._epoch = ""
        self._deadline: Callable[[], float] = lambda: float("-inf")
        self._standing: Callable[[], str] = lambda: "not started"
        self._taking_over = ""
        self._versions: OrderedDict[str, str] = OrderedDict()

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
            raise FencedError(fault or "another process has led meanwhile")

    # Pods as they were known

    def note(self, pod: objects.Metadata) -> None:
        """A pod as kube-scheduler, or the API server, has just shown it."""
        if pod.uid and pod.resource_version and self.admits(pod):
            self._versions[pod.uid] = pod.resource_version
            if len(self._versions) > _MAX_KEPT:
                self._versions.popitem(last=False)
        else:
            self.forget(pod.uid)

    def admits(self, pod: objects.Metadata) -> bool:
        """Whether a pod is not marked by another leader of the same election."""
        return not self._epoch_key or (pod.annotations or {}).get(self._epoch_key, self._epoch) == self._epoch

    def version_of(self, uid: str) -> str:
        """The resourceVersion of a pod as it was last noted, "" when it was not."""
        return self._versions.get(uid, "")

    def forget(self, uid: str) -> None:
        """A pod is bound, or gone."""
        self._versions.pop(uid, None)
