"""Genius' score: what GPUs have, and what they are doing, each as a share of the whole cluster's.

jiangxiaosheng/Genius, score plugin. With C the GPUs of the cluster, N those of the node and n their number:
static = sum_k w_k (sum_N x_k / sum_C x_k) |C|, dynamic = sum_k w_k (1/n) (sum_N m_k / sum_C m_k) |C|,
score = static_weight * static + dynamic_weight * dynamic, min-max normalised over the nodes.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fits import Fit
from extender.core.observations import Gauge
from extender.core.products import attributes
from extender.core.refreshes import PerRefresh
from extender.core.requests import GpuRequest

Planes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GeniusWeights:
    """Genius' own weights."""

    memory: float = 2.0
    multiprocessors: float = 2.0
    decoders: float = 1.0
    encoders: float = 1.0
    bandwidth: float = 2.0
    free_memory: float = 2.0
    power: float = 1.0
    """Positive as in Genius, which rewards a higher draw; a negative weight rewards a lower one."""
    encoder_idle: float = 1.0
    decoder_idle: float = 1.0
    static: float = 1.0
    dynamic: float = 2.0


def weighted_shares(values: Planes, weights: Floats, installed: Mask) -> Floats:
    """(N,) sum_k w_k (sum_N x_k / sum_C x_k) |C| of (K, N, G) values; a term whose sum is 0 counts nothing."""
    per_node = np.where(installed, values, 0.0).sum(axis=2)  # (K, N)
    totals = per_node.sum(axis=1)
    shares = np.divide(per_node, totals[:, None], out=np.zeros_like(per_node), where=totals[:, None] != 0)
    result: Floats = weights @ shares * installed.sum()
    return result


def genius_totals(
    static: Planes, dynamic: Planes, installed: Mask, weights: GeniusWeights
) -> tuple[Floats, Floats, Floats]:
    """(N,) static, dynamic and weighted total of each node.

    `static` is (5, N, G): memory, multiprocessors, decoders, encoders, bandwidth. `dynamic` is (4, N, G): free
    memory, power, encoder and decoder idleness. NaN is neutral: it counts as the mean of all GPUs that tell.
    """
    static_weights = np.array(
        [weights.memory, weights.multiprocessors, weights.decoders, weights.encoders, weights.bandwidth]
    )
    dynamic_weights = np.array([weights.free_memory, weights.power, weights.encoder_idle, weights.decoder_idle])
    static_score = weighted_shares(neutral(static, installed), static_weights, installed)
    num_gpus = np.maximum(installed.sum(axis=1), 1)
    dynamic_score = weighted_shares(neutral(dynamic, installed), dynamic_weights, installed) / num_gpus
    return static_score, dynamic_score, weights.static * static_score + weights.dynamic * dynamic_score


def neutral(planes: Planes, installed: Mask) -> Planes:
    """(K, N, G) the same with every NaN replaced by the mean of what is known, 0 where nothing is."""
    known = installed & np.isfinite(planes)
    means = np.where(known, planes, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    filled: Planes = np.where(known, planes, means[:, None, None])
    return filled


def min_max(scores: Floats, among: Mask) -> Floats:
    """(N,) scores from 0 to 1 over some of the nodes; 0 elsewhere, and everywhere when all are equal."""
    if not among.any():
        return np.zeros(len(scores))
    low, high = scores[among].min(), scores[among].max()
    spread = high - low
    if not np.isfinite(spread) or spread <= 0:
        return np.zeros(len(scores))
    # Rounded, so that the order in which nodes were added up breaks no tie.
    result: Floats = np.where(among, np.clip((scores - low) / spread, 0.0, 1.0).round(9), 0.0)
    return result


class GeniusScore:
    """The policy: scores of all nodes, worked out once for each refresh of the samples."""

    def __init__(self, weights: GeniusWeights | None = None) -> None:
        self._weights = weights or GeniusWeights()
        self._scores = PerRefresh(self._all_scores)

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) Genius' score from 0 to 1."""
        scores: Floats = self._scores(cluster)[rows]
        return scores

    def context(self, cluster: Cluster) -> Hashable:
        """Another value whenever any node's score may be another."""
        return self._scores.version(cluster)

    def _all_scores(self, cluster: Cluster) -> Floats:
        """(N,)."""
        installed = cluster.gpu_model >= 0
        table = attributes(cluster.models)
        memory = np.where(cluster.gpu_memory_mib > 0, cluster.gpu_memory_mib, np.nan)
        static = np.stack([memory, *table[:4][:, cluster.gpu_model]])
        *_, scores = genius_totals(static, _dynamic(cluster), installed, self._weights)
        return min_max(scores, np.asarray(installed.any(axis=1)))


def _dynamic(cluster: Cluster) -> Planes:
    observed = cluster.observed
    if observed is None:
        return np.full((4, *cluster.gpu_model.shape), np.nan)
    return np.stack(
        [
            observed.gauge(Gauge.MEMORY_FREE).astype(np.float64),
            observed.gauge(Gauge.POWER).astype(np.float64),
            1.0 - observed.gauge(Gauge.ENCODER).astype(np.float64),
            1.0 - observed.gauge(Gauge.DECODER).astype(np.float64),
        ]
    )
