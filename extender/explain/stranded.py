"""Stranded: free GPU that the next pod which asks for GPUs is expected not to be able to use. One figure for all who
tell of it: GPU-hours, `kerf top`, the page, what-if and metrics."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Longs, Mask, num_true, totals
from extender.core.fragmentation import MAX_MODELS, FragmentTables, Mix, tables_of, unusable_milli
from extender.core.resources.nodes import SLICES, GpuUnit

_SLICED: Final[Mask] = np.isin(np.arange(len(GpuUnit)), SLICES)


def unusable_of(cluster: Cluster, tables: FragmentTables) -> Longs:
    """(N,) idle GPU milli that the next pod which asks for GPUs is expected not to be able to use (FGD's measure).

    GPUs of unknown holders are none; nodes that give time slices have no fragments.
    """
    free = _free_milli(cluster)
    model = cluster.gpu_model.max(axis=1, initial=-1).astype(np.int64)
    model = np.where(model < min(len(tables.single) - 1, MAX_MODELS), model, -1)
    found = unusable_milli(cluster.cpu_free_milli, free, model, tables)
    found[_SLICED[cluster.unit] | (num_true(cluster.gpu_model >= 0) == 0)] = 0
    return np.minimum(np.floor(found), totals(free)).astype(np.int64)


def stranded_of(unusable: Longs, left: Longs) -> Longs:
    """(N,) milli: of what is unusable no more than what of a node is left, 0 where it takes no pods."""
    return np.minimum(np.maximum(unusable[: len(left)], 0), np.maximum(left, 0))


@dataclass(frozen=True, slots=True)
class Stranding:
    """What tells how much of a cluster's GPUs is stranded, as it was looked at last: in that cluster, and in others
    that come of it."""

    mix: Mix
    """Of the pods that are expected."""
    capacity: Longs
    """(N,) milli."""
    left: Longs
    """(N,) milli that nobody had and that were of use."""
    free: Longs
    """(N,) milli that were free then, by the cluster's bookings."""
    tables: FragmentTables | None = field(default=None, repr=False)
    """Of the mix; None where they have to be made anew."""

    @classmethod
    def of(cls, cluster: Cluster, mix: Mix, tables: FragmentTables, capacity: Longs, left: Longs) -> "Stranding":
        """Of a cluster of which so much is left."""
        return cls(mix, capacity, left, totals(_free_milli(cluster))[: len(left)], tables)

    def packed(self) -> "Stranding":
        """For another process: what is large and can be made anew is left out."""
        return replace(self, tables=None)

    def unpacked(self, cluster: Cluster) -> "Stranding":
        """With tables that hold for a cluster, and for what it came of."""
        return replace(self, tables=tables_of(self.mix, len(cluster.models), cluster.gpu_model.shape[1]))

    def milli(self, cluster: Cluster, closed: Iterable[int] = ()) -> Longs:
        """(N,) GPU milli that are stranded in a cluster; `closed` are rows that take no pods there."""
        tables = self.tables
        if tables is None or tables.several.shape[2] <= cluster.gpu_model.shape[1]:  # of nodes with fewer GPUs each
            tables = tables_of(self.mix, len(cluster.models), cluster.gpu_model.shape[1])
        free = totals(_free_milli(cluster))
        known = min(len(free), len(self.left))
        left = free.copy()
        # What has been given or taken since counts; what took no pods then takes none now.
        moved = np.maximum(self.left[:known] + free[:known] - self.free[:known], 0)
        left[:known] = np.where((self.left[:known] <= 0) & (self.free[:known] > 0), 0, moved)
        left[list(closed)] = 0
        return stranded_of(unusable_of(cluster, tables), left)

    def part(self, cluster: Cluster, milli: Longs) -> float:
        """What (N,) milli are of all GPUs of a cluster, 0 to 1."""
        since = num_true(cluster.gpu_model[len(self.capacity) :] >= 0).sum() * WHOLE_MILLI
        capacity = int(self.capacity[: cluster.num_nodes].sum() + since)
        return round(int(milli.sum()) / max(capacity, 1), 4)


def _free_milli(cluster: Cluster) -> Longs:
    """(N, G) milli that are free; of GPUs of unknown holders the first idle ones are not."""
    free = cluster.gpu_free_milli.astype(np.int64)
    if len(rows := np.flatnonzero(cluster.untracked_units)):
        idle = cluster.gpu_idle[rows]
        taken = idle & (np.cumsum(idle, axis=1) <= cluster.untracked_units[rows, None])
        free[rows] = np.where(taken, 0, free[rows])
    return free
