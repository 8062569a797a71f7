"""What a node gets back when a pod that holds something of it goes: the ledger's words in those of decisions."""

from dataclasses import replace

from extender.core.bookings import Booking
from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fit.device_fits import Part as BookedPart
from extender.core.resources.nodes import SLICES, GpuUnit
from extender.plugins.holdings import Holding, Part


def booking_of(cluster: Cluster, row: int, holding: Holding, cpu_milli: int, memory_mib: int) -> Booking:
    """What is counted as taken of a row for a holding (see `ledger.occupancy`), CPU and main memory included."""
    empty = Booking(
        mig=holding.mig,
        served=int(holding.units > 0 and not holding.unserved),
        unserved=int(holding.unserved),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )
    found = [(gpu, part) for part in holding.parts if (gpu := _gpu_of(cluster, row, part)) is not None]
    if cluster.unit[row] in SLICES:
        return replace(empty, slices=tuple(gpu for gpu, _ in found), unknown=holding.units)
    of_memory = cluster.unit[row] == GpuUnit.PART
    booked = tuple(
        BookedPart(gpu, WHOLE_MILLI, int(cluster.gpu_memory_mib[row, gpu]))
        if part.whole or (part.milli == 0 and not of_memory)
        else BookedPart(gpu, part.milli, part.mib)
        for gpu, part in found
    )
    unknown = max(holding.units - len(booked), 0)
    if all(part.milli == WHOLE_MILLI for part in booked):
        return replace(empty, gpus=tuple(part.gpu for part in booked), unknown=unknown)
    return replace(empty, parts=booked, unknown=unknown)


def gpus_held(holding: Holding) -> float:
    """GPUs, a share as its part of one, MIG devices as none."""
    known = sum(min(part.milli, WHOLE_MILLI) or WHOLE_MILLI for part in holding.parts) / WHOLE_MILLI
    return known + max(holding.units - len(holding.parts), 0)


def _gpu_of(cluster: Cluster, row: int, part: Part) -> int | None:
    """Which GPU of the row it is, None when that can't be told; as the ledger looks for it."""
    uuids = cluster.gpu_uuids[row]
    if part.uuid and any(uuids):
        return uuids.index(part.uuid) if part.uuid in uuids else None
    return part.gpu if 0 <= part.gpu < len(uuids) else None
