"""Nodes that kube-scheduler refused for pods although they had room by all that plans consider.

The cause is unknown here: a resource that plans don't count, a volume, or a rule of another plugin or extender. Such a
node is ruled out for pods of the same owner with the same request, for a time that doubles with each refusal. It is
retried earlier once a pod has left it, and the refusal is forgotten once the node has changed.

Refused pods come after all others and keep no nodes from them. Together they hold at most `_MAX_TRIAL_SHARE` of the
cluster (`planning.rounds`), or what a single pod or gang of them holds if that is more. The same limit applies to pods
like them that were not tried yet, and to all pods of a namespace of which kube-scheduler refuses one after the other
until it takes one, in each case together with the namespace's refused pods.

Nothing of this is persisted. After a restart Kerf learns it again, and takes pods refused before as refused.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from typing import Final, Self

import msgspec
import numpy as np

from extender.core.clusters import Cluster, Mask
from extender.core.resources.requests import GpuRequest
from extender.core.texts import printable
from extender.kube.background import give_way
from extender.kube.turns import LastTurns
from extender.ledger.ledger import AllocationState, Ledger
from extender.planning.plan_state import PlanState
from extender.planning.plans import ANYWHERE, Plan, PlanPod, View
from extender.planning.rounds import TrialLimits, within
from extender.planning.wait_reasons import ROOM_CODES, Code, WaitReason
from extender.queueing.gangs import Unit
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.backlog import ON_ITS_WAY_S, Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.placer import PodIdentity

_FIRST_S: Final = 1.0
"""How long a node is ruled out after its first refusal."""
_MOST_S: Final = 60.0
"""Longest time, since the end of the cause is not reported."""
_MAX_RULED_OUT: Final = 50_000
"""Ruled-out nodes remembered for all kinds of pods."""
_MAX_NAMESPACES: Final = 10_000
_STREAK: Final = 3
"""Consecutive refusals after which a namespace's pods are tried one at a time."""
_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 10.0
"""Longest time between two tries of such a namespace."""
_OF_REFUSED: Final = ""
"""Key of the budget of all refused pods."""
_MAX_CHARS: Final = 400
_PORTION: Final = 8

_encode: Final = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True)
class _RuledOut:
    """A node that is ruled out for pods of one kind."""

    version: int
    """The node's version in `NodeBook`."""
    times: int = 0
    since: float = -inf
    """Monotonic time of the last refusal."""
    num_left: int = 0
    """The ledger's `num_left` of the node at that time."""

    @property
    def for_s(self) -> float:
        """Seconds for which it is ruled out."""
        return _backoff_s(_FIRST_S, self.times, _MOST_S)


@dataclass(slots=True)
class _Kind:
    """Pods of one owner with the same request."""

    nodes: dict[str, _RuledOut] = field(default_factory=dict)
    last: tuple[str, str] = "", ""
    """The node refused last, and kube-scheduler's message."""
    doubtful: bool = True
    """Whether kube-scheduler has taken none of them since its last refusal."""


@dataclass(slots=True)
class _Streak:
    """Consecutive refusals of a namespace's pods."""

    length: int = 0
    at: float = -inf
    """Monotonic time of the last refusal."""
    until: float = -inf
    """Monotonic time before which no pod of the namespace is tried."""


