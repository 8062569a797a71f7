"""A working copy of the cluster for planning: pods are added and removed, and steps can be undone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.bookings import Booking, book, booking, writable_copy
from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.decisions import choice
from extender.core.dra.asks import DeviceClaims
from extender.core.evaluations import Evaluation, Memo
from extender.core.fit.checks import TABLE, resolvable, sentence
from extender.core.fit.device_fits import explain_no_fit
from extender.core.fit.fits import enough_compute
from extender.core.fit.reasons import Reason
from extender.core.policies.policy import Policy
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.planning.plans import Plan, PlanPod, Quality, View
from extender.planning.wait_reasons import Code, WaitReason


@dataclass(frozen=True, slots=True)
class _Step:
    """A pod added to or removed from a node, with its booking."""

    position: int
    row: int
    booked: Booking
    sign: int = -1
    """-1 if the pod was added, as for `book`; 1 if it was removed."""

    @property
    def num_gpus(self) -> int:
        return -self.sign * (len(self.booked.all_gpus) + self.booked.unknown)


DEFAULT_POLICY: Final = "tightest"
_NO_GPUS: Final = GpuRequest(0, AskedUnit.NONE)


class PlanState:
    """The nodes as a plan would leave them. Fit, scores and the choice of GPUs are those of a live decision.

    `running`, by position, has row and booking of the batch's pods that the view already counts on their nodes.
    """

    def __init__(
        self,
        view: View,
        pods: Sequence[PlanPod],
        default_policy: str = DEFAULT_POLICY,
        running: Mapping[int, tuple[int, Booking]] | None = None,
    ) -> None:
        self.view = view
        self.pods = pods
        self._default_policy = default_policy
        cluster = view.cluster
        self._cpu = view.cpu_free_milli.copy()
        self._memory = view.memory_free_mib.copy()
        self._cluster = replace(
            writable_copy(cluster),
            row_version=cluster.row_version.copy(),
            cpu_free_milli=self._cpu,
            memory_free_mib=self._memory,
        )
        self._slots = view.pods_free.copy()
        self._exists = np.array([bool(name) for name in cluster.node_names], dtype=np.bool_)
        self._has_gpus = cluster.unit != GpuUnit.NONE
        self._rows = np.arange(cluster.num_nodes)
        self._memo = Memo(max_classes=256)
        self._version = cluster.version
        self._steps: list[_Step] = []
        self._on: dict[int, tuple[int, Booking]] = dict(running or {})
        self._obstacles: dict[object, str] = {}
        self._neighbours = view.neighbours.copy() if view.neighbours is not None else None

    @property
    def num_steps(self) -> int:
        """How many steps were made; an argument for `undo`."""
        return len(self._steps)

    @property
    def cluster(self) -> Cluster:
        """The cluster after the steps so far. Its arrays change with further steps."""
        if self._cluster.version != self._version:  # replaced on access only: there may be many steps in between
            self._cluster = replace(self._cluster, version=self._version)
        return self._cluster

    def fits(self, position: int, allowed: Mask | None = None) -> Mask:
        """(N,) the allowed nodes that have room for a pod now."""
        room = self._room(self.pods[position], self._rows)
        return room if allowed is None else room & allowed

    def has_room(self, position: int, row: int) -> bool:
        """Whether one node has room for a pod now."""
        return bool(self._room(self.pods[position], self._rows[row : row + 1])[0])

    @property
    def neighbours_version(self) -> int:
        """Changes with every change that matters to rules about other pods; 0 without such rules."""
        return self._neighbours.version if self._neighbours is not None else 0

    def admits(self, position: int, row: int) -> bool:
        """Whether a node meets a pod's demands beside CPU, memory and GPUs, and all rules about other pods."""
        pod = self.pods[position]
        neighbours = self._neighbours
        return neighbours is None or bool(neighbours.room(pod.namespace, pod.labels, pod.demands, pod.kind)[row])

    def best_row(self, position: int, allowed: Mask | None = None) -> int | None:
        """The allowed node with room that ranks highest for a pod, None if none has room."""
        pod = self.pods[position]
        room = self.fits(position, allowed)
        score = self._evaluation(pod).score if pod.gpus is not None else self._plain_score(pod, room)
        score = np.where(room, score, -np.inf)
        best = score.max(initial=-np.inf)
        if best == -np.inf:
            return None
        tied = np.flatnonzero(score == best)
        return int(tied[np.argmin(self.cluster.tie_rank[tied])])

    def put(self, position: int, row: int) -> tuple[int, ...]:
        """Add a pod to a node that has room for it; returns the indices of its GPUs."""
        pod = self.pods[position]
        booked = Booking(cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)
        if (request := pod.gpus) is not None:
            gpus = () if request.devices is not None else self._choice(pod, row)
            if gpus is None:
                raise AssertionError(f"fit and device choice disagree on {request} at row {row}")
            booked = booking(self.cluster, row, request, gpus, pod.cpu_milli, pod.memory_mib)
        self.put_back(position, row, booked)
        return booked.all_gpus

    def put_back(self, position: int, row: int, booked: Booking) -> None:
        """Add a pod to a node with an earlier booking, without checking for room."""
        self._steps.append(step := _Step(position, row, booked))
        self._change(step, -1)

    def take(self, position: int) -> None:
        """Remove a pod from its node, whether it was added or in `running`."""
        self._steps.append(step := _Step(position, *self._on[position], sign=1))
        self._change(step, 1)

    def location(self, position: int) -> tuple[int, Booking] | None:
        """A pod's row and booking; None while it is on no node."""
        return self._on.get(position)

    def compute_free(self, rows: Rows) -> tuple[Longs, Longs]:
        """(R,) free CPU in milli and (R,) free memory in MiB of `rows` (R,)."""
        return self._cpu[rows], self._memory[rows]

    def slots_free(self, row: int) -> int:
        """A node's free pod slots."""
        return int(self._slots[row])

    def placed(self) -> list[tuple[int, int]]:
        """Position and row of each step's pod, in order."""
        return [(step.position, step.row) for step in self._steps]

    def num_gpus(self, num_steps: int) -> int:
        """Net GPUs added since there were `num_steps` steps; a share counts as one."""
        return sum(step.num_gpus for step in self._steps[num_steps:])

    def undo(self, num_steps: int) -> None:
        """Undo steps until `num_steps` are left, the last first."""
        while len(self._steps) > num_steps:
            step = self._steps.pop()
            self._change(step, -step.sign)

    def plan(self, planner: str, known: Mapping[int, WaitReason] | None = None) -> Plan:
        """The current placement as a plan; `known` has reasons, by position, other than lack of room."""
        rows = [-1] * len(self.pods)
        gpus: list[tuple[int, ...]] = [()] * len(self.pods)
        for position, (row, booked) in self._on.items():
            rows[position], gpus[position] = row, booked.all_gpus
        unassigned = {
            position: reason if (reason := (known or {}).get(position)) is not None else self.why_not(position)
            for position, row in enumerate(rows)
            if row < 0
        }
        version = self.view.cluster.version
        return Plan(planner, version, tuple(self.pods), tuple(rows), tuple(gpus), unassigned)

    def why_not(self, position: int) -> WaitReason:
        """Why an unplaced pod gets no node."""
        pod, view = self.pods[position], self.view
        sizes = {"cpu": pod.cpu_milli / 1000, "memory_mib": pod.memory_mib}
        may = view.allowed[pod.kind] & self._exists
        if not may.any():
            return view.refusals.get(pod.kind) or Code.FORBIDDEN.reason()
        neighbours = self._neighbours
        if neighbours is not None and not (offering := may & neighbours.offers(pod.demands)).any():
            return self._demand_reason(pod, offering) or Code.NODES_BUSY.reason(**sizes)
        plain = (view.cpu_allocatable_milli >= pod.cpu_milli) & (view.memory_allocatable_mib >= pod.memory_mib)
        if not (may & plain).any():
            return Code.NODES_TOO_SMALL.reason(**sizes)
        if pod.gpus is not None:
            evaluation = self._evaluation(pod)
            codes, numbers = evaluation.reason[may], evaluation.available[may]
            if (codes != Reason.FITS).all():
                never = not resolvable(codes).any()
                if pod.gpus.devices is not None:
                    text = self._device_reason(pod, pod.gpus.devices, np.flatnonzero(may), codes)
                    return Code.NO_GPU_ROOM.reason(text=text, never=never)
                nearest = TABLE.nearest(codes)
                words = sentence(nearest, pod.gpus, int(numbers[codes == nearest].max()))
                return Code.NO_GPU_ROOM.reason(text=words.replace("best here", "best node"), never=never)
        if neighbours is not None and (why := self._demand_reason(pod, self._resource_room(pod, self._rows))):
            return why
        if self.fits(position).any():
            return Code.GANG_TOO_LARGE.reason(gang=pod.gang) if pod.gang else Code.LEFT_OUT.reason()
        return Code.NODES_BUSY.reason(**sizes)

    def _demand_reason(self, pod: PlanPod, among: Mask) -> WaitReason | None:
        """Why a pod's demands or others' rules rule out all of `among` (N,); None if they don't."""
        if self._neighbours is None:
            return None
        return self._neighbours.why_not(pod.namespace, pod.labels, pod.demands, pod.kind, among)

    def _device_reason(self, pod: PlanPod, devices: DeviceClaims, rows: Rows, codes: npt.NDArray[np.uint8]) -> str:
        """Why no node that a pod may use has devices for its ResourceClaims; cached for equal requests."""
        key = devices, pod.kind, self.cluster.version
        text = self._obstacles.get(key)
        if text is None:
            text = self._obstacles[key] = f"needs {pod.gpus}, {explain_no_fit(self.cluster, devices, rows, codes)}"
        return text

    def quality(self, weights: Floats) -> Quality:
        """Quality of the current placement; `weights` (P,) are the pods' weights."""
        return Quality(
            placed=len(self._on),
            placed_priority=float(sum(weights[position] for position in self._on)),
            gpus=self.num_gpus(0),
            nodes=len({row for row, _ in self._on.values()}),
            fragments=fragments(self.cluster),
        )

    def _room(self, pod: PlanPod, rows: Rows) -> Mask:
        """(R,) whether nodes have room and meet all rules about other pods."""
        room = self._resource_room(pod, rows)
        if self._neighbours is None or not room.any():
            return room
        return room & self._neighbours.room(pod.namespace, pod.labels, pod.demands, pod.kind)[rows]

    def _resource_room(self, pod: PlanPod, rows: Rows) -> Mask:
        """(R,) whether nodes have room by CPU, memory, pod slots and GPUs, and are allowed."""
        room = enough_compute(self.cluster, pod.cpu_milli, pod.memory_mib, rows) & (self._slots[rows] > 0)
        room &= self._exists[rows] & self.view.allowed[pod.kind, rows]
        return room if pod.gpus is None else room & self._evaluation(pod).fits[rows]

    def _evaluation(self, pod: PlanPod) -> Evaluation:
        return self._memo.evaluate(self.cluster, self._request(pod), self._policy(pod)).evaluation

    def _policy(self, pod: PlanPod) -> Policy:
        return self.view.policies[pod.policy or self._default_policy]

    def _request(self, pod: PlanPod) -> GpuRequest:
        """A pod's request in the form that its policy distinguishes. Raises ValueError without GPUs."""
        request = self._policy(pod).weighed_request(
            PodRequest(pod.gpus, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)
        )
        if request is None:
            raise ValueError(f"{pod.key} requests no GPU")
        return request

    def _choice(self, pod: PlanPod, row: int) -> tuple[int, ...] | None:
        """The GPUs that a pod would get on a node, None if it does not fit."""
        policy, request = self._policy(pod), self._request(pod)
        known = self._memo.evaluate(self.cluster, request, policy)
        if not known.evaluation.fits[row]:
            return None
        room, shares = known.of(row)
        return choice(self._memo.with_observed_usage(self.cluster, policy), row, request, policy, room, shares=shares)

    def _plain_score(self, pod: PlanPod, room: Mask) -> Floats:
        """(N,) score of a pod without GPUs: nodes without GPUs first, then the least CPU and memory left.

        If only GPU nodes have room, `room` (N,), the pod's policy decides where GPU pods lose least, as in a live
        decision.
        """
        view = self.view
        left = (self._cpu - pod.cpu_milli) / np.maximum(view.cpu_allocatable_milli, 1)
        left = left + (self._memory - pod.memory_mib) / np.maximum(view.memory_allocatable_mib, 1)
        score: Floats = -left - 4.0 * self._has_gpus
        policy = self._policy(pod)
        if not policy.without_gpus or not room.any() or (room & ~self._has_gpus).any():
            return score
        request = (
            policy.weighed_request(PodRequest(_NO_GPUS, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)) or _NO_GPUS
        )
        kept = self._memo.evaluate(self.cluster, request, policy).evaluation.score
        return np.where(kept == kept[room].max(), score, -np.inf)

    def _change(self, step: _Step, sign: int) -> None:
        row, cluster = step.row, self._cluster
        if sign < 0:
            self._on[step.position] = row, step.booked
        else:
            self._on.pop(step.position, None)  # missing if the pod was added more than once
        book(cluster, row, step.booked, sign)
        if self._neighbours is not None:
            pod = self.pods[step.position]
            self._neighbours.add(pod.namespace, pod.labels, pod.demands, row, -sign)
        self._slots[row] += sign
        # CPU and memory do not change the GPU fit, but policies may weigh them.
        self._version += 1
        cluster.row_version[row] = self._version


