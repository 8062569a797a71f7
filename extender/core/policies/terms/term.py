"""What a term of the live score is."""

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
    """What a term may look at."""

    cluster: Cluster

    def gauge(self, gauge: Gauge) -> Plane:
        """(N, G) the samples of a gauge, NaN where there is none."""
        if self.cluster.observed is None:
            return np.full(self.cluster.gpu_model.shape, np.nan)
        return self.cluster.observed.gauge(gauge).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the headroom of a GPU. Its name is that of its weight."""

    name: str
    weight: float
    """By default; 0 leaves it out."""
    meaning: str
    """Of the setting, in a sentence."""
    headroom: Callable[[Samples], Plane]
    """(N, G) from 0 (none) to 1 (all of it), smooth in its sample; NaN where nothing is known."""
