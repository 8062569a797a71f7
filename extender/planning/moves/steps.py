"""Orders moves into steps: units move one after another, and each finds room on its new nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from extender.planning.moves.placements import anywhere
from extender.planning.moves.problems import Move, MovePlan
from extender.planning.moves.trials import MoveTrial


@dataclass(frozen=True, slots=True)
class Assignment:
    """The final node of each moved and target pod."""

    row_of: Mapping[int, Mapping[int, int]]
    """By unit that moves: row by member. Its order is the preferred order of moves."""
    target: Mapping[int, int]
    """Row by position of the target's pods."""
    emptied: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """A verified solution."""

    cost: tuple[float, int]
    """GPU-seconds lost, and pods moved."""
    assignment: Assignment
    plan: MovePlan


def proved(trial: MoveTrial, proof: MoveTrial) -> Solution | None:
    """A trial's solution, verified by making its moves one by one on another trial; None if that fails."""
    assignment = _assignment_of(trial)
    plan = in_steps(proof, assignment)
    return None if plan is None else Solution(trial.cost, assignment, plan)


def _assignment_of(trial: MoveTrial) -> Assignment:
    """The assignment on a trial."""
    rows: dict[int, dict[int, int]] = {}
    for unit in reversed(trial.away):  # the last evicted makes room for earlier ones
        row_of = {member: trial.row(trial.position(member)) for member in trial.units.members[unit]}
        rows[unit] = {member: row for member, row in row_of.items() if row is not None}
    target = {position: row for position in range(trial.num_target) if (row := trial.row(position)) is not None}
    return Assignment(rows, target, tuple(np.flatnonzero(trial.closed).tolist()))


def in_steps(trial: MoveTrial, wanted: Assignment) -> MovePlan | None:
    """The moves in an order in which each finds room, the target last; None if there is none.

    If units wait for each other's room in a cycle, one of them goes to another node with room. Leaves the trial
    unchanged.
    """
    begun = trial.mark()
    try:
        return _move_all(trial, wanted)
    finally:
        trial.rollback(begun)


def _move_all(trial: MoveTrial, wanted: Assignment) -> MovePlan | None:
    trial.close(wanted.emptied)
    waiting = list(wanted.row_of)
    made: list[int] = []
    while waiting:
        moved = [unit for unit in waiting if _move(trial, unit, wanted.row_of[unit])]
        if not moved and (other := next((unit for unit in waiting if _move_elsewhere(trial, unit)), None)) is not None:
            moved = [other]
        if not moved:
            return None
        made += moved
        waiting = [unit for unit in waiting if unit not in moved]
    for position, row in wanted.target.items():
        if not trial.state.has_room(position, row):
            return None
        trial.put(position, row)
    return _plan(trial, made, wanted.emptied)


def _move(trial: MoveTrial, unit: int, row_of: Mapping[int, int]) -> bool:
    """Move a unit to its rows by member; False, with nothing changed, if one lacks room."""
    begun = trial.mark()
    trial.evict(unit)
    for member, row in row_of.items():
        if not trial.state.has_room(trial.position(member), row):
            trial.rollback(begun)
            return False
        trial.put(trial.position(member), row)
    return True


def _move_elsewhere(trial: MoveTrial, unit: int) -> bool:
    """Move a single pod to any node that has room now."""
    members = trial.units.members[unit]
    if len(members) > 1:
        return False
    position = trial.position(members[0])
    allowed = anywhere(trial, position) & ~trial.closed
    allowed[trial.home[members[0]][0]] = False
    row = trial.state.best_row(position, allowed)
    return row is not None and _move(trial, unit, {members[0]: row})


def _plan(trial: MoveTrial, made: Sequence[int], emptied: tuple[int, ...]) -> MovePlan:
    running, state = trial.problem.running, trial.state
    moves = []
    for step, unit in enumerate(made):
        for member in trial.units.members[unit]:
            row, booked = state.location(trial.position(member)) or (-1, trial.home[member][1])
            moves.append(Move(running[member], row, booked.all_gpus, step))
    target = [state.location(position) for position in range(trial.num_target)]
    return MovePlan(
        version=trial.problem.view.cluster.version,
        fits=True,
        moves=tuple(moves),
        rows=tuple(-1 if location is None else location[0] for location in target),
        gpus=tuple(() if location is None else location[1].all_gpus for location in target),
        emptied=emptied,
    )


def by_rank(trial: MoveTrial, wanted: Assignment) -> Assignment:
    """The same moves, with each single pod on its best-scored node given where all others are."""
    begun = trial.mark()
    trial.close(wanted.emptied)
    rows = {unit: dict(row_of) for unit, row_of in wanted.row_of.items()}
    for unit in rows:
        trial.evict(unit)
    for position, row in wanted.target.items():
        _put_if_room(trial, position, row)
    for row_of in rows.values():
        for member, row in row_of.items():
            _put_if_room(trial, trial.position(member), row)
    for row_of in rows.values():
        if len(row_of) > 1:
            continue
        ((member, _),) = row_of.items()
        position = trial.position(member)
        if trial.row(position) is None:
            continue
        allowed = anywhere(trial, position) & ~trial.closed
        allowed[trial.home[member][0]] = False
        trial.take(position)
        if (best := trial.state.best_row(position, allowed)) is not None:
            trial.put(position, best)
            row_of[member] = best
    trial.rollback(begun)
    return Assignment(rows, wanted.target, wanted.emptied)


def _put_if_room(trial: MoveTrial, position: int, row: int) -> None:
    if trial.state.has_room(position, row):
        trial.put(position, row)