@dataclass(eq=False)
class Refusals:
    """kube-scheduler's refusals, and their effects on the next plans."""

    backlog: Backlog
    ledger: Ledger
    nodes: NodeBook
    clock: Callable[[], float]
    tell: Callable[[Entry, str], None]
    """Emits an event about a pod."""
    _kinds: FairCache[_Kind] = field(default_factory=lambda: FairCache(_MAX_RULED_OUT), init=False)
    _streaks: dict[str, _Streak] = field(default_factory=dict, init=False)
    """By namespace, least recently refused first."""
    _turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_NAMESPACES), init=False)
    _capacity: "_Capacity | None" = field(default=None, init=False)
    """The cluster's capacity in the last plan."""

    async def judge(self, view: View, units: Sequence[Unit]) -> None:
        """Find out which pods that lost their nodes since the last plan were refused a node with room.

        Yields to the event loop: thousands of pods may have distinct requests.
        """
        lost = [
            (entry, entry.planned)
            for unit in units
            for entry in unit.entries
            if entry.unjudged
            and entry.planned is not None
            and (entry.pod.refusal or entry.num_refused)  # else kube-scheduler has not reported yet
        ]
        if not lost:
            return
        state = PlanState(view, [pod for _, pod in lost])
        for position, (entry, pod) in enumerate(lost):
            node, row = entry.unjudged, view.cluster.row_of.get(entry.unjudged)
            searched = pod.gpus is not None and pod.gpus.devices is not None  # its author decides how long that takes
            had_room = row is not None and (searched or state.has_room(position, row))
            entry.judge(had_room=had_room)
            if had_room:
                self._remember(entry, node)
            if position % _PORTION == _PORTION - 1:
                await give_way()

    def in_turn(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the units with refused ones last: those by namespace in turn, the least refused first."""
        for unit in units:
            for entry in unit.entries:
                if entry.num_refused and entry.refused_as != self._kind_of(entry):
                    entry.forgive()
        refused = [unit for unit in units if any(entry.num_refused for entry in unit.entries)]
        if not refused:
            return list(units)
        last = set(map(id, refused))
        refused.sort(
            key=lambda unit: (self._turns.of(unit.namespace), max(entry.num_refused for entry in unit.entries))
        )
        return [unit for unit in units if id(unit) not in last] + refused

    def restrict(self, view: View, batch: Sequence[tuple[Entry, PlanPod]]) -> tuple[View, list[PlanPod]]:
        """Return the view and the pods with ruled-out nodes disallowed, by further restriction kinds."""
        pods = [pod for _, pod in batch]
        if not len(self._kinds):
            return view, pods
        rows: dict[tuple[int, frozenset[str]], int] = {}
        masks: list[Mask] = []
        ruled_out: dict[str, frozenset[str]] = {}
        for position, (entry, pod) in enumerate(batch):
            name = self._kind_of(entry)
            if name not in ruled_out:
                ruled_out[name] = self._ruled_out(name)
            if not (nodes := ruled_out[name]):
                continue
            key = pod.kind, nodes
            if key not in rows:
                rows[key] = len(view.allowed) + len(masks)
                masks.append(view.allowed[pod.kind].copy())
                masks[-1][[row for node in nodes if (row := view.cluster.row_of.get(node)) is not None]] = False
            pods[position] = replace(pod, kind=rows[key])
        return replace(view, allowed=np.vstack((view.allowed, *masks))), pods

    def trials(self, units: Sequence[Unit], view: View) -> tuple[dict[str, TrialLimits], dict[str, float]]:
        """Return the units that kube-scheduler may refuse, by key, and the fraction of the cluster held by budget."""
        trials, capacity = dict[str, TrialLimits](), _Capacity.of(view)
        for unit in units:
            budgets = self._budgets_of(unit.entries)
            if budgets:
                why = Code.ON_TRIAL.reason(namespace=unit.namespace)
                trials[unit.key] = TrialLimits(
                    budgets, capacity.fraction([(pod, pod.num_gpus) for pod in unit.pods]), why
                )
        self._capacity = capacity
        if not trials:
            return {}, {}
        now = self.clock()
        paused = {_untried_budget(name): inf for name, streak in self._streaks.items() if now < streak.until}
        return trials, self._held(capacity) | paused

    def may_hold(self, entries: Collection[Entry]) -> bool:
        """Whether a planned unit may still hold what it got: others of its budget may have got GPUs since the plan."""
        budgets, capacity = self._budgets_of(entries), self._capacity
        if not budgets or capacity is None:
            return True
        pods = [(entry.planned, entry.num_gpus) for entry in entries if entry.planned is not None]
        return within(budgets, self._held(capacity, without=entries), capacity.fraction(pods))

    def explained(self, plan: Plan, batch: Sequence[tuple[Entry, PlanPod]]) -> Plan:
        """Return the plan with kube-scheduler's message as the reason of pods that wait because of a refusal."""
        reasons: dict[int, WaitReason] = {}
        for position, why in plan.unassigned.items():
            entry, _ = batch[position]
            if why.code in ROOM_CODES or why.code is Code.ON_TRIAL:
                if entry.num_refused:
                    node, _, words = entry.refused.partition(": ")
                    reasons[position] = _refused("it", node, entry.pod.refusal or words)
                elif plan.pods[position].kind != batch[position][1].kind and (kind := self._known(entry)) is not None:
                    reasons[position] = _refused("pods like it", *kind.last)
        return replace(plan, unassigned={**plan.unassigned, **reasons})

    def tried(self, plan: Plan, batch: Sequence[tuple[Entry, PlanPod]]) -> None:
        """Note the turns of namespaces whose refused pods are in a plan."""
        for position, (entry, _) in enumerate(batch):
            if entry.num_refused and position not in plan.unassigned:
                self._turns.take(entry.namespace, self.clock())

    def excess(self, pod: PodIdentity, request: GpuRequest, snapshot: Callable[[], Cluster]) -> str:
        """Return why kube-scheduler's retry of a refused pod, or of one in a gang with such a pod, gets no GPUs now.

        "" when it may: other refused pods have not reserved all that such pods may hold.
        """
        entry = self.backlog.entries.get(pod.uid)
        if entry is None or (entry.stage is not Stage.LOST and self._is_reserved(pod.uid)):
            return ""  # reserved by a plan; without a reservation it was refused, which no round has noticed yet
        gang = entry.planned.gang if entry.planned is not None else ""
        if not (entry.may_be_refused or (gang and gang in self._refused_gangs())):
            return ""
        capacity = self._capacity or _Capacity(_num_gpus(snapshot()))
        fraction = capacity.fraction([(entry.planned or PlanPod(entry.pod.key), max(request.count, 1))])
        held = self._held(capacity, without=[entry], only_reserved=True)
        if within(_budgets(entry.namespace, refused=True), held, fraction):
            return ""
        what = f"it {refusal}" if (refusal := entry.refused or entry.lost) else "another of its gang"
        return f"kube-scheduler refused {what}; others that it refused are tried first"

    def taken(self, entry: Entry, node: str) -> None:
        """Note that kube-scheduler has taken a node for a pod."""
        self._streaks.pop(entry.namespace, None)
        if (kind := self._known(entry)) is not None:
            kind.doubtful = False
            kind.nodes.pop(node, None)

    def forget_old(self) -> None:
        """Forget old refusals."""
        before = self.clock() - 10 * _MOST_S
        self._kinds.expire(before)
        for namespace in [namespace for namespace, streak in self._streaks.items() if streak.at < before]:
            del self._streaks[namespace]

    def _remember(self, entry: Entry, node: str) -> None:
        now, name = self.clock(), self._kind_of(entry)
        entry.refused_as = name
        kind = self._kinds.get(name) or _Kind()
        version = self.nodes.version_of(node)
        known = kind.nodes.get(node)
        if known is None or known.version != version:
            known = kind.nodes[node] = _RuledOut(version)
        known.times, known.since, known.num_left = known.times + 1, now, self.ledger.num_left[node]
        words = entry.refused.partition(": ")[2][:_MAX_CHARS]
        kind.last, kind.doubtful = (node, words), True
        self._kinds.put(entry.namespace, name, kind, now, weight=len(kind.nodes))
        if entry.num_refused == 1:
            self._lengthen_streak(entry.namespace, now)
        ruled_out = f"which is ruled out for {known.for_s:g} s"
        self.tell(entry, printable(f"kube-scheduler refused node {node}, {ruled_out}: {words}"))

    def _lengthen_streak(self, namespace: str, now: float) -> None:
        """Count another refusal of a namespace's pod."""
        streak = self._streaks[namespace] = self._streaks.pop(namespace, _Streak())
        streak.length, streak.at = streak.length + 1, now
        if streak.length >= _STREAK:
            streak.until = now + _backoff_s(_FIRST_PAUSE_S, streak.length - _STREAK + 1, _MOST_PAUSE_S)
        if len(self._streaks) > _MAX_NAMESPACES:
            del self._streaks[next(iter(self._streaks))]

    def _ruled_out(self, name: str) -> frozenset[str]:
        """Return the nodes that are ruled out for a kind of pods now."""
        kind, now = self._kinds.get(name), self.clock()
        if kind is None:
            return frozenset()
        for node in [node for node, known in kind.nodes.items() if known.version != self.nodes.version_of(node)]:
            del kind.nodes[node]
        return frozenset(
            node
            for node, known in kind.nodes.items()
            if now - known.since < (_FIRST_S if self.ledger.num_left[node] != known.num_left else known.for_s)
        )

    def _budgets_of(self, entries: Collection[Entry]) -> tuple[str, ...]:
        """Return the budgets that limit what a unit may hold, none if it is not limited."""
        refused = any(entry.suspect for entry in entries)
        if not refused and not self._is_on_trial(entries):
            return ()
        return _budgets(next(entry.namespace for entry in entries), refused=refused)

    def _is_on_trial(self, entries: Collection[Entry]) -> bool:
        """Whether kube-scheduler may refuse a unit, as it refused similar pods or others of its namespace."""
        streak = self._streaks.get(next(entry.namespace for entry in entries))
        if streak is not None and streak.length >= _STREAK:
            return True
        kinds = (self._known(entry) for entry in entries)
        return any(kind is not None and kind.doubtful for kind in kinds)

    def _held(
        self, capacity: "_Capacity", without: Collection[Entry] = (), *, only_reserved: bool = False
    ) -> dict[str, float]:
        """Return the fraction of the cluster held of each budget: by reservations, else also by pods on their way."""
        now, held, gangs = self.clock(), defaultdict[str, float](float), self._refused_gangs()
        for entry in self.backlog.entries.values():
            if entry.planned is None or entry in without:
                continue
            refused = entry.may_be_refused or entry.planned.gang in gangs
            reserved = self._is_reserved(entry.uid)
            if not (reserved or (not only_reserved and _awaited(entry, now, refused=refused))):
                continue
            if refused or self._is_on_trial([entry]):
                fraction = capacity.fraction([(entry.planned, self._gpus_of(entry))])
                for budget in _budgets(entry.namespace, refused=refused):
                    held[budget] += fraction
        return dict(held)

    def _refused_gangs(self) -> set[str]:
        """Return the gangs with a refused pod."""
        refused = (entry.planned for entry in self.backlog.entries.values() if entry.may_be_refused)
        return {planned.gang for planned in refused if planned and planned.gang}

    def _is_reserved(self, uid: str) -> bool:
        held = self.ledger.allocation(uid)
        return held is not None and held.state is AllocationState.RESERVED

    def _gpus_of(self, entry: Entry) -> int:
        held = self.ledger.allocation(entry.uid)
        return max(entry.num_gpus, held.holding.units if held is not None else 0)

    def _known(self, entry: Entry) -> _Kind | None:
        """Return the record of pods like this one, None if there is none."""
        return self._kinds.get(self._kind_of(entry)) if len(self._kinds) else None

    def _kind_of(self, entry: Entry) -> str:
        """Return a key that is equal for pods of one owner, or without one in a namespace, with the same request.

        Node restrictions that Kerf adds on release don't change the key.
        """
        planned, spec = entry.planned, entry.pod.spec
        if planned is None:
            return entry.uid
        known = entry.kind
        if known is None or known[0] is not planned:
            if known is not None and known[1] is spec:
                spec_digest = known[2]
            else:
                owner = entry.pod.metadata.controller
                own = None if owner else (spec.node_selector or None, spec.affinity)
                spec_digest = _digest(_encode((owner.uid if owner else None, spec.tolerations or None, own)))
            request = repr(replace(planned, kind=ANYWHERE).alike).encode()
            known = entry.kind = planned, spec, spec_digest, f"{entry.namespace}/{_digest(spec_digest + request).hex()}"
        return known[3]


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _budgets(namespace: str, *, refused: bool) -> tuple[str, str]:
    """Return a namespace's budget, and that of all refused pods or of the namespace's untried pods."""
    return namespace, _OF_REFUSED if refused else _untried_budget(namespace)


def _awaited(entry: Entry, now: float, *, refused: bool) -> bool:
    """Whether a pod is on its way to its planned node: a refused one until that ends, others for `ON_ITS_WAY_S`."""
    return bool(entry.node) and not entry.stage.waits if refused else entry.on_its_way(now, ON_ITS_WAY_S)


def _untried_budget(namespace: str) -> str:
    return f"{namespace}/"


def _refused(whom: str, node: str, words: str) -> WaitReason:
    return Code.REFUSED.reason(whom=whom, node=node, words=printable(words[:_MAX_CHARS]))


@dataclass(frozen=True, slots=True)
class _Capacity:
    """The capacity of a cluster."""

    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, view: View) -> Self:
        """Return the capacity of a plan's view."""
        cpu_milli, memory_mib = int(view.cpu_allocatable_milli.sum()), int(view.memory_allocatable_mib.sum())
        return cls(_num_gpus(view.cluster), cpu_milli, memory_mib)

    def fraction(self, pods: Sequence[tuple[PlanPod, int]]) -> float:
        """Return the largest of the fractions of GPUs, CPU and memory that pods take, each given with its GPUs."""
        taken = (
            (sum(gpus for _, gpus in pods), self.gpus),
            (sum(pod.cpu_milli for pod, _ in pods), self.cpu_milli),
            (sum(pod.memory_mib for pod, _ in pods), self.memory_mib),
        )
        return max([amount / total for amount, total in taken if total], default=0.0)


def _num_gpus(cluster: Cluster) -> int:
    return int((cluster.gpu_model >= 0).sum())


def _backoff_s(first_s: float, times: int, most_s: float) -> float:
    return float(min(first_s * 2.0 ** min(times - 1, 16), most_s))
