"""What pods cost each other on one GPU, estimated from what each used alone.

Kernels of several pods take turns on a GPU, so pods whose mean loads u_i add up to no more than 1 run, on average, as
fast as alone, and all slow down by the same factor beyond that; the same holds for memory bandwidth, and the tighter of
the two counts. The model, and packing only where it saves, is Gandiva's: Xiao et al., "Gandiva: Introspective Cluster
Scheduling for Deep Learning", OSDI 2018, section 3.3. It is an upper bound on what packing gives: caches are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interference:
    """An estimate for n pods on one GPU."""

    slowdown: float
    """Time that each takes, as a multiple of its time alone: max(1, sum of loads, sum of bandwidths)."""
    saving: float
    """GPU time saved against a GPU for each, as a fraction: 1 - slowdown / n."""


def interference(loads: Sequence[float], bandwidths: Sequence[float] = ()) -> Interference:
    """The estimate from each pod's mean load, and mean memory bandwidth where it is known, 0 to 1."""
    if not loads:
        return Interference(1.0, 0.0)
    slowdown = max(1.0, sum(loads), sum(bandwidths))
    return Interference(slowdown, 1 - slowdown / len(loads))
