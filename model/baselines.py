"""The policies that everyone is measured against, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.clusters import Rows
from extender.core.packing import Nodes, Rank, Tie
from model.preferences import genius_order


@dataclass(frozen=True)
class Baseline:
    """A rule: how nodes are scored and which of the best is taken."""

    name: str
    rank: Rank
    tie: Tie
    description: str
    order: Callable[[Nodes, Sequence[str]], Rows] | None = None
    """(nodes, names of their models) to the order of rows in which ties are broken; None: as they come."""


BASELINES: Final = {
    baseline.name: baseline
    for baseline in (
        Baseline("fgd", Rank.FGD, Tie.FIRST, "fragmentation gradient descent, as published"),
        Baseline("bestfit", Rank.BESTFIT, Tie.FIRST, "least CPU and GPU left over, as published beside FGD"),
        Baseline("binpack", Rank.BINPACK, Tie.FIRST, "the fullest node, by fraction of its GPUs (MostAllocated)"),
        Baseline("spread", Rank.SPREAD, Tie.FIRST, "the emptiest node, by fraction of its GPUs (LeastAllocated)"),
        Baseline("round-robin", Rank.NONE, Tie.NEXT, "the next node that fits, in turn"),
        Baseline("random", Rank.NONE, Tie.RANDOM, "any node that fits"),
        Baseline("genius", Rank.NONE, Tie.FIRST, "Genius' static score: traces tell of no load", genius_order),
        Baseline("kube-default", Rank.KUBE, Tie.SAMPLED, "kube-scheduler's own plugins, sampling and random ties"),
    )
}


class UnknownPolicyError(ValueError):
    """A name that no policy has."""


def baseline(name: str) -> Baseline:
    """A policy by name. Raises UnknownPolicyError that lists them."""
    try:
        return BASELINES[name]
    except KeyError:
        raise UnknownPolicyError(f"no policy {name!r}; there are {', '.join(BASELINES)}") from None
