"""The state of a cluster as arrays: one immutable snapshot, read once by a decision."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.core.models import GpuModel
from extender.core.observations import Observations

Rows = npt.NDArray[np.intp]
"""R row numbers of a cluster's nodes."""
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cluster:
    """N nodes with up to G GPU slots each. Rows of removed nodes stay, offering nothing, until they are used again."""

    version: int
    """Grows with every change; equal versions are equal clusters."""
    row_of: Mapping[str, int]
    """Row of each node by name."""
    node_names: tuple[str, ...]
    """N names, "" for a row without a node."""
    models: tuple[GpuModel, ...]
    """Vocabulary that `gpu_model` indexes. It only grows, so that an index keeps its meaning."""

    row_version: Longs
    """(N,) the version in which each row changed last."""
    tie_rank: Ints
    """(N,) order among equal nodes, smaller wins."""
    unit: npt.NDArray[np.int8]
    """(N,) GpuUnit."""
    units_per_gpu: Ints
    """(N,) 1, or the number of time slices of each GPU."""
    gpu_model: Ints
    """(N, G) index into `models`, -1 where there is no GPU."""
    gpu_memory_mib: Ints
    """(N, G) nominal MiB of each GPU, 0 where unknown or no GPU."""
    gpu_free: Mask
    """(N, G) GPUs that nobody is known to hold."""
    untracked_units: Ints
    """(N,) units held by somebody on GPUs of unknown index, or withheld as unhealthy: any free GPU may be one."""
    observed: Observations | None = None
    """What the GPUs are really doing, None where nobody tells."""

    @property
    def num_nodes(self) -> int:
        """N, rows without a node included."""
        return len(self.node_names)
