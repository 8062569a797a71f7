"""How good a node is for a request: higher is better, in units of each score's own.

A score sees only each row's own state, so that its value can be remembered until the row changes.
"""

import numpy as np

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fits import Fit
from extender.core.nodes import MAX_MEMORY_MIB
from extender.core.requests import GpuRequest

_LARGEST_MIB = float(MAX_MEMORY_MIB)  # so memory only breaks ties


def best_fit(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the fewest free units left over; among equals the node whose smallest free GPU is smallest.

    True best fit over the whole node: a 2-GPU node with one in use beats an 8-GPU node with four in use.
    """
    left_over = fit.free_units - fit.taken_units
    memory = np.where(cluster.gpu_free[rows], cluster.gpu_memory_mib[rows], _LARGEST_MIB)  # (R, G)
    smallest = np.where(memory >= request.memory_each_mib, memory, _LARGEST_MIB).min(axis=1, initial=_LARGEST_MIB)
    score: Floats = -(left_over + smallest / (2 * _LARGEST_MIB))
    return score


def binpack(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the node's fraction of GPU units in use after placement: the fullest node wins (MostAllocated)."""
    capacity = (cluster.gpu_model[rows] >= 0).sum(axis=1) * cluster.units_per_gpu[rows]
    used: Floats = 1 - (fit.free_units - fit.taken_units) / np.maximum(capacity, 1)
    return used


def spread(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) the node's fraction of free GPU units after placement: the emptiest node wins (LeastAllocated)."""
    return -binpack(cluster, request, rows, fit)
