"""Which GPUs of a node a pod gets."""

import numpy as np

from extender.core.clusters import Cluster
from extender.core.fits import model_mask
from extender.core.nodes import GpuUnit
from extender.core.requests import GpuRequest


def choose_gpus(cluster: Cluster, row: int, request: GpuRequest) -> tuple[int, ...] | None:
    """Indices of the GPUs for a request on one node, best fit on the GPUs' own memory; None when it does not fit.

    The smallest GPUs that satisfy the request are taken, lowest index first among equals, so that larger ones stay
    for those who need them. Time slices are picked by the device plugin alone: for them the choice is empty.
    """
    if cluster.unit[row] != GpuUnit.WHOLE:
        return ()
    memory = cluster.gpu_memory_mib[row]
    usable = cluster.gpu_free[row] & (memory >= request.memory_each_mib)
    if request.include or request.exclude:
        usable = usable & model_mask(cluster, request)[cluster.gpu_model[row]]
    candidates = np.flatnonzero(usable)
    smallest_first = candidates[np.argsort(memory[candidates], kind="stable")]
    sizes = memory[smallest_first].astype(np.int64)
    for count in [request.count] if request.count else range(1, len(sizes) + 1):
        if count > len(sizes):
            return None
        # Windows over the sorted sizes: the first whose memory suffices wastes least of the largest GPUs.
        totals = np.convolve(sizes, np.ones(count, np.int64), mode="valid")
        sufficient = np.flatnonzero(totals >= request.memory_total_mib)
        if len(sufficient):
            window = smallest_first[sufficient[0] : sufficient[0] + count]
            return tuple(sorted(int(index) for index in window))
    return None
