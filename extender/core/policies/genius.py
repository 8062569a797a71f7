"""Genius' score: capacities and usage of GPUs, each as a fraction of the cluster's total.

jiangxiaosheng/Genius, score plugin. With C the GPUs of the cluster, N those of the node and n their number:
static = sum_k w_k (sum_N x_k / sum_C x_k) |C|, dynamic = sum_k w_k (1/n) (sum_N m_k / sum_C m_k) |C|,
score = static_weight * static + dynamic_weight * dynamic, min-max normalised over the nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.gauges import Gauge
from extender.core.policies.breakdowns import Breakdown, Part
from extender.core.policies.policy import Options, Policy
from extender.core.policies.terms.term import Samples
from extender.core.refreshes import RefreshedScore
from extender.core.resources.gpu_models import attributes
from extender.core.resources.requests import GpuRequest

Planes = npt.NDArray[np.float64]


_WEIGHTS: Final[Mapping[str, tuple[float, str]]] = {
    "memory": (2.0, "Memory size."),
    "multiprocessors": (2.0, "Streaming multiprocessors."),
    "decoders": (1.0, "Decoders."),
    "encoders": (1.0, "Encoders."),
    "bandwidth": (2.0, "Memory bandwidth."),
    "free_memory": (2.0, "Free memory."),
    "power": (1.0, "Power draw: Genius rewards a higher one."),
    "encoder_idle": (1.0, "Idle encoders."),
    "decoder_idle": (1.0, "Idle decoders."),
    "static": (1.0, "All terms for capacities of GPUs."),
    "dynamic": (2.0, "All terms for usage of GPUs."),
}
"""Genius' weights and their descriptions."""
_LABELS: Final = {
    **{"bandwidth": "memory bandwidth", "free_memory": "free memory"},
    **{"encoder_idle": "idle encoders", "decoder_idle": "idle decoders"},
}
_STATIC: Final = ("memory", "multiprocessors", "decoders", "encoders", "bandwidth")
_DYNAMIC: Final = ("free_memory", "power", "encoder_idle", "decoder_idle")


def _weighted_shares(values: Planes, weights: Floats, installed: Mask) -> Floats:
    """(N,) sum_k w_k (sum_N x_k / sum_C x_k) |C| of (K, N, G) values; terms with sum 0 are left out."""
    result: Floats = weights @ _shares(values, installed) * installed.sum()
    return result


def _shares(values: Planes, installed: Mask) -> Floats:
    """(K, N) sum_N x_k / sum_C x_k."""
    per_node = np.where(installed, values, 0.0).sum(axis=2)  # (K, N)
    totals = per_node.sum(axis=1)
    shares: Floats = np.divide(per_node, totals[:, None], out=np.zeros_like(per_node), where=totals[:, None] != 0)
    return shares


def _genius_totals(
    static: Planes, dynamic: Planes, installed: Mask, weights: Mapping[str, float]
) -> tuple[Floats, Floats, Floats]:
    """(N,) static, dynamic and weighted total of each node.

    `static` is (5, N, G) and `dynamic` (4, N, G), in the order of their weights.
    NaN counts as the mean of the known values.
    """
    static_weights, dynamic_weights = (np.array([weights[name] for name in names]) for names in (_STATIC, _DYNAMIC))
    static_score = _weighted_shares(neutral(static, installed), static_weights, installed)
    num_gpus = np.maximum(installed.sum(axis=1), 1)
    dynamic_score = _weighted_shares(neutral(dynamic, installed), dynamic_weights, installed) / num_gpus
    return static_score, dynamic_score, weights["static"] * static_score + weights["dynamic"] * dynamic_score


