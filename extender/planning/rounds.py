"""One round of the queue, as a pure function: who goes next and where, who is passed over, and why the others wait.

The queue holds no head-of-line blocking: smaller pods may pass one that has no room, but a reservation for the head
keeps the nodes on which it will fit soonest from them, so that it is not passed for ever.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Ints, Mask, Rows
from extender.core.fit.fits import fit
from extender.core.fit.reasons import resolvable
from extender.planning.plan_state import DEFAULT_POLICY, PlanState
from extender.planning.plans import GREEDY, Plan, PlanError, Planner, PlanPod, View, units_of
from extender.planning.quotas import Quotas
from extender.planning.wait_reasons import NOT_REACHED, Code, WaitReason


@dataclass(frozen=True, slots=True)
class Head:
    """The first in the queue that has no room, and the nodes kept for it."""

    key: str
    """Of its gang, or of the pod."""
    nodes: frozenset[str]


MOST_HELD: Final = 0.05
"""Most of the cluster that units on trial hold at once, where one of them does not hold more."""


_SOMETHING: Final = 1e-9
"""What a unit holds at least that asks for nothing."""


class Trial(NamedTuple):
    """Of a unit that kube-scheduler may well refuse."""

    budget: str
    """Whom it shares with what those hold that are on trial."""
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
    never: set[object] = set()
    """Of those who wait for long, who would not fit an empty cluster either."""
    placed: Counter[str] = Counter()
    trials = _Trials(view, rules)
    why: dict[int, WaitReason] = {}
    head: Head | None = None
    others: Mask | None = None
    for unit in units_of(pods):
        begun = state.num_steps
        if begun and begun >= rules.limit:
            why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_REACHED))
            break
        first = pods[unit[0]]
        namespace = first.key.partition("/")[0]
        most = rules.most.get(namespace)
        if most is not None and (most <= placed[namespace] or 0 < placed[namespace] > most - len(unit)):
            why.update(dict.fromkeys(unit, NOT_REACHED))
            continue
        key, asked = first.gang or first.key, float(sum(pods[position].num_gpus for position in unit))
        if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), asked) or trials.excess(key):
            why.update(dict.fromkeys(unit, excess))
            continue
        allowed = None if key in rules.exempt else others
        alike = None if first.gang else (*first.alike, allowed is None)
        if alike not in full and place_unit(state, unit, allowed):
            asked = max(asked, float(state.num_gpus(begun)))  # memory in total says no number of GPUs
            if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), asked) or trials.excess(key, asked):
                state.undo(begun)
                why.update(dict.fromkeys(unit, excess))
                continue
            if begun and state.num_steps > rules.limit:  # one that has room: its turn is next, and nobody's before
                state.undo(begun)
                why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_REACHED))
                break
            trials.hold(key, asked)
            placed[namespace] += len(unit)
            used[namespace] = used.get(namespace, 0.0) + asked
            continue
        if alike is not None:
            full.add(alike)
        if head is None and key in rules.reserves and alike not in never:
            head = _head(state, unit, key, rules.held)
            if head is not None:
                others = _others(view, head)
                full.clear()
            elif alike is not None:
                never.add(alike)
    return Round(_plan(state, why, head), head)


class _Trials:
    """What units on trial hold in the course of a round."""

    def __init__(self, view: View, rules: Rules) -> None:
        self._trials = rules.trials
        self._held: defaultdict[str, float] = defaultdict(float, rules.tried)
        self._num_gpus = max(int((view.cluster.gpu_model >= 0).sum()), 1) if rules.trials else 1

    def excess(self, key: str, gpus: float = 0.0) -> WaitReason | None:
        """Why a unit that would hold so many GPUs has to wait for others that are on trial, None where it has not."""
        trial = self._trials.get(key)
        if trial is None or not self._held[trial.budget]:
            return None
        return trial.why if self._held[trial.budget] + self._part(trial, gpus) > MOST_HELD else None

    def hold(self, key: str, gpus: float) -> None:
        """A unit is placed."""
        trial = self._trials.get(key)
        if trial is not None:
            self._held[trial.budget] += max(self._part(trial, gpus), _SOMETHING)

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


def place_unit(state: PlanState, unit: Sequence[int], allowed: Mask | None = None) -> bool:
    """Place a pod, or all pods of a gang; nothing is left of it when one of them has no room.

    `allowed` (N,) are the nodes that may be used, None for all.
    """
    begun = state.num_steps
    return any(_place_within(state, unit, domain, begun) for domain in _domains(state, unit, allowed))


def _place_within(state: PlanState, unit: Sequence[int], allowed: Mask | None, begun: int) -> bool:
    for position in unit:
        row = state.best_row(position, allowed)
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


class _Kept(NamedTuple):
    """Nodes to keep."""

    rows: tuple[int, ...] = ()
    free: float = 0.0
    """On all of them."""


def _head(state: PlanState, unit: Sequence[int], key: str, held: Head | None) -> Head | None:
    """The nodes to keep for a unit: those that miss least, by the GPUs that are free, enough of them for all its pods.

    Of a gang that keeps to one domain, those of the domain that misses least.

    None when it would not fit an empty cluster either: nothing is kept for what can never run.
    """
    if held is not None and held.key == key and all(name in state.view.cluster.row_of for name in held.nodes):
        return held
    cluster = state.view.cluster
    pods = [state.pods[position] for position in unit]
    known = {alike: _prospect(state, pod) for alike, pod in {pod.alike: pod for pod in pods}.items()}
    domains = state.view.domains_of(pods)
    if domains is None:
        domains = np.zeros(cluster.num_nodes, np.int32)
    kept = [
        _freest([known[pod.alike] for pod in pods], np.flatnonzero(domains == number), cluster.tie_rank)
        for number in np.unique(domains[domains >= 0])
    ]
    most = max(kept, key=lambda found: (len(found.rows), found.free), default=_Kept())
    return Head(key, frozenset(cluster.node_names[row] for row in most.rows)) if most.rows else None


def _prospect(state: PlanState, pod: PlanPod) -> _Prospect:
    view = state.view
    could = view.allowed[pod.kind] & (view.cpu_allocatable_milli >= pod.cpu_milli)
    could &= view.memory_allocatable_mib >= pod.memory_mib
    if pod.gpus is None:
        return _Prospect(could, view.cpu_free_milli.astype(np.float64))
    checked = fit(state.cluster, pod.gpus, np.arange(view.num_nodes))
    return _Prospect(could & (checked.fits | resolvable(checked.reason)), checked.free_units.astype(np.float64))


def _freest(pods: Sequence[_Prospect], among: Rows, tie_rank: Ints) -> _Kept:
    """The freest node for each pod, as long as there is one: what more fits there comes as it may."""
    kept = _Kept()
    for pod in pods:
        rest = among[pod.could[among] & ~np.isin(among, kept.rows)]
        if not rest.size:
            break
        most = pod.free[rest].max()
        tied = rest[pod.free[rest] == most]
        row = int(tied[np.argmin(tie_rank[tied])])
        kept = _Kept((*kept.rows, row), kept.free + float(most))
    return kept


def _others(view: View, head: Head) -> Mask:
    """(N,) the nodes that are not kept."""
    others = np.ones(view.num_nodes, np.bool_)
    others[[view.cluster.row_of[name] for name in head.nodes]] = False
    return others
