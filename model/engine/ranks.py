"""Codes by which the compiled twins know how nodes are scored and which of the best is taken."""

from enum import IntEnum


class Rank(IntEnum):
    """Which score: each is that of a policy, whose file has the formula."""

    NONE = 0
    """All alike, and of each node the first GPU that suffices for a share."""
    FGD = 1
    BESTFIT = 2
    BINPACK = 3
    SPREAD = 4
    KUBE = 5
    TIGHTEST = 6
    LISTED = 7
    """All alike, because the nodes are in the order of a score that never changes."""


class Tie(IntEnum):
    """Which of the best nodes is taken."""

    FIRST = 0
    RANDOM = 1
    NEXT = 2
    """The first one after the node taken last."""
    SAMPLED = 3
    """A random one of a sample of feasible nodes, as kube-scheduler takes it (`sample_size`)."""


def sample_size(num_nodes: int) -> int:
    """How many feasible nodes kube-scheduler looks for by default (`numFeasibleNodesToFind`)."""
    if num_nodes < 100:
        return num_nodes
    return max(num_nodes * max(50 - num_nodes // 125, 5) // 100, 100)
