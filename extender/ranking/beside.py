"""What is done beside the rank that serves: by a part, where there is one."""

from typing import Any, Protocol

from extender.core.resources.requests import PodRequest
from extender.scheduling.placer import Placement


class SeesDecisions(Protocol):
    """Looks at what was decided, after the answer."""

    def offer(self, placement: Placement, request: PodRequest) -> None:
        """A decision was made; returns at once."""


class JudgesRanks(Protocol):
    """Tries ranks, and has the best one serve."""

    @property
    def said(self) -> str:
        """The last step of a fitted model, "" where there was none."""

    def evidence(self) -> dict[str, Any] | None:
        """By what `auto` was decided, as JSON; None where nothing is tried."""

    def learning(self) -> dict[str, Any] | None:
        """How fitted models do, as JSON; None where none is taken."""
