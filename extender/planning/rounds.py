"""One round of the queue, as a pure function: which pods are released to which nodes, and why the others wait.

There is no head-of-line blocking: smaller pods may overtake one that has no room. To prevent starvation, room is kept
for the first such unit, the head, on the nodes on which it will fit soonest.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from extender.core.bookings import without_bookings
from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.checks import could_fit
from extender.core.fit.fits import fit
from extender.planning.plan_state import DEFAULT_POLICY, PlanState, free_units, units
from extender.planning.plans import GREEDY, Plan, PlanError, Planner, PlanPod, View, units_of
from extender.planning.quotas import Quotas
from extender.planning.wait_reasons import NOT_REACHED, Code, WaitReason

_MAX_CANDIDATES: Final = 16
"""Most units of a namespace per round found not to fit an empty cluster; no further ones are checked."""
_MAX_TRIAL_SHARE: Final = 0.05
"""Most of the cluster that the units on trial of one budget hold together; a single unit may hold more."""
_MIN_SHARE: Final = 1e-9
"""Share counted for a unit without requests."""


class Need(NamedTuple):
    """What the head's pods need on one node."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0

    def of(self, pod: PlanPod) -> "Need":
        """The sum of this and one more pod."""
        return Need(self.gpus + pod.num_gpus, self.cpu_milli + pod.cpu_milli, self.memory_mib + pod.memory_mib)


@dataclass(frozen=True, slots=True)
class Head:
    """The first unit in queue order that has no room, and what is kept for it."""

    key: str
    """Key of the gang or pod."""
    nodes: frozenset[str]
    needs: Mapping[str, Need] = field(default_factory=dict, compare=False)
    """What is kept on each node; others may use the rest."""

    def kept_from(self, cluster: Cluster, num_gpus: int) -> frozenset[str]:
        """The nodes on which a pod with this number of GPUs would take what the head needs."""
        known = [(name, row) for name in sorted(self.nodes) if (row := cluster.row_of.get(name)) is not None]
        free = free_units(cluster)
        return frozenset(name for name, row in known if free[row] - num_gpus < self.needs.get(name, Need()).gpus)


class TrialLimits(NamedTuple):
    """Limits of a unit on trial: one that kube-scheduler is likely to refuse."""

    budgets: tuple[str, ...]
    """Keys of the budgets that it counts against."""
    part: float
    """Fraction of the cluster that it requests."""
    why: WaitReason
    """Why it waits while a budget is used up."""


@dataclass(frozen=True, slots=True)
class RoundRules:
    """Parameters of a round."""

    quotas: Quotas = field(default_factory=Quotas)
    used: Mapping[str, float] = field(default_factory=dict)
    """GPUs in use by namespace."""
    held: Head | None = None
    """The previous round's head; its nodes stay the same while it stays the head."""
    reserves: frozenset[str] = frozenset()
    """Keys of gangs and pods that have waited long enough to be the head."""
    rank: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By key: the smallest rank becomes the head; ties break by queue order. Units whose first number is smaller than
    the head's may use its nodes."""
    exempt: frozenset[str] = frozenset()
    """Keys of gangs and pods that were kept off the head's nodes for long enough: they may use them."""
    policy: str = DEFAULT_POLICY
    """Ranks nodes for pods that don't choose a policy."""
    limit: float = float("inf")
    """Most pods to place; the first gang may exceed it."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Most pods to place of namespaces that would exceed their share of `limit`."""
    trials: Mapping[str, TrialLimits] = field(default_factory=dict)
    """Units on trial, by key of gang or pod."""
    tried: Mapping[str, float] = field(default_factory=dict)
    """Fraction of the cluster that units on trial hold now, by budget."""


