"""Skips: leaving pods pending for now although they fit.

Each pod is skipped for a bounded number of times and a bounded time since the first skip, whichever ends first. Then it
is placed wherever it fits, so that no pod starves. A restart resets the counts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest, PodRequest, RequestError
from extender.core.selective_skip import is_larger, leaves_room
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules

SKIPPED: Final = "kerf.dev/skipped"
"""Why a pod is left pending for now."""
SKIPPED_COUNT: Final = "kerf.dev/skipped-count"
"""How often the pod was skipped."""
_REASON: Final = "skipped for now: a waiting pod would use the room better"
"""Constant over nodes and tries: a status patch with a new text would make kube-scheduler retry."""
_QUEUED_REASON: Final = "skipped for now: the room is kept for the first pod in the queue"

_MAX_REMEMBERED: Final = 20_000


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that fitted nowhere when kube-scheduler asked about it."""

    uid: str
    request: PodRequest


@dataclass(slots=True)
class _Skip:
    since: float
    """Monotonic time of the first skip."""
    count: int = 0
    reason: str = _REASON


@dataclass(eq=False)
class Skips:
    """Decides whether pods are skipped, within bounds; with a bound of 0 no pod is."""

    placer: Placer
    waiting: Callable[[], Sequence[WaitingPod]]
    """Returns the first few pods that wait for room, in their order."""
    clock: Callable[[], float]
    max_wait_s: float
    max_count: int
    queue: QueueRules
    """The queue, whose kept nodes have bounds of their own."""
    wastes_gpu: Callable[[GpuRequest], bool] = lambda request: False
    """Whether a request takes more of a GPU's value than its share of it (`extender.core.selective_skip`)."""
    _skipped: OrderedDict[str, _Skip] = field(default_factory=OrderedDict, init=False)
    num_skips: int = field(default=0, init=False)
    """Skips since the start."""

    @property
    def enabled(self) -> bool:
        """Whether pods may be skipped."""
        return self.max_wait_s > 0

    def kept_rows(self, pod: PodIdentity, request: PodRequest, gpus: GpuRequest, policy: Policy) -> frozenset[int]:
        """Return the rows of the nodes that a pod has to leave to waiting pods, none once its skips are used up.

        Waiting pods of no lower priority count: a larger one that fits a single node, and, if this pod wastes a GPU
        (`wastes_gpu`), each one that does not. Nodes that the queue keeps for its head from this pod always count.
        """
        names = self.queue.kept_from(pod.uid)
        row_of = self.placer.snapshot().row_of if names else {}
        kept = {row_of[name] for name in names if name in row_of}
        if not self._may_skip(pod.uid):
            return frozenset(kept)
        wasteful = self.wastes_gpu(gpus)
        for other in self.waiting():
            larger = other.request.gpus
            if larger is None or other.uid == pod.uid or other.request.priority < request.priority:
                continue
            yields = wasteful and not self.wastes_gpu(larger)
            if not yields and not is_larger(larger, gpus):
                continue
            try:
                its_policy = self.placer.policy_of(other.request)
            except RequestError:
                continue
            places = np.flatnonzero(self.placer.room(its_policy.weighed_request(other.request) or larger, its_policy))
            if yields:
                kept.update(places.tolist())
                continue
            if len(places) != 1:
                continue  # no node to lose, or another one left
            decision = self.placer.decide_at(gpus, policy, int(places[0]))
            if decision.best is not None and not leaves_room(self.placer.snapshot(), decision, larger):
                kept.add(decision.best)
        return frozenset(kept)

    def skip(self, uid: str) -> str:
        """Count a skip of a pod; return the reason."""
        known = self._skipped.setdefault(uid, _Skip(self.clock()))
        known.count += 1
        known.reason = _QUEUED_REASON if self.queue.kept_from(uid) else _REASON
        self.num_skips += 1
        if len(self._skipped) > _MAX_REMEMBERED:
            self._skipped.popitem(last=False)
        return known.reason

    def holds_back(self, pod: PodIdentity, request: PodRequest) -> bool:
        """Whether a skipped pod would be skipped again, so that waking it is useless."""
        if pod.uid not in self._skipped or request.gpus is None:
            return False
        policy = self.placer.policy_of(request)
        gpus = policy.weighed_request(request) or request.gpus
        kept = self.kept_rows(pod, request, gpus, policy)
        return bool(kept) and kept.issuperset(np.flatnonzero(self.placer.room(gpus, policy)).tolist())

    def was_skipped(self, uid: str) -> bool:
        """Whether a pod was skipped and has no node yet."""
        return uid in self._skipped

    def notes(self, uid: str) -> dict[str, str]:
        """Return the annotations about a pod's skips, none if it was never skipped."""
        known = self._skipped.get(uid)
        return {} if known is None else {SKIPPED: known.reason, SKIPPED_COUNT: str(known.count)}

    def placed(self, uid: str) -> None:
        """Forget a pod that has a node or is gone."""
        self._skipped.pop(uid, None)

    def _may_skip(self, uid: str) -> bool:
        if not self.enabled or not uid:
            return False
        known = self._skipped.get(uid)
        return known is None or (known.count < self.max_count and self.clock() - known.since < self.max_wait_s)
