"""One round of the queue, as a pure function: who goes next and where, who is passed over, and why the others wait.

The queue holds no head-of-line blocking: smaller pods may pass one that has no room, but a reservation for the head
keeps what it needs of the nodes on which it will fit soonest from them, so that it is not passed for ever.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from extender.core.bookings import emptied
from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.checks import could_fit
from extender.core.fit.fits import fit
from extender.planning.plan_state import DEFAULT_POLICY, PlanState, free_units, units
from extender.planning.plans import GREEDY, Plan, PlanError, Planner, PlanPod, View, units_of
from extender.planning.quotas import Quotas
from extender.planning.wait_reasons import NOT_REACHED, Code, WaitReason

_MOST_CANDIDATES: Final = 16
"""Of a namespace in a round: whether a unit would have room in an empty cluster is not worked out for more of them."""


class Need(NamedTuple):
    """What the pods of a head need of a node."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0

    def of(self, pod: PlanPod) -> "Need":
        """The same with one pod more."""
        return Need(self.gpus + pod.num_gpus, self.cpu_milli + pod.cpu_milli, self.memory_mib + pod.memory_mib)


@dataclass(frozen=True, slots=True)
class Head:
    """The first in the queue that has no room, and what is kept for it."""

    key: str
    """Of its gang, or of the pod."""
    nodes: frozenset[str]
    needs: Mapping[str, Need] = field(default_factory=dict, compare=False)
    """By node: what is kept of it. The rest is anybody's."""

    def kept_from(self, cluster: Cluster, num_gpus: int) -> frozenset[str]:
        """The nodes on which a pod of so many GPUs would take what the head needs."""
        known = [(name, row) for name in sorted(self.nodes) if (row := cluster.row_of.get(name)) is not None]
        free = free_units(cluster)
        return frozenset(name for name, row in known if free[row] - num_gpus < self.needs.get(name, Need()).gpus)


_MOST_HELD: Final = 0.05
"""Most of the cluster that units on trial hold at once, where one of them does not hold more."""


_SOMETHING: Final = 1e-9
"""What a unit holds at least that asks for nothing."""


class Trial(NamedTuple):
    """Of a unit that kube-scheduler may well refuse."""

    budgets: tuple[str, ...]
    """With whom it shares what those hold that are on trial: each of them is bounded."""
    part: float
    """Of the cluster that it would hold, as far as it says."""
    why: WaitReason
    """Why it waits while others hold that."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a round keeps to."""

    quotas: Quotas = field(default_factory=Quotas)
    used: Mapping[str, float] = field(default_factory=dict)
    """GPUs in use by namespace."""
    held: Head | None = None
    """The head of the round before: its nodes stay the same while it stays the head."""
    reserves: frozenset[str] = frozenset()
    """Keys of gangs and pods that have waited long enough to have nodes kept for them."""
    rank: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By key: the smaller, the sooner are nodes kept for it; of equals for the first in the order. Nothing is kept from
    those whose first number is smaller than the head's."""
    exempt: frozenset[str] = frozenset()
    """Keys of gangs and pods that have been kept from the head's nodes for long enough: they may use them."""
    policy: str = DEFAULT_POLICY
    """Ranks nodes for pods that don't choose a policy."""
    limit: float = float("inf")
    """Most pods to place; a gang that comes first may be larger."""
    most: Mapping[str, int] = field(default_factory=dict)
    """The same of namespaces that would take more than their part of it."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """Keys of gangs and pods that are on trial."""
    tried: Mapping[str, float] = field(default_factory=dict)
    """The part of the cluster that those on trial hold now, by budget."""


def within(budgets: Iterable[str], held: Mapping[str, float], part: float) -> bool:
    """Whether a unit on trial may hold a part of the cluster beside what is held of its budgets: `_MOST_HELD` of each,
    or more where it is the only one."""
    return all(not (of := held.get(budget, 0.0)) or of + part <= _MOST_HELD for budget in budgets)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to."""

    plan: Plan
    head: Head | None