def within(budgets: Iterable[str], held: Mapping[str, float], part: float) -> bool:
    """Whether a unit on trial may hold `part` of the cluster: all budgets have that left, or are unused."""
    return all(not (used := held.get(budget, 0.0)) or used + part <= _MAX_TRIAL_SHARE for budget in budgets)


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round."""

    plan: Plan
    head: Head | None


def greedy_round(view: View, pods: Sequence[PlanPod], rules: RoundRules) -> Round:
    """Place units in the order of `pods` where a live decision would put them.

    Respects quotas, what is kept for the head, and `rules.limit`. The round ends at the limit, and before a gang that
    has room but exceeds what is left of it; the remaining pods wait without a reason.
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
        gpus = float(sum(pods[position].num_gpus for position in unit))
        if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), gpus) or trials.excess(key):
            why.update(dict.fromkeys(unit, excess))
            heads.drop(key)
            continue
        kept = heads.kept_from(key)
        alike = None if first.gang else (*view.alike(first), kept is None)
        if alike not in full and place_unit(state, unit, kept=kept):
            gpus = max(gpus, float(state.num_gpus(begun)))  # a request by total memory names no number
            if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), gpus) or trials.excess(key, gpus):
                state.undo(begun)
                why.update(dict.fromkeys(unit, excess))
                heads.drop(key)
                continue
            if begun and state.num_steps > rules.limit:  # it has room: the next round begins with it
                state.undo(begun)
                why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_REACHED))
                break
            trials.hold(key, gpus)
            placed[namespace] += len(unit)
            used[namespace] = used.get(namespace, 0.0) + gpus
            heads.drop(key)
            continue
        if alike is not None:
            full.add(alike)
        if heads.propose(key, namespace, unit):
            full.clear()
    return Round(_plan(state, why, heads.head), heads.next)


class _Trials:
    """What units on trial hold during a round."""

    def __init__(self, view: View, rules: RoundRules) -> None:
        self._trials = rules.trials
        self._held: defaultdict[str, float] = defaultdict(float, rules.tried)
        self._num_gpus = max(int((view.cluster.gpu_model >= 0).sum()), 1) if rules.trials else 1

    def excess(self, key: str, gpus: float = 0.0) -> WaitReason | None:
        """The reason if a unit that would hold `gpus` has to wait for others on trial, else None."""
        trial = self._trials.get(key)
        if trial is None or within(trial.budgets, self._held, self._part(trial, gpus)):
            return None
        return trial.why

    def hold(self, key: str, gpus: float) -> None:
        """Count a placed unit."""
        trial = self._trials.get(key)
        if trial is not None:
            for budget in trial.budgets:
                self._held[budget] += max(self._part(trial, gpus), _MIN_SHARE)

    def _part(self, trial: TrialLimits, gpus: float) -> float:
        return max(trial.part, gpus / self._num_gpus)


def _plan(state: PlanState, why: dict[int, WaitReason], head: Head | None) -> Plan:
    """The plan; `why` has reasons, by position, other than lack of room."""
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
    state: PlanState, unit: Sequence[int], allowed: Mask | None = None, *, kept: "_KeptRoom | None" = None
) -> bool:
    """Place a pod, or all pods of a gang, or none if one has no room; returns whether they were placed.

    `allowed` (N,) are the nodes that may be used, None for all; `kept` is what to leave to the head.
    """
    begun = state.num_steps
    return any(_place_within(state, unit, domain, begun, kept) for domain in _domains(state, unit, allowed))


def _place_within(
    state: PlanState, unit: Sequence[int], allowed: Mask | None, begun: int, kept: "_KeptRoom | None"
) -> bool:
    for position in unit:
        row = state.best_row(position, allowed if kept is None else kept.leaves(state, position, allowed))
        if row is None:
            state.undo(begun)
            return False
        state.put(position, row)
    return True


def _domains(state: PlanState, unit: Sequence[int], allowed: Mask | None) -> Iterator[Mask | None]:
    """Masks (N,) of the nodes to try a unit on: all allowed ones, or each domain of its topology, the tightest first.

    The tightest domain has the fewest nodes with room for the gang's first pod. Emptier domains thus stay whole.
    """
    domain = state.view.domains_of([state.pods[position] for position in unit])
    if domain is None:
        yield allowed
        return
    room = state.fits(unit[0], allowed)
    numbers, counts = np.unique(domain[room & (domain >= 0)], return_counts=True)
    for number in numbers[np.argsort(counts, kind="stable")].tolist():
        yield (domain == number) if allowed is None else (domain == number) & allowed


