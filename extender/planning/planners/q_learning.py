"""Tabular Q-learning, MLTaskScheduler's other planner: for a handful of nodes and pods.

State: the node of each pod. Action: place one more pod. Reward: the sum over nodes of int(10 * CPU) + int(10 * memory)
+ int(10 * images), the first two as the node's utilization, the last as the fraction of its pods that share an image;
plus 30 when all pods are placed. An action over capacity gives -99 and ends the episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.planning.planners.problem import CPU, MEMORY, Problem, plan_of, problem_of
from extender.planning.plans import Plan, PlanError, PlanPod, View

_MAX_ACTIONS = 512
"""Most pods times nodes; a larger table would never be filled."""


@dataclass(frozen=True, slots=True)
class QLearning:
    """Parameters of learning; the defaults are MLTaskScheduler's."""

    alpha: float = 0.3
    gamma: float = 0.9
    epsilon: float = 0.25
    episodes: int = 1000
    all_placed: float = 30.0
    over_capacity: float = -99.0

    name: ClassVar[str] = "q-learning"
    description: ClassVar[str] = "tabular Q-learning; only a few nodes and pods"

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """The best placement of all episodes and of the learned table, by pods placed, then by reward.

        Raises PlanError for gangs and for too large a batch.
        """
        num_actions = len(pods) * view.num_nodes
        if num_actions > _MAX_ACTIONS:
            raise PlanError(
                f"q-learning takes up to {_MAX_ACTIONS} pods x nodes, these are {len(pods)} x {view.num_nodes}; "
                "use greedy or genetic"
            )
        if any(pod.gang for pod in pods):
            raise PlanError("q-learning does not support gangs; use greedy or genetic")
        if not num_actions:
            return plan_of(view, pods, [-1] * len(pods), self.name)
        episode = _Episodes(view, pods, problem_of(view, pods), seed, self)
        best = episode.run(learning=False)
        for number in range(self.episodes + 1):
            best = max(best, episode.run(learning=number < self.episodes), key=_merit)
        return plan_of(view, pods, best[1].tolist(), self.name)


_Outcome = tuple[float, Rows]
"""Reward of the last state, and (P,) row of each pod's node, -1 for none."""


def _merit(outcome: _Outcome) -> tuple[int, float]:
    return int((outcome[1] >= 0).sum()), outcome[0]


class _Episodes:
    """Runs episodes on a table of action values by state."""

    def __init__(self, view: View, pods: Sequence[PlanPod], problem: Problem, seed: int, parameters: QLearning) -> None:
        self._problem = problem
        self._parameters = parameters
        self._rng = np.random.default_rng(seed)
        self._table: dict[bytes, Floats] = {}
        self._may: Mask = problem.eligible[problem.class_of]  # (P, N)
        self._unplaceable = ~self._may.any(axis=1)
        images = {pod.image: number for number, pod in enumerate(pods) if pod.image}
        self._image = np.array([images.get(pod.image, -1) for pod in pods])
        self._allocatable: Longs = np.stack([view.cpu_allocatable_milli, view.memory_allocatable_mib], axis=1)

    def run(self, learning: bool) -> _Outcome:
        """One episode: epsilon-greedy while learning, else by the best values within capacity."""
        problem, parameters = self._problem, self._parameters
        P, N = self._may.shape
        where = np.full(P, -1, np.intp)
        free = problem.free.copy()
        reward = 0.0
        for _ in range(P):
            open_pods = (where < 0) & ~self._unplaceable
            if not open_pods.any():
                break
            fits = (free[None, :, :] >= problem.demand[:, None, :]).all(axis=2) & self._may & open_pods[:, None]
            values = self.values(where)
            allowed = np.broadcast_to(open_pods[:, None], (P, N)) if learning else fits
            if not fits.any():
                break  # every further action would exceed capacity
            action = self._choose(values, allowed.ravel(), explore=learning)
            pod, node = divmod(action, N)
            if not fits[pod, node]:
                values[action] += parameters.alpha * (parameters.over_capacity - values[action])
                break
            where[pod] = node
            free[node] -= problem.demand[pod]
            done = not ((where < 0) & ~self._unplaceable).any()
            reward = self._reward(where, free) + (parameters.all_placed if done else 0.0)
            if learning:
                after = 0.0 if done else float(self.values(where).max())
                values[action] += parameters.alpha * (reward + parameters.gamma * after - values[action])
        return reward, where

    def values(self, where: Rows) -> Floats:
        """(P * N,) the table's action values of a state, to be updated in place."""
        return self._table.setdefault(where.tobytes(), np.zeros(self._may.size))

    def _choose(self, values: Floats, allowed: Mask, explore: bool) -> int:
        if explore and self._rng.random() < self._parameters.epsilon:
            return int(self._rng.choice(np.flatnonzero(allowed)))
        return int(np.argmax(np.where(allowed, values, -np.inf)))

    def _reward(self, where: Rows, free: Longs) -> float:
        used = 1 - free[:, [CPU, MEMORY]] / np.maximum(self._allocatable, 1)  # (N, 2)
        total = float(np.floor(10 * used + 1e-9).sum())
        for node in set(where[where >= 0].tolist()):
            images = self._image[(where == node) & (self._image >= 0)]
            if len(images):
                total += int(10 * (1 - len(set(images.tolist())) / len(images)))
        return total
