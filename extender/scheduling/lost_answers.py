"""Answers that came to nothing: a node that was the whole answer of filter, and the pod is asked about again unbound.

Something behind Kerf has rejected it: an extender that comes later, a plugin that reserves. It will again, and nobody
tells Kerf why; so after two such answers another node is offered, as long as one fits. Asking again has honest reasons
too (kube-scheduler begins anew, a write was lost), so one is none; and a Binding that was asked for was no rejection,
whatever became of it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from extender.core.resources.requests import GpuRequest
from extender.scheduling.assignments import PodIdentity
from extender.scheduling.fair_cache import FairCache

logger = logging.getLogger(__name__)

_LOST: Final = 2
"""Answers that are lost before a node is passed over."""
_FIRST_S: Final = 60.0
_MAX_S: Final = 900.0
_MAX_NODES: Final = 16
"""That are remembered of a pod: those lost last."""
_MAX_PODS: Final = 10_000
_OVERDUE_S: Final = 5.0
"""After which a pod is woken that was given a node and refused: kube-scheduler may wait for minutes for an event."""
_MAX_WAKES: Final = 4
"""For one answer, each after twice the time."""
_MAX_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that was answered in vain."""

    num_lost: int = 0
    until: float = 0.0
    """When it is offered again."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """What was answered about a pod."""

    pod: PodIdentity
    request: GpuRequest
    answered: str = ""
    """The node that filter has answered last; "" once it is known what became of that."""
    since: float = 0.0
    num_wakes: int = 0
    nodes: dict[str, _Node] = field(default_factory=dict)


class LostAnswers:
    """Remembers them, of pods that are asked about."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: FairCache[_Pod] = FairCache(_MAX_PODS)

    def asked(self, pod: PodIdentity, request: GpuRequest) -> frozenset[str]:
        """A pod is asked about: nodes that it is better not offered again now. Of another request nothing is known."""
        known = self._pods.get(pod.uid)
        if known is None:
            return frozenset()
        if known.request != request:
            self.forget(pod.uid)
            return frozenset()
        now = self._clock()
        if known.answered:
            known = self._lose(pod, known, now)
        return frozenset(name for name, node in known.nodes.items() if now < node.until)

    def _lose(self, pod: PodIdentity, known: _Pod, now: float) -> _Pod:
        before = known.nodes.get(known.answered, _Node())
        num_lost, until = before.num_lost + 1, 0.0
        if num_lost >= _LOST:
            until = now + min(_FIRST_S * 2.0 ** (num_lost - _LOST), _MAX_S)
        if until and all(node.num_lost < _LOST for node in known.nodes.values()):  # said once of a pod
            logger.warning(
                "pod %s/%s was given node %s %d times and not bound there: something behind Kerf rejects it (an "
                "extender that comes later, a plugin), so another node is offered if there is one",
                pod.namespace, pod.name, known.answered, num_lost,
            )  # fmt: skip
        others = [(name, node) for name, node in known.nodes.items() if name != known.answered]
        nodes = dict([*others[1 - _MAX_NODES :], (known.answered, _Node(num_lost, until))])
        found = replace(known, answered="", nodes=nodes)
        self._pods.put(pod.namespace, pod.uid, found, now)
        return found

    def answered(self, pod: PodIdentity, request: GpuRequest, node: str) -> None:
        """A node is all that was answered."""
        known = self._pods.get(pod.uid) or _Pod(pod, request)
        if pod.uid and not pod.gang:  # a gang is asked about again and again, in one cycle even
            now = self._clock()
            self._pods.put(pod.namespace, pod.uid, replace(known, answered=node, since=now, num_wakes=0), now)

    def overdue(self, refused: Callable[[str], bool]) -> list[PodIdentity]:
        """Some pods that were given a node a while ago and are neither bound nor asked about since, of those that
        kube-scheduler has `refused`, by UID: it asks about all others by itself."""
        now, due = self._clock(), list[_Pod]()
        for known in self._pods.values():
            late = known.answered and now >= known.since + _OVERDUE_S * 2**known.num_wakes
            if late and known.num_wakes < _MAX_WAKES and refused(known.pod.uid):
                due.append(known)
            if len(due) == _MAX_AT_ONCE:
                break
        for known in due:
            woken = replace(known, since=now, num_wakes=known.num_wakes + 1)
            self._pods.put(known.pod.namespace, known.pod.uid, woken, now)
        return [known.pod for known in due]

    def accepted(self, uid: str) -> None:
        """The pod's Binding is asked for: nobody has rejected its node."""
        self.forget(uid)

    def forget(self, uid: str) -> None:
        """A pod is bound, or gone."""
        self._pods.pop(uid)

    def forget_old(self, before: float) -> None:
        """Forget what nothing was heard of since."""
        self._pods.expire(before)
