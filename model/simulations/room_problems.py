"""A simulated cluster as the service's planner of moves sees it: who runs, what a restart loses, what shall fit."""

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
from extender.planning.moves.problems import Problem, Running, Target, keeping_its_model
from extender.planning.plan_state import DEFAULT_POLICY
from extender.planning.plans import PlanPod, View
from extender.ranking.rules import cluster_of, requests_of
from model.engine import kernels
from model.engine.clusters import models_of
from model.simulations.simulated_jobs import Kind, Tasks

Part = tuple[int, int, int]
"""What a job has of a node: class, node, GPUs as bits."""
_SLOTS: Final = 1 << 20
"""Pods that a kubelet takes: traces tell of no bound."""


@dataclass(frozen=True)
class Runner:
    """A job that runs."""

    job: int
    parts: Sequence[Part]
    loses_s: float
    """Of its time, if it is restarted now."""
    stays: str = ""
    """Why it may not be moved, "" where it may."""


class RoomProblems:
    """Problems on nodes that a simulation fills in place: each is of the moment, and holds until the next event."""

    def __init__(self, nodes: Nodes, tasks: Tasks, model_names: Sequence[str]) -> None:
        """`model_names` are those that `nodes.model` counts; the nodes are empty here."""
        num_models = int(nodes.model.max(initial=-1)) + 1
        names = [*model_names, *(f"model-{bit}" for bit in range(len(model_names), num_models))]
        models, memory = models_of(names)
        self._asks, self._priority = tasks.asks, tasks.priority
        requests = requests_of(tasks.asks, [model.names[0] for model in models])
        self._requests = [replace(request, cpu_milli=0, memory_mib=0) for request in requests]
        N = len(nodes.cpu_milli)
        self._nodes = nodes
        self._could: list[Mask] = [kernels.fitting(nodes, tasks.asks, c) for c in range(len(requests))]
        """Per class (N,) the nodes that have room for it when they are empty, as they are now."""
        self._view = View(
            cluster_of(nodes, models, memory), nodes.cpu_milli, nodes.memory_mib, nodes.cpu_free_milli,
            nodes.memory_free_mib, np.full(N, _SLOTS), np.ones((1, N), np.bool_),
            policies={DEFAULT_POLICY: POLICIES[DEFAULT_POLICY]},
        )  # fmt: skip

    def problem(self, kind: Kind, priority: int, running: Iterable[Runner], max_moves: int) -> Problem:
        """Room for a job of a kind. Pods without GPUs stay where they are: they do not wait in the service's queue."""
        pods = tuple(pod for runner in running for pod in self._pods(runner))
        unserved = self._view.cluster.num_unserved
        unserved[:] = np.bincount([pod.row for pod in pods], minlength=len(unserved))
        classes = [c for c, count in kind for _ in range(count)]
        gang = "target" if len(classes) > 1 else ""
        target = tuple(self._pod(f"target/{number}", c, gang) for number, c in enumerate(classes))
        return Problem(self._view, pods, Target(priority, target), max_moves)

    def is_enough(self, kind: Kind) -> bool:
        """Whether as much GPU is free in all as a kind asks for, wherever it is; no room is made for none."""
        free = self._nodes.gpu_free_milli.sum(axis=1)
        needed = [(c, count * int(self._asks.num_gpus[c] * self._asks.gpu_milli[c])) for c, count in kind]
        there = np.logical_or.reduce([self._could[c] for c, _ in needed])
        in_all = sum(milli for _, milli in needed)
        each = all(free[self._could[c]].sum() >= milli for c, milli in needed)
        return 0 < in_all <= free[there].sum() and each

    def least_cost_gpu_s(self, kind: Kind, running: Iterable[Runner]) -> float:
        """What moves for a kind lose at least, by numbers of whole GPUs alone; inf where nothing helps."""
        single = len(kind) == 1 and kind[0][1] == 1
        held: list[tuple[int, int, float]] = []  # row, GPUs (shares as one), what it costs that they leave
        for runner in running:
            if runner.stays:
                continue
            gpus: dict[int, int] = {}
            for c, row, _ in runner.parts:
                gpus[row] = gpus.get(row, 0) + int(self._asks.num_gpus[c])
            of_job = sum(self._gpus(c) for c, _, _ in runner.parts) * runner.loses_s
            # One that is on several nodes may make room on each of them.
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
            costs = np.where(self._could[c], cover_costs(need, rows, nums, prices), np.inf)
            num_nodes = count if 2 * self._asks.num_gpus[c] > most else 1
            of_class = np.sort(costs)[:num_nodes]
            least = max(least, float(of_class.sum()) if len(of_class) == num_nodes else math.inf)
        return least

    def _gpus(self, c: int) -> float:
        return float(self._asks.num_gpus[c] * self._asks.gpu_milli[c]) / WHOLE_MILLI

    def _pods(self, runner: Runner) -> Iterable[Running]:
        gang = f"{runner.job}" if len(runner.parts) > 1 else ""
        for number, (c, row, bits) in enumerate(runner.parts):
            if not self._asks.num_gpus[c]:
                continue
            key = f"{runner.job}/{number}"
            pod = keeping_its_model(self._view.cluster, row, self._pod(key, c, gang))
            booked = booking(self._view.cluster, row, self._requests[c], _gpus_of(bits), pod.cpu_milli, pod.memory_mib)
            cost_gpu_s = self._gpus(c) * runner.loses_s
            priority = int(self._priority[runner.job])
            yield Running(key, key, row, booked, pod, cost_gpu_s, priority, gang, stays=runner.stays)

    def _pod(self, key: str, c: int, gang: str) -> PlanPod:
        request = self._requests[c]
        asks = self._asks
        return PlanPod(
            key, int(asks.cpu_milli[c]), int(asks.memory_mib[c]), request if request.count else None, gang=gang
        )


def job_and_part(pod: Running) -> tuple[int, int]:
    """Which job a pod of a problem is of, and which of its parts it is."""
    job, _, part = pod.key.partition("/")
    return int(job), int(part)


def _gpus_of(bits: int) -> tuple[int, ...]:
    """Indices of GPUs that are given as bits."""
    return tuple(gpu for gpu in range(bits.bit_length()) if bits >> gpu & 1)


def bits_of_gpus(gpus: Iterable[int]) -> int:
    """GPUs by their indices, as bits."""
    return sum(1 << gpu for gpu in gpus)
