"""Which GPUs of a node a pod gets."""

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
    allowed = cluster.gpu_free[row]
    if request.include or request.exclude:
        allowed = allowed & model_mask(cluster, request)[cluster.gpu_model[row]]
    smallest_first = sorted(
        (memory_mib, index)
        for index, (memory_mib, usable) in enumerate(
            zip(cluster.gpu_memory_mib[row].tolist(), allowed.tolist(), strict=True)
        )
        if usable and memory_mib >= request.memory_each_mib
    )
    for count in [request.count] if request.count else range(1, len(smallest_first) + 1):
        # Windows over the sorted sizes: the first whose memory suffices wastes least of the largest GPUs.
        for start in range(len(smallest_first) - count + 1):
            window = smallest_first[start : start + count]
            if sum(memory_mib for memory_mib, _ in window) >= request.memory_total_mib:
                return tuple(sorted(index for _, index in window))
    return None
