"""Interference of pods on one GPU, estimated from what each used alone.

Kernels of several pods take turns on a GPU. While the pods' mean loads sum to at most 1, they run as fast as alone on
average; beyond that, all slow down by the sum. The same holds for memory bandwidth, and the larger slowdown counts.
The model is Gandiva's: Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018,
section 3.3. It ignores caches, so it overestimates the benefit of packing.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interference:
    """An estimate for n pods on one GPU."""

    slowdown: float
    """Run time of each pod as a multiple of its time alone: max(1, sum of loads, sum of bandwidths)."""
    saving: float
    """Fraction of GPU time saved compared with one GPU per pod: 1 - slowdown / n."""


def interference(loads: Sequence[float], bandwidths: Sequence[float] = ()) -> Interference:
    """The estimate from each pod's mean load and, where known, mean memory bandwidth, 0 to 1."""
    if not loads:
        return Interference(1.0, 0.0)
    slowdown = max(1.0, sum(loads), sum(bandwidths))
    return Interference(slowdown, 1 - slowdown / len(loads))
