"""Planners by name: each takes a batch of pods and a view of the cluster, and gives a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from extender.queueing.planners import exact, genetic, greedy, q_learning
from extender.queueing.plans import Plan, PlanPod, View

Make = Callable[[View, Sequence[PlanPod], int], Plan]
"""From a view, P pods and a seed. Raises PlanError when the batch is not for this planner."""


@dataclass(frozen=True, slots=True)
class Planner:
    """A way to plan a batch."""

    name: str
    make: Make
    description: str


PLANNERS: Final = {
    planner.name: planner
    for planner in (
        Planner("greedy", greedy.make, "pod by pod in order, each where a live decision would put it; any size"),
        Planner("genetic", genetic.make, "genetic search over the whole batch, begun from greedy's plan"),
        Planner("q-learning", q_learning.make, "tabular Q-learning; a few nodes and pods only"),
        Planner("exact", exact.make, "mixed-integer optimum by HiGHS (extra `plan`); small batches"),
    )
}
