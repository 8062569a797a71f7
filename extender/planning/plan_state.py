"""A working copy of a cluster on which a plan is tried: pods are put on it and taken off again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.bookings import Booking, book, bookable, booking
from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.decisions import choice
from extender.core.dra.asks import DevicesAsked
from extender.core.evaluations import Evaluation, Memo
from extender.core.fit.checks import TABLE, resolvable, sentence
from extender.core.fit.device_fits import why_not
from extender.core.fit.fits import enough_compute
from extender.core.fit.reasons import Reason
from extender.core.policies.policy import Policy
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.planning.neighbours import Neighbours
from extender.planning.plans import Plan, PlanPod, Quality, View
from extender.planning.wait_reasons import Code, WaitReason


@dataclass(frozen=True, slots=True)
class _Step:
    """A pod that was put on a node, or taken off it, and what it books there."""

    position: int
    row: int
    booked: Booking
    sign: int = -1
    """-1 where it was put on the node, as `book` counts; 1 where it was taken off."""

    @property
    def num_gpus(self) -> int:
        return -self.sign * (len(self.booked.all_gpus) + self.booked.unknown)


DEFAULT_POLICY: Final = "tightest"
_NO_GPUS: Final = GpuRequest(0, AskedUnit.NONE)


class PlanState:
    """Nodes as a plan would leave them. Fit, scores and the choice of GPUs are those of a live decision.

    `running` are pods of the batch that the view has on their nodes already: row and booking, by position.
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
            bookable(cluster),
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
        self._near = view.neighbours.copy() if view.neighbours is not None else None

    @property
    def num_steps(self) -> int:
        """How many pods were put on it or taken off: what `undo` goes back to."""
        return len(self._steps)

    @property
    def cluster(self) -> Cluster:
        """The GPUs as they would be. Its arrays go on changing."""
        if self._cluster.version != self._version:  # made when somebody looks: there may be many steps in between
            self._cluster = replace(self._cluster, version=self._version)
        return self._cluster

    def fits(self, position: int, allowed: Mask | None = None) -> Mask:
        """(N,) the nodes with room for a pod now, of the allowed ones."""
        room = self._room(self.pods[position], self._rows)
        return room if allowed is None else room & allowed

    def has_room(self, position: int, row: int) -> bool:
        """Whether one node has room for a pod now."""
        return bool(self._room(self.pods[position], self._rows[row : row + 1])[0])

    @property
    def neighbours_version(self) -> int:
        """Another one each time that something has changed for rules about other pods; 0 where there are none."""
        return self._near.version if self._near is not None else 0

    def admits(self, position: int, row: int) -> bool:
        """Whether a node has what a pod demands beside CPU, memory and GPUs, and no rule keeps it away."""
        pod = self.pods[position]
        near = self._near
        return near is None or bool(near.room(pod.namespace, pod.labels, pod.demands, pod.kind)[row])

    def best_row(self, position: int, allowed: Mask | None = None) -> int | None:
        """The node that ranks highest for a pod, of the allowed ones; None when none has room."""
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
        """Put a pod on a node that has room for it; returns the indices of its GPUs."""
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
        """Put a pod where it has booked so much before. Whether there is room is not asked."""
        self._steps.append(step := _Step(position, row, booked))
        self._change(step, -1)

    def take(self, position: int) -> None:
        """Take a pod off its node, whether it was put there or ran there from the beginning."""
        self._steps.append(step := _Step(position, *self._on[position], sign=1))
        self._change(step, 1)

    def found(self, position: int) -> tuple[int, Booking] | None:
        """Where a pod is, and what it books there; None while it is on no node."""
        return self._on.get(position)

    def compute_free(self, rows: Rows) -> tuple[Longs, Longs]:
        """(R,) CPU in milli and (R,) memory in MiB that are free on some rows."""
        return self._cpu[rows], self._memory[rows]

    def slots_free(self, row: int) -> int:
        """How many more pods the kubelet of a node takes."""
        return int(self._slots[row])

    def placed(self) -> list[tuple[int, int]]:
        """Position and row of each pod that was put on it, in that order."""
        return [(step.position, step.row) for step in self._steps]

    def num_gpus(self, num_steps: int) -> int:
        """How many GPUs the pods have that were put on it since there were so many steps; shares count as one."""
        return sum(step.num_gpus for step in self._steps[num_steps:])

    def undo(self, num_steps: int) -> None:
        """Undo steps, the last first, back to so many."""
        while len(self._steps) > num_steps:
            step = self._steps.pop()
            self._change(step, -step.sign)

    def plan(self, planner: str, known: Mapping[int, WaitReason] | None = None) -> Plan:
        """What was placed, as a plan; `known` are reasons by position that are not a matter of room."""
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
        """Why a pod that was not placed gets no node."""
        pod, view = self.pods[position], self.view
        sizes = {"cpu": pod.cpu_milli / 1000, "memory_mib": pod.memory_mib}
        may = view.allowed[pod.kind] & self._exists
        if not may.any():
            return view.refusals.get(pod.kind) or Code.FORBIDDEN.reason()
        near = self._near
        if near is not None and not (may & near.offers(pod.demands)).any():
            return self._kept_away(near, pod, may & near.offers(pod.demands)) or Code.NODES_BUSY.reason(**sizes)
        plain = (view.cpu_allocatable_milli >= pod.cpu_milli) & (view.memory_allocatable_mib >= pod.memory_mib)
        if not (may & plain).any():
            return Code.NODES_TOO_SMALL.reason(**sizes)
        if pod.gpus is not None:
            evaluation = self._evaluation(pod)
            codes, numbers = evaluation.reason[may], evaluation.available[may]
            if (codes != Reason.FITS).all():
                never = not resolvable(codes).any()
                if pod.gpus.devices is not None:
                    text = self._no_devices(pod, pod.gpus.devices, np.flatnonzero(may), codes)
                    return Code.NO_GPU_ROOM.reason(text=text, never=never)
                nearest = TABLE.nearest(codes)
                words = sentence(nearest, pod.gpus, int(numbers[codes == nearest].max()))
                return Code.NO_GPU_ROOM.reason(text=words.replace("best here", "best node"), never=never)
        if near is not None and (why := self._kept_away(near, pod, self._own_room(pod, self._rows))) is not None:
            return why
        if self.fits(position).any():
            return Code.GANG_TOO_LARGE.reason(gang=pod.gang) if pod.gang else Code.LEFT_OUT.reason()
        return Code.NODES_BUSY.reason(**sizes)

    def _kept_away(self, near: Neighbours, pod: PlanPod, among: Mask) -> WaitReason | None:
        """What of a pod's demands or of others' rules keeps it from some nodes (N,); None where something else does."""
        return near.why_not(pod.namespace, pod.labels, pod.demands, pod.kind, among)

    def _no_devices(self, pod: PlanPod, asked: DevicesAsked, rows: Rows, codes: npt.NDArray[np.uint8]) -> str:
        """What keeps a pod's ResourceClaims from all nodes that it may use; worked out once for pods that are alike."""
        key = asked, pod.kind, self.cluster.version
        text = self._obstacles.get(key)
        if text is None:
            text = self._obstacles[key] = f"needs {pod.gpus}, {why_not(self.cluster, asked, rows, codes)}"
        return text

    def quality(self, weights: Floats) -> Quality:
        """How good what was placed is; `weights` (P,) tell what each pod is worth."""
        return Quality(
            placed=len(self._on),
            placed_priority=float(sum(weights[position] for position in self._on)),
            gpus=self.num_gpus(0),
            nodes=len({row for row, _ in self._on.values()}),
            fragments=fragments(self.cluster),
        )

    def _room(self, pod: PlanPod, rows: Rows) -> Mask:
        """(R,) whether those nodes have room, and no rule keeps the pod from them."""
        room = self._own_room(pod, rows)
        if self._near is None or not room.any():
            return room
        return room & self._near.room(pod.namespace, pod.labels, pod.demands, pod.kind)[rows]

    def _own_room(self, pod: PlanPod, rows: Rows) -> Mask:
        """(R,) whether those nodes have room by CPU, memory, pods and GPUs."""
        room = enough_compute(self.cluster, pod.cpu_milli, pod.memory_mib, rows) & (self._slots[rows] > 0)
        room &= self._exists[rows] & self.view.allowed[pod.kind, rows]
        return room if pod.gpus is None else room & self._evaluation(pod).fits[rows]

    def _evaluation(self, pod: PlanPod) -> Evaluation:
        return self._memo.evaluate(self.cluster, self._request(pod), self._policy(pod)).evaluation

    def _policy(self, pod: PlanPod) -> Policy:
        return self.view.policies[pod.policy or self._default_policy]

    def _request(self, pod: PlanPod) -> GpuRequest:
        """What a pod asks for, as its policy tells requests apart."""
        asked = self._policy(pod).asked(PodRequest(pod.gpus, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib))
        if asked is None:
            raise ValueError(f"{pod.key} asks for no GPU")
        return asked

    def _choice(self, pod: PlanPod, row: int) -> tuple[int, ...] | None:
        """The GPUs of a node that a pod gets; None when it does not fit."""
        policy, request = self._policy(pod), self._request(pod)
        known = self._memo.evaluate(self.cluster, request, policy)
        if not known.evaluation.fits[row]:
            return None
        room, shares = known.of(row)
        return choice(self._memo.seen(self.cluster, policy), row, request, policy, room, shares=shares)

    def _plain_score(self, pod: PlanPod, room: Mask) -> Floats:
        """(N,) for a pod without GPUs: nodes without GPUs first, then the one with the least left of CPU and memory.

        Where nodes with GPUs alone have room, `room` (N,), it goes where by its policy those who ask for GPUs lose
        least, as in a live decision.
        """
        view = self.view
        left = (self._cpu - pod.cpu_milli) / np.maximum(view.cpu_allocatable_milli, 1)
        left = left + (self._memory - pod.memory_mib) / np.maximum(view.memory_allocatable_mib, 1)
        score: Floats = -left - 4.0 * self._has_gpus
        policy = self._policy(pod)
        if not policy.without_gpus or not room.any() or (room & ~self._has_gpus).any():
            return score
        request = policy.asked(PodRequest(_NO_GPUS, cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)) or _NO_GPUS
        kept = self._memo.evaluate(self.cluster, request, policy).evaluation.score
        return np.where(kept == kept[room].max(), score, -np.inf)

    def _change(self, step: _Step, sign: int) -> None:
        row, cluster = step.row, self._cluster
        if sign < 0:
            self._on[step.position] = row, step.booked
        else:
            self._on.pop(step.position, None)  # one that was put more than once is found nowhere
        book(cluster, row, step.booked, sign)
        if self._near is not None:
            pod = self.pods[step.position]
            self._near.add(pod.namespace, pod.labels, pod.demands, row, -sign)
        self._slots[row] += sign
        # CPU and memory alone move no fit, but policies may weigh them.
        self._version += 1
        cluster.row_version[row] = self._version