def greedy_round(view: View, pods: Sequence[PlanPod], rules: Rules) -> Round:
    """Place units in the order of `pods` where a live decision would put them.

    Within quotas, beside the nodes kept for the head, and no more pods than `rules.limit`: those after that wait their
    turn without a reason. So do those behind a gang that has room and is larger than what is left of the limit; one
    that has none holds up nobody.
    """
    state = PlanState(view, pods, rules.policy)
    used = dict(rules.used)
    full: set[object] = set()
    placed: Counter[str] = Counter()
    trials = _Trials(view, rules)
    why: dict[int, WaitReason] = {}
    heads = _Heads(state, rules)
    for unit in units_of(pods):
        begun = state.num_steps
        if begun and begun >= rules.limit:
            why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_REACHED))
            break
        first = pods[unit[0]]
        namespace = first.key.partition("/")[0]
        key = first.gang or first.key
        most = rules.most.get(namespace)
        if most is not None and (most <= placed[namespace] or 0 < placed[namespace] > most - len(unit)):
            why.update(dict.fromkeys(unit, NOT_REACHED))
            if heads.stay(key):
                full.clear()
            continue
        asked = float(sum(pods[position].num_gpus for position in unit))
        if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), asked) or trials.excess(key):
            why.update(dict.fromkeys(unit, excess))
            heads.pass_by(key)
            continue
        kept = heads.kept_from(key)
        alike = None if first.gang else (*view.alike(first), kept is None)
        if alike not in full and place_unit(state, unit, kept=kept):
            asked = max(asked, float(state.num_gpus(begun)))  # memory in total says no number of GPUs
            if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), asked) or trials.excess(key, asked):
                state.undo(begun)
                why.update(dict.fromkeys(unit, excess))
                heads.pass_by(key)
                continue
            if begun and state.num_steps > rules.limit:  # one that has room: its turn is next, and nobody's before
                state.undo(begun)
                why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_REACHED))
                break
            trials.hold(key, asked)
            placed[namespace] += len(unit)
            used[namespace] = used.get(namespace, 0.0) + asked
            heads.pass_by(key)
            continue
        if alike is not None:
            full.add(alike)
        if heads.propose(key, namespace, unit):
            full.clear()
    return Round(_plan(state, why, heads.head), heads.next)


class _Trials:
    """What units on trial hold in the course of a round."""

    def __init__(self, view: View, rules: Rules) -> None:
        self._trials = rules.trials
        self._held: defaultdict[str, float] = defaultdict(float, rules.tried)
        self._num_gpus = max(int((view.cluster.gpu_model >= 0).sum()), 1) if rules.trials else 1

    def excess(self, key: str, gpus: float = 0.0) -> WaitReason | None:
        """Why a unit that would hold so many GPUs has to wait for others that are on trial, None where it has not."""
        trial = self._trials.get(key)
        if trial is None or within(trial.budgets, self._held, self._part(trial, gpus)):
            return None
        return trial.why

    def hold(self, key: str, gpus: float) -> None:
        """A unit is placed."""
        trial = self._trials.get(key)
        if trial is not None:
            for budget in trial.budgets:
                self._held[budget] += max(self._part(trial, gpus), _SOMETHING)

    def _part(self, trial: Trial, gpus: float) -> float:
        return max(trial.part, gpus / self._num_gpus)


def _plan(state: PlanState, why: dict[int, WaitReason], head: Head | None) -> Plan:
    """What was placed; `why` has the reasons that are not a matter of room, by position."""
    plan = state.plan(GREEDY, why)
    if head is None:
        return plan
    kept = {
        position: Code.KEPT_FOR_HEAD.reason(head=head.key)
        for position in plan.unassigned
        if position not in why
        and (state.pods[position].gang or state.pods[position].key) != head.key
        and state.fits(position).any()
    }
    return replace(plan, unassigned={**plan.unassigned, **kept})


def place_unit(
    state: PlanState, unit: Sequence[int], allowed: Mask | None = None, *, kept: "_Kept | None" = None
) -> bool:
    """Place a pod, or all pods of a gang; nothing is left of it when one of them has no room.

    `allowed` (N,) are the nodes that may be used, None for all; `kept` is what is to be left on some of them.
    """
    begun = state.num_steps
    return any(_place_within(state, unit, domain, begun, kept) for domain in _domains(state, unit, allowed))


def _place_within(
    state: PlanState, unit: Sequence[int], allowed: Mask | None, begun: int, kept: "_Kept | None"
) -> bool:
    for position in unit:
        row = state.best_row(position, allowed if kept is None else kept.leaves(state, position, allowed))
        if row is None:
            state.undo(begun)
            return False
        state.put(position, row)
    return True


def _domains(state: PlanState, unit: Sequence[int], allowed: Mask | None) -> Iterator[Mask | None]:
    """Masks of the nodes to try a unit on: the whole cluster, or each domain of its topology, the tightest first.

    Tightest is the domain with the fewest nodes that have room for the gang's first pod, so that roomy ones stay whole.
    """
    domain = state.view.domains_of([state.pods[position] for position in unit])
    if domain is None:
        yield allowed
        return
    room = state.fits(unit[0], allowed)
    numbers, counts = np.unique(domain[room & (domain >= 0)], return_counts=True)
    for number in numbers[np.argsort(counts, kind="stable")].tolist():
        yield (domain == number) if allowed is None else (domain == number) & allowed


