"""Limits on namespaces: quotas of GPUs, and shares of the pods that may be released now (`queue.max_open`).

A namespace uses the GPUs of its running pods, of released pods, and of pods outside the queue. A released pod counts
until it runs, is gone, or its release was withdrawn; no timeout is involved.

Each namespace has a share of `queue.max_open`, so that pods that never get bound take no more than their namespace's
share. With more namespaces than places, namespaces take turns. Namespaces whose pods stay unbound divide one share
among all of them, as one author may own any number of namespaces.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube.turns import LastTurns
from extender.ledger.ledger import Ledger
from extender.planning.plans import Plan
from extender.planning.quotas import Quotas
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.running_pods import RunningPods
from extender.scheduling.placer import PodIdentity


@dataclass(eq=False)
class QuotaUse:
    """The use of GPUs that quotas are checked against."""

    quotas: Quotas
    ledger: Ledger
    backlog: Backlog
    running: RunningPods
    _granted: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)
    """By UID: namespace and GPUs of admitted pods outside the queue, and of those that have left it, until the watch
    reports them."""

    def by_namespace(self) -> dict[str, float]:
        """Return the GPUs in use by namespace, including those of released pods."""
        used = defaultdict(float, self.running.gpus)
        for namespace, devices in self.ledger.num_claim_devices().items():
            used[namespace] += devices
        for entry in self.backlog.out():
            used[entry.namespace] += self._held(entry.uid, entry.num_gpus)
        for uid, (namespace, gpus) in list(self._granted.items()):
            if uid in self.running or self.ledger.allocation(uid) is None:
                del self._granted[uid]  # counted as running, or has no GPUs
            else:
                used[namespace] += self._held(uid, gpus)
        return used

    def left(self, entry: Entry) -> None:
        """Count a pod that has left the queue, while it has an allocation, until the watch reports it as running."""
        if self.quotas.limit(entry.namespace) < float("inf") and self.ledger.allocation(entry.uid) is not None:
            self._granted[entry.uid] = entry.namespace, float(entry.num_gpus)

    def refusal(self, pod: PodIdentity, request: GpuRequest, *, known: bool) -> str:
        """Return why a pod not released by the queue exceeds its quota, "" if it doesn't; opting out is no exemption.

        The text does not depend on the use. `known`: whether the use is known yet.
        """
        limit = self.quotas.limit(pod.namespace)
        entry = self.backlog.entries.get(pod.uid)
        counted = entry is not None and entry.by_kerf and entry.is_out
        # A release did not check requests by ResourceClaim.
        if limit == float("inf") or (counted and request.unit is not AskedUnit.CLAIM):
            return ""
        if not known:
            return f"quota of namespace {pod.namespace}: its usage is not known yet"
        self._granted.pop(pod.uid, None)
        requested = float(max(request.count, 1))
        if self.quotas.excess(pod.namespace, self.by_namespace().get(pod.namespace, 0.0), requested):
            return f"quota of namespace {pod.namespace}: {limit:g} GPUs"
        self._granted[pod.uid] = pod.namespace, requested
        return ""

    def _held(self, uid: str, requested: float) -> float:
        """Return the GPUs of a released pod: a request for total memory may hold more than it names."""
        held = self.ledger.allocation(uid)
        return max(requested, float(held.holding.units)) if held is not None else requested


_PROMPT_S: Final = 2.0
"""kube-scheduler binds most pods well before this; later ones are many, or never bound."""
_UNBOUND_PART: Final = 4
"""Namespaces whose pods stay unbound get 1/4 of the places together, if others have pods too."""
_MAX_TURNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """Limits of a round."""

    most: int
    """Pods that may be released."""
    parts: dict[str, int]
    """Pods that may be released of each namespace that would exceed its share."""
    due: bool
    """Whether a round is worthwhile."""


@dataclass(eq=False)
class Shares:
    """Divides the places for released, unbound pods among namespaces."""

    max_open: int
    backlog: Backlog
    clock: Callable[[], float]
    _served: set[str] = field(default_factory=set, init=False)
    """Namespaces that have had a turn since all had one, while there are more namespaces than places."""
    _unbound_turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_TURNS), init=False)

    def window(self, waiting: Sequence[Entry]) -> Window:
        """Return the limits for a round. A namespace with no pod on its way may always release its share."""
        now = self.clock()
        on_way = Counter(entry.namespace for entry in self.backlog.on_their_way(now))
        waits = Counter(entry.namespace for entry in waiting)
        if len(on_way | waits) < 2:
            self._served.clear()
            most = max(0, self.max_open - on_way.total())
            return Window(most, {}, due=4 * most >= self.max_open)
        # A namespace whose pods were all passed over takes no share, but still has one if they fit now.
        takes = on_way.keys() | {entry.namespace for entry in waiting if entry.skips.reason is None}
        unbound = self._unbound(now, max(1, self.max_open // max(1, len(takes))))
        together = bool(unbound & takes) and bool((on_way | waits).keys() - unbound)
        pool = max(1, self.max_open // _UNBOUND_PART) if together else self.max_open
        rest = max(1, self.max_open - pool) if together else self.max_open
        num_unbound = len(takes & unbound)
        share, share_unbound = max(1, rest // max(1, len(takes) - num_unbound)), max(1, pool // max(1, num_unbound))

        def part(name: str) -> int:
            return share_unbound if name in unbound else share

        spent = sum(min(count, share) for name, count in on_way.items() if name not in unbound)
        spent_unbound = sum(min(count, share_unbound) for name, count in on_way.items() if name in unbound)
        most = max(0, self.max_open - spent - min(spent_unbound, pool))
        parts = {name: max(0, part(name) - on_way[name]) for name in waits if waits[name] + on_way[name] > part(name)}
        parts |= self._unbound_parts(sorted(waits.keys() & unbound), on_way, share_unbound, pool - spent_unbound, now)
        if len(takes) - num_unbound > rest:
            if self._served >= waits.keys():
                self._served.clear()
            parts |= dict.fromkeys(self._served & waits.keys(), 0)
        else:
            self._served.clear()
        hungry = any(parts.get(name, most) > 0 and 4 * on_way[name] <= 3 * part(name) for name in waits)
        return Window(most, parts, due=4 * most >= self.max_open or (most > 0 and hungry))

    def note(self, window: Window, plan: Plan) -> bool:
        """Note the namespaces served by a plan; return whether namespaces that had their turn may go again."""
        if plan.num_placed < window.most:
            had_served = bool(self._served)
            self._served.clear()  # the plan reached all
            return had_served
        placed = (pod.key for pod, row in zip(plan.pods, plan.rows, strict=True) if row >= 0)
        self._served.update(key.partition("/")[0] for key in placed)
        return False

    def _unbound(self, now: float, share: int) -> set[str]:
        """Return the namespaces with at least half a share of pods released a while ago and still unbound."""
        late = Counter(entry.namespace for entry in self.backlog.opened() if entry.is_late(now, _PROMPT_S))
        return {name for name, count in late.items() if 2 * count >= share}

    def _unbound_parts(
        self, names: Sequence[str], on_way: Counter[str], share: int, left: int, now: float
    ) -> dict[str, int]:
        """Divide what is left of the unbound namespaces' common share, least recently served first."""
        parts: dict[str, int] = {}
        for name in sorted(names, key=self._unbound_turns.of):
            parts[name] = max(0, min(share - on_way[name], left))
            left -= parts[name]
            if parts[name]:
                self._unbound_turns.take(name, now)
        return parts
