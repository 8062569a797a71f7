"""The interface of a term of the live score."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster
from extender.core.gauges import Gauge

Plane = npt.NDArray[np.float64]
"""(N, G)."""


class Samples(NamedTuple):
    """Inputs of a term."""

    cluster: Cluster

    def gauge(self, gauge: Gauge) -> Plane:
        """(N, G) samples of a gauge, NaN where missing."""
        if self.cluster.observed is None:
            return np.full(self.cluster.gpu_model.shape, np.nan)
        return self.cluster.observed.gauge(gauge).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a GPU's headroom."""

    name: str
    """Name of the term and its weight."""
    weight: float
    """Default weight; 0 disables the term."""
    meaning: str
    """Description, one sentence."""
    headroom: Callable[[Samples], Plane]
    """(N, G) headroom from 0 (none) to 1 (all), continuous in its sample; NaN where unknown."""
