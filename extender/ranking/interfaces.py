"""Interfaces of a part that evaluates ranks next to the one that serves."""

from typing import Any, Protocol

from extender.core.resources.requests import PodRequest
from extender.scheduling.placer import Placement


class DecisionObserver(Protocol):
    """Receives decisions after they were answered."""

    def offer(self, placement: Placement, request: PodRequest) -> None:
        """Take a decision; does not block."""


class RankEvaluator(Protocol):
    """Compares ranks and has the best one serve."""

    @property
    def said(self) -> str:
        """The last step of a fitted model; "" if there was none."""

    def evidence(self) -> dict[str, Any] | None:
        """The evidence for the choice of `auto` as JSON; None if ranks are not compared."""

    def learning(self) -> dict[str, Any] | None:
        """The state of fitted models as JSON; None if fitted models are not accepted."""
