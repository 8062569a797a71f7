"""Metrics of the learned rank."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.service.families import counter, gauge
from extender.service.ranks import LearnedRank
from extender.service.shadows import Shadow


class RankCollector(Collector):
    """Metrics of the model, its prices and the mix of pods; in shadow mode, of what it would have done."""

    def __init__(self, rank: LearnedRank, shadow: Shadow | None) -> None:
        self._rank = rank
        self._shadow = shadow

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        rank, priced = self._rank, self._rank.priced
        serves = not rank.why_not
        yield gauge("kerf_model_loaded", "1 when a model is loaded.", rank.model is not None)
        yield gauge("kerf_model_serving", "1 when policy kerf ranks by the model, 0 when best fit stands in.", serves)
        yield gauge("kerf_model_refused", "1 when the model that there is was refused.", bool(rank.refusal))
        yield counter("kerf_model_loads", "Models loaded since the start.", rank.num_loads)
        if rank.model is not None:
            info = GaugeMetricFamily("kerf_model_info", "The model that is loaded.", labels=["sha256", "kind"])
            info.add_metric([rank.model.manifest.sha256, rank.model.manifest.kind], 1)
            yield info
        yield counter("kerf_model_looks", "Looks of the model at the cluster since the start.", rank.num_looks)
        yield gauge("kerf_model_look_age_seconds", "Age of the last one.", rank.look_age_s() or 0.0)
        yield gauge(
            "kerf_prices_by_lp", "1 when GPUs are priced by the LP, 0 when by what is left.", priced.worth is not None
        )
        yield counter("kerf_prices_worked_out", "How often the LP was solved.", priced.num)
        yield gauge("kerf_prices_seconds", "Time that it took last.", priced.seconds)
        yield gauge("kerf_prices_age_seconds", "Age of the prices.", rank.age_s() or 0.0)
        yield gauge("kerf_mix_pods", "Pods that the estimate of the mix rests on.", rank.mix.arrivals.num_pods)
        yield counter("kerf_mix_pods_seen", "Pods counted since the start.", rank.mix.num_seen)
        yield gauge("kerf_mix_drift", "Part of the pods that became others since the prices.", rank.mix.drift())
        if self._shadow is not None:
            counts = self._shadow.counts
            decisions = CounterMetricFamily(
                "kerf_shadow_decisions", "Decisions that the model was asked about, by its verdict.", labels=["verdict"]
            )
            for verdict, number in (("same", counts.same), ("other", counts.other), ("left_out", counts.left_out)):
                decisions.add_metric([verdict], number)
            yield decisions
            gain = (
                "Value in GPUs that the model's nodes would have left behind beyond those chosen, by its own account."
            )
            yield counter("kerf_shadow_gain_gpus", gain, counts.gain_gpus)
            yield counter("kerf_shadow_seconds", "Time that the model's decisions took.", counts.seconds)
