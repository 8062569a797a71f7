"""Booked against observed usage: GPU memory in use without a booking, and faulty GPUs."""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Ints, Mask, Rows
from extender.core.gauges import Gauge
from extender.core.refreshes import PerRefresh
from extender.core.resources.nodes import GpuUnit
from extender.core.vendors.registry import VENDORS

HARDWARE_XIDS: Final = frozenset().union(*(vendor.fault_codes for vendor in VENDORS))
_COUNTED: Final[Mask] = np.isin(np.arange(len(GpuUnit)), (GpuUnit.WHOLE, GpuUnit.PART))
"""(len(GpuUnit),) where memory in use counts. On time-sliced GPUs other users are expected."""


class ObservedRules(msgspec.Struct, frozen=True, cache_hash=True):
    """How fit uses observations."""

    counts_memory: bool = True
    """Whether the larger of booked and used memory counts."""
    min_unmanaged_mib: int = 1024
    """Less unbooked memory in use than this is ignored: drivers and monitors use some."""
    excludes_faulty: bool = True
    """Whether faulty GPUs are excluded."""
    xids: frozenset[int] = HARDWARE_XIDS
    """XID error codes that mark a GPU as faulty."""


def faulty(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Mask:
    """(R, G) GPUs whose last XID error is in `rules.xids`, or that failed to remap a memory row."""
    shape = (len(rows), cluster.gpu_model.shape[1])
    if cluster.observed is None:
        return np.zeros(shape, np.bool_)
    xid = cluster.take_rows(cluster.observed.gauge(Gauge.XID), rows)
    remap = cluster.take_rows(cluster.observed.gauge(Gauge.ROW_REMAP_FAILED), rows)
    is_faulty: Mask = remap > 0
    if (xid > 0).any():  # rare; the lookup costs more than everything else
        is_faulty = is_faulty | np.isin(xid, sorted(rules.xids))
    return is_faulty


def unhealthy_gpus(cluster: Cluster, rules: ObservedRules | None) -> Mask:
    """(N, G) GPUs that their device plugin reports unhealthy, and those that are faulty by the rules, if any."""
    installed: Mask = cluster.gpu_model >= 0
    unhealthy: Mask = installed & ~cluster.gpu_healthy
    if rules is None or not rules.excludes_faulty:
        return unhealthy
    return unhealthy | (installed & faulty(cluster, np.arange(cluster.num_nodes), rules))


def unmanaged_mib(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Ints:
    """(R, G) MiB in use beyond the bookings, 0 below `min_unmanaged_mib` or without a fresh sample.

    Pods on GPUs of unknown index may use it: see `with_observed_usage` and `unaccounted_mib`.
    """
    if cluster.observed is None:
        return np.zeros((len(rows), cluster.gpu_model.shape[1]), np.int32)
    memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
    used = cluster.take_rows(cluster.observed.gauge(Gauge.MEMORY_USED), rows)
    counts = ~np.isnan(used) & ~cluster.take_rows(cluster.observed.outdated, rows) & (memory > 0)
    counts &= _COUNTED[cluster.take_rows(cluster.unit, rows)][:, None]
    beyond = np.where(counts, used - (memory - cluster.take_rows(cluster.gpu_free_mib, rows)), 0)
    return np.where(beyond >= rules.min_unmanaged_mib, np.ceil(beyond), 0).astype(np.int32)


def unaccounted_mib(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Ints:
    """(R, G) MiB in use by unknown processes, 0 where pods on GPUs of unknown index can explain it."""
    beyond = unmanaged_mib(cluster, rows, rules)
    explained = (beyond > 0).sum(axis=1) <= cluster.take_rows(cluster.untracked_units, rows)
    return np.where(explained[:, None], 0, beyond)


def with_observed_usage(cluster: Cluster, rules: ObservedRules | None) -> Cluster:
    """The cluster with unbooked usage subtracted from what is free.

    Memory in use on an unbooked GPU may belong to a pod on a GPU of unknown index. Each such GPU therefore reduces
    `untracked_units` by one, so that nothing is counted twice.
    """
    if rules is None or not cluster.is_sampled:
        return cluster
    milli, mib, untracked = _left(cluster, rules, np.arange(cluster.num_nodes))
    return cluster.changed(gpu_free_milli=milli, gpu_free_mib=mib, untracked_units=untracked)


class ObservedUsageCache:
    """`with_observed_usage` for successive snapshots: only rows changed since the last one are recomputed.

    A call overwrites the arrays of the earlier result.
    """

    def __init__(self, rules: ObservedRules) -> None:
        self._rules = rules
        self._booked_only = PerRefresh(self._most_free_mib)
        self._last: tuple[Cluster, Cluster] | None = None

    def __call__(self, cluster: Cluster) -> Cluster:
        """The cluster as from `with_observed_usage`."""
        if not cluster.is_sampled:
            return cluster
        if self._last is None or self._last[1].gpu_free_mib.shape != cluster.gpu_free_mib.shape:
            counted = with_observed_usage(cluster, self._rules)
        elif self._last[0] is cluster:
            return self._last[1]
        else:
            before, reused = self._last
            left = reused.gpu_free_milli, reused.gpu_free_mib, reused.untracked_units
            rows = np.flatnonzero(cluster.row_version > before.version)
            for array, values in zip(left, self._left(cluster, rows), strict=True):
                array[rows] = values
            counted = cluster.changed(gpu_free_milli=left[0], gpu_free_mib=left[1], untracked_units=left[2])
        self._last = cluster, counted
        return counted

    def _left(self, cluster: Cluster, rows: Rows) -> tuple[Ints, Ints, Ints]:
        free_mib = cluster.take_rows(cluster.gpu_free_mib, rows)
        if (free_mib < cluster.take_rows(self._booked_only(cluster), rows)).all():
            # The usual case: the one row that the last decision changed.
            return cluster.gpu_free_milli.take(rows, axis=0), free_mib, cluster.untracked_units.take(rows)
        return _left(cluster, self._rules, rows)

    def _most_free_mib(self, cluster: Cluster) -> npt.NDArray[np.float64]:
        """(N, G) observed usage takes nothing off a GPU with less unbooked memory than this."""
        every = np.arange(cluster.num_nodes)
        used = np.full(cluster.gpu_model.shape, np.nan)
        if cluster.observed is not None and self._rules.counts_memory:
            used = cluster.observed.gauge(Gauge.MEMORY_USED)
        most: npt.NDArray[np.float64] = cluster.gpu_memory_mib - used + float(self._rules.min_unmanaged_mib)
        most[np.isnan(most)] = np.inf
        if self._rules.excludes_faulty:
            most[faulty(cluster, every, self._rules)] = -np.inf
        return most


def _left(cluster: Cluster, rules: ObservedRules, rows: Rows) -> tuple[Ints, Ints, Ints]:
    """(R, G) free milli, (R, G) free MiB and (R,) untracked units with observed usage subtracted, as new arrays."""
    milli, mib = cluster.gpu_free_milli.take(rows, axis=0), cluster.gpu_free_mib.take(rows, axis=0)
    untracked = cluster.untracked_units.take(rows)
    if rules.counts_memory:
        beyond = unmanaged_mib(cluster, rows, rules)
        idle = (milli > 0) & (mib == cluster.take_rows(cluster.gpu_memory_mib, rows))
        untracked = np.maximum(untracked - ((beyond > 0) & idle).sum(axis=1), 0).astype(np.int32)
        mib = np.maximum(mib - beyond, 0)
    if rules.excludes_faulty:
        broken = faulty(cluster, rows, rules)
        milli, mib = np.where(broken, 0, milli), np.where(broken, 0, mib)
    return milli, mib, untracked
