"""Nodes that kube-scheduler has refused to pods although they had room by all that plans know.

What for need not be known here: a resource that plans don't count, a volume, a rule of another plugin or extender. Such
a node is ruled out for pods of the same owner that ask for the same, for a time that doubles with each refusal. It is
tried before its time once a pod has left it, and forgotten once the node has changed.

Who was refused comes after all others, keeps no node from them, and all of them together hold `_MOST_HELD` of the
cluster at most, or what one pod or gang of them holds where that is more. Pods like them that were not tried yet are
tried as few at a time, and so are all pods of a namespace of which kube-scheduler refuses one after the other, until it
takes one of them; together with those of their namespace that were refused they hold no more than that either.

Nothing of this is written down. A Kerf that starts learns it anew, and takes those that were refused before it as
refused.
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
from extender.ledger.ledger import ClaimState, Ledger
from extender.planning.plan_state import PlanState
from extender.planning.plans import ANYWHERE, Plan, PlanPod, View
from extender.planning.rounds import Trial, within
from extender.planning.wait_reasons import FOR_WANT_OF_ROOM, Code, WaitReason
from extender.queueing.gangs import Unit
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.backlog import ON_ITS_WAY_S, Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.placer import PodIdentity

_FIRST_S: Final = 1.0
"""How long a node is ruled out after its first refusal."""
_MOST_S: Final = 60.0
"""How long at most: what kept a pod off may have passed, and nobody tells."""
_MAX_RULED_OUT: Final = 50_000
"""Nodes of all kinds of pods together that are remembered."""
_MAX_NAMESPACES: Final = 10_000
_STREAK: Final = 3
"""Pods refused in a row after which a namespace's pods are tried one at a time."""
_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 10.0
"""From one try of such a namespace to the next."""
_OF_REFUSED: Final = ""
"""Whose budget that of pods that were refused is: no namespace's."""
_MAX_WORDS: Final = 400
_PORTION: Final = 8

_encode: Final = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True)
class _RuledOut:
    """A node for pods of one kind."""

    version: int
    """Of the node, as `NodeBook` counts."""
    times: int = 0
    since: float = -inf
    """Monotonic time of the last refusal."""
    num_left: int = 0
    """Pods that had left the node by then."""

    @property
    def for_s(self) -> float:
        """How long it is ruled out."""
        return _growing(_FIRST_S, self.times, _MOST_S)


@dataclass(slots=True)
class _Kind:
    """Pods of one owner that ask for the same."""

    nodes: dict[str, _RuledOut] = field(default_factory=dict)
    last: tuple[str, str] = "", ""
    """The node refused last, and kube-scheduler's words."""
    doubtful: bool = True
    """Whether kube-scheduler has taken none of them since it refused one."""


@dataclass(slots=True)
class _Streak:
    """Pods of a namespace that were refused, one after the other."""

    length: int = 0
    at: float = -inf
    """Monotonic time of the last one."""
    until: float = -inf
    """Monotonic time before which none of them is tried."""


