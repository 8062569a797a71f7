"""How many pods may be let go now, and how many of each namespace: `queue.max_open` is shared among those that wait.

Each namespace has a part of it of its own, however many others there are, so that pods that nobody binds take no more
than the part of theirs. Where there are more namespaces than places they take turns: who had one waits until all the
others have had theirs.

Who owns a namespace nobody can tell. So those whose pods stay unbound share one part, all together: four, forty or four
hundred of them leave the others as much.

How many GPUs each namespace uses: those of pods that run, of pods let go, and of those past the queue.

By what is known, not by a clock: a pod that was let go counts until it runs, is gone, or that was taken back.
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


_PROMPT_S: Final = 2.0
"""kube-scheduler binds most pods well before that; of those that it has not, it has many, or nobody binds them."""
_UNBOUND_PART: Final = 4
"""Namespaces whose pods stay unbound have one part in so many, where others have pods too."""
_MAX_TURNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """What may be let go in a round."""

    most: int
    """Pods, all together."""
    parts: dict[str, int]
    """The same of each namespace that would take more than its part."""
    due: bool
    """Whether that is worth a round."""


@dataclass(eq=False)
class Shares:
    """Shares the places of pods between gate and node among namespaces."""

    max_open: int
    backlog: Backlog
    clock: Callable[[], float]
    _served: set[str] = field(default_factory=set, init=False)
    """Namespaces that have had a turn, where there are more than places, since a round came to all."""
    _unbound_turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_TURNS), init=False)

    def window(self, waiting: Sequence[Entry]) -> Window:
        """What may be let go of those that wait. A namespace without anybody on the way may always let its part go."""
        now = self.clock()
        on_way = Counter(entry.namespace for entry in self.backlog.on_their_way(now))
        waits = Counter(entry.namespace for entry in waiting)
        if len(on_way | waits) < 2:
            self._served.clear()
            most = max(0, self.max_open - on_way.total())
            return Window(most, {}, due=4 * most >= self.max_open)
        # Who had no room takes no place; should it have some by now, it has a part all the same.
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
        """Note whose turn it was in a plan; whether those may go on who had to wait for the others' turns."""
        if plan.num_placed < window.most:
            may_go_on = bool(self._served)
            self._served.clear()  # all were looked at
            return may_go_on
        placed = (pod.key for pod, row in zip(plan.pods, plan.rows, strict=True) if row >= 0)
        self._served.update(key.partition("/")[0] for key in placed)
        return False

    def _unbound(self, now: float, share: int) -> set[str]:
        """Namespaces of which half a part has been let go for a node a while ago, and has none."""
        late = Counter(entry.namespace for entry in self.backlog.opened() if entry.is_late(now, _PROMPT_S))
        return {name for name, count in late.items() if 2 * count >= share}

    def _unbound_parts(
        self, names: Sequence[str], on_way: Counter[str], share: int, left: int, now: float
    ) -> dict[str, int]:
        """Parts of what is left of all unbound namespaces' part, for those whose turn was longest ago."""
        parts: dict[str, int] = {}
        for name in sorted(names, key=self._unbound_turns.of):
            parts[name] = max(0, min(share - on_way[name], left))
            left -= parts[name]
            if parts[name]:
                self._unbound_turns.take(name, now)
        return parts
