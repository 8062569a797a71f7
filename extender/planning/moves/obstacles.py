"""Why room can't be made: who stays in the way, and who has no place elsewhere."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Mask
from extender.planning.moves.problems import Problem
from extender.planning.moves.trials import Trial
from extender.planning.moves.units import Units, forced

_MOST_NAMED: Final = 3
"""Pods in one sentence, and sentences of one kind."""


def in_the_way(problem: Problem, units: Units) -> list[str]:
    """Why the nodes that shall be empty can't be, or pods that shall leave stay: sentences, none where they can."""
    names = problem.view.cluster.node_names
    said = []
    for row in sorted(problem.target.empty):
        if staying := [unit for unit in units.at.get(row, ()) if units.stays[unit]]:
            said.append(f"{names[row]} can't be emptied: {_who_stays(problem, units, row, staying)}")
    for number in sorted(problem.target.leave):
        if why := units.stays[units.unit_of[number]]:
            said.append(f"{problem.running[number].key} can't leave {names[problem.running[number].row]}: {why}")
    num_pods = sum(len(units.members[unit]) for unit in forced(problem, units))
    if problem.max_moves is not None and num_pods > problem.max_moves:
        what = "to empty these nodes" if problem.target.empty else "that all of them leave"
        said.append(f"{what} takes {num_pods} moves, {problem.max_moves} are allowed")
    return said


def never(trial: Trial) -> list[str]:
    """Why the target does not fit even if all who may move were gone; none where nothing is known to forbid it."""
    begun = trial.mark()
    _all_leave(trial)
    said = [*_pods_without_room(trial), *_too_few_to_empty(trial)]
    trial.rollback(begun)
    return said


def no_place(trial: Trial, stuck: Iterable[int]) -> list[str]:
    """Who found no place, by the positions of pods, those first for whom that was so most often."""
    if why := _not_together(trial):
        return [why]
    found = Counter(trial.pods[position].key for position in stuck if position >= trial.num_target)
    most = sorted(found, key=lambda key: (-found[key], key))[:_MOST_NAMED]
    said = [f"no place elsewhere for {key}" for key in most]
    target = {trial.pods[position].key: position for position in stuck if position < trial.num_target}
    for key in sorted(target)[:_MOST_NAMED]:
        said.append(f"no node found for {key} beside the rest of the target")
    return said


def _all_leave(trial: Trial) -> None:
    """All who may move."""
    for unit in np.flatnonzero(trial.units.movable).tolist():
        if unit not in trial.away:
            trial.evict(unit)


def _not_together(trial: Trial) -> str:
    """How many pods of the target found nodes together once all who may move were gone, "" for all of them."""
    begun = trial.mark()
    _all_leave(trial)
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
    return why and f"{placed} of {trial.num_target} pods found nodes with all gone that may move; {why}"


def _pods_without_room(trial: Trial) -> list[str]:
    pods, state = trial.problem.target.pods, trial.state
    first = {state.view.alike(pod): position for position, pod in reversed(list(enumerate(pods)))}
    said = []
    for position in sorted(first.values())[:_MOST_NAMED]:
        if not (state.fits(position) & ~trial.closed).any():
            said.append(f"{pods[position].key}: {_why_no_room(trial, position)}")
    return said


def _why_no_room(trial: Trial, position: int) -> str:
    """Of a pod that fits nowhere even without all who may move: who stays where the fewest do that would have to go."""
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
    return f"{why}; nearest is {name}, where {_who_stays(trial.problem, units, row, staying[row])}"


def _too_few_to_empty(trial: Trial) -> list[str]:
    problem, units = trial.problem, trial.units
    target = problem.target
    if not target.num_empty:
        return []
    may = may_be_emptied(trial)
    rows = np.flatnonzero(may).tolist()
    staying = {row: [unit for unit in units.at.get(row, ()) if units.stays[unit]] for row in rows}
    num_free = sum(not units_here for units_here in staying.values())
    if num_free >= target.num_empty:
        return []
    said = [f"{num_free} of the {len(rows)} nodes in question can be emptied, {target.num_empty} are asked for"]
    nearest = sorted((row for row in rows if staying[row]), key=lambda row: (len(staying[row]), row))
    names = problem.view.cluster.node_names
    said += [f"on {names[row]} {_who_stays(problem, units, row, staying[row])}" for row in nearest[:_MOST_NAMED]]
    return said


def may_be_emptied(trial: Trial) -> Mask:
    """(N,) nodes of which some shall be empty, whichever."""
    target = trial.problem.target
    exists = np.array([bool(name) for name in trial.state.cluster.node_names], np.bool_)
    may: Mask = exists & ~trial.closed
    return may if target.may_empty is None else may & target.may_empty


def _who_stays(problem: Problem, units: Units, row: int, staying: Sequence[int]) -> str:
    """As in `default/x stays: has no controller; and 2 more`; of gangs those who are on that node."""
    named = [
        f"{problem.running[units.at[row][unit][0]].key} stays: {units.stays[unit]}" for unit in staying[:_MOST_NAMED]
    ]
    more = len(staying) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
