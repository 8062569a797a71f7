"""Policies to which all nodes that fit are alike: `round-robin` and `random` differ in how ties are broken."""

from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest


def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) zeros."""
    return np.zeros(len(rows))


def first_gpu(cluster: Cluster, request: GpuRequest, row: int, room: Mask) -> int:
    """The first GPU that suffices for a share."""
    return int(room.argmax())


ROUND_ROBIN: Final = Policy("round-robin", score, "the next node that fits, in turn", share=first_gpu)
RANDOM: Final = Policy("random", score, "any node that fits", share=first_gpu)
