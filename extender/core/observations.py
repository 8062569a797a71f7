"""What GPUs are really doing, as arrays beside the cluster's: one immutable snapshot, with the age of every sample."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from extender.core.gauges import Gauge

Gauges = npt.NDArray[np.float32]
"""(M, N, G) one plane for each Gauge, NaN where there is no fresh sample."""


class SampleState(IntEnum):
    """How much the samples of a node can be trusted."""

    MISSING = 0
    """There are none, or none that is not forgotten."""
    STALE = 1
    """Too old to be counted: the node is ranked as if its GPUs were average."""
    FRESH = 2


@dataclass(frozen=True, slots=True)
class Observations:
    """Samples of N nodes with up to G GPU slots, aligned with the rows of a Cluster of the same version."""

    version: int
    """Grows with every change of the samples."""
    value: Gauges
    """(M, N, G) samples that are fresh, NaN elsewhere."""
    state: npt.NDArray[np.int8]
    """(N,) SampleState."""
    sampled_at: npt.NDArray[np.float64]
    """(N,) monotonic time of each node's samples, -inf where there never were any."""
    expected_load: npt.NDArray[np.float32]
    """(N, G) load predicted for pods placed so recently that samples don't show them yet."""
    outdated: npt.NDArray[np.bool_]
    """(N, G) GPUs that were given back since their samples were taken: what they use may be gone."""

    def without_memory_of(self, gpus: npt.NDArray[np.bool_]) -> "Observations":
        """As if nobody had seen what memory of some GPUs, (N, G), is in use: where pods leave it tells nothing."""
        value = self.value.copy()
        value[Gauge.MEMORY_USED][gpus] = np.nan
        return replace(self, value=value)

    def gauge(self, gauge: Gauge) -> npt.NDArray[np.float32]:
        """(N, G) the samples of one gauge."""
        plane: npt.NDArray[np.float32] = self.value[gauge]
        return plane
