"""A cluster state on which moves are tried: units are evicted, pods are placed, and all of it can be undone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from extender.core.bookings import Booking
from extender.core.clusters import WHOLE_MILLI, Ints, Longs, Mask
from extender.core.policies.policy import Policy
from extender.planning.moves.problems import Problem
from extender.planning.moves.units import Units
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View


class MoveTrial:
    """A `PlanState` on which all pods have positions: the target's first, then the running ones.

    An evicted unit is away, also while placed elsewhere, until `bring_home` restores it.
    """

    def __init__(self, problem: Problem, units: Units, policies: Mapping[str, Policy] | None = None) -> None:
        self.problem = problem
        self.units = units
        target, running = problem.target, problem.running
        self.num_target = len(target.pods)
        self.pods: tuple[PlanPod, ...] = (*target.pods, *(pod.pod for pod in running))
        self.home = [(pod.row, pod.booked) for pod in running]
        view = _settled_view(problem)
        on = {self.num_target + number: home for number, home in enumerate(self.home)}
        self.state = PlanState(replace(view, policies=policies or view.policies), self.pods, problem.policy, on)
        self.leaving = {self.num_target + number: running[number].row for number in target.leave}
        """By position: rows that pods have to leave."""
        self._left_for_good = frozenset(int(units.unit_of[number]) for number in target.leave)
        self.away: dict[int, None] = {}
        """Evicted units, in order of eviction."""
        self.num_away = 0
        """Number of their pods."""
        self.closed: Mask = np.zeros(view.num_nodes, np.bool_)
        """(N,) rows that no pod may be placed on."""
        self.marks = [0] * view.num_nodes
        """(N,) hash of each row's changes: equal for equal pods on equal GPUs, new and original ones distinguished."""
        self.guests = [0] * view.num_nodes
        """(N,) number of newly placed pods."""
        self._undo: list[Callable[[], None]] = []

    @property
    def cost(self) -> tuple[float, int]:
        """GPU-seconds lost by the units that are away, and their number of pods."""
        return float(self.units.cost[sorted(self.away)].sum()), self.num_away

    def mark(self) -> int:
        """A mark for `rollback`."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo everything since a mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def position(self, running: int) -> int:
        """Position of a pod of `Problem.running` among all pods."""
        return self.num_target + running

    def row(self, position: int) -> int | None:
        """A pod's row; None while it is on no node."""
        location = self.state.location(position)
        return None if location is None else location[0]

    def close(self, rows: Iterable[int]) -> None:
        """Close rows to new pods."""
        self._set_closed([row for row in rows if not self.closed[row]], True)

    def open(self, rows: Iterable[int]) -> None:
        """Reopen rows."""
        self._set_closed([row for row in rows if self.closed[row]], False)

    def put(self, position: int, row: int) -> None:
        """Place a pod on a row that has room."""
        self.state.put(position, row)
        self._record(position, row, 1)

    def take(self, position: int) -> None:
        """Remove a pod from the row that `put` placed it on."""
        self._take(position, -1)

    def evict(self, unit: int) -> None:
        """Remove all pods of a unit that is at home."""
        for member in self.units.members[unit]:
            self._take(self.position(member), 0)
        self._set_away(unit, True)

    def bring_home(self, unit: int) -> bool:
        """Restore a unit that is away to its original rows; returns False if it may not, or lacks room there."""
        if unit in self._left_for_good:
            return False
        begun = self.mark()
        for member in self.units.members[unit]:
            if self.state.location(self.position(member)) is not None:
                self.take(self.position(member))
        for member in self.units.members[unit]:
            row, booked = self.home[member]
            if self.closed[row] or not self.state.admits(self.position(member), row):
                self.rollback(begun)
                return False
            self.state.put_back(self.position(member), row, booked)
            self._record(self.position(member), row, 0)
            if self.guests[row] and self._is_overbooked(row):
                self.rollback(begun)
                return False
        self._set_away(unit, False)
        return True

    def at_home(self, row: int) -> dict[int, tuple[int, ...]]:
        """The units on a row that have not been evicted, each with its members there."""
        return {unit: members for unit, members in self.units.at.get(row, {}).items() if unit not in self.away}

    def _is_overbooked(self, row: int) -> bool:
        """Whether a row has less of anything than its pods hold."""
        cluster = self.state.cluster
        free = (cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.cpu_free_milli, cluster.memory_free_mib)
        idle = cluster.gpu_healthy[row] & (cluster.gpu_free_milli[row] == WHOLE_MILLI)
        idle &= cluster.gpu_free_mib[row] == cluster.gpu_memory_mib[row]
        enough = idle.sum() * cluster.units_per_gpu[row] >= cluster.untracked_units[row]
        return not enough or any((array[row] < 0).any() for array in free) or self.state.slots_free(row) < 0

    def _take(self, position: int, num_guests: int) -> None:
        location = self.state.location(position)
        if location is None:
            raise AssertionError(f"{self.pods[position].key} is on no node")
        token = _token(position, location[1], guest=num_guests != 0)
        self.state.take(position)
        self._record(position, location[0], num_guests, token)

    def _record(self, position: int, row: int, num_guests: int, token: int | None = None) -> None:
        """Record the state's last step for `rollback`."""
        if token is None:
            location = self.state.location(position)
            token = 0 if location is None else _token(position, location[1], guest=num_guests != 0)

        def undo() -> None:
            self.state.undo(self.state.num_steps - 1)
            self.marks[row] ^= token
            self.guests[row] -= num_guests

        self.marks[row] ^= token
        self.guests[row] += num_guests
        self._undo.append(undo)

    def _set_away(self, unit: int, away: bool) -> None:
        def change(leaves: bool) -> None:
            if leaves:
                self.away[unit] = None
            else:
                del self.away[unit]
            self.num_away += int(self.units.size[unit]) * (1 if leaves else -1)

        change(away)
        self._undo.append(lambda: change(not away))

    def _set_closed(self, rows: list[int], closed: bool) -> None:
        def change(value: bool) -> None:
            self.closed[rows] = value

        change(closed)
        self._undo.append(lambda: change(not closed))


