"""Which nodes a request fits, as reason codes with the numbers behind them.

The same GPUs must satisfy model, memory and what is free, and a GPU that somebody of unknown index may hold is never
promised: `untracked_units` count against every selection of idle GPUs. A whole GPU is given only where nobody holds
anything of it, a share only where nobody holds the whole.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Ints, Longs, Mask, Rows, num_true
from extender.core.fit.device_fits import fit_devices
from extender.core.fit.reasons import Reason
from extender.core.fit.results import Fit
from extender.core.fit.sizes import most_memory_mib, nth_largest
from extender.core.resources.gpu_models import UNKNOWN_MODEL, models_allowed
from extender.core.resources.nodes import MAX_MEMORY_MIB, GpuUnit, LeftOut
from extender.core.resources.requests import AskedUnit, GpuRequest


def _accepts(*units: GpuUnit) -> Mask:
    """One boolean per GpuUnit."""
    return np.isin(np.arange(len(GpuUnit)), units)


_ACCEPTED_UNITS: Final = {
    AskedUnit.GPU: _accepts(GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU, GpuUnit.PART, GpuUnit.CLAIM),
    AskedUnit.WHOLE: _accepts(GpuUnit.WHOLE, GpuUnit.PART),
    AskedUnit.SHARED: _accepts(GpuUnit.REPLICA),
    AskedUnit.PART: _accepts(GpuUnit.PART),
    AskedUnit.CLAIM: _accepts(GpuUnit.CLAIM, GpuUnit.OWNED),
}
"""For each way of asking for GPUs, where it can be had."""
_INDEXED_UNITS: Final = _accepts(GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.CLAIM, GpuUnit.OWNED)
"""Where it is known which GPU a pod gets, as a choice of UUIDs needs."""
_PARTS: Final = _accepts(GpuUnit.PART)
"""Where a share under the name `nvidia.com/gpu` can be had: other plugins hand out a whole GPU for it."""

LARGEST_MIB: Final = float(MAX_MEMORY_MIB)

_Failure = tuple[Mask, Reason, Longs]
"""Where a check fails, as what, and the number to tell."""


def fit(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
    """Check a request on R rows of a cluster."""
    if request.unit is AskedUnit.NONE:
        return _fit_without_gpus(cluster, rows)
    if request.devices is not None:
        return fit_devices(cluster, request.devices, rows)
    if request.mig:
        return _fit_mig(cluster, request, rows)
    unit = cluster.taken(cluster.unit, rows)
    per_gpu = cluster.taken(cluster.units_per_gpu, rows)  # (R,)
    untracked = cluster.taken(cluster.untracked_units, rows)  # (R,)
    memory = cluster.taken(cluster.gpu_memory_mib, rows)  # (R, G)
    free_milli = cluster.taken(cluster.gpu_free_milli, rows)  # (R, G)
    free_mib = cluster.taken(cluster.gpu_free_mib, rows)  # (R, G)
    installed = cluster.taken(cluster.gpu_model, rows) >= 0  # (R, G)
    healthy = installed & cluster.taken(cluster.gpu_healthy, rows)
    idle = (free_milli == WHOLE_MILLI) & (free_mib == memory)
    shares = _shares(request, unit)
    needed = max(request.count, 1)

    num_installed = num_true(installed) * per_gpu
    num_healthy = num_true(healthy) * per_gpu
    free_units = np.maximum(num_true(idle) * per_gpu - untracked, 0)
    failures: list[_Failure] = [
        (unit == GpuUnit.NONE, Reason.NO_GPUS, num_installed),
        (~_accepted(request)[unit], Reason.NOT_THIS_KIND, num_installed),
        (num_installed < needed, Reason.TOO_FEW_INSTALLED, num_installed),
        (num_healthy < needed, Reason.UNHEALTHY, num_healthy),
    ]
    of_size = _of_size(cluster, request, rows, healthy, failures)
    set_aside = cluster.taken(cluster.set_aside, rows).astype(np.int64)
    failures.append((set_aside > 0, Reason.SET_ASIDE, set_aside))
    failures.append((cluster.taken(cluster.closed, rows), Reason.KEPT_FOR_MOVE, num_healthy))
    failures.append((_kept_apart(cluster, request, rows), Reason.KEPT_APART, num_installed))

    num_of_node = len(failures)
    room = idle & of_size
    available = np.maximum(num_true(room) * per_gpu - untracked, 0)
    taken = np.full(len(rows), needed, dtype=np.int64)
    if request.memory_total_mib:
        total_mib, _ = most_memory_mib(memory, per_gpu, of_size, np.zeros_like(untracked), request)
        free_total_mib, taken = most_memory_mib(memory, per_gpu, room, untracked, request)
        unknown = (of_size & (memory == 0)).any(axis=1)
        failures += [
            ((total_mib < request.memory_total_mib) & unknown, Reason.MEMORY_UNKNOWN, total_mib),
            (total_mib < request.memory_total_mib, Reason.TOTAL_TOO_SMALL, total_mib),
            (available < needed, Reason.BUSY, available),
            (free_total_mib < request.memory_total_mib, Reason.TOTAL_BUSY, free_total_mib),
        ]
    else:
        if shares.any():
            shared_room, busy = _share_room(request, shares, of_size, memory, free_milli, free_mib)
            failures += busy
            room = np.where(shares[:, None], shared_room, room)
            idle_with_room = np.maximum(num_true(shared_room & idle) - untracked, 0)
            available = np.where(shares, num_true(shared_room & ~idle) + idle_with_room, available)
        failures.append((available < needed, Reason.BUSY, available))
    left_out = cluster.taken(cluster.left_out, rows)
    if left_out.any():
        cut = left_out == LeftOut.TOO_MANY
        failures.insert(num_of_node, (cut & (available < needed), Reason.NO_GPUS, left_out.astype(np.int64)))
        failures.insert(0, (cut & (num_installed < needed), Reason.NO_GPUS, left_out.astype(np.int64)))
        failures.insert(0, _left_out(left_out))

    return Fit(*_first_failed(failures, available), room, idle, free_units, taken, shares)


def _fit_without_gpus(cluster: Cluster, rows: Rows) -> Fit:
    """Everywhere: CPU and main memory are kube-scheduler's to check, as for all pods."""
    milli, mib = cluster.taken(cluster.gpu_free_milli, rows), cluster.taken(cluster.gpu_free_mib, rows)
    idle = (milli == WHOLE_MILLI) & (mib == cluster.taken(cluster.gpu_memory_mib, rows))
    units = num_true(idle) * cluster.taken(cluster.units_per_gpu, rows)
    free_units = np.maximum(units - cluster.taken(cluster.untracked_units, rows), 0)
    nothing = np.zeros(len(rows), np.int64)
    reason = np.full(len(rows), Reason.FITS, np.uint8)
    return Fit(reason, nothing, np.zeros_like(idle), idle, free_units, nothing, np.zeros(len(rows), np.bool_))