def neutral(planes: Planes, installed: Mask) -> Planes:
    """(K, N, G) planes with NaN replaced by the mean of the known values of the plane, 0 where none is known."""
    known = installed & np.isfinite(planes)
    means = np.where(known, planes, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    return np.where(known, planes, means[:, None, None])


def min_max(scores: Floats, among: Mask) -> Floats:
    """(N,) scores from 0 to 1 over some of the nodes; 0 elsewhere, and everywhere when all are equal."""
    if not among.any():
        return np.zeros(len(scores))
    low, high = scores[among].min(), scores[among].max()
    spread = high - low
    if not np.isfinite(spread) or spread <= 0:
        return np.zeros(len(scores))
    # Rounded, so that summation order breaks no ties.
    return np.where(among, np.clip((scores - low) / spread, 0.0, 1.0).round(9), 0.0)


class _GeniusScore(RefreshedScore):
    """Scores from 0 to 1."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights` override Genius' weights by name."""
        super().__init__()
        self._weights = {name: default for name, (default, _) in _WEIGHTS.items()} | dict(weights or {})

    def all_scores(self, cluster: Cluster) -> Floats:
        """(N,) scores."""
        installed = cluster.gpu_model >= 0
        *_, scores = _genius_totals(_static_of(cluster), _dynamic(cluster), installed, self._weights)
        return min_max(scores, np.asarray(installed.any(axis=1)))

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """The breakdown of the score: each term's part, minus the total of the lowest node."""
        installed, weights = cluster.gpu_model >= 0, self._weights
        among = np.asarray(installed.any(axis=1))
        num_gpus = np.maximum(installed.sum(axis=1), 1)
        terms: list[tuple[str, str, Floats, Floats, Callable[[float], str]]] = []
        groups = (("static", _STATIC, _static_of(cluster), 1), ("dynamic", _DYNAMIC, _dynamic(cluster), num_gpus))
        for group, names, planes, per in groups:
            shares = _shares(neutral(planes, installed), installed) * installed.sum() / per  # (K, N)
            for name, share in zip(names, shares, strict=True):
                words = _of_mean(_LABELS.get(name, name), together=group == "static")
                terms.append((name, _WEIGHTS[name][1], weights[group] * weights[name] * share, share, words))
        *_, totals = _genius_totals(_static_of(cluster), _dynamic(cluster), installed, weights)
        return normalised(terms, totals, among, rows, 1.0)


def _of_mean(label: str, *, together: bool) -> Callable[[float], str]:
    """Format an amount: `together` for the node's sum (capacities), else per GPU (usage)."""
    what = f"{label} of its GPUs together" if together else f"{label} of each of its GPUs"
    return lambda amount: f"{what} {amount:.2f} times the mean GPU's"


def normalised(
    terms: Sequence[tuple[str, str, Floats, Floats, Callable[[float], str]]],
    totals: Floats,
    among: Mask,
    rows: Rows,
    most: float,
) -> Breakdown:
    """The breakdown of `most` x `min_max` of (N,) totals over R rows.

    `terms` are (name, meaning, (N,) contribution, (N,) amount, words).
    """
    least = float(totals[among].min()) if among.any() else 0.0
    spread = float(totals[among].max()) - least if among.any() else 0.0
    factor = most / spread if np.isfinite(spread) and spread > 0 else 0.0
    parts = [
        Part(name, meaning, (adds * factor)[rows], amount[rows], words) for name, meaning, adds, amount, words in terms
    ]
    base = np.full(len(rows), -least * factor)
    parts.append(
        Part(
            "least",
            "the lowest total of all nodes, which counts 0",
            base,
            base,
            lambda _: "the same for all",
            tells=False,
        )
    )
    return Breakdown(most * min_max(totals, among)[rows], tuple(parts))


def _static_of(cluster: Cluster) -> Planes:
    """(5, N, G) memory in MiB, multiprocessors, decoders, encoders and bandwidth in GB/s; NaN where unknown.

    The exporter overrides the table of products, which is incomplete; memory is the node's, as in fit. An exporter that
    reports 0 multiprocessors does not read the other counts either: ObserverWard, as published, has that commented out.
    """
    gauge = Samples(cluster).gauge
    counts = np.stack([gauge(unit) for unit in (Gauge.NUM_MULTIPROCESSORS, Gauge.NUM_DECODERS, Gauge.NUM_ENCODERS)])
    reported = counts[0] > 0
    *table, bandwidth, _ = attributes(cluster.models)[:, cluster.gpu_model]
    counts = np.where(reported & ~np.isnan(counts), counts, np.stack(table))
    memory = np.full(cluster.gpu_model.shape, np.nan)
    for mib in (gauge(Gauge.MEMORY_TOTAL), cluster.gpu_memory_mib):
        memory = np.where(mib > 0, mib, memory)
    return np.stack([memory, *counts, bandwidth])


def _dynamic(cluster: Cluster) -> Planes:
    gauge = Samples(cluster).gauge
    idle = (1.0 - gauge(unit) for unit in (Gauge.ENCODER, Gauge.DECODER))
    return np.stack([gauge(Gauge.MEMORY_FREE), gauge(Gauge.POWER), *idle])


def policy(options: Options) -> Policy:
    """Create the policy."""
    score = _GeniusScore()
    description = "Genius' static and dynamic score"
    return Policy(
        name="genius",
        score=score,
        description=description,
        rules=options.rules,
        context=score.context,
        apart=lambda: policy(options),
        breakdown=score.parts,
    )
