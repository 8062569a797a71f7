"""Codes of scores and tie-breaks for the compiled engine."""

from enum import IntEnum


class Rank(IntEnum):
    """Score of a policy; the policy's module has the formula."""

    NONE = 0
    """All nodes score the same; a share takes the first GPU with room."""
    FGD = 1
    BESTFIT = 2
    BINPACK = 3
    SPREAD = 4
    KUBE = 5
    TIGHTEST = 6
    LISTED = 7
    """All nodes score the same, because they are sorted by a score that never changes."""


class Tie(IntEnum):
    """Tie-break between the best nodes."""

    FIRST = 0
    RANDOM = 1
    NEXT = 2
    """The first one after the node chosen last."""
    SAMPLED = 3
    """A random one of a sample of feasible nodes, as in kube-scheduler (`sample_size`)."""


def sample_size(num_nodes: int) -> int:
    """Number of feasible nodes that kube-scheduler looks for by default (`numFeasibleNodesToFind`)."""
    if num_nodes < 100:
        return num_nodes
    return max(num_nodes * max(50 - num_nodes // 125, 5) // 100, 100)
