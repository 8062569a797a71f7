"""How good a node is for a request: higher is better, in units of each score's own.

A score sees only each row's own state, so that its value can be remembered until the row changes.
"""

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Mask, Rows
from extender.core.fits import Fit, share_mib
from extender.core.nodes import MAX_GPUS_PER_NODE, MAX_MEMORY_MIB
from extender.core.requests import GpuRequest

_LARGEST_MIB = float(MAX_MEMORY_MIB)  # so memory only breaks ties


def best_fit(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the fewest free units left over; among equals the node whose smallest free GPU is smallest.

    True best fit over the whole node: a 2-GPU node with one in use beats an 8-GPU node with four in use. A share is
    fitted to a GPU instead: one that has shares already before an idle one, then the one that it leaves least of,
    then the node with the fewest idle GPUs. Nodes that can give shares come before those that would give a whole GPU.
    """
    if request.milli:
        return _best_fit_of_shares(cluster, request, rows, fit)
    left_over = fit.free_units - fit.taken_units
    score: Floats = -(left_over + smallest_mib(cluster, rows, fit) / (2 * _LARGEST_MIB))
    if not fit.shares.any():
        return score
    return np.where(fit.shares, _best_fit_of_shares(cluster, request, rows, fit), score - MAX_GPUS_PER_NODE)


def smallest_mib(cluster: Cluster, rows: Rows, fit: Fit) -> Floats:
    """(R,) memory of the smallest GPU with room on each row, the largest there is where none has."""
    memory = np.where(fit.room, cluster.taken(cluster.gpu_memory_mib, rows), _LARGEST_MIB)  # (R, G)
    smallest: Floats = memory.min(axis=1, initial=_LARGEST_MIB)
    return smallest


def _best_fit_of_shares(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    left = _free_fraction(cluster, request, rows) - _asked_fraction(cluster, request, rows)  # (R, G)
    least_left = np.where(fit.room, left + fit.idle, 2.0).min(axis=1, initial=2.0)  # 0..1 where shared, 1..2 where idle
    # A fraction is a whole number of thousandths, or of MiB; free units are at most MAX_GPUS_PER_NODE.
    score: Floats = -(least_left + fit.free_units / (MAX_GPUS_PER_NODE * 2 * _LARGEST_MIB))
    return score


def binpack(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the node's fraction of GPU units in use after placement: the fullest node wins (MostAllocated).

    For shares, the fraction of the compute in use, or of the memory where nothing else is asked.
    """
    installed = cluster.taken(cluster.gpu_model, rows) >= 0
    capacity = installed.sum(axis=1) * cluster.taken(cluster.units_per_gpu, rows)
    free_after = fit.free_units - fit.taken_units
    if fit.shares.any():
        free = _free_fraction(cluster, request, rows).sum(axis=1) - cluster.taken(cluster.untracked_units, rows)
        asked = _mean(_asked_fraction(cluster, request, rows), fit.room) * request.count
        free_after = np.where(fit.shares, np.maximum(free, 0) - asked, free_after)
    used: Floats = 1 - free_after / np.maximum(capacity, 1)
    return used


def spread(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the node's fraction of free GPU units after placement: the emptiest node wins (LeastAllocated)."""
    return -binpack(cluster, request, rows, fit)


def _free_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) how much of each GPU is free, 0..1: of its compute, or of its memory where only memory is asked."""
    if request.milli:
        return cluster.taken(cluster.gpu_free_milli, rows) / WHOLE_MILLI
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    free: Floats = cluster.taken(cluster.gpu_free_mib, rows) / np.maximum(memory, 1)
    return free


def _asked_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) how much of each GPU the request would take, in the same terms."""
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    if request.milli:
        return np.full(memory.shape, request.milli / WHOLE_MILLI)
    asked: Floats = share_mib(request, memory) / np.maximum(memory, 1)
    return asked


def _mean(values: Floats, where: Mask) -> Floats:
    """(R,) the mean of the chosen values of each row, 0 where none is."""
    mean: Floats = np.where(where, values, 0).sum(axis=1) / np.maximum(where.sum(axis=1), 1)
    return mean
