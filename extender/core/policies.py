"""Policies by name: a deployment chooses one in its settings, a pod by the annotation `kerf.dev/policy`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extender.core import scores
from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fits import Fit
from extender.core.requests import GpuRequest

Score = Callable[[Cluster, GpuRequest, Rows, Fit], Floats]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to rank nodes that fit."""

    name: str
    score: Score
    description: str
    spreads: bool = False
    """Whether a share goes on the emptiest GPU of its node instead of the one it fills best."""


POLICIES: Final[dict[str, Policy]] = {}


def register(name: str, score: Score, description: str, *, spreads: bool = False) -> None:
    """Make a policy known by its name. Raises ValueError when the name is taken."""
    if name in POLICIES:
        raise ValueError(f"a policy named {name!r} is registered already")
    POLICIES[name] = Policy(name, score, description, spreads)


register(
    "bestfit", scores.best_fit, "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
)
register("binpack", scores.binpack, "fullest node first, by fraction of its GPUs")
register("spread", scores.spread, "emptiest node first, by fraction of its GPUs", spreads=True)
