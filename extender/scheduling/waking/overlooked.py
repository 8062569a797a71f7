"""Pods that kube-scheduler has to try and does not.

A pod without a node that nobody has refused is in kube-scheduler's queue, and is tried again seconds after an error.
One that was deleted and created again under its name while kube-scheduler heard nothing may be in none of its queues
(1.37: its predecessor takes its place there, and leaves none behind): it is tried when it changes, and not before. So a
pod that neither changes nor is asked about is woken as well.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking.unbound_pods import UnboundPod

_FIRST_WAIT_S: Final = 45.0
"""More than kube-scheduler waits after an error, which is 10 s unless it is told otherwise."""
_MAX_AT_ONCE: Final = 20


@dataclass(slots=True)
class _Owed:
    """A pod that is to be tried."""

    version: str
    since: float
    """Monotonic time from which it has not changed, or was woken."""
    num_wakes: int = 0


class Overlooked:
    """Which pods are overlooked, as far as one can tell from outside."""

    def __init__(self, pods: Callable[[], Iterable[UnboundPod]]) -> None:
        """`pods` gives all pods without a node."""
        self._pods = pods
        self._owed: dict[str, _Owed] = {}

    def due(self, now: float, asked: Callable[[str], bool]) -> list[tuple[PodIdentity, int]]:
        """Pods to wake now, each with how often that makes it; `asked` tells by UID of those that Kerf was asked about.

        The waits double. Namespaces take turns, so that nobody's pods keep others' from being woken.
        """
        before, self._owed = self._owed, {}
        due: dict[str, list[tuple[float, UnboundPod]]] = {}
        for pod in self._pods():
            if not pod.owed or asked(pod.uid):
                continue
            owed = before.get(pod.uid)
            if owed is None or (owed.version != pod.version and not owed.num_wakes):  # a wake changes it, too
                owed = _Owed(pod.version, now)
            self._owed[pod.uid] = owed
            if now >= owed.since + _FIRST_WAIT_S * 2.0 ** min(owed.num_wakes, 16):
                due.setdefault(pod.namespace, []).append((owed.since, pod))
        in_turn = chain.from_iterable(zip_longest(*(sorted(found, key=lambda one: one[0]) for found in due.values())))
        first = [one[1] for one in in_turn if one is not None][:_MAX_AT_ONCE]
        return [(PodIdentity(pod.namespace, pod.name, pod.uid), self._woken(pod.uid, now)) for pod in first]

    def _woken(self, uid: str, now: float) -> int:
        owed = self._owed[uid]
        owed.since, owed.num_wakes = now, owed.num_wakes + 1
        return owed.num_wakes
