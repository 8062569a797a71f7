"""What is expected, features and networks, drawn at random."""

from typing import NamedTuple

import numpy as np

from extender.core.clusters import Floats
from extender.core.fragmentation import Mix, Nodes, PodClasses
from extender.core.valuenet import attention
from extender.core.valuenet.attention import CLUSTER_FEATURES, POD_FEATURES, Attention, Sight
from extender.core.valuenet.features import CONTEXT, FEATURES, Outlook, Worth, outlook_of
from extender.core.valuenet.potentials import Potential
from tests.model.builders import random_asks, random_mix, random_nodes


class Expectation(NamedTuple):
    """What an outlook is made of."""

    nodes: Nodes
    asks: PodClasses
    expected: Floats
    mix: Mix
    worth: Worth


def random_expectation(rng: np.random.Generator) -> Expectation:
    left = np.zeros((4, 1001))
    left[:3, 1:] = np.sort(rng.random((3, 1000)), axis=1)
    worth = Worth(left, rng.random((4, 2)))
    return Expectation(random_nodes(rng, 9), random_asks(rng, 12), rng.random(12) * 5, random_mix(rng, 12), worth)


def random_outlook(rng: np.random.Generator) -> Outlook:
    return outlook_of(*random_expectation(rng))


def random_potential(rng: np.random.Generator, num_hidden: int = 3, *, by_context: bool = False) -> Potential:
    F = len(FEATURES)
    steps = rng.normal(size=(len(CONTEXT) if by_context else 0, F + 1))
    return Potential(
        rng.normal(size=F), np.array([0.1]), rng.random(F), rng.normal(size=(F, num_hidden)),
        rng.normal(size=num_hidden), rng.normal(size=num_hidden), steps,
    )  # fmt: skip


F, D = len(FEATURES), len(FEATURES) + 1


def random_attention(
    rng: np.random.Generator, *, embedding: int = 5, queries: int = 3, hidden: int = 4, net: int = 0
) -> Attention:
    drawn = {name: rng.normal(size=shape) for name, shape in attention.shapes(embedding, queries, hidden, net).items()}
    return Attention(**drawn)


def random_sight(rng: np.random.Generator, num_rows: int, num_pods: int) -> Sight:
    return Sight(
        rng.normal(size=(num_rows, F)),
        rng.integers(1, 9, num_rows).astype(np.float64),
        rng.random((num_pods, len(POD_FEATURES))),
        rng.random(num_pods),
        rng.random(len(CLUSTER_FEATURES)),
    )
