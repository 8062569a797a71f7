"""Policies that score all feasible nodes equally: `round-robin` and `random` differ in their tie-break."""

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
    """Return the first GPU with room for a share."""
    return int(room.argmax())


ROUND_ROBIN: Final = Policy("round-robin", score, "the next feasible node, in rotation", share=first_gpu)
RANDOM: Final = Policy("random", score, "a random feasible node", share=first_gpu)