def _settled_view(problem: Problem) -> View:
    """The view, adjusted so that leaving pods free exactly what becomes available.

    The view never shows less than 0 free, even if pods hold more than the capacity: unhealthy GPUs, overbooked nodes,
    reserves. Here the excess is subtracted, so that leaving pods first settle it. Observed usage of running pods' GPUs
    is dropped, since it does not indicate untracked processes once they have left.
    """
    view, cluster = problem.view, problem.view.cluster
    milli, mib = np.zeros(cluster.gpu_model.shape, np.int64), np.zeros(cluster.gpu_model.shape, np.int64)
    cpu, memory = np.zeros(cluster.num_nodes, np.int64), np.zeros(cluster.num_nodes, np.int64)
    for pod in problem.running:
        booked = pod.booked
        cpu[pod.row] += booked.cpu_milli
        memory[pod.row] += booked.memory_mib
        gpus = list(booked.gpus)
        milli[pod.row, gpus] += booked.milli
        mib[pod.row, gpus] += (
            cluster.gpu_memory_mib[pod.row, gpus]
            if booked.milli == WHOLE_MILLI
            else np.array(booked.mib_each, np.int64)
        )
        for gpu, of_milli, of_mib in booked.parts:
            milli[pod.row, gpu] += of_milli
            mib[pod.row, gpu] += of_mib
    installed = np.where(cluster.gpu_healthy, WHOLE_MILLI, 0)
    most_mib = np.where(cluster.gpu_healthy, cluster.gpu_memory_mib, 0)
    cpu_free = _settled(view.cpu_free_milli, cpu, view.cpu_allocatable_milli)
    memory_free = _settled(view.memory_free_mib, memory, view.memory_allocatable_mib)
    observed = cluster.observed.without_memory_of(milli > 0) if cluster.observed is not None else None
    settled = replace(
        cluster,
        gpu_free_milli=_settled(cluster.gpu_free_milli, milli, installed).astype(np.int32),
        gpu_free_mib=_settled(cluster.gpu_free_mib, mib, most_mib).astype(np.int32),
        observed=observed,
    )
    return replace(view, cluster=settled, cpu_free_milli=cpu_free, memory_free_mib=memory_free)


def _settled(free: Longs | Ints, held: Longs, capacity: npt.NDArray[np.integer]) -> Longs:
    """(...) free amounts, less what is held beyond the capacity."""
    settled: Longs = free.astype(np.int64) - np.maximum(free + held - capacity, 0)
    return settled


def _token(position: int, booked: Booking, *, guest: bool) -> int:
    return hash((position, booked.gpus, booked.slices, guest))