def _first_failed(failures: list[_Failure], available: Longs) -> tuple[npt.NDArray[np.uint8], Longs]:
    """(R,) the reason of the first check that fails, and the number to tell: `available` where none does."""
    reason = np.full(len(available), Reason.FITS, dtype=np.uint8)
    for failed, code, number in reversed(failures):  # so that the first failed check has the last word
        if failed.any():
            reason[failed] = code
            available = np.where(failed, number, available)
    return reason, available


def _left_out(left_out: npt.NDArray[np.int8]) -> _Failure:
    """Where a node gives nothing, whatever it has, with the reason: (R,) LeftOut."""
    nothing = (left_out != LeftOut.NOTHING) & (left_out != LeftOut.TOO_MANY)
    return nothing, Reason.NO_GPUS, left_out.astype(np.int64)


def _of_size(cluster: Cluster, request: GpuRequest, rows: Rows, healthy: Mask, failures: list[_Failure]) -> Mask:
    """(R, G) healthy GPUs of the UUIDs, models and size asked; adds where there are too few to the failures."""
    per_gpu = cluster.taken(cluster.units_per_gpu, rows)  # (R,)
    needed = max(request.count, 1)
    of_size = healthy
    if request.uuids or request.uuids_exclude:
        of_size = of_size & cluster.taken(uuid_mask(cluster, request), rows)
        num_of_uuid = num_true(of_size) * per_gpu
        failures.append((num_of_uuid < needed, Reason.WRONG_UUID, num_of_uuid))
    if request.include or request.exclude:
        model = cluster.taken(cluster.gpu_model, rows)
        before, of_size = of_size, of_size & model_mask(cluster, request)[model]
        num_of_model = num_true(of_size) * per_gpu
        too_few = num_of_model < needed
        if too_few.any():
            nameless = np.array([not known.names for known in (*cluster.models, UNKNOWN_MODEL)])[model]
            maybe = num_true(before & (of_size | nameless)) * per_gpu >= needed
            failures.append((too_few & maybe, Reason.MODEL_UNKNOWN, num_of_model))
        failures.append((too_few, Reason.WRONG_MODEL, num_of_model))
    if request.memory_each_mib:
        memory = cluster.taken(cluster.gpu_memory_mib, rows)
        before, of_size = of_size, of_size & (memory // per_gpu[:, None] >= request.memory_each_mib)
        num_of_size = num_true(of_size) * per_gpu
        too_few = num_of_size < needed
        if too_few.any():
            maybe = num_true(before & (of_size | (memory == 0))) * per_gpu >= needed
            failures.append((too_few & maybe, Reason.MEMORY_UNKNOWN, num_of_size))
        failures.append((too_few, Reason.TOO_SMALL, num_of_size))
    return of_size


def _kept_apart(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
    """(R,) where the device plugin picks GPUs by itself, and pods are that it serves beside those of which it knows
    nothing: it would give away the GPUs of the latter."""
    others = cluster.num_served if request.unit is AskedUnit.WHOLE else cluster.num_unserved
    apart: Mask = cluster.taken(cluster.plugin_picks & (others > 0), rows)
    return apart


def enough_compute(cluster: Cluster, cpu_milli: int, memory_mib: int, rows: Rows) -> Mask:
    """(R,) where there is so much CPU and main memory, which `fit` leaves to kube-scheduler's own filter."""
    enough: Mask = cluster.taken(cluster.cpu_free_milli, rows) >= cpu_milli
    return enough & (cluster.taken(cluster.memory_free_mib, rows) >= memory_mib)


def _accepted(request: GpuRequest) -> Mask:
    """For each GpuUnit, whether nodes that offer it can serve the request at all."""
    units = _ACCEPTED_UNITS[request.unit]
    if request.uuids or request.uuids_exclude:
        units = units & _INDEXED_UNITS
    if request.milli and request.unit is AskedUnit.GPU:
        units = units & _PARTS
    return units


def model_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(M + 1,) which models of the vocabulary the request accepts; the last entry, for "no GPU" (-1), is False."""
    return np.append(models_allowed(cluster.models, request.include, request.exclude), False)


def uuid_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(N, G) which GPUs the request's UUIDs allow. A GPU of unknown UUID is in no list."""
    allowed = np.full(cluster.gpu_model.shape, not request.uuids)
    for uuids, verdict in ((request.uuids, True), (request.uuids_exclude, False)):
        for uuid in uuids:
            if uuid in cluster.gpu_at:
                allowed[cluster.gpu_at[uuid]] = verdict
    return allowed


def _shares(request: GpuRequest, unit: npt.NDArray[np.int8]) -> Mask:
    """(R,) where the request asks for shares."""
    if request.milli:
        return np.ones(len(unit), np.bool_)
    if request.shares_by_memory:
        return _PARTS[unit]
    return np.zeros(len(unit), np.bool_)


def _share_room(
    request: GpuRequest, shares: Mask, of_size: Mask, memory: Ints, free_milli: Ints, free_mib: Ints
) -> tuple[Mask, list[_Failure]]:
    """(R, G) GPUs that have room for a share, and where there are too few for want of compute or of memory."""
    milli, needed = max(request.milli, 1), max(request.count, 1)  # a GPU without any compute left serves nobody
    enough = of_size & (free_milli >= milli)
    roomy = enough & (free_mib >= share_mib(request, memory))
    too_few = shares & (num_true(roomy) < needed)
    if not too_few.any():
        return roomy, []
    most_milli = nth_largest(np.where(of_size, free_milli, 0), needed)
    most_mib = nth_largest(np.where(enough, free_mib, 0), needed)
    return roomy, [
        (shares & (most_milli < milli), Reason.COMPUTE_BUSY, most_milli),
        (too_few, Reason.MEMORY_BUSY, most_mib),
    ]


def share_mib(request: GpuRequest, memory_mib: Ints) -> Ints:
    """Memory that a share takes of GPUs of so much memory, in the same shape."""
    return np.maximum(request.memory_each_mib, memory_mib * request.memory_each_percent // 100)


def smallest_mib(cluster: Cluster, rows: Rows, fit: Fit) -> Floats:
    """(R,) memory of the smallest GPU with room on each row, the largest there is where none has."""
    memory = np.where(fit.room, cluster.taken(cluster.gpu_memory_mib, rows), LARGEST_MIB)  # (R, G)
    smallest: Floats = memory.min(axis=1, initial=LARGEST_MIB)
    return smallest


def free_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) how much of each GPU is free, 0..1: of its compute, or of its memory where only memory is asked."""
    if request.milli:
        return cluster.taken(cluster.gpu_free_milli, rows) / WHOLE_MILLI
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    free: Floats = cluster.taken(cluster.gpu_free_mib, rows) / np.maximum(memory, 1)
    return free


def asked_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) how much of each GPU the request would take, in the same terms."""
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    if request.milli:
        return np.full(memory.shape, request.milli / WHOLE_MILLI)
    asked: Floats = share_mib(request, memory) / np.maximum(memory, 1)
    return asked


def mig_devices(cluster: Cluster, profile: str, rows: Rows) -> tuple[Longs, Longs]:
    """(R,) devices of a MIG profile that nodes have, and (R,) those that are free."""
    if profile not in cluster.mig_profiles:
        nothing = np.zeros(len(rows), np.int64)
        return nothing, nothing
    column = cluster.mig_profiles.index(profile)
    installed, free = (cluster.taken(numbers, rows)[:, column] for numbers in (cluster.mig_installed, cluster.mig_free))
    return installed.astype(np.int64), free.astype(np.int64)


def _fit_mig(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
    """The same for MIG devices, which nodes have by number alone."""
    set_aside = cluster.taken(cluster.set_aside, rows).astype(np.int64)
    failures: list[_Failure] = [(set_aside > 0, Reason.SET_ASIDE, set_aside)]
    free_units = np.zeros(len(rows), np.int64)
    failures.append((cluster.taken(cluster.closed, rows), Reason.KEPT_FOR_MOVE, free_units))
    for profile, count in request.mig:
        num_installed, num_free = mig_devices(cluster, profile, rows)
        free_units = free_units + num_free
        failures.insert(0, (num_installed < count, Reason.TOO_FEW_INSTALLED, num_installed))
        failures.append((num_free < count, Reason.BUSY, num_free))
    failures.insert(0, _left_out(cluster.taken(cluster.left_out, rows)))
    none = np.zeros((len(rows), cluster.gpu_model.shape[1]), np.bool_)
    taken = np.full(len(rows), request.count, dtype=np.int64)
    no_shares = np.zeros(len(rows), np.bool_)
    return Fit(*_first_failed(failures, free_units), none, none, free_units, taken, no_shares)
