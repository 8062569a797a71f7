"""Metrics of the learned rank."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from extender.metrics.registry import by_label, counter, gauge
from extender.ranking.evidence import Evidence
from extender.ranking.learning.controller import Learning
from extender.ranking.learning.course import Stage
from extender.ranking.service import LearnedRank
from extender.ranking.shadow import Shadow
from extender.ranking.trials import CANDIDATES


def learning_metrics(learning: Learning) -> Iterator[Metric]:
    """Fitted models: what they do, and what became of them."""
    course = learning.course
    stages = {stage.value: float(stage is course.stage) for stage in Stage}
    told = "1 for what the fitted model on trial does."
    yield by_label(GaugeMetricFamily, "kerf_learning_stage", told, "stage", stages)
    yield gauge("kerf_learning_serving", "1 if a fitted model serves.", bool(course.serving))
    yield counter("kerf_learning_promotions", "Fitted models that came to serve.", course.promoted)
    yield counter("kerf_learning_rollbacks", "Fitted models that were taken back.", course.taken_back)
    yield counter("kerf_learning_trials", "Trials of fitted models since the start.", learning.num_trials)
    if learning.last is not None:
        yield gauge("kerf_learning_margin", "Percentage points by which the last trial was decided.", learning.last[0])
    yield gauge("kerf_learning_pinned", "1 if a person has pinned a model.", bool(learning.pin))
    yield gauge("kerf_learning_fault", "1 if nothing can be learned now.", bool(learning.fault))


def rank_metrics(rank: LearnedRank, shadow: Shadow | None, evidence: Evidence | None) -> Iterator[Metric]:
    """The value net, its prices and the mix of pods; of a model beside, what it would have done."""
    priced = rank.priced
    serves = not rank.why_not
    yield gauge("kerf_model_loaded", "1 if a model is loaded.", rank.model is not None)
    yield gauge("kerf_model_serving", "1 if policy kerf ranks by the model, 0 if tightest ranks instead.", serves)
    yield gauge("kerf_model_refused", "1 if the configured model was refused.", bool(rank.refusal))
    yield counter("kerf_model_loads", "Models loaded since the start.", rank.num_loads)
    if rank.model is not None:
        info = GaugeMetricFamily("kerf_model_info", "The loaded model.", labels=["sha256", "kind"])
        info.add_metric([rank.model.manifest.sha256, rank.model.manifest.kind], 1)
        yield info
    yield counter("kerf_model_looks", "Times the model looked at the cluster.", rank.num_looks)
    yield gauge(
        "kerf_model_look_age_seconds", "Seconds since the model last looked at the cluster.", rank.look_age_s() or 0.0
    )
    yield gauge(
        "kerf_prices_by_lp", "1 if the LP prices GPUs, 0 if they count at face value.", priced.worth is not None
    )
    yield counter("kerf_prices_worked_out", "Times the LP was solved.", priced.num)
    yield gauge("kerf_prices_seconds", "Duration of the last LP, in seconds.", priced.seconds)
    yield gauge("kerf_prices_age_seconds", "Age of the prices, in seconds.", rank.age_s() or 0.0)
    yield gauge("kerf_mix_pods", "Pods behind the estimated mix.", sum(rank.mix.counts().values()))
    yield counter("kerf_mix_pods_seen", "Pods counted for the mix.", rank.mix.num_seen)
    yield gauge("kerf_mix_drift", "Fraction of the mix that changed since the last prices.", rank.mix.drift())
    if evidence is not None:
        serving = {name: float(name == rank.auto) for name in CANDIDATES}
        told = "1 for the policy that auto stands for."
        yield by_label(GaugeMetricFamily, "kerf_auto_policy", told, "policy", serving)
        percent = {name: sum(values) / len(values) for name, values in evidence.found.items()}
        told = "Percent of the GPUs that each policy allocated when it was tried on the mix of pods seen."
        yield by_label(GaugeMetricFamily, "kerf_evidence_percent", told, "policy", percent)
        yield counter("kerf_evidence_trials", "Times the policies were tried.", evidence.num)
        yield counter("kerf_evidence_changes", "Times auto became another policy.", evidence.num_changes)
    if shadow is not None:
        counts = shadow.counts
        verdicts = {"same": counts.same, "other": counts.other, "left_out": counts.left_out}
        told = "Decisions compared with the model's, by verdict."
        yield by_label(CounterMetricFamily, "kerf_shadow_decisions", told, "verdict", verdicts)
        gain = "Learned score, which has no unit, that its own choices would have gained beyond those made."
        yield counter("kerf_shadow_gain_gpus", gain, counts.gain_gpus)
        yield counter("kerf_shadow_seconds", "Time spent on the model's decisions, in seconds.", counts.seconds)
