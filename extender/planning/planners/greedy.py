"""The greedy planner: pod by pod in the order of the batch, each where a live decision would put it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from extender.planning.plans import GREEDY, Plan, PlanPod, View
from extender.planning.rounds import Rules, greedy_round


@dataclass(frozen=True, slots=True)
class Greedy:
    """A round that nothing is kept back from."""

    name: ClassVar[str] = GREEDY
    description: ClassVar[str] = "pod by pod in order, each where a live decision would put it; any size"

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """The plan; there is no chance in it, so the seed is not looked at."""
        return greedy_round(view, pods, Rules()).plan
