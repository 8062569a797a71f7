"""Planners by name, a file for each: it takes a batch of pods and a view of the cluster, and gives a plan."""

from collections.abc import Mapping
from typing import Final

from extender.planning.planners.exact import Exact
from extender.planning.planners.genetic import Genetic
from extender.planning.planners.greedy import Greedy
from extender.planning.planners.q_learning import QLearning
from extender.planning.plans import Planner

_ALL: Final[tuple[Planner, ...]] = (
    Greedy(),
    Genetic(),
    QLearning(),
    Exact(),
)
PLANNERS: Final[Mapping[str, Planner]] = {planner.name: planner for planner in _ALL}
