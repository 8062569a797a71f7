"""Policy `auto` by evidence: the ranks are tried on the recent mix of pods now and then, and the best one serves.

The rank changes only for a significant margin, and rarely, so that placement stays predictable.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster
from extender.core.fragmentation import drift
from extender.kube.background import Background, repeat
from extender.ranking.demands import Kind, demand_of
from extender.ranking.files import Model
from extender.ranking.service import LearnedRank
from extender.ranking.trials import LEARNED, Verdict, tried_aside, verdict
from extender.ranking.worker import WorkerError

logger = logging.getLogger(__name__)

_LEAST_POINTS: Final = 0.1
"""Percentage points of the GPUs that another rank has to allocate more."""
_FIRST_S: Final = 900.0
"""Delay of the first trial after the start; by then most pods have been seen."""
_MAX_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class _Pace:
    """How often the ranks are tried."""

    between_s: float = 14400.0
    """Shortest time between two trials."""
    pods: int = 500
    """Pods that must be seen before the first trial."""


class Evidence(Background):
    """Tries ranks from `start` to `stop`, for a rank that serves `auto`; does nothing on a standby."""

    def __init__(
        self,
        rank: LearnedRank,
        every_s: float,
        snapshot: Callable[[], Cluster],
        standby: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        super().__init__("evidence", needed=False)
        self._rank = rank
        self._every_s = every_s
        self._snapshot = snapshot
        self._standby = standby
        self._clock = clock
        self._tried_on: tuple[object, object, Mapping[Kind, float]] | None = None
        """Model, inventory and mix of the last trial."""
        self.pace = _Pace()
        self._at = clock() - self.pace.between_s + _FIRST_S
        self.found: Mapping[str, Sequence[float]] = {}
        """Results of the last trial: percent of the GPUs allocated, by rank and order of arrival."""
        self.verdict: Verdict | None = None
        self.fault = ""
        self.num = 0
        """Number of trials."""
        self.num_changes = 0

    async def run(self) -> None:
        await repeat(self.round, self._every_s, "trying the ranks")

    async def round(self) -> None:
        """Try the ranks if due, and let the best one serve."""
        rank, cluster = self._rank, self._snapshot()
        model, counts = rank.model, rank.mix.counts()
        if not isinstance(model, Model) or rank.why_not or not self._due(cluster, model, counts):
            return
        self._at, self._tried_on = self._clock(), (model, cluster.row_of, counts)
        try:
            demand = await asyncio.to_thread(demand_of, cluster, counts)
            load = model.manifest.foresight_load
            self.found = await tried_aside(demand, {LEARNED: model.potential}, rank.priced.worth, load, _MAX_S)
            self.fault = ""
        except (WorkerError, OSError) as error:
            self.fault = str(error)
            logger.warning("the trial of the ranks failed: %s", error)
            return
        self.num += 1
        if not self.found or rank.model is not model:
            return
        self.verdict = verdict(self.found, rank.auto, _LEAST_POINTS)
        if self.verdict.name != rank.auto:
            self.num_changes += 1
            logger.warning("policy auto now stands for %s: %s", self.verdict.name, self.verdict.reason)
            rank.prefer(self.verdict.name)

    def _due(self, cluster: Cluster, model: Model, counts: Mapping[Kind, float]) -> bool:
        if self._standby():
            return False
        if self._rank.mix.num_seen < self.pace.pods or self._clock() < self._at + self.pace.between_s:
            return False
        if self._tried_on is None or self.fault:
            return True
        before, nodes, mix = self._tried_on
        return before is not model or nodes is not cluster.row_of or drift(mix, counts) > self._rank.pace.min_drift

    def age_s(self) -> float | None:
        """Seconds since the last trial, None before the first."""
        return None if self.num == 0 else round(self._clock() - self._at, 3)

    def describe(self) -> dict[str, Any]:
        """The state as JSON."""
        return {
            "tried": self.num,
            "ageSeconds": self.age_s(),
            "percent": {name: round(float(np.mean(values)), 2) for name, values in self.found.items()},
            "margin": self.verdict and round(self.verdict.margin, 2),
            "reason": self.verdict and self.verdict.reason,
            "fault": self.fault or None,
        }
