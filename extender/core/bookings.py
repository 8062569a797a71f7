"""What a pod takes of a node: the one rule for placements, plans, skips and simulations."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.fit.device_fits import Part, given_at, parts_at
from extender.core.fit.fittings import share_mib
from extender.core.resources.nodes import SLICES, GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest


@dataclass(frozen=True, slots=True)
class Booking:
    """What is taken of one node."""

    gpus: tuple[int, ...] = ()
    milli: int = WHOLE_MILLI
    """Compute of each GPU."""
    mib_each: tuple[int, ...] = ()
    """Memory of each GPU in their order; all of it where all compute is booked."""
    slices: tuple[int, ...] = ()
    """The GPUs of which it has a time slice each; the slices are counted in `unknown`."""
    takings: tuple[Taking, ...] = ()
    """Devices that its ResourceClaims get."""
    parts: tuple[Part, ...] = ()
    """What these are of the node's GPUs."""
    unknown: int = 0
    """Units whose index nobody knows: the device plugin alone picks them."""
    mig: tuple[tuple[str, int], ...] = ()
    served: int = 0
    """1 for a pod that gets GPUs from the node's device plugin."""
    unserved: int = 0
    """1 for one of which it knows nothing."""
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """The GPUs of which it has something, as far as they are known."""
        return self.gpus or tuple(part.gpu for part in self.parts)


def booking(
    cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...], cpu_milli: int = 0, memory_mib: int = 0
) -> Booking:
    """What a request takes that gets some GPUs of a node, () where the device plugin picks them."""
    if request.devices is not None:
        return _of_devices(cluster, row, request.devices, cpu_milli, memory_mib)
    if request.mig:
        return Booking(mig=request.mig, cpu_milli=cpu_milli, memory_mib=memory_mib)
    slices: tuple[int, ...] = ()
    if cluster.unit[row] in SLICES:
        slices, gpus = gpus, ()
    milli, mib_each = booked_each(cluster, row, request, gpus) if gpus else (WHOLE_MILLI, ())
    unserved = request.unit is AskedUnit.WHOLE
    return Booking(
        gpus=gpus,
        milli=milli,
        mib_each=mib_each,
        slices=slices,
        unknown=0 if gpus else max(request.count, 1),
        served=int(not unserved),
        unserved=int(unserved),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


def _of_devices(cluster: Cluster, row: int, asked: DevicesAsked, cpu_milli: int, memory_mib: int) -> Booking:
    found = given_at(cluster, row, asked)
    parts = parts_at(cluster, row, found)
    return Booking(takings=found.takings, parts=parts, cpu_milli=cpu_milli, memory_mib=memory_mib)


def booked_each(cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Milli of compute that a request books on each of its GPUs, and MiB of memory on each; WHOLE_MILLI and (): all."""
    if request.milli or (request.shares_by_memory and cluster.unit[row] == GpuUnit.PART):
        return request.milli, tuple(share_mib(request, cluster.gpu_memory_mib[row, list(gpus)]).tolist())
    return WHOLE_MILLI, ()


_BOOKED: Final = (
    *("gpu_free_milli", "gpu_free_mib", "gpu_slices", "untracked_units", "num_served", "num_unserved", "mig_free"),
    *("cpu_free_milli", "memory_free_mib", "devices"),
)


def bookable(cluster: Cluster) -> Cluster:
    """The cluster with arrays of its own where `book` writes."""
    return replace(cluster, **{name: array.copy() for name in _BOOKED if (array := getattr(cluster, name)) is not None})


def emptied(cluster: Cluster) -> Cluster:
    """The cluster as it would be if nobody used it: what is booked is free, and nobody is seen on it."""
    healthy, nobody = cluster.gpu_healthy & (cluster.gpu_model >= 0), np.zeros_like(cluster.num_served)
    devices = cluster.devices
    if devices is not None:
        devices = np.array([each and NodeDevices.of(each.inventory) for each in devices], dtype=np.object_)
    return replace(
        cluster,
        gpu_free_milli=np.where(healthy, WHOLE_MILLI, 0).astype(np.int32),
        gpu_free_mib=np.where(healthy, cluster.gpu_memory_mib, 0).astype(np.int32),
        gpu_slices=np.zeros_like(cluster.gpu_slices),
        untracked_units=cluster.withheld_units.copy(),
        num_served=nobody.copy(),
        num_unserved=nobody.copy(),
        mig_free=cluster.mig_installed.copy(),
        cpu_free_milli=cluster.cpu_milli.copy(),
        memory_free_mib=cluster.memory_mib.copy(),
        observed=None,
        devices=devices,
    )


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
    for gpu, milli, mib in booked.parts:
        cluster.gpu_free_milli[row, gpu] += sign * milli
        cluster.gpu_free_mib[row, gpu] += sign * mib
    if booked.takings and cluster.devices is not None:
        devices: NodeDevices = cluster.devices[row]
        cluster.devices[row] = devices.taking(booked.takings) if sign < 0 else devices.giving_back(booked.takings)
    if booked.slices:
        cluster.gpu_slices[row, list(booked.slices)] -= sign
    cluster.untracked_units[row] -= sign * booked.unknown
    cluster.num_served[row] -= sign * booked.served
    cluster.num_unserved[row] -= sign * booked.unserved
    for profile, count in booked.mig:
        cluster.mig_free[row, cluster.mig_profiles.index(profile)] += sign * count
