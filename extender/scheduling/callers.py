"""Detects a kube-scheduler that does not call Kerf, and the pods that wait because of that.

It may have lost its entries for Kerf (an upgrade has rewritten its manifest), or not run at all. Two signs show that. A
pod with Kerf's marker is rejected for lack of the marker resource, which a kube-scheduler with the entries ignores. Or
pods get no status for minutes while Kerf gets no call about any pod.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extender.core.annotations import MARKER
from extender.scheduling.fence import Fence
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods

_AFTER_S: Final = 300.0
"""kube-scheduler retries every rejected pod within five minutes, and tries a new one at once."""
_UNCALLED: Final = f"Insufficient {MARKER}"
_COUNTED_FOR_S: Final = 1.0


@dataclass(eq=False)
class Callers:
    """Monotonic times of kube-scheduler's last calls."""

    clock: Callable[[], float]
    managed_at: float = field(default=float("-inf"), init=False)
    """Last call by the extender entry for pods that request GPUs."""
    others_at: float = field(default=float("-inf"), init=False)
    """Last call by the entry for all other pods."""

    def note_call(self, *, others: bool) -> None:
        """Note a call."""
        if others:
            self.others_at = self.clock()
        else:
            self.managed_at = self.clock()


@dataclass(eq=False)
class UncalledPods:
    """Pods that wait for a scheduler which does not call Kerf. Reported only while this process leads."""

    callers: Callers
    unbound: UnboundPods
    fence: Fence
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    extender: bool
    """Whether kube-scheduler should call Kerf at all."""
    _led_since: float | None = field(default=None, init=False)
    _counted: tuple[float, int] | tuple[()] = field(default=(), init=False)
    """Time and result of the last count, cached because probes come often."""

    def why(self, pod: UnboundPod) -> str:
        """Return what is wrong with a pod's scheduler, "" for nothing known."""
        silent_s = self._silent_s(max(self.callers.managed_at, self.callers.others_at))
        if silent_s is None:
            return ""
        if self._is_uncalled(pod):
            return f"its scheduler{_named(pod)} does not call Kerf: it counts {MARKER} itself"
        waited_s = self.wall_clock() - pod.owed_since
        if silent_s < _AFTER_S or not self._is_late(pod, waited_s):
            return ""
        if not self.extender:
            return f"its scheduler{_named(pod)} has not reported on it for {waited_s / 60:.0f} min"
        return f"kube-scheduler has not asked Kerf about any pod for {silent_s / 60:.0f} min"

    def num_pods(self) -> int:
        """Return the number of such pods, 0 while calls about managed pods come."""
        silent_s = self._silent_s(self.callers.managed_at)
        if silent_s is None or silent_s < _AFTER_S:
            return 0
        now, at = self.clock(), self.wall_clock()
        if not self._counted or now >= self._counted[0] + _COUNTED_FOR_S:
            silent = (self._silent_s(self.callers.others_at) or 0.0) >= _AFTER_S
            pods = (pod for pod in self.unbound.all() if not pod.gated)
            late = sum(self._is_uncalled(pod) or (silent and self._is_late(pod, at - pod.owed_since)) for pod in pods)
            self._counted = now, late
        return self._counted[1]

    def fault(self) -> str:
        """Return a sentence about it for Kerf's operator, "" when all is well."""
        count = self.num_pods()
        if not count:
            return ""
        pods = f"{count} pods that ask for GPUs wait for it" if count > 1 else "a pod that asks for GPUs waits for it"
        if not self.extender:
            return f"has reported nothing for {_AFTER_S / 60:.0f} min or more, and {pods} (kerf pending)"
        silent_s = self._silent_s(self.callers.managed_at) or 0.0
        return f"has not asked Kerf about a pod with GPUs for {silent_s / 60:.0f} min, and {pods} (kerf install check)"

    def _is_uncalled(self, pod: UnboundPod) -> bool:
        return self.extender and pod.refused and _UNCALLED in pod.why

    @staticmethod
    def _is_late(pod: UnboundPod, waited_s: float) -> bool:
        return pod.owed and not pod.gated and waited_s >= _AFTER_S

    def _silent_s(self, asked_at: float) -> float | None:
        """Return the seconds since that call, or since this process was first seen to lead; None on a standby."""
        if self.fence.standby():
            self._led_since, self._counted = None, ()
            return None
        now = self.clock()
        if self._led_since is None:
            self._led_since = now
        return now - max(asked_at, self._led_since)


def _named(pod: UnboundPod) -> str:
    return f" {pod.scheduler}" if pod.scheduler else ""
