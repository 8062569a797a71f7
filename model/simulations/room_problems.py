"""A simulated cluster as input to the service's planner of moves."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.bookings import booking
from extender.core.clusters import WHOLE_MILLI, Mask
from extender.core.fragmentation import Nodes
from extender.core.policies.registry import POLICIES
from extender.planning.moves.evictions import cover_costs
from extender.planning.moves.problems import Problem, RunningPod, Target, keeping_its_model
from extender.planning.plan_state import DEFAULT_POLICY
from extender.planning.plans import PlanPod, View
from extender.ranking.rules import cluster_of, requests_of
from model.engine import kernels
from model.engine.clusters import models_of
from model.simulations.simulated_jobs import Kind, Tasks

Part = tuple[int, int, int]
"""Part of a job: class, node, GPU mask."""
_SLOTS: Final = 1 << 20
"""Pod limit of a node: traces have none."""


@dataclass(frozen=True)
class Runner:
    """A running job."""

    job: int
    parts: Sequence[Part]
    loses_s: float
    """Work time that a restart would lose now."""
    stays: str = ""
    """Why the job may not be moved; "" if it may."""


class RoomProblems:
    """Planning problems on nodes that a simulation updates in place: each is valid until the next event."""

    def __init__(self, nodes: Nodes, tasks: Tasks, model_names: Sequence[str]) -> None:
        """`model_names` are indexed by `nodes.model`; the nodes are empty at construction."""
        num_models = int(nodes.model.max(initial=-1)) + 1
        names = [*model_names, *(f"model-{bit}" for bit in range(len(model_names), num_models))]
        models, memory = models_of(names)
        self._asks, self._priority = tasks.asks, tasks.priority
        requests = requests_of(tasks.asks, [model.names[0] for model in models])
        self._requests = [replace(request, cpu_milli=0, memory_mib=0) for request in requests]
        N = len(nodes.cpu_milli)
        self._nodes = nodes
        self._feasible: list[Mask] = [kernels.fitting(nodes, tasks.asks, c) for c in range(len(requests))]
        """Per class (N,) whether it fits on the empty nodes."""
        self._view = View(
            cluster_of(nodes, models, memory), nodes.cpu_milli, nodes.memory_mib, nodes.cpu_free_milli,
            nodes.memory_free_mib, np.full(N, _SLOTS), np.ones((1, N), np.bool_),
            policies={DEFAULT_POLICY: POLICIES[DEFAULT_POLICY]},
        )  # fmt: skip

    def problem(self, kind: Kind, priority: int, running: Iterable[Runner], max_moves: int) -> Problem:
        """Return the problem of making room for a job of a kind. Pods without GPUs never move, as in the service."""
        pods = tuple(pod for runner in running for pod in self._pods(runner))
        unserved = self._view.cluster.num_unserved
        unserved[:] = np.bincount([pod.row for pod in pods], minlength=len(unserved))
        classes = [c for c, count in kind for _ in range(count)]
        gang = "target" if len(classes) > 1 else ""
        target = tuple(self._pod(f"target/{number}", c, gang) for number, c in enumerate(classes))
        return Problem(self._view, pods, Target(priority, target), max_moves)

    def is_enough(self, kind: Kind) -> bool:
        """Whether the cluster has enough free GPU for a kind in total; False for kinds without GPUs."""
        free = self._nodes.gpu_free_milli.sum(axis=1)
        needed = [(c, count * int(self._asks.num_gpus[c] * self._asks.gpu_milli[c])) for c, count in kind]
        available = np.logical_or.reduce([self._feasible[c] for c, _ in needed])
        total = sum(milli for _, milli in needed)
        each = all(free[self._feasible[c]].sum() >= milli for c, milli in needed)
        return 0 < total <= free[available].sum() and each

    def least_cost_gpu_s(self, kind: Kind, running: Iterable[Runner]) -> float:
        """Return a lower bound of the cost of moves for a kind, by whole GPUs only; inf if no moves help."""
        single = len(kind) == 1 and kind[0][1] == 1
        held: list[tuple[int, int, float]] = []  # row, GPUs (a share counts as one), cost of freeing them
        for runner in running:
            if runner.stays:
                continue
            gpus: dict[int, int] = {}
            for c, row, _ in runner.parts:
                gpus[row] = gpus.get(row, 0) + int(self._asks.num_gpus[c])
            of_job = sum(self._gpus(c) for c, _, _ in runner.parts) * runner.loses_s
            # A job on several nodes may make room on each of them.
            held += [(row, num, of_job if single else of_job / len(gpus)) for row, num in gpus.items()]
        rows, nums = (np.array([entry[i] for entry in held], np.int64) for i in (0, 1))
        prices = np.array([price for _, _, price in held], np.float64)
        idle = (self._nodes.gpu_free_milli == WHOLE_MILLI).sum(axis=1)
        most = int(self._nodes.num_gpus.max(initial=0))
        least = 0.0
        for c, count in kind:
            if self._asks.gpu_milli[c] < WHOLE_MILLI:
                continue
            need = np.maximum(self._asks.num_gpus[c] - idle, 0)
            costs = np.where(self._feasible[c], cover_costs(need, rows, nums, prices), np.inf)
            num_nodes = count if 2 * self._asks.num_gpus[c] > most else 1
            of_class = np.sort(costs)[:num_nodes]
            least = max(least, float(of_class.sum()) if len(of_class) == num_nodes else math.inf)
        return least

    def _gpus(self, c: int) -> float:
        return float(self._asks.num_gpus[c] * self._asks.gpu_milli[c]) / WHOLE_MILLI

    def _pods(self, runner: Runner) -> Iterable[RunningPod]:
        gang = f"{runner.job}" if len(runner.parts) > 1 else ""
        for number, (c, row, bits) in enumerate(runner.parts):
            if not self._asks.num_gpus[c]:
                continue
            key = f"{runner.job}/{number}"
            pod = keeping_its_model(self._view.cluster, row, self._pod(key, c, gang))
            booked = booking(self._view.cluster, row, self._requests[c], _gpus_of(bits), pod.cpu_milli, pod.memory_mib)
            cost_gpu_s = self._gpus(c) * runner.loses_s
            priority = int(self._priority[runner.job])
            yield RunningPod(key, key, row, booked, pod, cost_gpu_s, priority, gang, stays=runner.stays)

    def _pod(self, key: str, c: int, gang: str) -> PlanPod:
        request = self._requests[c]
        asks = self._asks
        return PlanPod(
            key, int(asks.cpu_milli[c]), int(asks.memory_mib[c]), request if request.count else None, gang=gang
        )


def job_and_part(pod: RunningPod) -> tuple[int, int]:
    """Return the job and the part number of a problem's pod."""
    job, _, part = pod.key.partition("/")
    return int(job), int(part)


def _gpus_of(bits: int) -> tuple[int, ...]:
    """Return the GPU indices of a mask."""
    return tuple(gpu for gpu in range(bits.bit_length()) if bits >> gpu & 1)


def bits_of_gpus(gpus: Iterable[int]) -> int:
    """Return the mask of GPU indices."""
    return sum(1 << gpu for gpu in gpus)
