"""Units of running pods that move together: single pods and gangs, with their costs and why some may not move.

Axis letters of this package: R running pods, U units, E parts of units (a unit's pods on one node).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.planning.moves.problems import Problem, RunningPod


@dataclass(frozen=True, slots=True)
class Units:
    """All running pods, grouped into units that move as a whole."""

    members: tuple[tuple[int, ...], ...]
    """(U,) positions in `Problem.running`."""
    unit_of: Rows
    """(R,) unit of each pod."""
    stays: tuple[str, ...]
    """(U,) why the unit may not move, "" if it may."""
    cost: Floats
    """(U,) GPU-seconds lost."""
    size: Longs
    """(U,) number of pods."""
    gpus: Longs
    """(U,) GPUs held; a share counts as one."""
    part_unit: Rows
    """(E,)"""
    part_row: Rows
    """(E,)"""
    part_gpus: Longs
    """(E,) GPUs that the unit holds on that node."""
    at: Mapping[int, Mapping[int, tuple[int, ...]]]
    """By row: the units that run there, each with its members there."""

    @property
    def movable(self) -> Mask:
        """(U,)"""
        return np.array([not why for why in self.stays], np.bool_)


def units_of(problem: Problem) -> Units:
    """The units of a problem, ordered by the first pod of each. Raises ValueError for an inconsistent problem."""
    running = problem.running
    _check(problem)
    by_key: dict[str | int, list[int]] = {}
    for number, pod in enumerate(running):
        by_key.setdefault(pod.gang or number, []).append(number)
    members = tuple(tuple(unit) for unit in by_key.values())
    unit_of = np.zeros(len(running), np.intp)
    at: dict[int, dict[int, list[int]]] = {}
    for number, unit in enumerate(members):
        for member in unit:
            unit_of[member] = number
            at.setdefault(running[member].row, {}).setdefault(number, []).append(member)
    held = [_num_gpus(pod) for pod in running]
    parts = [
        (unit, row, sum(held[number] for number in local))
        for row, units in sorted(at.items())
        for unit, local in units.items()
    ]
    columns = np.array(parts, np.int64).reshape(len(parts), 3).T
    return Units(
        members=members,
        unit_of=unit_of,
        stays=tuple(_stays(problem, [running[member] for member in unit]) for unit in members),
        cost=np.array([sum(running[member].cost_gpu_s for member in unit) for unit in members], np.float64),
        size=np.array([len(unit) for unit in members], np.int64),
        gpus=np.array([sum(held[member] for member in unit) for unit in members], np.int64),
        part_unit=columns[0].astype(np.intp),
        part_row=columns[1].astype(np.intp),
        part_gpus=columns[2],
        at={row: {unit: tuple(local) for unit, local in units.items()} for row, units in at.items()},
    )


def forced(problem: Problem, units: Units) -> list[int]:
    """Units that have to leave at any cost: those on nodes to be emptied, and those of `Target.leave`."""
    target = problem.target
    on_emptied = {unit for row in target.empty for unit in units.at.get(row, ())}
    return sorted(on_emptied | {int(units.unit_of[number]) for number in target.leave})


def _check(problem: Problem) -> None:
    seen: set[str] = set()
    names = problem.view.cluster.node_names
    for pod in problem.running:
        if not 0 <= pod.row < len(names) or not names[pod.row]:
            raise ValueError(f"{pod.key} runs on row {pod.row}, where there is no node")
        if pod.uid in seen:
            raise ValueError(f"{pod.key}: there are two pods of UID {pod.uid}")
        if not 0 <= pod.cost_gpu_s < float("inf"):
            raise ValueError(f"{pod.key}: a restart can't cost {pod.cost_gpu_s} GPU-seconds")
        seen.add(pod.uid)
    target = problem.target
    if outside := [row for row in target.empty if not 0 <= row < len(names) or not names[row]]:
        raise ValueError(f"there is no node at row {min(outside)}, which is to be emptied")
    if target.num_empty < 0:
        raise ValueError(f"{target.num_empty} nodes can't be emptied")
    if outside := [number for number in target.leave if not 0 <= number < len(problem.running)]:
        raise ValueError(f"there is no pod number {min(outside)}, which is to leave")
    if not (target.pods or target.empty or target.num_empty or target.leave):
        raise ValueError("the target has neither pods nor nodes to be emptied, nor pods that are to leave")


def _num_gpus(pod: RunningPod) -> int:
    return len(pod.booked.all_gpus) + pod.booked.unknown


def _stays(problem: Problem, unit: Sequence[RunningPod]) -> str:
    """Why a unit may not move, "" if it may; all members have to be movable."""
    for pod in unit:
        if why := _stays_alone(problem, pod):
            return why if len(unit) == 1 else f"its gang moves as a whole, and {pod.key} stays: {why}"
    counted = [key for pod in unit for key in dict.fromkeys(pod.budgets)]
    for key in dict.fromkeys(counted):
        allowed = problem.budgets.get(key, 0)
        if counted.count(key) > allowed:
            if len(unit) == 1:
                return f"disruption budget {key} allows no evictions"
            return f"disruption budget {key} allows {allowed} of {counted.count(key)} evictions of its gang"
    if problem.max_moves is not None and len(unit) > problem.max_moves:
        return f"it would take {len(unit)} moves, {problem.max_moves} are allowed"
    return ""


def _stays_alone(problem: Problem, pod: RunningPod) -> str:
    if pod.stays:
        return pod.stays
    if pod.priority > problem.target.priority:
        return f"its priority {pod.priority} is above {problem.target.priority}"
    request = pod.pod.gpus
    if pod.booked.takings or pod.pod.claims or (request is not None and request.devices is not None):
        return "it holds devices through ResourceClaims"
    if pod.booked.mig or (request is not None and request.mig):
        return "it holds MIG devices"
    return ""
