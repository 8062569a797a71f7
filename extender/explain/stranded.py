"""Stranded capacity: free GPU capacity that the next GPU pod is expected not to be able to use.

GPU-hours, `kerf top`, the page, what-if and metrics all report this figure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Longs, Mask, num_true, totals
from extender.core.fragmentation import MAX_MODELS, FragmentTables, Mix, tables_of, unusable_milli
from extender.core.resources.nodes import SLICES, GpuUnit

_SLICED: Final[Mask] = np.isin(np.arange(len(GpuUnit)), SLICES)


def unusable_of(cluster: Cluster, tables: FragmentTables) -> Longs:
    """(N,) free GPU milli that the next GPU pod is expected not to be able to use (FGD's measure).

    GPUs of unknown holders don't count; nodes with time slices have no fragments.
    """
    free = _free_milli(cluster)
    model = cluster.gpu_model.max(axis=1, initial=-1).astype(np.int64)
    model = np.where(model < min(len(tables.single) - 1, MAX_MODELS), model, -1)
    unusable = unusable_milli(cluster.cpu_free_milli, free, model, tables)
    unusable[_SLICED[cluster.unit] | (num_true(cluster.gpu_model >= 0) == 0)] = 0
    return np.minimum(np.floor(unusable), totals(free)).astype(np.int64)


def stranded_of(unusable: Longs, left: Longs) -> Longs:
    """(N,) stranded milli: the unusable capacity, at most what is left of a node; 0 if it takes no pods."""
    return np.minimum(np.maximum(unusable[: len(left)], 0), np.maximum(left, 0))


@dataclass(frozen=True, slots=True)
class Stranding:
    """Computes stranded capacity of a cluster, as of the last count, and of clusters derived from it."""

    mix: Mix
    """Mix of expected pods."""
    capacity: Longs
    """(N,) milli."""
    left: Longs
    """(N,) milli that were unallocated and usable."""
    free: Longs
    """(N,) milli that were free then, by the cluster's bookings."""
    tables: FragmentTables | None = field(default=None, repr=False)
    """Tables of the mix; None if they have to be computed."""

    @classmethod
    def of(cls, cluster: Cluster, mix: Mix, tables: FragmentTables, capacity: Longs, left: Longs) -> "Stranding":
        """The Stranding of a cluster with (N,) `left` milli."""
        return cls(mix, capacity, left, totals(_free_milli(cluster))[: len(left)], tables)

    def packed(self) -> "Stranding":
        """A copy for another process, without the large tables that can be computed."""
        return replace(self, tables=None)

    def unpacked(self, cluster: Cluster) -> "Stranding":
        """A copy with tables for a cluster."""
        return replace(self, tables=tables_of(self.mix, len(cluster.models), cluster.gpu_model.shape[1]))

    def milli(self, cluster: Cluster, closed: Iterable[int] = ()) -> Longs:
        """(N,) stranded GPU milli in a cluster; `closed` are rows that take no pods there."""
        tables = self.tables
        if tables is None or tables.several.shape[2] <= cluster.gpu_model.shape[1]:  # made for fewer GPUs per node
            tables = tables_of(self.mix, len(cluster.models), cluster.gpu_model.shape[1])
        free = totals(_free_milli(cluster))
        known = min(len(free), len(self.left))
        left = free.copy()
        # Bookings since then count; nodes that took no pods then take none now.
        moved = np.maximum(self.left[:known] + free[:known] - self.free[:known], 0)
        left[:known] = np.where((self.left[:known] <= 0) & (self.free[:known] > 0), 0, moved)
        left[list(closed)] = 0
        return stranded_of(unusable_of(cluster, tables), left)

    def part(self, cluster: Cluster, milli: Longs) -> float:
        """(N,) milli as a fraction of all GPUs of a cluster, 0 to 1."""
        added = num_true(cluster.gpu_model[len(self.capacity) :] >= 0).sum() * WHOLE_MILLI
        capacity = int(self.capacity[: cluster.num_nodes].sum() + added)
        return round(int(milli.sum()) / max(capacity, 1), 4)


def _free_milli(cluster: Cluster) -> Longs:
    """(N, G) free milli; for holders of unknown GPUs, the first idle GPUs count as taken."""
    free = cluster.gpu_free_milli.astype(np.int64)
    if len(rows := np.flatnonzero(cluster.untracked_units)):
        idle = cluster.gpu_idle[rows]
        taken = idle & (np.cumsum(idle, axis=1) <= cluster.untracked_units[rows, None])
        free[rows] = np.where(taken, 0, free[rows])
    return free
