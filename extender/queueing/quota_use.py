"""How many GPUs each namespace uses: those of pods that run, of pods let go, and of those past the queue.

By what is known, not by a clock: a pod that was let go counts until it runs, is gone, or that was taken back.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.ledger import Ledger
from extender.planning.quotas import Quotas
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.running_pods import RunningPods
from extender.scheduling.placer import PodIdentity


@dataclass(eq=False)
class QuotaUse:
    """What quotas are held against."""

    quotas: Quotas
    ledger: Ledger
    backlog: Backlog
    running: RunningPods
    _granted: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)
    """Namespace and GPUs of pods past the queue that quotas had room for, and of those that have left it, until the
    watch tells of them."""

    def by_namespace(self) -> dict[str, float]:
        """GPUs in use, those of pods let go included."""
        used = defaultdict(float, self.running.gpus)
        for namespace, devices in self.ledger.num_claimed().items():
            used[namespace] += devices
        for entry in self.backlog.out():
            used[entry.namespace] += self._held(entry.uid, entry.num_gpus)
        for uid, (namespace, gpus) in list(self._granted.items()):
            if uid in self.running or self.ledger.claim(uid) is None:
                del self._granted[uid]  # counted there, or has not got them
            else:
                used[namespace] += self._held(uid, gpus)
        return used

    def left(self, entry: Entry) -> None:
        """A pod has its node, or is gone: it counts as long as something is held for it, until it is told to run."""
        if self.quotas.limit(entry.namespace) < float("inf") and self.ledger.claim(entry.uid) is not None:
            self._granted[entry.uid] = entry.namespace, float(entry.num_gpus)

    def refusal(self, pod: PodIdentity, request: GpuRequest, *, known: bool) -> str:
        """Why a pod that the queue has not let go may not have its GPUs, "" when it may: to opt out of the queue is not
        to opt out of its quotas. One text, whatever is in use; `known` says whether that is known yet."""
        limit = self.quotas.limit(pod.namespace)
        entry = self.backlog.entries.get(pod.uid)
        counted = entry is not None and entry.by_kerf and entry.is_out
        # What a pod asks by ResourceClaims the queue has not looked at as it let it go.
        if limit == float("inf") or (counted and request.unit is not AskedUnit.CLAIM):
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