@dataclass(eq=False)
class Refusals:
    """What kube-scheduler refuses, and what follows from it for the next plan."""

    backlog: Backlog
    ledger: Ledger
    nodes: NodeBook
    clock: Callable[[], float]
    tell: Callable[[Entry, str], None]
    """Tells people of a pod in a sentence."""
    _kinds: FairCache[_Kind] = field(default_factory=lambda: FairCache(_MAX_RULED_OUT), init=False)
    _streaks: dict[str, _Streak] = field(default_factory=dict, init=False)
    """By namespace, the one refused longest ago first."""
    _turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_NAMESPACES), init=False)
    _whole: "_Whole | None" = field(default=None, init=False)
    """All that the cluster had by the last plan."""

    async def judge(self, view: View, units: Sequence[Unit]) -> None:
        """Find out which of those that have lost their nodes since the last plan were refused nodes with room.

        In portions: thousands may ask for something else each.
        """
        lost = [
            (entry, entry.planned)
            for unit in units
            for entry in unit.entries
            if entry.unjudged
            and entry.planned is not None
            and (entry.pod.refusal or entry.num_refused)  # else kube-scheduler has not answered yet
        ]
        if not lost:
            return
        state = PlanState(view, [pod for _, pod in lost])
        for position, (entry, pod) in enumerate(lost):
            node, row = entry.unjudged, view.cluster.row_of.get(entry.unjudged)
            searched = pod.gpus is not None and pod.gpus.devices is not None  # which takes as long as its author wants
            had_room = row is not None and (searched or state.has_room(position, row))
            entry.judge(had_room=had_room)
            if had_room:
                self._remember(entry, node)
            if position % _PORTION == _PORTION - 1:
                await give_way()

    def in_turn(self, units: Sequence[Unit]) -> list[Unit]:
        """The units, those that were refused after all others: namespaces in turn, who was refused least first."""
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
        """The view and the pods with what is ruled out for them, each kind of pods as a kind of its own."""
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

    def trials(self, units: Sequence[Unit], view: View) -> tuple[dict[str, Trial], dict[str, float]]:
        """Units that kube-scheduler may well refuse, by their keys, and what part of the cluster those hold by now with
        whom they share a budget."""
        found, whole = dict[str, Trial](), _Whole.of(view)
        for unit in units:
            budgets = self._budgets_of(unit.entries)
            if budgets:
                why = Code.ON_TRIAL.reason(namespace=unit.namespace)
                found[unit.key] = Trial(budgets, whole.part([(pod, pod.num_gpus) for pod in unit.pods]), why)
        self._whole = whole
        if not found:
            return {}, {}
        now = self.clock()
        paused = {_of_untried(name): inf for name, streak in self._streaks.items() if now < streak.until}
        return found, self._held(whole) | paused

    def may_hold(self, entries: Collection[Entry]) -> bool:
        """Whether a unit that a plan lets go may still hold what it got: kube-scheduler may have asked by itself about
        others of its budget since the plan was made."""
        budgets, whole = self._budgets_of(entries), self._whole
        if not budgets or whole is None:
            return True
        pods = [(entry.planned, entry.num_gpus) for entry in entries if entry.planned is not None]
        return within(budgets, self._held(whole, without=entries), whole.part(pods))

    def explained(self, plan: Plan, batch: Sequence[tuple[Entry, PlanPod]]) -> Plan:
        """A plan that says of pods without a node what kube-scheduler says, where that is what keeps them waiting."""
        said: dict[int, WaitReason] = {}
        for position, why in plan.unassigned.items():
            entry, _ = batch[position]
            if why.code in FOR_WANT_OF_ROOM or why.code is Code.ON_TRIAL:
                if entry.num_refused:
                    node, _, words = entry.refused.partition(": ")
                    said[position] = _refused("it", node, entry.pod.refusal or words)
                elif plan.pods[position].kind != batch[position][1].kind and (kind := self._known(entry)) is not None:
                    said[position] = _refused("pods like it", *kind.last)
        return replace(plan, unassigned={**plan.unassigned, **said})

    def tried(self, plan: Plan, batch: Sequence[tuple[Entry, PlanPod]]) -> None:
        """A plan lets some go that were refused before: it was their namespaces' turn."""
        for position, (entry, _) in enumerate(batch):
            if entry.num_refused and position not in plan.unassigned:
                self._turns.take(entry.namespace, self.clock())

    def excess(self, pod: PodIdentity, request: GpuRequest, snapshot: Callable[[], Cluster]) -> str:
        """Why a pod that was refused before, or of whose gang one was, gets no GPUs now that kube-scheduler asks about
        it again, "" where it may: what others that were refused have reserved is all that such pods may hold."""
        entry = self.backlog.entries.get(pod.uid)
        if entry is None or (entry.stage is not Stage.LOST and self._is_reserved(pod.uid)):
            return ""  # what a plan gave it; without that, kube-scheduler has refused it, and no round knows yet
        gang = entry.planned.gang if entry.planned is not None else ""
        if not (entry.may_be_refused or (gang and gang in self._refused_gangs())):
            return ""
        whole = self._whole or _Whole(_num_gpus(snapshot()))
        part = whole.part([(entry.planned or PlanPod(entry.pod.key), max(request.count, 1))])
        held = self._held(whole, without=[entry], only_reserved=True)
        if within(_budgets(entry.namespace, refused=True), held, part):
            return ""
        whom = f"it {said}" if (said := entry.refused or entry.lost) else "another of its gang"
        return f"kube-scheduler refused {whom}; others that it refused are tried first"

    def taken(self, entry: Entry, node: str) -> None:
        """kube-scheduler has found a pod a node."""
        self._streaks.pop(entry.namespace, None)
        if (kind := self._known(entry)) is not None:
            kind.doubtful = False
            kind.nodes.pop(node, None)

    def forget_old(self) -> None:
        """Forget what was long ago, and is ruled out no more."""
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
        words = entry.refused.partition(": ")[2][:_MAX_WORDS]
        kind.last, kind.doubtful = (node, words), True
        self._kinds.put(entry.namespace, name, kind, now, weight=len(kind.nodes))
        if entry.num_refused == 1:
            self._lengthen_streak(entry.namespace, now)
        ruled_out = f"which is ruled out for {known.for_s:g} s"
        self.tell(entry, printable(f"kube-scheduler refused node {node}, {ruled_out}: {words}"))

    def _lengthen_streak(self, namespace: str, now: float) -> None:
        """One more pod of a namespace was refused."""
        streak = self._streaks[namespace] = self._streaks.pop(namespace, _Streak())
        streak.length, streak.at = streak.length + 1, now
        if streak.length >= _STREAK:
            streak.until = now + _growing(_FIRST_PAUSE_S, streak.length - _STREAK + 1, _MOST_PAUSE_S)
        if len(self._streaks) > _MAX_NAMESPACES:
            del self._streaks[next(iter(self._streaks))]

    def _ruled_out(self, name: str) -> frozenset[str]:
        """The nodes that are ruled out for a kind of pods now."""
        kind, now = self._kinds.get(name), self.clock()
        if kind is None:
            return frozenset()
        for node in [node for node, one in kind.nodes.items() if one.version != self.nodes.version_of(node)]:
            del kind.nodes[node]
        return frozenset(
            node
            for node, one in kind.nodes.items()
            if now - one.since < (_FIRST_S if self.ledger.num_left[node] != one.num_left else one.for_s)
        )

    def _budgets_of(self, entries: Collection[Entry]) -> tuple[str, ...]:
        """With whom a unit shares what it may hold, empty where that is not bounded here."""
        refused = any(entry.suspect for entry in entries)
        if not refused and not self._is_on_trial(entries):
            return ()
        return _budgets(next(entry.namespace for entry in entries), refused=refused)

    def _is_on_trial(self, entries: Collection[Entry]) -> bool:
        """Whether kube-scheduler may well refuse a unit, for what it said of others like it or of its namespace."""
        streak = self._streaks.get(next(entry.namespace for entry in entries))
        if streak is not None and streak.length >= _STREAK:
            return True
        kinds = (self._known(entry) for entry in entries)
        return any(kind is not None and kind.doubtful for kind in kinds)

    def _held(
        self, whole: "_Whole", without: Collection[Entry] = (), *, only_reserved: bool = False
    ) -> dict[str, float]:
        """What part of the cluster is held of each budget, by reservations alone or by what is on its way to them
        too."""
        now, held, gangs = self.clock(), defaultdict[str, float](float), self._refused_gangs()
        for entry in self.backlog.entries.values():
            if entry.planned is None or entry in without:
                continue
            refused = entry.may_be_refused or entry.planned.gang in gangs
            reserved = self._is_reserved(entry.uid)
            if not (reserved or (not only_reserved and _awaited(entry, now, refused=refused))):
                continue
            if refused or self._is_on_trial([entry]):
                part = whole.part([(entry.planned, self._gpus_of(entry))])
                for budget in _budgets(entry.namespace, refused=refused):
                    held[budget] += part
        return dict(held)

    def _refused_gangs(self) -> set[str]:
        """Gangs of which a pod was refused."""
        entries = self.backlog.entries.values()
        return {one.planned.gang for one in entries if one.may_be_refused and one.planned and one.planned.gang}

    def _is_reserved(self, uid: str) -> bool:
        claim = self.ledger.claim(uid)
        return claim is not None and claim.state is ClaimState.RESERVED

    def _gpus_of(self, entry: Entry) -> int:
        claim = self.ledger.claim(entry.uid)
        return max(entry.num_gpus, claim.holding.units if claim is not None else 0)

    def _known(self, entry: Entry) -> _Kind | None:
        """What is known of pods like this one."""
        return self._kinds.get(self._kind_of(entry)) if len(self._kinds) else None

    def _kind_of(self, entry: Entry) -> str:
        """Equal for pods of one owner that ask for the same; of those without an owner, in one namespace.

        What Kerf itself writes into a pod as it lets it go, a domain or a product, makes it no other one.
        """
        planned, spec = entry.planned, entry.pod.spec
        if planned is None:
            return entry.uid
        known = entry.kind
        if known is None or known[0] is not planned:
            if known is not None and known[1] is spec:
                said = known[2]
            else:
                owner = entry.pod.metadata.controller
                own = None if owner else (spec.node_selector or None, spec.affinity)
                said = _digest(_encode((owner.uid if owner else None, spec.tolerations or None, own)))
            asked = repr(replace(planned, kind=ANYWHERE).alike).encode()
            known = entry.kind = planned, spec, said, f"{entry.namespace}/{_digest(said + asked).hex()}"
        return known[3]


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _budgets(namespace: str, *, refused: bool) -> tuple[str, str]:
    """A namespace's, and that of all pods that were refused, or of those of the namespace that were not tried yet."""
    return namespace, _OF_REFUSED if refused else _of_untried(namespace)


