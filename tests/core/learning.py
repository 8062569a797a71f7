"""Learned scores for tests: models that look at one thing, and outlooks of small clusters."""

import numpy as np

from extender.core.clusters import Cluster
from extender.core.fragmentation import ANY_MODEL, PodClasses, TypicalPod, mix_of
from extender.core.policies.kerf import KerfWeights, LearnedScore, live_term, serving
from extender.core.policies.policy import Policy
from extender.core.valuenet.features import FEATURES, Outlook, node_states, outlook_of, plain_worth
from extender.core.valuenet.potentials import Potential, linear, prospect


def only(quantum: float = 0.1, **weights: float) -> Potential:
    """A potential of some features alone."""
    return linear(np.array([weights.get(name, 0.0) for name in FEATURES]), quantum)


def plain_outlook(cluster: Cluster) -> Outlook:
    """One whole GPU with 8 CPUs is what everybody wants, and all GPUs are worth the same."""
    mix = mix_of([TypicalPod(8000, 1, 1000, ANY_MODEL, 1)], 1)
    asks = PodClasses(*(np.array([amount]) for amount in (8000, 32768, 1, 1000, ANY_MODEL)))
    nodes = node_states(cluster, np.arange(cluster.num_nodes), len(cluster.models))
    return outlook_of(nodes, asks, np.ones(1), mix, plain_worth(len(cluster.models) + 1))


def kerf_on(
    cluster: Cluster, potential: Potential, weights: KerfWeights | None = None, *, live: bool = False
) -> Policy:
    """Policy `kerf` with a potential and a plain outlook."""
    served = prospect(potential, plain_outlook(cluster))
    return serving(LearnedScore(served, weights, live_term() if live else None, serial=1))
