"""Alnair's utilisation score: large and full nodes first.

CentaurusInfra/alnair, autonomous-scheduler/UtilSched/pkg/plugins/utilsched/scheduler.go: 5 (memory x model weight x
count / 12) + 10 sum over GPUs of used / (used + free), min-max to 0..100. The original's integer division makes every
used / (used + free) 0; here the fraction counts. Its third term, the pod's CPU request, is the same for all nodes.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.gauges import Gauge
from extender.core.policies.breakdowns import Breakdown
from extender.core.policies.genius import min_max, neutral, normalised
from extender.core.policies.policy import Options, Policy
from extender.core.policies.terms.term import Samples
from extender.core.refreshes import RefreshedScore
from extender.core.resources.requests import GpuRequest

_NODE_WEIGHT: Final = 5.0
_ACTUAL_WEIGHT: Final = 10.0
_MODEL_WEIGHTS: Final[Mapping[str, float]] = {"k80": 6.0, "titan-x": 7.0, "titan-x-(pascal)": 7.0}
"""Alnair's weights; newer models have the weight of its newest, V100."""
_NEWEST_WEIGHT: Final = 10.0


class _AlnairScore(RefreshedScore):
    """Scores from 0 to 100."""

    def __init__(self, model_weights: Mapping[str, float] = _MODEL_WEIGHTS) -> None:
        super().__init__()
        self._model_weights = dict(model_weights)

    def all_scores(self, cluster: Cluster) -> Floats:
        """(N,) scores."""
        node_value, actual = self._terms(cluster)
        installed = cluster.gpu_model >= 0
        return 100 * min_max(_NODE_WEIGHT * node_value + _ACTUAL_WEIGHT * actual, np.asarray(installed.any(axis=1)))

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """The breakdown of the score."""
        node_value, actual = self._terms(cluster)
        size, use = _NODE_WEIGHT * node_value, _ACTUAL_WEIGHT * actual
        terms = (
            ("size", "GiB of its GPUs times the weight of their model, divided by 12", size, node_value, _size),
            ("memoryUsed", "sum of its GPUs' fractions of memory in use", use, actual, _used),
        )
        return normalised(terms, size + use, np.asarray((cluster.gpu_model >= 0).any(axis=1)), rows, 100.0)

    def _terms(self, cluster: Cluster) -> tuple[Floats, Floats]:
        """(N,) value of the node's GPUs by memory and model, and (N,) sum of their fractions of memory in use."""
        samples = Samples(cluster)
        installed = cluster.gpu_model >= 0
        weights = np.array([self._model_weights.get(model.name, _NEWEST_WEIGHT) for model in cluster.models] + [0.0])
        memory_gib = cluster.gpu_memory_mib / 1024
        # Memory x weight x count, summed over the GPUs, which is equal if all GPUs of a node are of one model.
        node_value = np.where(installed, memory_gib * weights[cluster.gpu_model], 0).sum(axis=1) / 12
        used = samples.gauge(Gauge.MEMORY_USED)
        total = used + samples.gauge(Gauge.MEMORY_FREE)
        used_fraction = np.divide(used, total, out=np.full(used.shape, np.nan), where=total > 0)
        actual = np.where(installed, neutral(used_fraction[None], installed)[0], 0).sum(axis=1)
        return node_value, actual


def _size(amount: float) -> str:
    return f"a size of {amount:.0f} by GPU memory and model"


def _used(amount: float) -> str:
    return f"GPU memory in use that comes to {amount:.2f} whole GPUs"


def policy(options: Options) -> Policy:
    """Create the policy."""
    score = _AlnairScore()
    description = "Alnair's utilisation score: large and full nodes first"
    return Policy(
        name="alnair",
        score=score,
        description=description,
        rules=options.rules,
        context=score.context,
        apart=lambda: policy(options),
        breakdown=score.parts,
    )
