"""Each GPU as a cell of the cluster map: how much of it is booked and used, and what is odd about it."""

from enum import IntFlag

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Longs, Rows
from extender.core.gauges import Gauge
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules, faulty, unaccounted_mib

_UNKNOWN = -1
"""Used percent of a GPU that no fresh sample tells of."""


class Mark(IntFlag):
    """What is odd about a GPU."""

    ERROR = 1
    """Unhealthy, or its samples tell of a fault."""
    FRAGMENT = 2
    """Idle, on a node of which others are in use."""
    STALE = 4
    """Its node's samples are too old to count."""
    UNMANAGED = 8
    """Memory is in use that nobody booked."""
    UNINDEXED = 16
    """Stands for what is held on the node's GPUs, nobody knows on which."""
    RESERVED = 32
    """Held for a pod that is not bound yet."""


def cells(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Longs:
    """(R, G, 3) booked percent, used percent or UNKNOWN, and Marks of each GPU slot of R rows; zeros where none is."""
    installed, healthy, memory_mib, free_milli, free_mib, untracked, per_gpu, slices = (
        array[rows]
        for array in (
            *(cluster.gpu_model >= 0, cluster.gpu_healthy, cluster.gpu_memory_mib),
            *(cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.untracked_units, cluster.units_per_gpu),
            cluster.gpu_slices,
        )
    )
    idle = healthy & (free_milli == WHOLE_MILLI) & (free_mib == memory_mib)
    # Units of unknown index are shown on the first idle GPUs: the sum is right, of the place the mark tells.
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
    told = np.stack([percent, used, marks], axis=2)
    result: Longs = np.where(installed[:, :, None], told, 0).astype(np.int64)
    return result
