"""Measured GPU usage as arrays aligned with the cluster's: one immutable snapshot, with the age of every sample."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from extender.core.gauges import Gauge

Gauges = npt.NDArray[np.float32]
"""(M, N, G) one plane per Gauge, NaN where there is no fresh sample."""


class SampleState(IntEnum):
    """Freshness of a node's samples."""

    MISSING = 0
    """None, or all expired."""
    STALE = 1
    """Too old to use: the node ranks as if its GPUs were average."""
    FRESH = 2


@dataclass(frozen=True, slots=True)
class Observations:
    """Samples of N nodes with up to G GPU slots, aligned with the rows of a Cluster of the same version."""

    version: int
    """Increases with every change of the samples."""
    value: Gauges
    """(M, N, G) fresh samples, NaN elsewhere."""
    state: npt.NDArray[np.int8]
    """(N,) SampleState."""
    sampled_at: npt.NDArray[np.float64]
    """(N,) monotonic time of each node's samples, -inf where there were none."""
    expected_load: npt.NDArray[np.float32]
    """(N, G) load predicted for pods placed too recently to show in samples."""
    outdated: npt.NDArray[np.bool_]
    """(N, G) GPUs released since their samples were taken: the measured usage may be gone."""
    has_samples: bool = True
    """Whether any sample has ever arrived."""

    def without_memory_of(self, gpus: npt.NDArray[np.bool_]) -> "Observations":
        """A copy without memory usage samples of some GPUs (N, G), for GPUs that pods are about to leave."""
        value = self.value.copy()
        value[Gauge.MEMORY_USED][gpus] = np.nan
        return replace(self, value=value)

    def gauge(self, gauge: Gauge) -> npt.NDArray[np.float32]:
        """(N, G) the samples of one gauge."""
        plane: npt.NDArray[np.float32] = self.value[gauge]
        return plane