def searched_round(view: View, pods: Sequence[PlanPod], rules: Rules, planner: Planner) -> Round:
    """A round by the planner asked for; what it does not take, or what quotas keep back, is greedy's."""
    by_greedy = greedy_round(view, pods, rules)
    if planner.name == GREEDY or rules.quotas.gpus or rules.most or rules.trials:
        return by_greedy
    ranked = [replace(pod, policy=pod.policy or rules.policy) for pod in pods]
    try:
        made = planner.make(view, ranked, 0)
    except PlanError:
        return by_greedy  # too large a batch, or one of a kind that it does not take
    return Round(made, None) if made.num_placed > by_greedy.plan.num_placed else by_greedy


class _Prospect(NamedTuple):
    """Of a pod."""

    could: Mask
    """(N,) the nodes that it would fit if they were empty."""
    free: Floats
    """(N,) GPUs that are free, or CPU where it asks for none."""


class _Kept:
    """What a head needs of some nodes, as a mask of the nodes that others may use without taking that."""

    def __init__(self, view: View, head: Head) -> None:
        names = sorted(head.nodes)
        needs = [head.needs.get(name, Need()) for name in names]
        self._rows = np.array([view.cluster.row_of[name] for name in names], np.intp)
        self._gpus, self._cpu, self._memory = np.array(needs, np.int64).reshape(-1, 3).T
        whole = np.maximum(units(view.cluster)[self._rows], 1)
        self._cpu_each = view.cpu_allocatable_milli[self._rows] // whole
        self._memory_each = view.memory_allocatable_mib[self._rows] // whole
        self._cpu_part = np.minimum(self._cpu, self._gpus * self._cpu_each)
        self._memory_part = np.minimum(self._memory, self._gpus * self._memory_each)

    def leaves(self, state: PlanState, position: int, allowed: Mask | None) -> Mask:
        """(N,) the allowed nodes on which a pod leaves the head the GPUs that it needs, and the CPU and memory.

        GPUs that the head has no use for stay idle for nobody: from pods that come for these only the part of CPU and
        memory is kept that goes with its own GPUs, and that is no reason against one which takes no more than its part.
        """
        pod, num = state.pods[position], state.pods[position].num_gpus
        cpu_left, memory_left = (
            free - asked
            for free, asked in zip(state.compute_free(self._rows), (pod.cpu_milli, pod.memory_mib), strict=True)
        )
        if pod.gpus is None:
            room = (cpu_left >= self._cpu) & (memory_left >= self._memory)
        else:
            room = (cpu_left >= self._cpu_part) | (pod.cpu_milli <= num * self._cpu_each)
            room &= (memory_left >= self._memory_part) | (pod.memory_mib <= num * self._memory_each)
            room &= free_units(state.cluster)[self._rows] - num >= self._gpus
        result = np.ones(state.view.num_nodes, np.bool_) if allowed is None else allowed.copy()
        result[self._rows] &= room
        return result


