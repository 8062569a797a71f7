"""Metrics of the mover and of the policy."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.metrics.registry import by_label, counter, gauge
from extender.parts.defrag.mover import Mover
from extender.parts.defrag.policy import PURPOSES, MovePolicy
from extender.parts.defrag.state import Advice


def mover_metrics(mover: Mover) -> Iterator[Metric]:
    """Metrics of plans carried out."""
    done = mover.counts
    yield gauge("kerf_defrag_under_way", "Whether a plan that makes room is being carried out.", int(mover.busy))
    yield gauge("kerf_defrag_kept_nodes", "Nodes kept from other pods meanwhile.", len(mover.state().kept))
    yield counter("kerf_defrag_evicted", "Pods evicted to make room.", done.evicted)
    yield counter("kerf_defrag_moved", "Pods moved that run where they were planned to.", done.moved)
    yield counter("kerf_defrag_plans_done", "Plans carried out.", done.done)
    yield counter("kerf_defrag_plans_stopped", "Plans given up.", done.stopped)


def policy_metrics(policy: MovePolicy) -> Iterator[Metric]:
    """Metrics of advised moves by purpose, and of plans begun by the policy."""
    advice_for = {advice.purpose: advice for advice in reversed(policy.advice)}
    figures: dict[str, tuple[str, Callable[[Advice], float]]] = {
        "kerf_defrag_advised_moves": ("Moves of the plan that pays most.", lambda advice: advice.moves),
        "kerf_defrag_advised_gain_gpu_seconds": (
            "GPU-seconds that it is estimated to gain.",
            lambda advice: advice.gain_gpu_s,
        ),
        "kerf_defrag_advised_cost_gpu_seconds": (
            "GPU-seconds of work that it loses.",
            lambda advice: advice.cost_gpu_s,
        ),
    }
    for name, (help_text, value_of) in figures.items():
        values = {purpose: value_of(advice_for[purpose]) if purpose in advice_for else 0 for purpose in PURPOSES}
        yield by_label(GaugeMetricFamily, name, help_text, "purpose", values)
    yield gauge("kerf_defrag_window_open", "Whether pods may be moved at this time.", int(policy.state().window_open))
    counts = policy.counts
    yield counter("kerf_defrag_policy_rounds", "Times that moves were looked for.", counts.rounds)
    yield counter("kerf_defrag_policy_begun", "Plans begun by the policy.", counts.begun)
    yield counter("kerf_defrag_policy_refused", "Plans that could not be begun.", counts.refused)
