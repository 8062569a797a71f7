"""Sentences that say why room can't be made: pods that stay in the way, and pods without a place elsewhere."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Mask
from extender.planning.moves.problems import Problem
from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import Units, forced

_MAX_NAMED: Final = 3
"""Most pods in one sentence, and sentences of one kind."""


def in_the_way(problem: Problem, units: Units) -> list[str]:
    """Why `Target.empty` can't be emptied, or pods of `Target.leave` can't leave; empty if they can."""
    names = problem.view.cluster.node_names
    reasons = []
    for row in sorted(problem.target.empty):
        if staying := [unit for unit in units.at.get(row, ()) if units.stays[unit]]:
            reasons.append(f"{names[row]} can't be emptied: {_staying_pods(problem, units, row, staying)}")
    for number in sorted(problem.target.leave):
        if why := units.stays[units.unit_of[number]]:
            reasons.append(f"{problem.running[number].key} can't leave {names[problem.running[number].row]}: {why}")
    num_pods = sum(len(units.members[unit]) for unit in forced(problem, units))
    if problem.max_moves is not None and num_pods > problem.max_moves:
        what = "emptying these nodes" if problem.target.empty else "moving all of them"
        reasons.append(f"{what} takes {num_pods} moves, {problem.max_moves} are allowed")
    return reasons


def impossible_reasons(trial: MoveTrial) -> list[str]:
    """Why the target would not fit even with all movable pods gone; empty if no reason is known."""
    begun = trial.mark()
    _evict_all(trial)
    reasons = [*_pods_without_room(trial), *_too_few_to_empty(trial)]
    trial.rollback(begun)
    return reasons


def no_place(trial: MoveTrial, stuck: Iterable[int]) -> list[str]:
    """The pods that found no place, the most frequent first; `stuck` has their positions."""
    if why := _not_together(trial):
        return [why]
    counts = Counter(trial.pods[position].key for position in stuck if position >= trial.num_target)
    most = sorted(counts, key=lambda key: (-counts[key], key))[:_MAX_NAMED]
    reasons = [f"no place elsewhere for {key}" for key in most]
    target = {trial.pods[position].key: position for position in stuck if position < trial.num_target}
    for key in sorted(target)[:_MAX_NAMED]:
        reasons.append(f"no node found for {key} together with the rest of the target")
    return reasons


def _evict_all(trial: MoveTrial) -> None:
    """Evict all movable units."""
    for unit in np.flatnonzero(trial.units.movable).tolist():
        if unit not in trial.away:
            trial.evict(unit)


def _not_together(trial: MoveTrial) -> str:
    """How many pods of the target fit together with all movable pods gone; "" if all do."""
    begun = trial.mark()
    _evict_all(trial)
    left = []
    for position in range(trial.num_target):
        rows = np.flatnonzero(trial.state.fits(position) & ~trial.closed)
        if len(rows):
            trial.put(position, int(rows[0]))
        else:
            left.append(position)
    placed = trial.num_target - len(left)
    why = f"{trial.pods[left[0]].key}: {_why_no_room(trial, left[0])}" if left else ""
    trial.rollback(begun)
    return why and f"{placed} of {trial.num_target} pods fit with all movable pods gone; {why}"


def _pods_without_room(trial: MoveTrial) -> list[str]:
    pods, state = trial.problem.target.pods, trial.state
    first = {state.view.alike(pod): position for position, pod in reversed(list(enumerate(pods)))}
    reasons = []
    for position in sorted(first.values())[:_MAX_NAMED]:
        if not (state.fits(position) & ~trial.closed).any():
            reasons.append(f"{pods[position].key}: {_why_no_room(trial, position)}")
    return reasons


def _why_no_room(trial: MoveTrial, position: int) -> str:
    """Why a pod fits nowhere with all movable pods gone, and which pods stay on the node with the fewest of them."""
    units, state = trial.units, trial.state
    why = str(state.why_not(position))
    begun = trial.mark()
    for unit in range(len(units.members)):
        if unit not in trial.away:
            trial.evict(unit)
    rows = np.flatnonzero(state.fits(position) & ~trial.closed).tolist()
    trial.rollback(begun)
    if not rows:
        return why
    staying = {row: [unit for unit in units.at.get(row, ()) if units.stays[unit]] for row in rows}
    row = min(rows, key=lambda row: (len(staying[row]), row))
    name = state.cluster.node_names[row]
    return f"{why}; nearest is {name}, where {_staying_pods(trial.problem, units, row, staying[row])}"


def _too_few_to_empty(trial: MoveTrial) -> list[str]:
    problem, units = trial.problem, trial.units
    target = problem.target
    if not target.num_empty:
        return []
    may = may_be_emptied(trial)
    rows = np.flatnonzero(may).tolist()
    staying = {row: [unit for unit in units.at.get(row, ()) if units.stays[unit]] for row in rows}
    num_free = sum(not stay for stay in staying.values())
    if num_free >= target.num_empty:
        return []
    reasons = [f"{num_free} of the {len(rows)} candidate nodes can be emptied, {target.num_empty} are requested"]
    nearest = sorted((row for row in rows if staying[row]), key=lambda row: (len(staying[row]), row))
    names = problem.view.cluster.node_names
    reasons += [f"on {names[row]} {_staying_pods(problem, units, row, staying[row])}" for row in nearest[:_MAX_NAMED]]
    return reasons


def may_be_emptied(trial: MoveTrial) -> Mask:
    """(N,) candidates for `Target.num_empty`."""
    target = trial.problem.target
    exists = np.array([bool(name) for name in trial.state.cluster.node_names], np.bool_)
    may: Mask = exists & ~trial.closed
    return may if target.may_empty is None else may & target.may_empty


def _staying_pods(problem: Problem, units: Units, row: int, staying: Sequence[int]) -> str:
    """For example `default/x stays: it has no controller; and 2 more`; a gang is named by its first pod on the node."""
    named = [
        f"{problem.running[units.at[row][unit][0]].key} stays: {units.stays[unit]}" for unit in staying[:_MAX_NAMED]
    ]
    more = len(staying) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
