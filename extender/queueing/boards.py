"""A working copy of a cluster on which a plan is tried: pods are put on it and taken off again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Mask
from extender.core.decisions import Evaluation, Memo
from extender.core.devices import choose_gpus
from extender.core.nodes import GpuUnit
from extender.core.policies import POLICIES
from extender.core.reasons import Reason, sentence
from extender.queueing.plans import Plan, PlanPod, Quality, View

_Step = tuple[int, int, tuple[int, ...], int]
"""Position of a pod, its row, its GPU indices, and the units of it whose index nobody knows."""

_DEFAULT_POLICY: Final = "bestfit"


class Board:
    """Nodes as a plan would leave them. Fit, scores and the choice of GPUs are those of a live decision."""

    def __init__(self, view: View, pods: Sequence[PlanPod], default_policy: str = _DEFAULT_POLICY) -> None:
        self.view = view
        self.pods = pods
        self._default_policy = default_policy
        cluster = view.cluster
        self._free = cluster.gpu_free.copy()
        self._untracked = cluster.untracked_units.copy()
        self._row_version = cluster.row_version.copy()
        self._cluster = replace(
            cluster, gpu_free=self._free, untracked_units=self._untracked, row_version=self._row_version
        )
        self._cpu = view.cpu_free_milli.copy()
        self._memory = view.memory_free_mib.copy()
        self._slots = view.pods_free.copy()
        self._exists = np.array([bool(name) for name in cluster.node_names], dtype=np.bool_)
        self._has_gpus = cluster.unit != GpuUnit.NONE
        self._memo = Memo(max_classes=256)
        self._steps: list[_Step] = []

    @property
    def num_steps(self) -> int:
        """How many pods were put on it: what `undo` goes back to."""
        return len(self._steps)

    @property
    def cluster(self) -> Cluster:
        """The GPUs as they would be. Its arrays go on changing."""
        return self._cluster

    def fits(self, position: int, allowed: Mask | None = None) -> Mask:
        """(N,) the nodes with room for a pod now, of the allowed ones."""
        pod = self.pods[position]
        room: Mask = (
            (self._cpu >= pod.cpu_milli)
            & (self._memory >= pod.memory_mib)
            & (self._slots > 0)
            & self._exists
            & self.view.allowed[pod.kind]
        )
        if allowed is not None:
            room &= allowed
        if pod.gpus is not None:
            room &= self._evaluation(pod).fits
        return room

    def best_row(self, position: int, allowed: Mask | None = None) -> int | None:
        """The node that ranks highest for a pod, of the allowed ones; None when none has room."""
        pod = self.pods[position]
        room = self.fits(position, allowed)
        score = self._evaluation(pod).score if pod.gpus is not None else self._plain_score(pod)
        score = np.where(room, score, -np.inf)
        best = score.max(initial=-np.inf)
        if best == -np.inf:
            return None
        tied = np.flatnonzero(score == best)
        return int(tied[np.argmin(self._cluster.tie_rank[tied])])

    def has_room(self, position: int, row: int) -> bool:
        """Whether one node has room for a pod now."""
        pod = self.pods[position]
        return bool(
            self._cpu[row] >= pod.cpu_milli
            and self._memory[row] >= pod.memory_mib
            and self._slots[row] > 0
            and self._exists[row]
            and self.view.allowed[pod.kind, row]
            and (pod.gpus is None or self._evaluation(pod).fits[row])
        )

    def put(self, position: int, row: int) -> tuple[int, ...]:
        """Put a pod on a node that has room for it; returns the indices of its GPUs."""
        pod = self.pods[position]
        gpus: tuple[int, ...] = ()
        unknown = 0
        if pod.gpus is not None:
            chosen = choose_gpus(self._cluster, row, pod.gpus)
            if chosen is None:
                raise AssertionError(f"fit and device choice disagree on {pod.gpus} at row {row}")
            gpus = chosen
            unknown = 0 if gpus else pod.gpus.count
        self._change((position, row, gpus, unknown), -1)
        self._steps.append((position, row, gpus, unknown))
        return gpus

    def undo(self, num_steps: int) -> None:
        """Take pods off again, back to so many steps."""
        while len(self._steps) > num_steps:
            self._change(self._steps.pop(), 1)

    def plan(self, planner: str) -> Plan:
        """What was put on the board, as a plan."""
        rows = [-1] * len(self.pods)
        gpus: list[tuple[int, ...]] = [()] * len(self.pods)
        for position, row, indices, _ in self._steps:
            rows[position], gpus[position] = row, indices
        unassigned = {position: self.why_not(position) for position, row in enumerate(rows) if row < 0}
        version = self.view.cluster.version
        return Plan(planner, version, tuple(self.pods), tuple(rows), tuple(gpus), unassigned)

    def why_not(self, position: int) -> str:
        """Why a pod that was not put on the board gets no node."""
        pod, view = self.pods[position], self.view
        may = view.allowed[pod.kind] & self._exists
        if not may.any():
            return "no node matches its selector and tolerations"
        plain = (view.cpu_allocatable_milli >= pod.cpu_milli) & (view.memory_allocatable_mib >= pod.memory_mib)
        if not (may & plain).any():
            return f"needs {pod.cpu_milli / 1000:g} CPU and {pod.memory_mib} MiB, no node has that much"
        if pod.gpus is not None:
            evaluation = self._evaluation(pod)
            codes, numbers = evaluation.reason[may], evaluation.available[may]
            if (codes != Reason.FITS).all():
                nearest = codes.max()  # the later a check fails, the closer it was
                return sentence(Reason(int(nearest)), pod.gpus, int(numbers[codes == nearest].max()))
        if self.fits(position).any():
            return f"its gang {pod.gang} does not fit as a whole" if pod.gang else "left out by the planner"
        return f"needs {pod.cpu_milli / 1000:g} CPU and {pod.memory_mib} MiB, no node has that much free"

    def quality(self, weights: Floats) -> Quality:
        """How good what was put on the board is; `weights` (P,) tell what each pod is worth."""
        cluster = self._cluster
        capacity = (cluster.gpu_model >= 0).sum(axis=1) * cluster.units_per_gpu
        free = np.maximum(cluster.gpu_free.sum(axis=1) * cluster.units_per_gpu - cluster.untracked_units, 0)
        cut = (free > 0) & (free < capacity)
        return Quality(
            placed=len(self._steps),
            placed_priority=float(sum(weights[position] for position, *_ in self._steps)),
            gpus=sum(len(gpus) + unknown for _, _, gpus, unknown in self._steps),
            nodes=len({row for _, row, *_ in self._steps}),
            fragments=float(free[cut].sum() / max(capacity.sum(), 1)),
        )

    def _evaluation(self, pod: PlanPod) -> Evaluation:
        if pod.gpus is None:
            raise ValueError(f"{pod.key} asks for no GPU")
        return self._memo.evaluate(self._cluster, pod.gpus, POLICIES[pod.policy or self._default_policy])

    def _plain_score(self, pod: PlanPod) -> Floats:
        """(N,) for a pod without GPUs: nodes without GPUs first, then the one with the least left of CPU and memory."""
        view = self.view
        left = (self._cpu - pod.cpu_milli) / np.maximum(view.cpu_allocatable_milli, 1)
        left = left + (self._memory - pod.memory_mib) / np.maximum(view.memory_allocatable_mib, 1)
        score: Floats = -left - 4.0 * self._has_gpus
        return score

    def _change(self, step: _Step, sign: int) -> None:
        position, row, gpus, unknown = step
        pod = self.pods[position]
        self._cpu[row] += sign * pod.cpu_milli
        self._memory[row] += sign * pod.memory_mib
        self._slots[row] += sign
        if pod.gpus is not None:
            self._free[row, list(gpus)] = sign > 0
            self._untracked[row] -= sign * unknown
            version = self._cluster.version + 1
            self._row_version[row] = version
            self._cluster = replace(self._cluster, version=version)


def board_of(view: View, plan: Plan) -> Board:
    """The board as a plan leaves it. Raises ValueError when the plan does not fit: it was not made on this view."""
    board = Board(view, plan.pods)
    for position, row in enumerate(plan.rows):
        if row >= 0:
            if not board.has_room(position, row):
                raise ValueError(f"{plan.pods[position].key} has no room at row {row}")
            board.put(position, row)
    return board
