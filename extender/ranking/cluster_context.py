"""Looks at the cluster: what a net with attention sees, when it looks again, and the potential that it sets.

Between two looks that potential ranks as any other one does. Other models have one potential, whatever there is to see.
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
    """A cluster as it was seen."""

    cluster: Cluster
    at: float
    """Monotonic time."""

    def moved_frac(self, cluster: Cluster) -> float:
        """GPU that was given away or came back until now, by capacity; 1 when the nodes are others."""
        before = self.cluster
        if cluster.row_of is not before.row_of:
            return 1.0
        then, now = (_states(each, len(cluster.models)) for each in (before, cluster))
        moved = np.abs(now.gpu_free_milli.astype(np.int64) - then.gpu_free_milli).sum()
        return float(moved) / max(int(now.num_gpus.sum()) * WHOLE_MILLI, 1)

    def is_over(self, cluster: Cluster, now: float, frac: float, most_s: float) -> bool:
        """Whether it is time for another: so much has moved, or it is so long ago and anything has changed."""
        if cluster.version == self.cluster.version:
            return False
        return now - self.at >= most_s or self.moved_frac(cluster) >= frac


def score_on(
    model: Model | Actor, cluster: Cluster, counts: Mapping[Kind, float], worth: Worth | None, parts: dict[str, Any]
) -> LearnedScore:
    """The score of a model on a cluster, as its policy counts it, where so many pods of each kind are expected.

    `worth` is as `demands.outlook_on` takes it, `parts` are the rest of a LearnedScore. Takes a moment: what the first
    request needs is worked out already.
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
    """The potential that a model gives for a cluster, as its policy counts it, where `outlook` is expected.

    Raises PotentialError when a net's is not finite. `outlook` is of the form that `learned.Prospect` has.
    """
    if isinstance(model, Model):
        return model.potential
    return attention.potential(_states(cluster, len(outlook.worth.left) - 2), outlook, model.attention)


def _states(cluster: Cluster, num_models: int) -> Nodes:
    return node_states(cluster, np.arange(cluster.num_nodes), num_models)
