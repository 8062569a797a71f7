"""Who sits on sick GPUs, and how they leave them: as many as can, since each that does is better off."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Mask
from extender.planning.moves.problems import MovePlan, Problem, Running
from extender.planning.moves.units import Units, units_of
from extender.planning.plans import View

_MOST_TRIED: Final = 32
"""So many pods and gangs are tried one by one where not all can leave."""

MakePlan = Callable[[Problem], MovePlan]


def by_node(cluster: Cluster, gpus: Mask) -> dict[str, tuple[int, ...]]:
    """Indices of the GPUs in a mask (N, G), by the name of their node; nodes without any are left out."""
    rows = np.flatnonzero(gpus.any(axis=1)).tolist()
    return {name: tuple(np.flatnonzero(gpus[row]).tolist()) for row in rows if (name := cluster.node_names[row])}


def on_sick(cluster: Cluster, running: Sequence[Running], sick: Mapping[str, tuple[int, ...]]) -> frozenset[int]:
    """Positions of the pods that hold something of a sick GPU.

    Of which GPUs some hold something is not known: they count where all GPUs of their node are sick.
    """
    gpus_of = {row: frozenset(gpus) for name, gpus in sick.items() if (row := cluster.row_of.get(name)) is not None}
    whole = {
        row for row, gpus in gpus_of.items() if gpus.issuperset(np.flatnonzero(cluster.gpu_model[row] >= 0).tolist())
    }
    return frozenset(
        number
        for number, pod in enumerate(running)
        if not gpus_of.get(pod.row, frozenset()).isdisjoint((*pod.booked.all_gpus, *pod.booked.slices))
        or (pod.booked.unknown > 0 and pod.row in whole)
    )


def without_sick(view: View, sick: Mapping[str, tuple[int, ...]]) -> View:
    """The view in which nobody comes to a node that might give a sick GPU away: one that its device plugin takes for
    healthy, as its samples alone tell of the fault."""
    cluster, allowed = view.cluster, view.allowed.copy()
    for name, gpus in sick.items():
        row = cluster.row_of.get(name)
        if row is not None and cluster.gpu_healthy[row, list(gpus)].any():
            allowed[:, row] = False
    return replace(view, allowed=allowed)


def plan_healing(problem: Problem, make: MakePlan, expired: Callable[[], bool]) -> MovePlan:
    """Moves after which the pods of `Target.leave` are off their GPUs, as many of them as can be; `impossible` tells of
    the others, and why they stay. It fits where anybody leaves, or nobody has to."""
    leave = problem.target.leave
    if not leave:
        return MovePlan(problem.view.cluster.version, fits=True)
    units = units_of(problem)
    wanted = sorted({int(units.unit_of[number]) for number in leave}, key=lambda unit: _order(problem, units, unit))
    said = [
        f"{_name(problem, units, unit)} stays on a sick GPU: {why}" for unit in wanted if (why := units.stays[unit])
    ]
    may = [unit for unit in wanted if not units.stays[unit]]
    found = make(_leaving(problem, units, may)) if may else MovePlan(problem.view.cluster.version, fits=False)
    if may and not found.fits:
        found, stuck = _one_by_one(problem, units, may, make, expired)
        said += stuck
    return replace(found, impossible=tuple(said))


def _one_by_one(
    problem: Problem, units: Units, may: Sequence[int], make: MakePlan, expired: Callable[[], bool]
) -> tuple[MovePlan, list[str]]:
    """Who can leave beside those who came before."""
    best, chosen, said = MovePlan(problem.view.cluster.version, fits=False), list[int](), list[str]()
    for number, unit in enumerate(may):
        plan = make(_leaving(problem, units, [*chosen, unit])) if number < _MOST_TRIED and not expired() else None
        if plan is None or (not plan.fits and expired()):  # not looked at to the end
            said.append(f"{len(may) - number} more were not tried: there was no time")
            break
        if plan.fits:
            best, chosen = plan, [*chosen, unit]
        else:
            why = "; ".join(plan.impossible[:2])
            said.append(f"{_name(problem, units, unit)} stays on a sick GPU, no room is left for it: {why}")
    return best, said


def _leaving(problem: Problem, units: Units, wanted: Sequence[int]) -> Problem:
    """The problem in which just these leave."""
    chosen = set(wanted)
    leave = frozenset(number for number in problem.target.leave if int(units.unit_of[number]) in chosen)
    return replace(problem, target=replace(problem.target, leave=leave))


def _order(problem: Problem, units: Units, unit: int) -> tuple[int, str]:
    """Those of a high priority first."""
    members = [problem.running[number] for number in units.members[unit]]
    return -max(pod.priority for pod in members), members[0].key


def _name(problem: Problem, units: Units, unit: int) -> str:
    first = problem.running[units.members[unit][0]]
    return f"gang {first.gang}" if first.gang and len(units.members[unit]) > 1 else first.key
