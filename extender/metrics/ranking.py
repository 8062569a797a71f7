"""Metrics of the learned rank."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.metrics.registry import counter, gauge
from extender.ranking.service import LearnedRank


def rank_metrics(rank: LearnedRank) -> Iterator[Metric]:
    """The learned model, its prices and the mix of pods."""
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
