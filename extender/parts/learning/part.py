"""Assembles the learning part: shadow mode, trials of ranks and the controller of fitted models."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from extender.api.contributions import Contribution, Kernel, Work
from extender.core.clusters import Cluster
from extender.core.policies.registry import AUTO
from extender.metrics.registry import by_label, counter, gauge
from extender.parts.learning.controller import LearningInputs, ModelTrialController
from extender.parts.learning.evidence import Evidence
from extender.parts.learning.model_store import LearnedModels
from extender.parts.learning.settings import LearningSettings
from extender.parts.learning.shadow import Shadow
from extender.ranking.interfaces import DecisionObserver, RankEvaluator
from extender.ranking.rollout import Stage
from extender.ranking.service import LearnedRank
from extender.ranking.trials import CANDIDATES
from extender.settings.ranking import ModelMode


@dataclass(frozen=True, slots=True)
class _Judges:
    """The components in use; None for those that are off."""

    shadow: Shadow | None = None
    trials: Evidence | None = None
    course: ModelTrialController | None = None

    @property
    def said(self) -> str:
        """See RankEvaluator."""
        return self.course.course.said if self.course is not None else ""

    def evidence(self) -> dict[str, Any] | None:
        """See RankEvaluator."""
        return self.trials.describe() if self.trials is not None else None

    def learning(self) -> dict[str, Any] | None:
        """See RankEvaluator."""
        return self.course.describe() if self.course is not None else None


def build(kernel: Kernel, wanted: LearningSettings) -> Contribution:
    """The components that the settings enable for the kernel's rank."""
    judges = _judges(kernel, wanted)
    work: list[Work] = [one for one in (judges.shadow, judges.trials, judges.course) if one is not None]
    sees: dict[type, Any] = {} if judges.shadow is None else {DecisionObserver: judges.shadow}
    return Contribution(
        work=work,
        metrics=lambda: _metrics(kernel.rank, judges),
        offers={RankEvaluator: judges, **sees},
        fault=lambda: judges.course.fault if judges.course is not None else "",
    )


def _judges(kernel: Kernel, wanted: LearningSettings) -> _Judges:
    rank, base, settings = kernel.rank, kernel.base, kernel.settings
    ledger, clock, standby = base.ledger, base.clock, base.fence.standby
    if rank.mode is ModelMode.SHADOW:
        return _Judges(shadow=Shadow(lambda: rank.score))
    if rank.mode is not ModelMode.SERVE or settings.decisions.policy != AUTO:
        return _Judges()

    def snapshot() -> Cluster:
        return ledger.snapshot(clock())

    every_s = settings.model.check_s
    trials = Evidence(rank, every_s, snapshot, standby, clock)
    if not wanted.config_map:
        return _Judges(trials=trials)
    models = LearnedModels(base.transport, *wanted.config_map.split("/"))
    around = LearningInputs(snapshot, ledger.held_by_namespace, standby, clock, time.time)
    course = ModelTrialController(rank, wanted, models, around, base.events, every_s=every_s)
    return _Judges(shadow=Shadow(lambda: rank.on_trial.score), trials=trials, course=course)


def _metrics(rank: LearnedRank, judges: _Judges) -> Iterator[Metric]:
    """Metrics of the components in use."""
    if judges.trials is not None:
        yield from _of_trials(rank, judges.trials)
    if judges.course is not None:
        yield from _of_course(judges.course)
    if judges.shadow is not None:
        counts = judges.shadow.counts
        verdicts = {"same": counts.same, "other": counts.other, "left_out": counts.left_out}
        text = "Decisions compared with the model's, by verdict."
        yield by_label(CounterMetricFamily, "kerf_shadow_decisions", text, "verdict", verdicts)
        gain = "Learned score (without a unit) that the model's choices would have gained beyond those made."
        yield counter("kerf_shadow_gain_gpus", gain, counts.gain_gpus)
        yield counter("kerf_shadow_seconds", "Time spent on the model's decisions, in seconds.", counts.seconds)


def _of_trials(rank: LearnedRank, trials: Evidence) -> Iterator[Metric]:
    serving = {name: float(name == rank.auto) for name in CANDIDATES}
    text = "1 for the policy that auto stands for."
    yield by_label(GaugeMetricFamily, "kerf_auto_policy", text, "policy", serving)
    percent = {name: sum(values) / len(values) for name, values in trials.found.items()}
    text = "Percent of the GPUs that each policy allocated in the last trial on the mix of pods seen."
    yield by_label(GaugeMetricFamily, "kerf_evidence_percent", text, "policy", percent)
    yield counter("kerf_evidence_trials", "Trials of the policies.", trials.num)
    yield counter("kerf_evidence_changes", "Changes of the policy that auto stands for.", trials.num_changes)


def _of_course(learning: ModelTrialController) -> Iterator[Metric]:
    course = learning.course
    stages = {stage.value: float(stage is course.stage) for stage in Stage}
    text = "1 for the stage of the fitted model on trial."
    yield by_label(GaugeMetricFamily, "kerf_learning_stage", text, "stage", stages)
    yield gauge("kerf_learning_serving", "1 if a fitted model serves.", bool(course.serving))
    yield counter("kerf_learning_promotions", "Fitted models that were promoted to serve.", course.promoted)
    yield counter("kerf_learning_rollbacks", "Serving fitted models that were rolled back.", course.taken_back)
    yield counter("kerf_learning_trials", "Trials of fitted models since the start.", learning.num_trials)
    if learning.last is not None:
        yield gauge("kerf_learning_margin", "Margin of the last trial, in percentage points.", learning.last[0])
    yield gauge("kerf_learning_pinned", "1 if a model is pinned.", bool(learning.pin))
    yield gauge("kerf_learning_fault", "1 if fitted models can't be tried now.", bool(learning.fault))
