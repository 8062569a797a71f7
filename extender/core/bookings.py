"""What a pod takes from a node: one rule for placements, plans, skips and simulations."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.fit.device_fits import Part, allocation_at, parts_at
from extender.core.fit.fittings import share_mib
from extender.core.resources.nodes import SLICES, GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest


@dataclass(frozen=True, slots=True)
class Booking:
    """What one pod takes from one node."""

    gpus: tuple[int, ...] = ()
    milli: int = WHOLE_MILLI
    """Compute of each GPU."""
    mib_each: tuple[int, ...] = ()
    """MiB of each GPU, in the order of `gpus`; () for all memory, where all compute is booked."""
    slices: tuple[int, ...] = ()
    """GPUs of which the pod has one time slice each; `unknown` counts these slices too."""
    takings: tuple[Taking, ...] = ()
    """Devices allocated to the pod's ResourceClaims."""
    parts: tuple[Part, ...] = ()
    """The GPU resources of `takings`."""
    unknown: int = 0
    """Units of unknown index: the device plugin picks them."""
    mig: tuple[tuple[str, int], ...] = ()
    """Number of MIG devices by profile."""
    served: int = 0
    """1 for a pod that gets its GPUs from the node's device plugin."""
    unserved: int = 0
    """1 for a pod whose GPUs the device plugin does not know about."""
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """The known GPUs that the booking touches."""
        return self.gpus or tuple(part.gpu for part in self.parts)


def booking(
    cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...], cpu_milli: int = 0, memory_mib: int = 0
) -> Booking:
    """The booking of a request that gets `gpus` of a node, () where the device plugin picks them."""
    if request.devices is not None:
        return _of_devices(cluster, row, request.devices, cpu_milli, memory_mib)
    if request.mig:
        return Booking(mig=request.mig, cpu_milli=cpu_milli, memory_mib=memory_mib)
    slices: tuple[int, ...] = ()
    if cluster.unit.item(row) in SLICES:
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


def _of_devices(cluster: Cluster, row: int, asked: DeviceClaims, cpu_milli: int, memory_mib: int) -> Booking:
    allocation = allocation_at(cluster, row, asked)
    parts = parts_at(cluster, row, allocation)
    return Booking(takings=allocation.takings, parts=parts, cpu_milli=cpu_milli, memory_mib=memory_mib)


def booked_each(cluster: Cluster, row: int, request: GpuRequest, gpus: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Milli booked on each GPU of a request, and MiB on each; (WHOLE_MILLI, ()) for whole GPUs."""
    if request.milli or (request.shares_by_memory and cluster.unit.item(row) == GpuUnit.PART):
        return request.milli, tuple(share_mib(request, cluster.gpu_memory_mib[row, list(gpus)]).tolist())
    return WHOLE_MILLI, ()


_BOOKED: Final = (
    *("gpu_free_milli", "gpu_free_mib", "gpu_slices", "untracked_units", "num_served", "num_unserved", "mig_free"),
    *("cpu_free_milli", "memory_free_mib", "devices"),
)


def writable_copy(cluster: Cluster) -> Cluster:
    """A copy of the cluster whose booked arrays `book` may write."""
    return replace(cluster, **{name: array.copy() for name in _BOOKED if (array := getattr(cluster, name)) is not None})


def without_bookings(cluster: Cluster) -> Cluster:
    """The cluster without any bookings or observations."""
    healthy, none = cluster.gpu_healthy & (cluster.gpu_model >= 0), np.zeros_like(cluster.num_served)
    devices = cluster.devices
    if devices is not None:
        devices = np.array([each and NodeDevices.of(each.inventory) for each in devices], dtype=np.object_)
    return replace(
        cluster,
        gpu_free_milli=np.where(healthy, WHOLE_MILLI, 0).astype(np.int32),
        gpu_free_mib=np.where(healthy, cluster.gpu_memory_mib, 0).astype(np.int32),
        gpu_slices=np.zeros_like(cluster.gpu_slices),
        untracked_units=cluster.withheld_units.copy(),
        num_served=none.copy(),
        num_unserved=none.copy(),
        mig_free=cluster.mig_installed.copy(),
        cpu_free_milli=cluster.cpu_milli.copy(),
        memory_free_mib=cluster.memory_mib.copy(),
        observed=None,
        devices=devices,
    )


def book(cluster: Cluster, row: int, booked: Booking, sign: int = -1) -> None:
    """Book (`sign` -1) or release (+1) on a node, in place: the cluster must come from `writable_copy`."""
    cluster.states.pop(row, None)
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
