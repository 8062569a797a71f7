"""Booked against used: what GPUs have left when memory that nobody booked is in use, and which ones are faulty."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Ints, Mask, Rows
from extender.core.nodes import GpuUnit
from extender.core.observations import Gauge

# NVIDIA's "XID errors" lists what each code means. Codes of applications (13, 31, 43, 45, 68, 94) say nothing of the
# GPU; these do: uncorrectable memory errors (48, 95), row remapping (64), NVLink (74), fallen off the bus (79), and
# GPU system processor errors (119, 120, 140).
HARDWARE_XIDS: Final = frozenset({48, 64, 74, 79, 95, 119, 120, 140})


@dataclass(frozen=True, slots=True)
class ObservedRules:
    """How fit counts what is observed."""

    counts_memory: bool = True
    """Whether the larger of booked and used memory counts."""
    min_unmanaged_mib: int = 1024
    """Less memory in use on a GPU that nobody booked is a driver's or a monitor's, and no sign of a user."""
    excludes_faulty: bool = True
    """Whether faulty GPUs are given to nobody."""
    xids: frozenset[int] = HARDWARE_XIDS
    """Codes of XID errors after which a GPU is faulty."""


def faulty(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Mask:
    """(R, G) GPUs whose last XID error is one of the hardware, or that failed to remap a row."""
    shape = (len(rows), cluster.gpu_model.shape[1])
    if cluster.observed is None:
        return np.zeros(shape, np.bool_)
    xid = cluster.taken(cluster.observed.gauge(Gauge.XID), rows)
    remap = cluster.taken(cluster.observed.gauge(Gauge.ROW_REMAP_FAILED), rows)
    found: Mask = remap > 0
    if (xid > 0).any():  # there are none as a rule, and to look codes up costs more than all the rest
        found = found | np.isin(xid, sorted(rules.xids))
    return found


def unmanaged_mib(cluster: Cluster, rows: Rows, rules: ObservedRules) -> Ints:
    """(R, G) memory in use beyond what is booked, 0 where it is less than counts or nothing fresh is known.

    On a node where pods hold GPUs of unknown index, theirs may be it: see `counting_observed`.
    """
    if cluster.observed is None:
        return np.zeros((len(rows), cluster.gpu_model.shape[1]), np.int32)
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    used = cluster.taken(cluster.observed.gauge(Gauge.MEMORY_USED), rows)
    known = ~np.isnan(used) & ~cluster.taken(cluster.observed.outdated, rows)
    unit = cluster.taken(cluster.unit, rows)
    known &= ((unit == GpuUnit.WHOLE) | (unit == GpuUnit.PART))[:, None] & (memory > 0)
    booked = memory - cluster.taken(cluster.gpu_free_mib, rows)
    beyond = np.where(known, used - booked, 0)
    result: Ints = np.where(beyond >= rules.min_unmanaged_mib, np.ceil(beyond), 0).astype(np.int32)
    return result


def counting_observed(
    cluster: Cluster, rules: ObservedRules | None, before: tuple[Cluster, Cluster] | None = None
) -> Cluster:
    """The cluster with what is used taken off what is free. `before` is an earlier cluster with its own result, whose
    arrays are written on: only rows that changed since are worked out again.

    Memory in use on a GPU that nobody is known to hold may be a pod's whose GPUs are of unknown index: each such GPU
    takes one off `untracked_units`, so that nothing is counted twice.
    """
    observed = cluster.observed
    if rules is None or observed is None:
        return cluster
    rows = np.arange(cluster.num_nodes)
    if before is not None and before[1].gpu_free_mib.shape == cluster.gpu_free_mib.shape:
        rows = np.flatnonzero(cluster.row_version > before[0].version)
        written = before[1]
    else:
        written = replace(
            cluster,
            gpu_free_milli=cluster.gpu_free_milli.copy(),
            gpu_free_mib=cluster.gpu_free_mib.copy(),
            untracked_units=cluster.untracked_units.copy(),
        )
    free_milli, free_mib, untracked = written.gpu_free_milli, written.gpu_free_mib, written.untracked_units
    if len(rows):
        milli, mib = cluster.gpu_free_milli[rows], cluster.gpu_free_mib[rows]
        unknown = cluster.untracked_units[rows]
        if rules.counts_memory:
            beyond = unmanaged_mib(cluster, rows, rules)
            idle = (milli > 0) & (mib == cluster.gpu_memory_mib[rows])
            unknown = np.maximum(unknown - ((beyond > 0) & idle).sum(axis=1), 0).astype(np.int32)
            mib = np.maximum(mib - beyond, 0)
        if rules.excludes_faulty:
            broken = faulty(cluster, rows, rules)
            milli, mib = np.where(broken, 0, milli), np.where(broken, 0, mib)
        free_milli[rows], free_mib[rows], untracked[rows] = milli, mib, unknown
    return replace(cluster, gpu_free_milli=free_milli, gpu_free_mib=free_mib, untracked_units=untracked)
