"""A cluster's rows as `arrays.Nodes`: what learned ranks see of them, now and after a decision."""

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Longs, Mask, Rows, num_true
from extender.core.fit.fittings import share_mib
from extender.core.fit.results import Fit
from extender.core.fragmentation.arrays import Nodes
from extender.core.resources.requests import GpuRequest


def node_states(cluster: Cluster, rows: Rows, num_models: int) -> Nodes:
    """R rows in their present state. Models from `num_models` on are one: the one of that number.

    A GPU of which less memory is left than compute counts as that; CPU and memory that are overdrawn count as none.
    """
    installed = cluster.taken(cluster.gpu_model, rows)
    return Nodes(
        cpu_milli=cluster.taken(cluster.cpu_milli, rows),
        memory_mib=cluster.taken(cluster.memory_mib, rows),
        num_gpus=num_true(installed >= 0),
        model=np.minimum(installed.max(axis=1, initial=-1), num_models).astype(np.int64),
        cpu_free_milli=np.maximum(cluster.taken(cluster.cpu_free_milli, rows), 0),
        memory_free_mib=np.maximum(cluster.taken(cluster.memory_free_mib, rows), 0),
        gpu_free_milli=_withheld(cluster, rows, _left(cluster, rows), np.zeros(len(rows), np.int64)),  # type: ignore[arg-type]
    )


def after_whole(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, before: Nodes) -> Nodes:
    """The same once the request is placed on each: whole GPUs, units that the plugin picks, shares of several GPUs.

    `fit` is that of the rows. Which of several equal GPUs is taken makes no difference.
    """
    first = fit.room & (np.cumsum(fit.room, axis=1) <= fit.taken_units[:, None])
    left = np.where(fit.shares[:, None], before.gpu_free_milli - request.milli, 0)
    free = np.where(first, left, before.gpu_free_milli)
    counted = cluster.taken(cluster.units_per_gpu, rows) > 1
    if counted.any():  # time slices, whose GPUs nobody knows
        free = np.where(counted[:, None], _withheld(cluster, rows, _left(cluster, rows), fit.taken_units), free)
    return _with_compute(before, request)._replace(gpu_free_milli=free)


def after_share(
    cluster: Cluster, request: GpuRequest, rows: Rows, room: Mask, before: Nodes
) -> tuple[Nodes, Rows, Rows]:
    """Q states once a share of one GPU is placed on each GPU with room; of GPUs with as much left the first is tried.

    Returns the states, (Q,) which of the R rows they are of, and (Q,) the GPU.
    """
    milli, mib = cluster.taken(cluster.gpu_free_milli, rows), cluster.taken(cluster.gpu_free_mib, rows)
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    key = milli.astype(np.int64) << 44 | mib.astype(np.int64) << 22 | memory  # 63 bits
    by_gpu = np.ascontiguousarray(np.where(room, key, -1).T)  # (G, R)
    tried = room.T.copy()
    for g in range(1, len(by_gpu)):
        for earlier in range(g):
            tried[g] &= by_gpu[g] != by_gpu[earlier]
    of, gpu = np.nonzero(tried.T)
    # Flat, and `take`: tuples of indices cost NumPy several times as much.
    at = of * room.shape[1] + gpu
    milli, mib, memory = (column.reshape(-1).take(at) for column in (milli, mib, memory))
    by_milli, left_mib = milli - request.milli, mib - share_mib(request, memory)
    by_mib = np.where(memory > 0, left_mib.astype(np.int64) * WHOLE_MILLI // np.maximum(memory, 1), WHOLE_MILLI)
    states = Nodes(*(column.take(of, axis=0) for column in _with_compute(before, request)))  # type: ignore[arg-type]
    left = np.clip(np.minimum(by_milli, by_mib), 0, WHOLE_MILLI)
    states.gpu_free_milli.reshape(-1)[np.arange(len(of)) * room.shape[1] + gpu] = left
    return states, of, gpu


def _with_compute(before: Nodes, request: GpuRequest) -> Nodes:
    return before._replace(
        cpu_free_milli=np.maximum(before.cpu_free_milli - request.cpu_milli, 0),
        memory_free_mib=np.maximum(before.memory_free_mib - request.memory_mib, 0),
    )


def _left(cluster: Cluster, rows: Rows) -> Longs:
    """(R, G) milli left of each GPU, the lesser of compute and memory."""
    left: Longs = cluster.taken(cluster.gpu_free_milli, rows).astype(np.int64)
    memory, free = cluster.taken(cluster.gpu_memory_mib, rows), cluster.taken(cluster.gpu_free_mib, rows)
    partly = free != memory
    if partly.any():
        by_memory = free[partly].astype(np.int64) * WHOLE_MILLI // np.maximum(memory[partly], 1)
        left[partly] = np.minimum(left[partly], by_memory)
    return left


def _withheld(cluster: Cluster, rows: Rows, left: Longs, more_units: Longs) -> Longs:
    """(R, G) `left` without the units that somebody of unknown index holds, and so many more: the last idle GPUs'."""
    units = cluster.taken(cluster.untracked_units, rows) + more_units
    if not units.any():
        return left
    held = units * WHOLE_MILLI // np.maximum(cluster.taken(cluster.units_per_gpu, rows), 1)  # (R,)
    idle = np.where(left == WHOLE_MILLI, left, 0)
    behind = np.cumsum(idle[:, ::-1], axis=1)[:, ::-1] - idle  # (R, G) idle milli of the GPUs after each
    taken: Longs = np.clip(held[:, None] - behind, 0, idle)
    return left - taken
