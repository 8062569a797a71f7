"""Takes fitted models through their stages: tries them when due, records the results, and lets them rank.

Only the leader decides. All replicas rank by the state in the ConfigMap, so that a failover changes nothing. While it
can't be read, ranking stays as it is.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any, Final

import msgspec

from extender.core.clusters import Cluster
from extender.kube.background import Background, repeat
from extender.kube.client import ApiError, ClusterError
from extender.kube.events import EventRecorder
from extender.parts.learning.model_store import CANDIDATE, SERVING, Contents, LearnedModels, StoredModels
from extender.parts.learning.settings import LearningSettings
from extender.ranking import rollout as rollouts
from extender.ranking.demands import demand_of
from extender.ranking.files import Actor, Model, ModelError, model_in
from extender.ranking.rollout import Rollout, Stage
from extender.ranking.service import LearnedRank
from extender.ranking.trials import LEARNED, TIGHTEST, paired, tried_aside
from extender.ranking.worker import WorkerError

logger = logging.getLogger(__name__)

_RIVAL: Final = "rival"
_MAX_S: Final = 1800.0
_RETRY_S: Final = 600.0
"""Pause after a trial without a result, unless a stage is shorter."""
_WATCHED_S: Final = 14400.0
"""Interval between trials of the serving model, unless a stage is shorter."""
_MAX_FAILED_TRIALS: Final = 3
"""Failed trials after which a candidate is withdrawn; each may take half an hour of a core."""
_MAX_WHY: Final = 300
_CONFLICT: Final = 409
_FILES_CHANGED: Final = "its files are missing or were changed"
_RELEASED: Final = "released"
"""Value of the pin that lets the released model serve."""


@dataclass(frozen=True, slots=True)
class LearningInputs:
    """Inputs of the controller."""

    snapshot: Callable[[], Cluster]
    held: Callable[[], Mapping[str, float]]
    """GPUs held, by namespace."""
    standby: Callable[[], str]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]


class ModelTrialController(Background):
    """Controls fitted models from `start` to `stop`, for a rank that serves `auto`."""

    def __init__(
        self,
        rank: LearnedRank,
        wanted: LearningSettings,
        models: LearnedModels,
        around: LearningInputs,
        events: EventRecorder,
        *,
        every_s: float,
    ) -> None:
        super().__init__("learning", needed=False)
        self._rank, self._wanted, self._models, self._around, self._events = rank, wanted, models, around, events
        self._every_s = every_s
        self.course = Rollout()
        self.pin = ""
        self.fault = ""
        """Why models can't be tried now, "" if they can."""
        self.num_trials = 0
        self.last: tuple[float, float] | None = None
        """Margin of the last trial in percentage points, and half its confidence interval."""
        self._known: dict[str, Model] = {}
        """The models of the ConfigMap by SHA-256."""
        self._refused: dict[str, Contents] = {}
        self._stage: object = None
        self._began = self._around.clock()
        """When counting of the pods of this stage began."""
        self._tried_at = float("-inf")
        self._trial_fault = ""
        """Why the last trial had no result."""
        self._num_failed = 0
        """Failed trials of the stage."""

    async def run(self) -> None:
        await self.round()  # restore at once what served before a restart
        await repeat(self.round, self._every_s, "checking fitted models")

    async def round(self) -> None:
        """Read the ConfigMap, and take the next step if one is due."""
        try:
            shelf = await self._models.read()
            if shelf is None:
                self._reset()
                self.fault = f"there is no ConfigMap {self._models.namespace}/{self._models.name}"
                return
            self.fault = self._trial_fault
            await self._reconcile(shelf)
        except (ClusterError, msgspec.DecodeError, KeyError) as error:
            if not (isinstance(error, ApiError) and error.status == _CONFLICT):  # changed meanwhile: retry
                self.fault = f"ConfigMap {self._models.namespace}/{self._models.name}: {error}"
                logger.warning("learning: %s", self.fault)

    def _reset(self) -> None:
        """Let the released model serve, as there is no ConfigMap."""
        self._known, self.pin = {}, ""
        self.course = Rollout()
        self._apply(self.course)

    async def _reconcile(self, shelf: StoredModels) -> None:
        course, leads = shelf.course, not self._around.standby()
        candidate, serving = self._read(shelf.candidate, CANDIDATE), self._read(shelf.serving, SERVING)
        self._known = {model.manifest.sha256: model for model in (candidate, serving) if model is not None}
        self.pin = shelf.pin
        if self.pin:
            self._apply_pin(shelf)
            return
        if leads:
            course = self._checked(course, candidate)
        self._apply(course)
        if leads:
            course = await self._step(course)
            if course != shelf.course:
                await self._persist(shelf, course)
                self._apply(course)
        self.course = course

    def _apply_pin(self, shelf: StoredModels) -> None:
        """Let the pinned model serve, and try none."""
        self.course = shelf.course
        self._rank.on_trial.end()
        chosen = next((model for sha, model in self._known.items() if sha.startswith(self.pin)), None)
        self._rank.adopt(chosen, pinned=chosen is not None)
        if chosen is None and self.pin != _RELEASED:
            self.fault = f"model {self.pin} is pinned but not available; the released one serves"

    def _checked(self, course: Rollout, candidate: Model | None) -> Rollout:
        """The course, corrected for the models that are in the ConfigMap."""
        now = self._around.wall_clock()
        if course.serving and course.serving not in self._known:
            course = rollouts.stopped(course, _FILES_CHANGED, now)
        if candidate is not None:
            course = rollouts.offered(course, candidate.manifest.sha256, now)
        if course.candidate and course.candidate not in self._known:
            course = rollouts.withdrawn(course, _FILES_CHANGED, now)
        return course

    def _apply(self, course: Rollout) -> None:
        """Let models rank by the course."""
        rank = self._rank
        rank.adopt(self._known.get(course.serving))
        if candidate := self._known.get(course.candidate):
            rank.try_out(candidate, self._wanted.canary_frac if course.stage is Stage.CANARY else 0.0)
        elif rank.on_trial.model is not None:
            rank.on_trial.end()
        stage = course.candidate, course.stage, course.since, course.trials, course.serving
        if stage != self._stage:
            self._stage = stage
            self._reset_counts()

    def _reset_counts(self) -> None:
        self._rank.mix.fresh.begin()
        self._began = self._around.clock()
        self._num_failed = 0

    async def _step(self, course: Rollout) -> Rollout:
        """Judge the candidate or the serving model if due; the counted pods are kept until the result is written."""
        rank, wall_clock = self._rank, self._around.wall_clock
        candidate = self._known.get(course.candidate)
        if candidate is not None and rank.on_trial.fault:
            return rollouts.withdrawn(course, rank.on_trial.fault, wall_clock())
        if rank.fitted is not None and rank.look is not None and rank.score.served is not None and rank.score.fault:
            return rollouts.stopped(course, rank.score.fault, wall_clock())
        if candidate is not None:
            try:
                promised = _promised_points(candidate)
            except (ArithmeticError, LookupError, ValueError) as error:
                why = f"its evaluation can't be read: {type(error).__name__}: {error}"
                return rollouts.withdrawn(course, why[:_MAX_WHY], wall_clock())
            if not self._due(self._wanted.stage_s):
                return course
            found = await self._try(candidate, rank.model, rank.auto)
            if found is not None:
                return rollouts.judged(course, *found, rank.auto, wall_clock(), promised)
            if self._num_failed < _MAX_FAILED_TRIALS:
                return course
            why = f"{self._num_failed} trials of it failed, the last one: {self._trial_fault}"
            return rollouts.withdrawn(course, why[:_MAX_WHY], wall_clock())
        if rank.fitted is None or not self._due(min(_WATCHED_S, self._wanted.stage_s)):
            return course
        found = await self._try(rank.fitted, rank.base, TIGHTEST if rank.base is None else LEARNED)
        if found is None:
            return course
        after = rollouts.watched(course, *found, wall_clock())
        if after is course:
            self._reset_counts()
        return after

    def _due(self, least_s: float) -> bool:
        """Whether there are enough pods and time to judge a model, and no trial failed a moment ago."""
        now, wanted = self._around.clock(), self._wanted
        if self._rank.mix.fresh.num < wanted.stage_pods or now - self._began < least_s:
            return False
        return not self._trial_fault or now - self._tried_at >= min(_RETRY_S, wanted.stage_s)

    async def _try(self, model: Model, other: Model | Actor | None, rival: str) -> tuple[float, float] | None:
        """Percentage points that `model` allocates more than `other` or policy `rival`, and half the interval.

        None if the trial has no result.
        """
        rank, ranks, load = self._rank, {LEARNED: model.potential}, model.manifest.foresight_load
        self._tried_at = self._around.clock()
        if rival == LEARNED:
            if not isinstance(other, Model):
                return self._failed("no model can be tried against one with attention (setting model.path)")
            ranks[_RIVAL], rival = other.potential, _RIVAL
        counts = rank.mix.fresh.counts(self._around.held())
        demand = await asyncio.to_thread(demand_of, self._around.snapshot(), counts)
        try:
            found = await tried_aside(demand, ranks, rank.priced.worth, load, _MAX_S)
        except (WorkerError, OSError) as error:
            self._num_failed += 1
            return self._failed(f"a trial failed: {error}")
        if rival not in found:
            return self._failed("no model can be tried: there are no GPUs, or no pods that request any")
        self.num_trials += 1
        self._trial_fault = self.fault = ""
        self.last = paired(found[LEARNED], found[rival])
        return self.last

    def _failed(self, why: str) -> tuple[float, float] | None:
        """Record why a trial has no result."""
        if why != self._trial_fault:
            logger.warning("learning: %s", why)
        self._trial_fault = self.fault = why
        return None

    async def _persist(self, shelf: StoredModels, course: Rollout) -> None:
        """Write a step to the ConfigMap, and only then report it. Raises ClusterError."""
        changes: dict[str, Contents] = {}
        if course.serving != shelf.course.serving:
            changes[SERVING] = shelf.candidate if course.serving else {}
        if not course.candidate and shelf.candidate:
            changes[CANDIDATE] = {}
        await self._models.write(shelf, course, changes)
        if course.said != shelf.course.said:
            logger.warning("learning: %s", course.said)
            self._events.emit_about_config_map(
                self._models.namespace, self._models.name, reason="RankLearned", message=course.said
            )

    def _read(self, contents: Contents, slot: str) -> Model | None:
        """The model of a slot, None if there is none or it is invalid."""
        if not contents:
            return None
        try:
            model = model_in(contents, f"{self._models.name}/{slot.rstrip('.')}")
        except ModelError as error:
            if self._refused.get(slot) != contents:
                logger.error("learning: a model was refused: %s", error)
            self.fault, self._refused[slot] = f"a model was refused: {error}", contents
            return None
        return self._known.get(model.manifest.sha256, model)

    def describe(self) -> dict[str, Any]:
        """The state as JSON."""
        course, fresh = self.course, self._rank.mix.fresh
        return {
            "serving": course.serving or _RELEASED,
            "candidate": course.candidate or None,
            "stage": course.stage.value,
            "pods": fresh.num,
            "podsNeeded": self._wanted.stage_pods,
            "since": _iso_time(course.since),
            "trials": self.num_trials,
            "margin": self.last and round(self.last[0], 2),
            "doubt": self.last and round(self.last[1], 2),
            "promoted": course.promoted,
            "takenBack": course.taken_back,
            "refused": [rollouts.short(sha) for sha in course.refused],
            "said": course.said or None,
            "pin": self.pin or None,
            "fault": self.fault or None,
        }


def _iso_time(at: float) -> str | None:
    """A Unix time in ISO 8601; None for 0 and for invalid times."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) if at else None
    except (ValueError, OverflowError, OSError):
        return None


def _promised_points(model: Model) -> float | None:
    """Percentage points that a model gained over the start of its training in its own evaluation, None if it has none.

    Raises ArithmeticError, LookupError or ValueError for an invalid evaluation.
    """
    rows = [row for row in model.manifest.evaluation if row.start]
    if not rows:
        return None
    load = min(rows[0].start, key=float)
    promised = fmean(fmean(row.kerf[load]) - fmean(row.start[load]) for row in rows)
    if not isfinite(promised):
        raise ValueError(f"{promised} points")
    return promised
