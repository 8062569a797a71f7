"""Lost answers: filter returned one node, and kube-scheduler asks about the pod again although it was not bound.

A later extender or a Reserve plugin has rejected that node and will again; nothing reports why to Kerf. After two lost
answers filter offers another node, as long as one fits. One lost answer is no evidence: kube-scheduler may have
restarted, or a write was lost. A call of /bind shows that the node was not rejected, whatever the Binding's outcome.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import structs

from extender.core.resources.requests import GpuRequest
from extender.scheduling.assignments import PodIdentity
from extender.scheduling.fair_cache import FairCache

logger = logging.getLogger(__name__)

_LOST: Final = 2
"""Lost answers after which a node is avoided."""
_FIRST_S: Final = 60.0
_MAX_S: Final = 900.0
_MAX_NODES: Final = 16
"""Nodes remembered for each pod, the latest ones."""
_MAX_PODS: Final = 10_000
_OVERDUE_S: Final = 5.0
"""Time after which a pod that was given a node and rejected is woken: kube-scheduler may wait minutes for an event."""
_MAX_WAKES: Final = 4
"""Wakes for one answer, each after twice the time."""
_MAX_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True)
class _Node:
    """A node whose answers were lost."""

    num_lost: int = 0
    until: float = 0.0
    """Monotonic time until which it is avoided."""


class _Pod(msgspec.Struct, frozen=True):
    """The answers about a pod."""

    pod: PodIdentity
    request: GpuRequest
    answered: str = ""
    """The node that filter returned last, "" once that answer is known to be lost."""
    since: float = 0.0
    num_wakes: int = 0
    nodes: dict[str, _Node] = msgspec.field(default_factory=dict)


class LostAnswers:
    """The lost answers about pods."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: FairCache[_Pod] = FairCache(_MAX_PODS)

    def asked(self, pod: PodIdentity, request: GpuRequest) -> frozenset[str]:
        """Note that kube-scheduler asks about a pod; return the nodes to avoid. A changed request starts over."""
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
        if until and all(node.num_lost < _LOST for node in known.nodes.values()):  # logged once for each pod
            logger.warning(
                "pod %s/%s was given node %s %d times and not bound there: something behind Kerf rejects it (an "
                "extender that comes later, a plugin), so another node is offered if there is one",
                pod.namespace, pod.name, known.answered, num_lost,
            )  # fmt: skip
        others = [(name, node) for name, node in known.nodes.items() if name != known.answered]
        nodes = dict([*others[1 - _MAX_NODES :], (known.answered, _Node(num_lost, until))])
        updated = structs.replace(known, answered="", nodes=nodes)
        self._pods.put(pod.namespace, pod.uid, updated, now)
        return updated

    def answered(self, pod: PodIdentity, request: GpuRequest, node: str) -> None:
        """Note that filter returned this node alone."""
        known = self._pods.get(pod.uid) or _Pod(pod, request)
        if pod.uid and not pod.gang:  # a gang's pods are asked about several times, even within one cycle
            now = self._clock()
            self._pods.put(pod.namespace, pod.uid, structs.replace(known, answered=node, since=now, num_wakes=0), now)

    def overdue(self, refused: Callable[[str], bool]) -> list[PodIdentity]:
        """Return up to `_MAX_AT_ONCE` pods that were given a node a while ago and neither bound nor asked about since.

        Only pods whose UID kube-scheduler has `refused`: it retries all others by itself.
        """
        now, due = self._clock(), list[_Pod]()
        for known in self._pods.values():
            late = known.answered and now >= known.since + _OVERDUE_S * 2**known.num_wakes
            if late and known.num_wakes < _MAX_WAKES and refused(known.pod.uid):
                due.append(known)
            if len(due) == _MAX_AT_ONCE:
                break
        for known in due:
            woken = structs.replace(known, since=now, num_wakes=known.num_wakes + 1)
            self._pods.put(known.pod.namespace, known.pod.uid, woken, now)
        return [known.pod for known in due]

    def forget(self, uid: str) -> None:
        """Forget a pod for which /bind was called, or that is bound or gone."""
        self._pods.pop(uid)

    def forget_old(self, before: float) -> None:
        """Forget pods without news since a monotonic time."""
        self._pods.expire(before)
