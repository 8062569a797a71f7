"""The cells of the cluster map: bookings, use and marks of each GPU."""

from enum import IntFlag

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Longs, Rows
from extender.core.gauges import Gauge
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules, faulty, unaccounted_mib

_UNKNOWN = -1
"""Used percent of a GPU without fresh samples."""


class Mark(IntFlag):
    """Special states of a GPU."""

    ERROR = 1
    """Unhealthy, or faulty according to its samples."""
    FRAGMENT = 2
    """Idle, on a partly used node."""
    STALE = 4
    """Its node's samples are too old to count."""
    UNMANAGED = 8
    """Has memory in use that is not booked."""
    UNINDEXED = 16
    """Represents units that are held on unknown GPUs of the node."""
    RESERVED = 32
    """Held for a pod that is not bound yet."""


def cells(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Longs:
    """(R, G, 3) booked percent, used percent or `_UNKNOWN`, and Marks of each GPU slot of R rows; 0 for empty slots."""
    installed, healthy, memory_mib, free_milli, free_mib, untracked, per_gpu, slices = (
        array[rows]
        for array in (
            *(cluster.gpu_model >= 0, cluster.gpu_healthy, cluster.gpu_memory_mib),
            *(cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.untracked_units, cluster.units_per_gpu),
            cluster.gpu_slices,
        )
    )
    idle = healthy & (free_milli == WHOLE_MILLI) & (free_mib == memory_mib)
    # Units of unknown index are shown on the first idle GPUs, with a mark: their sum is right, their place is not.
    left = np.where(idle, np.maximum(per_gpu[:, None] - slices, 0), 0)
    hidden = (untracked - slices.sum(axis=1))[:, None] - (np.cumsum(left, axis=1) - left)
    unindexed = np.clip(hidden, 0, left) / per_gpu[:, None]
    by_memory = np.where(memory_mib > 0, 1 - free_mib / np.maximum(memory_mib, 1), 0)
    booked = np.maximum(1 - free_milli / WHOLE_MILLI, by_memory)
    booked = np.maximum(booked, np.minimum(unindexed + slices / per_gpu[:, None], 1))
    num_units, num_free = installed.sum(axis=1) * per_gpu, idle.sum(axis=1) * per_gpu - untracked
    cut = (num_free > 0) & (num_free < num_units)

    marks = np.where(installed & ~healthy, Mark.ERROR, 0)
    marks |= np.where(idle & (unindexed < 1) & cut[:, None], Mark.FRAGMENT, 0)
    marks |= np.where(unindexed > 0, Mark.UNINDEXED, 0)
    used = np.full(installed.shape, _UNKNOWN)
    observed = cluster.observed
    if observed is not None:
        load = observed.gauge(Gauge.LOAD)[rows]
        used = np.where(np.isnan(load), _UNKNOWN, np.rint(100 * np.nan_to_num(load)).astype(np.int64))
        beyond = unaccounted_mib(cluster, rows, rules) > 0
        marks |= np.where(beyond, Mark.UNMANAGED, 0) | np.where(faulty(cluster, rows, rules), Mark.ERROR, 0)
        marks |= np.where(observed.state[rows] == SampleState.STALE, Mark.STALE, 0)[:, None]
    percent = np.where(healthy, np.rint(100 * booked), 0).astype(np.int64)
    stacked = np.stack([percent, used, marks], axis=2)
    result: Longs = np.where(installed[:, :, None], stacked, 0).astype(np.int64)
    return result