def fragments(cluster: Cluster) -> float:
    """The fraction of GPU units that are free on partly used nodes."""
    capacity, free = units(cluster), free_units(cluster)
    cut = (free > 0) & (free < capacity)
    return float(free[cut].sum() / max(capacity.sum(), 1))


def units(cluster: Cluster) -> Longs:
    """(N,) installed GPU units."""
    installed: Longs = (cluster.gpu_model >= 0).sum(axis=1) * cluster.units_per_gpu
    return installed


def free_units(cluster: Cluster) -> Longs:
    """(N,) wholly free GPU units."""
    free: Longs = cluster.gpu_idle.sum(axis=1) * cluster.units_per_gpu - cluster.untracked_units
    return free.clip(min=0)


def state_after(view: View, plan: Plan) -> PlanState:
    """The state after a plan. Raises ValueError if the plan does not fit, as when it was made on another view."""
    state = PlanState(view, plan.pods)
    waiting = [(position, row) for position, row in enumerate(plan.rows) if row >= 0]
    while waiting:
        left = []  # pod affinity may require others to be placed first
        for position, row in waiting:
            if state.has_room(position, row):
                state.put(position, row)
            else:
                left.append((position, row))
        if len(left) == len(waiting):
            raise ValueError(f"{plan.pods[left[0][0]].key} has no room at row {left[0][1]}")
        waiting = left
    return state
