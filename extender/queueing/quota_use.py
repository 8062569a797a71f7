"""How many GPUs each namespace uses: those of pods that run, of pods on their way, and of those past the queue."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.ledger import Ledger
from extender.planning.quotas import Quotas
from extender.queueing.pods.backlog import Backlog
from extender.queueing.running_pods import RunningPods
from extender.scheduling.placer import PodIdentity


@dataclass(eq=False)
class QuotaUse:
    """What quotas are held against."""

    quotas: Quotas
    ledger: Ledger
    backlog: Backlog
    running: RunningPods
    clock: Callable[[], float]
    _granted: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)
    """Namespace and GPUs of pods past the queue that quotas had room for, until the watch tells of them."""

    def by_namespace(self) -> dict[str, float]:
        """GPUs in use, those of pods on their way included."""
        used = defaultdict(float, self.running.gpus)
        for namespace, devices in self.ledger.num_claimed().items():
            used[namespace] += devices
        for entry in self.backlog.on_their_way(self.clock()):
            used[entry.namespace] += self._held(entry.uid, entry.num_gpus)
        for uid, (namespace, gpus) in list(self._granted.items()):
            if uid in self.running.by_uid or self.ledger.claim(uid) is None:
                del self._granted[uid]  # counted there, or has not got them
            else:
                used[namespace] += self._held(uid, gpus)
        return used

    def refusal(self, pod: PodIdentity, request: GpuRequest, *, known: bool) -> str:
        """Why a pod that the queue has not let go may not have its GPUs, "" when it may: to opt out of the queue is not
        to opt out of its quotas. One text, whatever is in use; `known` says whether that is known yet."""
        limit = self.quotas.limit(pod.namespace)
        entry = self.backlog.entries.get(pod.uid)
        # What a pod asks by ResourceClaims the queue has not looked at as it let it go.
        if limit == float("inf") or (entry is not None and entry.by_kerf and request.unit is not AskedUnit.CLAIM):
            return ""
        if not known:
            return f"quota of namespace {pod.namespace}: its usage is not known yet"
        self._granted.pop(pod.uid, None)
        asked = float(max(request.count, 1))
        if self.quotas.excess(pod.namespace, self.by_namespace().get(pod.namespace, 0.0), asked):
            return f"quota of namespace {pod.namespace}: {limit:g} GPUs"
        self._granted[pod.uid] = pod.namespace, asked
        return ""

    def _held(self, uid: str, asked: float) -> float:
        """GPUs of a pod on its way: one that asks for memory in total may hold more than it names."""
        claim = self.ledger.claim(uid)
        return max(asked, float(claim.holding.units)) if claim is not None else asked
