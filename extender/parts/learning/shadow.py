"""Shadow mode: compares a model's decisions with those of the serving policy after the response, for metrics only."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.decisions import Decision, decide, decide_from_top
from extender.core.evaluations import Memo
from extender.core.fit.fits import fit
from extender.core.policies.kerf import LearnedScore, serving
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube.background import Background
from extender.scheduling.placer import Placement

logger = logging.getLogger(__name__)

_MAX_WAITING: Final = 64
_MAX_TRIES: Final = 64
_PAUSE_S: Final = 0.05
_FRAC: Final = 0.05
"""Largest fraction of a core that it uses; further decisions are left out and counted."""


@dataclass(slots=True)
class _ShadowCounts:
    """Comparisons since the start."""

    same: int = 0
    """Decisions for the same node."""
    other: int = 0
    """Decisions for another node."""
    left_out: int = 0
    """Decisions that were not compared."""
    gain_gpus: float = 0.0
    """Learned score that the model's nodes would have gained beyond those chosen."""
    seconds: float = 0.0
    """Time spent, in seconds."""


@dataclass(slots=True)
class _Worker:
    """State for one score, used by one thread at a time."""

    score: LearnedScore
    policy: Policy
    memo: Memo = field(default_factory=Memo)


class Shadow(Background):
    """Compares decisions from `start` to `stop`, with at most `frac` of a core."""

    def __init__(self, score: Callable[[], LearnedScore], frac: float = _FRAC) -> None:
        super().__init__("shadow", needed=False)
        self._score = score
        self._frac = frac
        self._waiting: deque[tuple[Placement, PodRequest]] = deque()
        self._worker: tuple[LearnedScore, _Worker] | None = None
        self.counts = _ShadowCounts()

    def offer(self, placement: Placement, request: PodRequest) -> None:
        """Queue a decision for comparison."""
        if placement.decision.best is None or self._score().fault:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self.counts.left_out += 1
            return
        self._waiting.append((placement, request))

    async def round(self) -> float:
        """Compare the oldest queued decision; returns the seconds that it took, 0 if none is queued."""
        if not self._waiting:
            return 0.0
        placement, request = self._waiting.popleft()
        score = self._score()
        if self._worker is None or self._worker[0] is not score:
            own = score.apart()
            self._worker = score, _Worker(own, serving(own))
        began = time.perf_counter()
        found = await asyncio.to_thread(_compare, self._worker[1], placement, request)
        taken = time.perf_counter() - began
        counts = self.counts
        counts.seconds += taken
        if found is None:
            counts.left_out += 1
        else:
            same, gain = found
            counts.same += same
            counts.other += not same
            counts.gain_gpus += gain
        return taken

    async def run(self) -> None:
        while True:
            try:
                taken = await self.round()
            except Exception:
                taken = 0.0
                logger.exception("a decision could not be compared with the model's")
            await asyncio.sleep(taken * (1 / self._frac - 1) if taken else _PAUSE_S)


def _compare(worker: _Worker, placement: Placement, request: PodRequest) -> tuple[bool, float] | None:
    """Whether the model chooses the same node, and the score that it gains by its choice; None without a verdict."""
    cluster, decision = placement.cluster, placement.decision
    gpus = worker.policy.weighed_request(request)
    if gpus is None or gpus.mig or decision.best is None:
        return None
    if placement.offered is None:
        ours: Decision | None = decide(cluster, gpus, worker.policy, decision.rows, worker.memo)
    else:
        offered = placement.offered.__contains__
        ours = decide_from_top(cluster, gpus, worker.policy, offered, worker.memo, _MAX_TRIES)
    if ours is None or ours.best is None or worker.score.fault:
        return None
    if ours.best == decision.best:
        return True, 0.0
    gain, served_gain = (_gain(worker.score, placement, gpus, row) for row in (ours.best, decision.best))
    return False, gain - served_gain


def _gain(score: LearnedScore, placement: Placement, gpus: GpuRequest, row: int) -> float:
    rows = np.array([row])
    gain, _ = score.gains(placement.cluster, gpus, rows, fit(placement.cluster, gpus, rows))
    return float(gain[0])
