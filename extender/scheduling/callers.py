"""Whether kube-scheduler asks Kerf, and which pods wait for a scheduler that does not.

A kube-scheduler that lost its entries for Kerf (an upgrade has written its manifest anew) or does not run says nothing
of it to Kerf. Two things tell all the same. A pod with Kerf's marker is refused for want of the marker, which a
kube-scheduler with the entries ignores; and pods that nobody says anything of for minutes, while nobody asks about any
pod, wait for somebody who does not work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extender.core.annotations import MARKER
from extender.scheduling.fence import Fence
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods

_AFTER_S: Final = 300.0
"""kube-scheduler asks again about every pod that it has refused within five minutes, and about a new one at once."""
_UNCALLED: Final = f"Insufficient {MARKER}"
_COUNTED_FOR_S: Final = 1.0


@dataclass(eq=False)
class Callers:
    """When kube-scheduler has asked last, by monotonic time."""

    clock: Callable[[], float]
    managed_at: float = field(default=float("-inf"), init=False)
    """By the entry for pods that ask for GPUs."""
    others_at: float = field(default=float("-inf"), init=False)
    """By the entry for all other pods."""

    def asked(self, *, others: bool) -> None:
        """A call has come."""
        if others:
            self.others_at = self.clock()
        else:
            self.managed_at = self.clock()


@dataclass(eq=False)
class Unasked:
    """Pods that wait for a scheduler which does not ask Kerf about them; nothing is said by who does not lead."""

    callers: Callers
    unbound: UnboundPods
    fence: Fence
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    extender: bool
    """Whether kube-scheduler is to call Kerf at all."""
    _led_since: float | None = field(default=None, init=False)
    _counted: tuple[float, int] | tuple[()] = field(default=(), init=False)
    """When pods were counted last, and how many there were: probes ask often."""

    def why(self, pod: UnboundPod) -> str:
        """What is wrong with the scheduler of a pod, "" for nothing that could be told."""
        silent_s = self._silent_s(max(self.callers.managed_at, self.callers.others_at))
        if silent_s is None:
            return ""
        if self._is_uncalled(pod):
            return f"its scheduler{_named(pod)} does not call Kerf: it counts {MARKER} itself"
        waited_s = self.wall_clock() - pod.owed_since
        if silent_s < _AFTER_S or not self._is_late(pod, waited_s):
            return ""
        if not self.extender:
            return f"its scheduler{_named(pod)} has said nothing of it for {waited_s / 60:.0f} min"
        return f"kube-scheduler has not asked Kerf about any pod for {silent_s / 60:.0f} min"

    def num_pods(self) -> int:
        """How many there are, once nobody has asked about any pod of their kind for a while."""
        silent_s = self._silent_s(self.callers.managed_at)
        if silent_s is None or silent_s < _AFTER_S:
            return 0
        now, at = self.clock(), self.wall_clock()
        if not self._counted or now >= self._counted[0] + _COUNTED_FOR_S:
            nobody = (self._silent_s(self.callers.others_at) or 0.0) >= _AFTER_S
            pods = (pod for pod in self.unbound.all() if not pod.gated)
            late = sum(self._is_uncalled(pod) or (nobody and self._is_late(pod, at - pod.owed_since)) for pod in pods)
            self._counted = now, late
        return self._counted[1]

    def fault(self) -> str:
        """A sentence about it for whoever looks after Kerf, "" where all is well."""
        count = self.num_pods()
        if not count:
            return ""
        pods = f"{count} pods that ask for GPUs wait for it" if count > 1 else "a pod that asks for GPUs waits for it"
        if not self.extender:
            return f"has said nothing for {_AFTER_S / 60:.0f} min or more, and {pods} (kerf pending)"
        silent_s = self._silent_s(self.callers.managed_at) or 0.0
        return f"has not asked Kerf about a pod with GPUs for {silent_s / 60:.0f} min, and {pods} (kerf install check)"

    def _is_uncalled(self, pod: UnboundPod) -> bool:
        return self.extender and pod.refused and _UNCALLED in pod.why

    @staticmethod
    def _is_late(pod: UnboundPod, waited_s: float) -> bool:
        return pod.owed and not pod.gated and waited_s >= _AFTER_S

    def _silent_s(self, asked_at: float) -> float | None:
        """Seconds since that call, or since this process was first seen to lead; None where it does not."""
        if self.fence.standby():
            self._led_since, self._counted = None, ()
            return None
        now = self.clock()
        if self._led_since is None:
            self._led_since = now
        return now - max(asked_at, self._led_since)


def _named(pod: UnboundPod) -> str:
    return f" {pod.scheduler}" if pod.scheduler else ""