def fragments(cluster: Cluster) -> float:
    """The fraction of GPU units that are free on nodes where others are in use."""
    capacity, free = units(cluster), free_units(cluster)
    cut = (free > 0) & (free < capacity)
    return float(free[cut].sum() / max(capacity.sum(), 1))


def units(cluster: Cluster) -> Longs:
    """(N,) GPU units installed."""
    installed: Longs = (cluster.gpu_model >= 0).sum(axis=1) * cluster.units_per_gpu
    return installed


def free_units(cluster: Cluster) -> Longs:
    """(N,) GPU units that are wholly free."""
    free: Longs = cluster.gpu_idle.sum(axis=1) * cluster.units_per_gpu - cluster.untracked_units
    return free.clip(min=0)


def state_after(view: View, plan: Plan) -> PlanState:
    """The state that a plan leaves. Raises ValueError when the plan does not fit: it was not made on this view."""
    state = PlanState(view, plan.pods)
    waiting = [(position, row) for position, row in enumerate(plan.rows) if row >= 0]
    while waiting:
        left = []  # some may come only after others, by rules about these
        for position, row in waiting:
            if state.has_room(position, row):
                state.put(position, row)
            else:
                left.append((position, row))
        if len(left) == len(waiting):
            raise ValueError(f"{plan.pods[left[0][0]].key} has no room at row {left[0][1]}")
        waiting = left
    return state
