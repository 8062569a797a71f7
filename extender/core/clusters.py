"""The state of a cluster as arrays: one immutable snapshot, read once by a decision."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from extender.core.observations import Observations
from extender.core.resources.gpu_models import GpuModel

Rows = npt.NDArray[np.intp]
"""R row numbers of a cluster's nodes."""
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WHOLE_MILLI: Final = 1000
"""The compute of one GPU."""
CORE_MILLI: Final = 1000
GIB_MIB: Final = 1024


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
    gpu_uuids: tuple[tuple[str, ...], ...]
    """N x the node's GPUs, "" where a UUID is not known."""
    gpu_at: Mapping[str, tuple[int, int]]
    """Row and index of each GPU by UUID."""
    mig_profiles: tuple[str, ...]
    """Vocabulary of the K columns of `mig_free`. It only grows."""

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
    gpu_healthy: Mask
    """(N, G) GPUs that may be given to anybody; False where there is no GPU."""
    gpu_numa: Ints
    """(N, G) NUMA node of each GPU, -1 where unknown."""
    gpu_link: Ints
    """(N, G) group of GPUs joined by fast links, -1 where unknown."""
    plugin_picks: Mask
    """(N,) where the device plugin picks whole GPUs by itself."""
    slices_led: Mask
    """(N,) where it gives time slices of the GPUs that Kerf chooses."""
    set_aside: Ints
    """(N,) pods that failed on a node soon after their start, where it takes no more for that; 0 where it does."""
    left_out: npt.NDArray[np.int8]
    """(N,) LeftOut: why nothing of a node is given, or not all of it; 0 where all of it is."""
    vendor: npt.NDArray[np.int8]
    """(N,) whose GPUs a node has, by number in the registry."""
    closed: Mask
    """(N,) nodes of which nothing is given away: a plan that makes room keeps it for those it moves."""
    withheld_units: Ints
    """(N,) those of `untracked_units` that nobody holds: the kubelet does not offer them."""
    gpu_slices: Ints
    """(N, G) time slices of each GPU that somebody is known to hold; they count among `untracked_units`."""
    gpu_free_milli: Ints
    """(N, G) compute that nobody has booked, 0..1000; 0 where there is no healthy GPU."""
    gpu_free_mib: Ints
    """(N, G) memory that nobody has booked; 0 where there is no healthy GPU."""
    untracked_units: Ints
    """(N,) units held by somebody on GPUs of unknown index, or withheld: any idle GPU may be one. Time slices are
    counted here alone: they leave their GPUs idle."""
    num_served: Ints
    """(N,) pods that hold GPUs and get them from the node's device plugin."""
    num_unserved: Ints
    """(N,) pods that hold GPUs of which the plugin knows nothing: they ask by annotation or label alone."""
    mig_installed: Ints
    """(N, K) MIG devices of each profile."""
    mig_free: Ints
    """(N, K) those that nobody holds."""
    cpu_milli: Longs
    """(N,) allocatable CPU."""
    memory_mib: Longs
    """(N,) allocatable main memory."""
    cpu_free_milli: Longs
    """(N,) allocatable CPU less the requests of all pods; negative where they are more."""
    memory_free_mib: Longs
    """(N,) the same of main memory."""
    observed: Observations | None = None
    """What the GPUs are really doing, None where nobody tells."""
    devices: npt.NDArray[np.object_] | None = None
    """(N,) `dra.devices.NodeDevices` that Kerf allocates to ResourceClaims, None where a node has none; None: nobody
    has any."""

    @property
    def num_nodes(self) -> int:
        """N, rows without a node included."""
        return len(self.node_names)

    @property
    def gpu_idle(self) -> Mask:
        """(N, G) healthy GPUs that nobody is known to hold anything of."""
        idle: Mask = (self.gpu_free_milli == WHOLE_MILLI) & (self.gpu_free_mib == self.gpu_memory_mib)
        return idle

    def taken(self, array: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
        """The rows of an (N, ...) array; the array itself where they are all N in order.

        `take` gathers ten times as fast as an index does.
        """
        if len(rows) == len(array) and _is_every_row(rows):
            return array
        return array.take(rows, axis=0)

    def only(self, row: int) -> "Cluster":
        """The cluster of one of the nodes alone, as row 0; by its bookings, unobserved."""
        name, uuids = self.node_names[row], self.gpu_uuids[row]
        values: dict[str, Any] = {
            field.name: value[row : row + 1]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        values |= {
            "row_of": {name: 0},
            "node_names": (name,),
            "gpu_uuids": (uuids,),
            "gpu_at": {uuid: (0, index) for index, uuid in enumerate(uuids) if uuid},
            "observed": None,
        }
        return replace(self, **values)


def _is_every_row(rows: Rows) -> bool:
    """Whether R rows are 0, 1, ... R-1, as those of a whole cluster are."""
    if len(rows) < 2:
        return not rows.any()
    return bool(rows[0] == 0 and rows[-1] == len(rows) - 1 and (np.diff(rows) == 1).all())


def num_true(mask: Mask) -> Longs:
    """(...) how many of the (..., G) last axis are True; G is 127 at most.

    On rows as short as these `einsum` is three to five times as fast as `sum`.
    """
    counted: Longs = np.einsum("...g->...", mask.view(np.int8)).astype(np.int64)
    return counted


def totals(values: npt.NDArray[np.integer]) -> Longs:
    """(...) sums of integers over the (..., G) last axis. Floats are not for it: the order of their sum matters."""
    summed: Longs = np.einsum("...g->...", values, dtype=np.int64, casting="safe")
    return summed