def _awaited(entry: Entry, now: float, *, refused: bool) -> bool:
    """Whether a pod is on its way to what a plan gave it: for as long as that stands where it was refused before."""
    return bool(entry.node) and not entry.stage.waits if refused else entry.on_its_way(now, ON_ITS_WAY_S)


def _of_untried(namespace: str) -> str:
    return f"{namespace}/"


def _refused(whom: str, node: str, words: str) -> WaitReason:
    return Code.REFUSED.reason(whom=whom, node=node, words=printable(words[:_MAX_WORDS]))


@dataclass(frozen=True, slots=True)
class _Whole:
    """All that a cluster has."""

    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, view: View) -> Self:
        """As a plan sees it."""
        cpu_milli, memory_mib = int(view.cpu_allocatable_milli.sum()), int(view.memory_allocatable_mib.sum())
        return cls(_num_gpus(view.cluster), cpu_milli, memory_mib)

    def part(self, pods: Sequence[tuple[PlanPod, int]]) -> float:
        """What part of it pods take, each given with its number of GPUs: of GPUs, CPU or memory, whichever they take
        most of."""
        taken = (
            (sum(gpus for _, gpus in pods), self.gpus),
            (sum(pod.cpu_milli for pod, _ in pods), self.cpu_milli),
            (sum(pod.memory_mib for pod, _ in pods), self.memory_mib),
        )
        return max([amount / total for amount, total in taken if total], default=0.0)


def _num_gpus(cluster: Cluster) -> int:
    return int((cluster.gpu_model >= 0).sum())


def _growing(first_s: float, times: int, most_s: float) -> float:
    return float(min(first_s * 2.0 ** min(times - 1, 16), most_s))
