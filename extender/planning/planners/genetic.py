"""The genetic planner: a chromosome is a node for each pod, as in MLTaskScheduler's batch placement.

Roulette selection, one-point crossover, elitism. Fitness is 10 for each placed pod and -2 for each unplaced one, times
its priority weight, less 5 times the fraction of all GPUs that are free on partly used nodes. The search ends early
once every pod that fits any node is placed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Floats, Mask, Rows
from extender.planning.planners.greedy import Greedy
from extender.planning.planners.problem import GPUS, Problem, plan_of, problem_of
from extender.planning.plans import Plan, PlanPod, View

_Genes = npt.NDArray[np.intp]
"""(B, P) row of each pod's node in each individual."""


@dataclass(frozen=True, slots=True)
class Genetic:
    """Parameters of the search; the defaults are MLTaskScheduler's."""

    generations: int = 1000
    population: int = 50
    mutation: float = 0.2
    """Probability that a child mutates: one pod moves, and each unplaced pod moves with probability 0.5."""
    crossover: float = 0.8
    elites: int = 2
    placed: float = 10.0
    unplaced: float = -2.0
    fragments: float = 5.0
    """Less than one placed pod gains, so that fragmentation never outweighs placing a pod."""
    warm_start: bool = True
    """Include greedy's plan in the first generation, so that the result's fitness is never lower than its."""

    name: ClassVar[str] = "genetic"
    description: ClassVar[str] = "genetic search over the whole batch, starting from greedy's plan"

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """The plan of the best individual."""
        rows = self._search(view, pods, seed) if pods and view.num_nodes else [-1] * len(pods)
        return plan_of(view, pods, rows, self.name)

    def _search(self, view: View, pods: Sequence[PlanPod], seed: int) -> list[int]:
        """(P,) row of each pod's node, -1 for none."""
        problem = problem_of(view, pods)
        placeable: Mask = problem.eligible.sum(axis=1) > 0  # (C,)
        movable = placeable[problem.class_of]  # (P,) fits any node
        if not movable.any():
            return [-1] * len(pods)
        draw = _Draw(problem, np.random.default_rng(seed))
        genes = draw.nodes(np.broadcast_to(np.arange(len(pods)), (self.population, len(pods))))
        if self.warm_start:
            rows = np.array(Greedy().make(view, pods).rows)
            genes[0] = np.where(rows >= 0, rows, genes[0])
        placed = _placed_pods(problem, genes)
        fitness = _fitness_of(problem, genes, placed, self)
        for _ in range(self.generations):
            if placed[np.argmax(fitness)][movable].all():
                break
            genes = _children_of(genes, placed, fitness, draw, self)
            placed = _placed_pods(problem, genes)
            fitness = _fitness_of(problem, genes, placed, self)
        best = int(np.argmax(fitness))
        chosen: list[int] = np.where(placed[best], genes[best], -1).tolist()
        return chosen


class _Draw:
    """Draws random eligible nodes for pods."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.rng = rng
        self._class_of = problem.class_of
        self._counts = problem.eligible.sum(axis=1)  # (C,)
        self._choices = np.zeros((len(self._counts), max(int(self._counts.max()), 1)), np.intp)
        for number, mask in enumerate(problem.eligible):
            self._choices[number, : self._counts[number]] = np.flatnonzero(mask)

    def nodes(self, positions: Rows) -> _Genes:
        """A node for each pod, with the shape of `positions`."""
        classes = self._class_of[positions]
        drawn = (self.rng.random(classes.shape) * self._counts[classes]).astype(np.intp)
        nodes: _Genes = self._choices[classes, drawn]
        return nodes


def _placed_pods(problem: Problem, genes: _Genes) -> Mask:
    """(B, P) whether each pod has room on its node; earlier pods of the batch take precedence, gangs all or none.

    Nodes and individuals are independent, so the first pods of all nodes are decided at once, then the second ones,
    and so on.
    """
    B, P = genes.shape
    N = len(problem.free)
    group = (np.arange(B)[:, None] * N + genes).ravel()  # (B * P,) one group for each node of each individual
    order = np.argsort(group, kind="stable")
    in_order = group[order]
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    group_idx = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(in_order)))
    rank = np.arange(len(in_order)) - starts[group_idx]
    left = problem.free[in_order[starts] % N]  # (groups, R)
    demand = problem.demand[order % P]  # (B * P, R)
    placed = np.zeros(B * P, np.bool_)
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    begin = 0
    for end in ends.tolist():
        current = by_rank[begin:end]
        groups, wanted = group_idx[current], demand[current]
        fits = (left[groups] >= wanted).all(axis=1)
        left[groups] -= wanted * fits[:, None]
        placed[order[current]] = fits
        begin = end
    result = placed.reshape(B, P)
    for gang, domain_of in zip(problem.gangs, problem.domain_of, strict=True):
        whole: Mask = result[:, gang].min(axis=1)
        if domain_of is not None:
            domains = domain_of[genes[:, gang]]
            whole &= (domains == domains[:, :1]).all(axis=1) & (domains[:, 0] >= 0)
        result[:, gang] &= whole[:, None]
    return result


def _fitness_of(problem: Problem, genes: _Genes, placed: Mask, parameters: Genetic) -> Floats:
    """(B,) fitness of each individual; higher is better."""
    worth: Floats = np.where(placed, parameters.placed, parameters.unplaced) @ problem.weight
    gpus = problem.demand[:, GPUS]
    if gpus.any():
        B, N = len(genes), len(problem.free)
        group = (np.arange(B)[:, None] * N + genes).ravel()
        taken = np.bincount(group, weights=(placed * gpus).ravel(), minlength=B * N).reshape(B, N)
        left = problem.free[:, GPUS] - taken
        cut = left * (left < problem.capacity_gpus)
        worth -= parameters.fragments * cut.sum(axis=1) / max(int(problem.capacity_gpus.sum()), 1)
    return worth


def _children_of(genes: _Genes, placed: Mask, fitness: Floats, draw: _Draw, parameters: Genetic) -> _Genes:
    """The next generation: the elites unchanged, and children of parents drawn by fitness."""
    rng = draw.rng
    B, P = genes.shape
    chance = fitness - fitness.min() + 1e-9
    parents = rng.choice(B, size=(2, B), p=chance / chance.sum())
    cut = np.where(rng.random(B) < parameters.crossover, rng.integers(0, P + 1, B), P)  # P: a copy of the first parent
    from_first = np.arange(P) < cut[:, None]
    children: _Genes = np.where(from_first, genes[parents[0]], genes[parents[1]])
    was_placed = np.where(from_first, placed[parents[0]], placed[parents[1]])
    moves = ~was_placed & (rng.random((B, P)) < 0.5)
    moves[np.arange(B), rng.integers(0, P, B)] = True
    mutates: Mask = np.less(rng.random(B), parameters.mutation)
    moves &= mutates[:, None]
    at = np.nonzero(moves)
    children[at] = draw.nodes(at[1])
    elites = np.argsort(-fitness, kind="stable")[: parameters.elites]
    children[: len(elites)] = genes[elites]
    return children
