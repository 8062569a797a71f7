"""The potential of a model with attention, which depends on the cluster's state, and when to update it.

Other models have a fixed potential.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fragmentation import Nodes
from extender.core.policies.kerf import LearnedScore
from extender.core.valuenet import attention
from extender.core.valuenet.features import Outlook, Worth, node_states
from extender.core.valuenet.potentials import Potential, PotentialError, prospect
from extender.ranking.demands import Kind, demand_of, outlook_on
from extender.ranking.files import Actor, Model


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at the last evaluation of the model."""

    cluster: Cluster
    at: float
    """Monotonic time."""

    def moved_frac(self, cluster: Cluster) -> float:
        """GPU allocated or freed since, as a fraction of capacity; 1 if the set of nodes has changed."""
        before = self.cluster
        if cluster.row_of is not before.row_of:
            return 1.0
        then, now = (_states(each, len(cluster.models)) for each in (before, cluster))
        moved = np.abs(now.gpu_free_milli.astype(np.int64) - then.gpu_free_milli).sum()
        return float(moved) / max(int(now.num_gpus.sum()) * WHOLE_MILLI, 1)

    def is_over(self, cluster: Cluster, now: float, frac: float, most_s: float) -> bool:
        """Whether to evaluate again: at least `frac` has moved, or anything has changed and `most_s` have passed."""
        if cluster.version == self.cluster.version:
            return False
        return now - self.at >= most_s or self.moved_frac(cluster) >= frac


def score_on(
    model: Model | Actor, cluster: Cluster, counts: Mapping[Kind, float], worth: Worth | None, parts: dict[str, Any]
) -> LearnedScore:
    """The score of a model on a cluster, for the expected numbers of pods by kind.

    `worth` is as in `demands.outlook_on`; `parts` are the other arguments of LearnedScore. Blocks, since it computes
    what the first request needs in advance.
    """
    outlook = outlook_on(demand_of(cluster, counts), worth, model.manifest.foresight_load)
    try:
        potential = _potential_on(model, cluster, outlook)
    except PotentialError as error:
        return LearnedScore(why_not=str(error), **parts)
    score = LearnedScore(prospect(potential, outlook), **parts)
    score.warm(cluster)
    return score


def _potential_on(model: Model | Actor, cluster: Cluster, outlook: Outlook) -> Potential:
    """A model's potential for a cluster and an outlook. Raises PotentialError if a net's is not finite."""
    if isinstance(model, Model):
        return model.potential
    return attention.potential(_states(cluster, len(outlook.worth.left) - 2), outlook, model.attention)


def _states(cluster: Cluster, num_models: int) -> Nodes:
    return node_states(cluster, np.arange(cluster.num_nodes), num_models)
