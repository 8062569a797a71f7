"""What a pod takes of a node: the one rule for placements, plans, skips and simulations."""

from dataclasses import dataclass

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fit.fits import share_mib
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Booking:
    """What is taken of one node."""

    gpus: tuple[int, ...] = ()
    milli: int = WHOLE_MILLI
    """Compute of each GPU."""
    mib_each: tuple[int, ...] = ()
    """Memory of each GPU in their order; all of it where all compute is booked."""
    unknown: int = 0
    """Units whose index nobody knows: the device plugin alone picks them."""
    mig: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0


def booking(
    cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...], cpu_milli: int = 0, memory_mib: int = 0
) -> Booking:
    """What a request takes that gets some GPUs of a node, () where the device plugin picks them."""
    if request.mig:
        return Booking(mig=request.mig, cpu_milli=cpu_milli, memory_mib=memory_mib)
    if not gpus:
        return Booking(unknown=max(request.count, 1), cpu_milli=cpu_milli, memory_mib=memory_mib)
    milli, mib_each = booked_each(cluster, row, request, gpus)
    return Booking(gpus, milli, mib_each, cpu_milli=cpu_milli, memory_mib=memory_mib)


def booked_each(cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Milli of compute that a request books on each of its GPUs, and MiB of memory on each; WHOLE_MILLI and (): all."""
    if request.milli or (request.shares_by_memory and cluster.unit[row] == GpuUnit.PART):
        return request.milli, tuple(share_mib(request, cluster.gpu_memory_mib[row, list(gpus)]).tolist())
    return WHOLE_MILLI, ()


def book(cluster: Cluster, row: int, booked: Booking, sign: int = -1) -> None:
    """Take a booking off a node, or give it back (+1), in the arrays of a cluster that is nobody else's."""
    cluster.cpu_free_milli[row] += sign * booked.cpu_milli
    cluster.memory_free_mib[row] += sign * booked.memory_mib
    gpus = list(booked.gpus)
    cluster.gpu_free_milli[row, gpus] += sign * booked.milli
    whole = booked.milli == WHOLE_MILLI
    cluster.gpu_free_mib[row, gpus] += sign * (
        cluster.gpu_memory_mib[row, gpus] if whole else np.array(booked.mib_each, np.int32)
    )
    cluster.untracked_units[row] -= sign * booked.unknown
    for profile, count in booked.mig:
        cluster.mig_free[row, cluster.mig_profiles.index(profile)] += sign * count
