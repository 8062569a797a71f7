"""One round of the queue, as a pure function: who goes next and where, who is passed over, and why the others wait.

The queue holds no head-of-line blocking: smaller pods may pass one that has no room, but a reservation for the head
keeps the nodes on which it will fit soonest from them, so that it is not passed for ever.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Ints, Mask, Rows
from extender.core.fits import fit
from extender.core.reasons import resolvable
from extender.queueing.boards import DEFAULT_POLICY, Board
from extender.queueing.planners import PLANNERS
from extender.queueing.planners.greedy import place_unit
from extender.queueing.plans import Plan, PlanError, PlanPod, View, units_of
from extender.queueing.quotas import Quotas

NOT_YET: Final = ""
"""Reason of pods that a round did not come to."""
KEPT: Final = "room is kept for "
"""Begin of the reason of pods that are passed over for the head, though there is room."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first in the queue that has no room, and the nodes kept for it."""

    key: str
    """Of its gang, or of the pod."""
    nodes: frozenset[str]


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
    board = Board(view, pods, rules.policy)
    used = dict(rules.used)
    full: set[object] = set()
    placed: Counter[str] = Counter()
    why: dict[int, str] = {}
    head: Head | None = None
    others: Mask | None = None
    for unit in units_of(pods):
        begun = board.num_steps
        if begun and begun >= rules.limit:
            why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_YET))
            break
        first = pods[unit[0]]
        namespace = first.key.partition("/")[0]
        most = rules.most.get(namespace)
        if most is not None and (most <= placed[namespace] or 0 < placed[namespace] > most - len(unit)):
            why.update(dict.fromkeys(unit, NOT_YET))
            continue
        asked = float(sum(pods[position].num_gpus for position in unit))
        excess = rules.quotas.excess(namespace, used.get(namespace, 0.0), asked)
        if excess:
            why.update(dict.fromkeys(unit, excess))
            continue
        key = first.gang or first.key
        allowed = None if key in rules.exempt else others
        alike = None if first.gang else (first.cpu_milli, first.memory_mib, first.gpus, first.kind, allowed is None)
        if alike is not None and alike in full:
            continue
        if place_unit(board, unit, allowed):
            asked = max(asked, float(board.num_gpus(begun)))  # memory in total says no number of GPUs
            if excess := rules.quotas.excess(namespace, used.get(namespace, 0.0), asked):
                board.undo(begun)
                why.update(dict.fromkeys(unit, excess))
                continue
            if begun and board.num_steps > rules.limit:  # one that has room: its turn is next, and nobody's before
                board.undo(begun)
                why.update(dict.fromkeys(range(unit[0], len(pods)), NOT_YET))
                break
            placed[namespace] += len(unit)
            used[namespace] = used.get(namespace, 0.0) + asked
            continue
        if alike is not None:
            full.add(alike)
        if head is None and key in rules.reserves:
            head = _head(board, unit, key, rules.held)
            if head is not None:
                others = _others(view, head)
                full.clear()
    return Round(_plan(board, why, head), head)


def _plan(board: Board, why: dict[int, str], head: Head | None) -> Plan:
    """What is on the board; `why` has the reasons that are not a matter of room, by position."""
    plan, pods = board.plan("greedy", unasked={position for position in why if why[position] == NOT_YET}), board.pods
    if head is not None:
        why.update(
            {
                position: f"{KEPT}{head.key}"
                for position in plan.unassigned
                if position not in why
                and (pods[position].gang or pods[position].key) != head.key
                and board.fits(position).any()
            }
        )
    unassigned = {position: why.get(position, reason) for position, reason in plan.unassigned.items()}
    return replace(plan, unassigned=unassigned)


def searched_round(view: View, pods: Sequence[PlanPod], rules: Rules, planner: str) -> Round:
    """A round by the planner asked for; what it does not take, or what quotas keep back, is greedy's."""
    if planner == "greedy" or rules.quotas.gpus or rules.most:
        return greedy_round(view, pods, rules)
    by_greedy = greedy_round(view, pods, rules)
    ranked = [replace(pod, policy=pod.policy or rules.policy) for pod in pods]
    try:
        made = PLANNERS[planner].make(view, ranked, 0)
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


def _head(board: Board, unit: Sequence[int], key: str, held: Head | None) -> Head | None:
    """The nodes to keep for a unit: those that miss least, by the GPUs that are free, enough of them for all its pods.

    Of a gang that keeps to one domain, those of the domain that misses least.

    None when it would not fit an empty cluster either: nothing is kept for what can never run.
    """
    if held is not None and held.key == key and all(name in board.view.cluster.row_of for name in held.nodes):
        return held
    cluster = board.view.cluster
    pods = [board.pods[position] for position in unit]
    alike = [(pod.cpu_milli, pod.memory_mib, pod.gpus, pod.kind) for pod in pods]
    known = {what: _prospect(board, pod) for what, pod in dict(zip(alike, pods, strict=True)).items()}
    domains = board.view.domains_of(pods)
    if domains is None:
        domains = np.zeros(cluster.num_nodes, np.int32)
    kept = [
        _freest([known[what] for what in alike], np.flatnonzero(domains == number), cluster.tie_rank)
        for number in np.unique(domains[domains >= 0])
    ]
    most = max(kept, key=lambda found: (len(found.rows), found.free), default=_Kept())
    return Head(key, frozenset(cluster.node_names[row] for row in most.rows)) if most.rows else None


def _prospect(board: Board, pod: PlanPod) -> _Prospect:
    view = board.view
    could = view.allowed[pod.kind] & (view.cpu_allocatable_milli >= pod.cpu_milli)
    could &= view.memory_allocatable_mib >= pod.memory_mib
    if pod.gpus is None:
        return _Prospect(could, view.cpu_free_milli.astype(np.float64))
    checked = fit(board.cluster, pod.gpus, np.arange(view.num_nodes))
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
