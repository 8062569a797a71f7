"""Trials: every action can be undone, and evicted pods can return to their nodes."""

from typing import Any

import numpy as np

from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import units_of
from tests.planning.moves.cases import drawn


def seen(trial: MoveTrial) -> list[Any]:
    cluster = trial.state.cluster
    arrays = (cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.cpu_free_milli, cluster.memory_free_mib)
    slots = [trial.state.slots_free(row) for row in range(cluster.num_nodes)]
    places = [trial.state.location(position) for position in range(len(trial.pods))]
    own = [trial.marks.copy(), trial.guests.copy(), dict(trial.away), trial.num_away, trial.closed.tolist()]
    return [*(array.tolist() for array in arrays), slots, places, *own]


def act(trial: MoveTrial, rng: np.random.Generator) -> None:
    """A random action."""
    unit = int(rng.integers(len(trial.units.members)))
    positions = [trial.position(member) for member in trial.units.members[unit]]
    if rng.random() < 0.2:
        row = int(rng.integers(len(trial.closed)))
        (trial.open if trial.closed[row] else trial.close)([row])
    elif unit not in trial.away:
        trial.evict(unit)
    elif rng.random() < 0.4:
        trial.bring_home(unit)
    else:
        for position in positions:
            if trial.state.location(position) is not None:
                trial.take(position)
            elif (row_or_none := trial.state.best_row(position)) is not None:
                trial.put(position, row_or_none)


def test_every_action_is_undone() -> None:
    for seed in range(15):
        asked = drawn(seed)
        trial, rng = MoveTrial(asked, units_of(asked)), np.random.default_rng(seed)
        marks, states = [trial.mark()], [seen(trial)]
        for _ in range(30):
            act(trial, rng)
            marks.append(trial.mark())
            states.append(seen(trial))
        for mark, state in zip(reversed(marks), reversed(states), strict=True):
            trial.rollback(mark)
            assert seen(trial) == state


def test_units_that_return_leave_everything_as_it_was() -> None:
    for seed in range(15):
        asked = drawn(seed)
        trial = MoveTrial(asked, units_of(asked))
        before = seen(trial)
        for unit in range(len(trial.units.members)):
            trial.evict(unit)
        assert trial.num_away == len(asked.running)
        for unit in reversed(range(len(trial.units.members))):
            assert trial.bring_home(unit)
        assert seen(trial) == before


def test_a_unit_whose_gpus_are_taken_can_t_return() -> None:
    asked = drawn(2)
    trial = MoveTrial(asked, units_of(asked))
    with_gpus = [n for n, pod in enumerate(asked.running) if pod.booked.gpus and not pod.gang]
    first = int(trial.units.unit_of[with_gpus[0]])
    trial.evict(first)
    row = asked.running[with_gpus[0]].row
    others = [n for n in with_gpus[1:] if asked.running[n].row != row]
    while trial.state.has_room(trial.position(with_gpus[0]), row):
        member = others.pop()
        trial.evict(int(trial.units.unit_of[member]))
        if trial.state.has_room(trial.position(member), row):
            trial.put(trial.position(member), row)
    assert not trial.bring_home(first)
    assert first in trial.away
