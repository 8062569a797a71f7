"""The greedy planner: places pods in batch order, each where a live decision would put it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from extender.planning.plans import GREEDY, Plan, PlanPod, View
from extender.planning.rounds import RoundRules, greedy_round


@dataclass(frozen=True, slots=True)
class Greedy:
    """A round without quotas, reservations or limits."""

    name: ClassVar[str] = GREEDY
    description: ClassVar[str] = "pod by pod in order, each where a live decision would put it; any size"

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """The plan. It is deterministic and ignores the seed."""
        return greedy_round(view, pods, RoundRules()).plan
