"""Registry of planners by name, one module each. A planner plans a batch of pods on a view of the cluster."""

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