def searched_round(view: View, pods: Sequence[PlanPod], rules: RoundRules, planner: Planner) -> Round:
    """A round by the given planner. Greedy's is returned if it places as many, with quotas, limits per namespace or
    trials, and if the planner does not support the batch."""
    by_greedy = greedy_round(view, pods, rules)
    if planner.name == GREEDY or rules.quotas.gpus or rules.most or rules.trials:
        return by_greedy
    ranked = [replace(pod, policy=pod.policy or rules.policy) for pod in pods]
    try:
        made = planner.make(view, ranked, 0)
    except PlanError:
        return by_greedy
    return Round(made, None) if made.num_placed > by_greedy.plan.num_placed else by_greedy


class _Prospect(NamedTuple):
    """Where a pod might fit."""

    could: Mask
    """(N,) the nodes that it would fit if they were empty."""
    free: Floats
    """(N,) free GPUs, or free CPU if it requests none."""


class _KeptRoom:
    """What the head needs on its nodes, and which nodes others may use without taking that."""

    def __init__(self, view: View, head: Head) -> None:
        names = sorted(head.nodes)
        needs = [head.needs.get(name, Need()) for name in names]
        self._rows = np.array([view.cluster.row_of[name] for name in names], np.intp)
        self._gpus, self._cpu, self._memory = np.array(needs, np.int64).reshape(-1, 3).T
        num_units = np.maximum(units(view.cluster)[self._rows], 1)
        self._cpu_each = view.cpu_allocatable_milli[self._rows] // num_units
        self._memory_each = view.memory_allocatable_mib[self._rows] // num_units
        self._cpu_part = np.minimum(self._cpu, self._gpus * self._cpu_each)
        self._memory_part = np.minimum(self._memory, self._gpus * self._memory_each)

    def leaves(self, state: PlanState, position: int, allowed: Mask | None) -> Mask:
        """(N,) the allowed nodes on which a pod leaves the GPUs, CPU and memory that the head needs.

        GPUs that the head does not need must not stay idle. From GPU pods, only CPU and memory in proportion to the
        head's GPUs are kept, and a pod that takes no more than its own GPUs' proportion always passes.
        """
        pod, num = state.pods[position], state.pods[position].num_gpus
        cpu_left, memory_left = (
            free - requested
            for free, requested in zip(state.compute_free(self._rows), (pod.cpu_milli, pod.memory_mib), strict=True)
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
    """Chooses the round's head and what is kept for it."""

    def __init__(self, state: PlanState, rules: RoundRules) -> None:
        self.head: Head | None = None
        self._state = state
        self._rules = rules
        self._kept: _KeptRoom | None = None
        keys = {pod.gang or pod.key for pod in state.pods}
        known = state.view.cluster.row_of
        held = rules.held if rules.held is not None and rules.held.key in keys & rules.reserves else None
        self._held = held if held is not None and all(name in known for name in held.nodes) else None
        """The previous round's head, until this round reaches it."""
        self._alike = state.view.alike
        self._never: set[object] = set()
        """Requests that would not fit an empty cluster either."""
        self._num_failed: Counter[str] = Counter()
        self._empty: PlanState | None = None

    @property
    def next(self) -> Head | None:
        """The head to pass to the next round; the previous one if this round did not reach it."""
        return self.head if self.head is not None else self._held

    def kept_from(self, key: str) -> _KeptRoom | None:
        """What a unit has to leave to the head, None for nothing."""
        if self.head is None or key in self._rules.exempt or self._rank(key)[0] < self._rank(self.head.key)[0]:
            return None
        return self._kept

    def drop(self, key: str) -> None:
        """Drop a unit as the previous head: it was placed, or waits for another reason than room."""
        if self._held is not None and self._held.key == key:
            self._held = None

    def stay(self, key: str) -> bool:
        """Keep a unit that was not tried as the head if it was; returns whether what is kept has changed."""
        held = self._held
        if held is None or held.key != key:
            return False
        self._held = None
        return self._take(held)

    def propose(self, key: str, namespace: str, unit: Sequence[int]) -> bool:
        """Make a unit without room the head if it has waited long enough and ranks first; returns whether it did."""
        if key not in self._rules.reserves or not self._comes_first(key):
            return False
        pods = [self._state.pods[position] for position in unit]
        request = (frozenset(Counter(map(self._alike, pods)).items()), pods[0].topology, pods[0].beside)
        if request in self._never or self._num_failed[namespace] >= _MAX_CANDIDATES:
            return False
        held = self._held if self._held is not None and self._held.key == key else None
        needs = self._nodes_for(unit, pods, held)
        self.drop(key)
        if needs is None:
            self._never.add(request)
            self._num_failed[namespace] += 1
            return False
        return self._take(Head(key, frozenset(needs), needs))

    def _comes_first(self, key: str) -> bool:
        before = [head.key for head in (self.head, self._held) if head is not None and head.key != key]
        return all(self._rank(key) < self._rank(other) for other in before)

    def _rank(self, key: str) -> tuple[float, float]:
        return self._rules.rank.get(key, (0.0, 0.0))

    def _take(self, head: Head) -> bool:
        if self.head is not None and not self._rank(head.key) < self._rank(self.head.key):
            return False
        self.head, self._kept = head, _KeptRoom(self._state.view, head)
        return True

    def _nodes_for(self, unit: Sequence[int], pods: Sequence[PlanPod], held: Head | None) -> dict[str, Need] | None:
        """What to keep for a unit, by node: on the nodes, or in the domain, where the least is missing.

        A held head keeps its nodes. None if the unit would not fit an empty cluster.
        """
        cluster = self._state.view.cluster
        known = {alike: _prospect(self._state, pod) for alike, pod in {self._alike(pod): pod for pod in pods}.items()}
        if not all(prospect.could.any() for prospect in known.values()):
            return None
        prospects = [known[self._alike(pod)] for pod in pods]
        if held is not None:
            rows = np.sort(np.array([cluster.row_of[name] for name in held.nodes], np.intp))
            if (needs := self._needs_on(rows, unit, prospects)) is not None:
                return needs[1]
        domains = self._state.view.domains_of(pods)
        if domains is None:
            domains = np.zeros(cluster.num_nodes, np.int32)
        each = (np.flatnonzero(domains == number) for number in np.unique(domains[domains >= 0]))
        options = [needs for rows in each if (needs := self._needs_on(rows, unit, prospects)) is not None]
        return min(options, key=lambda needs: needs[0])[1] if options else None

    def _needs_on(
        self, among: Rows, unit: Sequence[int], prospects: Sequence[_Prospect]
    ) -> tuple[float, dict[str, Need]] | None:
        """How much a unit misses on some rows, and its needs by node; None if it would not fit these nodes empty."""
        if self._empty is None:
            self._empty = PlanState(_emptied_view(self._state.view), self._state.pods, self._rules.policy)
        empty, tie_rank = self._empty, self._state.view.cluster.tie_rank
        needs: dict[int, Need] = {}
        free: dict[int, float] = {}
        try:
            for position, prospect in zip(unit, prospects, strict=True):
                rest = among[(empty.fits(position) & prospect.could)[among]]
                if not rest.size:
                    return None
                used = rest[np.isin(rest, list(needs))]
                choice = used if used.size else rest[prospect.free[rest] == prospect.free[rest].max()]
                row = int(choice[np.argmin(tie_rank[choice])])
                empty.put(position, row)
                needs[row] = needs.get(row, Need()).of(empty.pods[position])
                free[row] = float(prospect.free[row])
        finally:
            empty.undo(0)
        missing = sum(max(0.0, (need.gpus or need.cpu_milli) - free[row]) for row, need in needs.items())
        names = self._state.view.cluster.node_names
        return missing, {names[row]: need for row, need in needs.items()}


def _emptied_view(view: View) -> View:
    """A view of the same nodes without pods."""
    cpu, memory, pods = view.room_of_empty()
    return replace(
        view,
        cluster=without_bookings(view.cluster),
        cpu_free_milli=cpu,
        memory_free_mib=memory,
        pods_free=pods,
        neighbours=None if view.neighbours is None else view.neighbours.emptied(),
    )


def _prospect(state: PlanState, pod: PlanPod) -> _Prospect:
    view = state.view
    could = view.fits_empty(pod)
    if pod.gpus is None:
        return _Prospect(could, view.cpu_free_milli.astype(np.float64))
    checked = fit(state.cluster, pod.gpus, np.arange(view.num_nodes))
    return _Prospect(could & could_fit(checked.reason), checked.free_units.astype(np.float64))
