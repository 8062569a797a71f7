"""The order of moves: each unit leaves and arrives in its turn, and finds room where it shall go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from extender.planning.moves.placements import anywhere
from extender.planning.moves.problems import Move, MovePlan
from extender.planning.moves.trials import Trial


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where everybody is in the end."""

    row_of: Mapping[int, Mapping[int, int]]
    """By unit that moves: row by member; the order is a hint."""
    target: Mapping[int, int]
    """Row by position of the target's pods."""
    emptied: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Moves that are possible."""

    cost: tuple[float, int]
    """GPU-seconds lost, and pods moved."""
    assignment: Assignment
    plan: MovePlan


def proved(trial: Trial, proof: Trial) -> Found | None:
    """What a trial has come to, once its moves were made one by one on another trial; None where they can't be."""
    assignment = _assignment_of(trial)
    plan = in_steps(proof, assignment)
    return None if plan is None else Found(trial.cost, assignment, plan)


def _assignment_of(trial: Trial) -> Assignment:
    """What a trial has come to."""
    rows: dict[int, dict[int, int]] = {}
    for unit in reversed(trial.away):  # who had to leave last makes room for those before
        found = {member: trial.row(trial.position(member)) for member in trial.units.members[unit]}
        rows[unit] = {member: row for member, row in found.items() if row is not None}
    target = {position: row for position in range(trial.num_target) if (row := trial.row(position)) is not None}
    return Assignment(rows, target, tuple(np.flatnonzero(trial.closed).tolist()))


def in_steps(trial: Trial, wanted: Assignment) -> MovePlan | None:
    """The moves in an order in which each finds room, and the target after them; None where there is none.

    Where units wait for each other's room in a circle, one of them goes to another node, if any has room. The trial is
    as it was before, afterwards.
    """
    begun = trial.mark()
    try:
        return _made(trial, wanted)
    finally:
        trial.rollback(begun)


def _made(trial: Trial, wanted: Assignment) -> MovePlan | None:
    trial.close(wanted.emptied)
    waiting = list(wanted.row_of)
    made: list[int] = []
    while waiting:
        moved = [unit for unit in waiting if _move(trial, unit, wanted.row_of[unit])]
        if not moved and (astray := next((unit for unit in waiting if _move_elsewhere(trial, unit)), None)) is not None:
            moved = [astray]
        if not moved:
            return None
        made += moved
        waiting = [unit for unit in waiting if unit not in moved]
    for position, row in wanted.target.items():
        if not trial.state.has_room(position, row):
            return None
        trial.put(position, row)
    return _plan(trial, made, wanted.emptied)


def _move(trial: Trial, unit: int, row_of: Mapping[int, int]) -> bool:
    begun = trial.mark()
    trial.evict(unit)
    for member, row in row_of.items():
        if not trial.state.has_room(trial.position(member), row):
            trial.rollback(begun)
            return False
        trial.put(trial.position(member), row)
    return True


def _move_elsewhere(trial: Trial, unit: int) -> bool:
    """Move a pod on its own wherever there is room now."""
    members = trial.units.members[unit]
    if len(members) > 1:
        return False
    position = trial.position(members[0])
    allowed = anywhere(trial, position) & ~trial.closed
    allowed[trial.home[members[0]][0]] = False
    row = trial.state.best_row(position, allowed)
    return row is not None and _move(trial, unit, {members[0]: row})


def _plan(trial: Trial, made: Sequence[int], emptied: tuple[int, ...]) -> MovePlan:
    running, state = trial.problem.running, trial.state
    moves = []
    for step, unit in enumerate(made):
        for member in trial.units.members[unit]:
            row, booked = state.found(trial.position(member)) or (-1, trial.home[member][1])
            moves.append(Move(running[member], row, booked.all_gpus, step))
    target = [state.found(position) for position in range(trial.num_target)]
    return MovePlan(
        version=trial.problem.view.cluster.version,
        fits=True,
        moves=tuple(moves),
        rows=tuple(-1 if found is None else found[0] for found in target),
        gpus=tuple(() if found is None else found[1].all_gpus for found in target),
        emptied=emptied,
    )


def by_rank(trial: Trial, wanted: Assignment) -> Assignment:
    """The same moves, each pod on its own where the rank likes it best, once all others are where they shall be."""
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


def _put_if_room(trial: Trial, position: int, row: int) -> None:
    if trial.state.has_room(position, row):
        trial.put(position, row)