class _Heads:
    """For whom nodes are kept in a round."""

    def __init__(self, state: PlanState, rules: Rules) -> None:
        self.head: Head | None = None
        self._state = state
        self._rules = rules
        self._kept: _Kept | None = None
        keys = {pod.gang or pod.key for pod in state.pods}
        known = state.view.cluster.row_of
        held = rules.held if rules.held is not None and rules.held.key in keys & rules.reserves else None
        self._held = held if held is not None and all(name in known for name in held.nodes) else None
        """The head of the round before, until the round has come to it."""
        self._alike = state.view.alike
        self._never: set[object] = set()
        """What those ask who would not fit an empty cluster either."""
        self._looked_at: Counter[str] = Counter()
        self._empty: PlanState | None = None

    @property
    def next(self) -> Head | None:
        """For whom the next round is to keep its nodes: if this one did not come to the head, it stays so."""
        return self.head if self.head is not None else self._held

    def kept_from(self, key: str) -> _Kept | None:
        """What a unit has to leave on some nodes, None for nothing."""
        if self.head is None or key in self._rules.exempt or self._rank(key)[0] < self._rank(self.head.key)[0]:
            return None
        return self._kept

    def pass_by(self, key: str) -> None:
        """A unit needs no room, or may have none."""
        if self._held is not None and self._held.key == key:
            self._held = None

    def stay(self, key: str) -> bool:
        """It is not the turn of a unit: if it was the head it stays so. Whether that is news."""
        held = self._held
        if held is None or held.key != key:
            return False
        self._held = None
        return self._take(held)

    def propose(self, key: str, namespace: str, unit: Sequence[int]) -> bool:
        """A unit has no room: keep nodes for it, if it has waited for long and nobody comes before it."""
        if key not in self._rules.reserves or not self._comes_first(key):
            return False
        pods = [self._state.pods[position] for position in unit]
        asks = (frozenset(Counter(map(self._alike, pods)).items()), pods[0].topology, pods[0].beside)
        if asks in self._never or self._looked_at[namespace] >= _MOST_CANDIDATES:
            return False
        held = self._held if self._held is not None and self._held.key == key else None
        found = self._nodes_for(unit, pods, held)
        self.pass_by(key)
        if found is None:
            self._never.add(asks)
            self._looked_at[namespace] += 1
            return False
        return self._take(Head(key, frozenset(found), found))

    def _comes_first(self, key: str) -> bool:
        before = [head.key for head in (self.head, self._held) if head is not None and head.key != key]
        return all(self._rank(key) < self._rank(other) for other in before)

    def _rank(self, key: str) -> tuple[float, float]:
        return self._rules.rank.get(key, (0.0, 0.0))

    def _take(self, head: Head) -> bool:
        if self.head is not None and not self._rank(head.key) < self._rank(self.head.key):
            return False
        self.head, self._kept = head, _Kept(self._state.view, head)
        return True

    def _nodes_for(self, unit: Sequence[int], pods: Sequence[PlanPod], held: Head | None) -> dict[str, Need] | None:
        """What to keep for a unit, by node: of those that miss least, as many of its pods on each as that takes.

        Of a gang that keeps to one domain, nodes of the one that misses least. The nodes that were held stay the same.
        None when not all of it would fit an empty cluster: nothing is kept for what can never run.
        """
        cluster = self._state.view.cluster
        known = {alike: _prospect(self._state, pod) for alike, pod in {self._alike(pod): pod for pod in pods}.items()}
        if not all(prospect.could.any() for prospect in known.values()):
            return None
        prospects = [known[self._alike(pod)] for pod in pods]
        if held is not None:
            rows = np.sort(np.array([cluster.row_of[name] for name in held.nodes], np.intp))
            if (again := self._needs_on(rows, unit, prospects)) is not None:
                return again[1]
        domains = self._state.view.domains_of(pods)
        if domains is None:
            domains = np.zeros(cluster.num_nodes, np.int32)
        each = (np.flatnonzero(domains == number) for number in np.unique(domains[domains >= 0]))
        found = [needs for rows in each if (needs := self._needs_on(rows, unit, prospects)) is not None]
        return min(found, key=lambda needs: needs[0])[1] if found else None

    def _needs_on(
        self, among: Rows, unit: Sequence[int], prospects: Sequence[_Prospect]
    ) -> tuple[float, dict[str, Need]] | None:
        """How much is missing of what a unit needs of some rows, and what that is by node; None where it is too much
        for these nodes, if nobody used them."""
        if self._empty is None:
            self._empty = PlanState(_unused(self._state.view), self._state.pods, self._rules.policy)
        empty, tie_rank = self._empty, self._state.view.cluster.tie_rank
        needs: dict[int, Need] = {}
        free: dict[int, float] = {}
        try:
            for position, prospect in zip(unit, prospects, strict=True):
                rest = among[(empty.fits(position) & prospect.could)[among]]
                if not rest.size:
                    return None
                again = rest[np.isin(rest, list(needs))]
                choice = again if again.size else rest[prospect.free[rest] == prospect.free[rest].max()]
                row = int(choice[np.argmin(tie_rank[choice])])
                empty.put(position, row)
                needs[row] = needs.get(row, Need()).of(empty.pods[position])
                free[row] = float(prospect.free[row])
        finally:
            empty.undo(0)
        missing = sum(max(0.0, (need.gpus or need.cpu_milli) - free[row]) for row, need in needs.items())
        names = self._state.view.cluster.node_names
        return missing, {names[row]: need for row, need in needs.items()}


def _unused(view: View) -> View:
    """A view of the same nodes as they would be if nobody used them."""
    cpu, memory, pods = view.room_of_empty()
    return replace(
        view,
        cluster=emptied(view.cluster),
        cpu_free_milli=cpu,
        memory_free_mib=memory,
        pods_free=pods,
        neighbours=None if view.neighbours is None else view.neighbours.emptied(),
    )


def _prospect(state: PlanState, pod: PlanPod) -> _Prospect:
    view = state.view
    could = view.could_run(pod)
    if pod.gpus is None:
        return _Prospect(could, view.cpu_free_milli.astype(np.float64))
    checked = fit(state.cluster, pod.gpus, np.arange(view.num_nodes))
    return _Prospect(could & could_fit(checked.reason), checked.free_units.astype(np.float64))
