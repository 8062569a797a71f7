"""Which nodes a request fits: runs the table of checks on R rows of a cluster."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask, Rows, num_true
from extender.core.dra.asks import DeviceClaims
from extender.core.fit import filters
from extender.core.fit.checks import TABLE, Failure
from extender.core.fit.device_fits import DeviceFitting
from extender.core.fit.fittings import Fitting, GpuFitting, MigFitting, share_mib
from extender.core.fit.reasons import Fit, Reason
from extender.core.resources.nodes import MAX_MEMORY_MIB
from extender.core.resources.requests import AskedUnit, GpuRequest

LARGEST_MIB: Final = float(MAX_MEMORY_MIB)
_FittingT = TypeVar("_FittingT", bound=Fitting)


def fit(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
    """Check a request on R rows of a cluster."""
    if request.unit is AskedUnit.NONE:
        return _fit_without_gpus(cluster, rows)
    if request.devices is not None:
        return _fit_devices(DeviceFitting(cluster, request, rows))
    if request.mig:
        return _fit_mig(MigFitting(cluster, request, rows))
    return _fit_gpus(GpuFitting(cluster, request, rows))


def fit_devices(cluster: Cluster, asked: DeviceClaims, rows: Rows) -> Fit:
    """Check the requests of claims on R rows of a cluster."""
    return fit(cluster, GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked), rows)


def exclusion_codes(cluster: Cluster, request: GpuRequest, rows: Rows) -> tuple[GpuFitting, npt.NDArray[np.uint8]]:
    """The fitting, and (R, G) codes of the checks that exclude each GPU, 0 for none; for requests that count GPUs."""
    fitting = GpuFitting(cluster, request, rows)
    fitting.excluded_by = np.zeros(fitting.installed.shape, np.uint8)
    _fit_gpus(fitting)
    return fitting, fitting.excluded_by


def _fit_gpus(fitting: GpuFitting) -> Fit:
    failures = _failures(fitting, TABLE.gpus)
    free_units = fitting.free_units(fitting.idle)
    reason, available = _first(failures, fitting.available)
    return Fit(reason, available, fitting.left, fitting.idle, free_units, fitting.taken, fitting.shares)


def _fit_mig(fitting: MigFitting) -> Fit:
    failures = _failures(fitting, TABLE.mig)
    free_units = sum((free for _, _, free in fitting.devices), np.zeros(len(fitting.rows), np.int64))
    none = np.zeros((len(fitting.rows), fitting.cluster.gpu_model.shape[1]), np.bool_)
    taken = np.full(len(fitting.rows), fitting.request.count)
    reason, available = _first(failures, free_units)
    return Fit(reason, available, none, none, free_units, taken, np.zeros(len(fitting.rows), np.bool_))


def _fit_devices(fitting: DeviceFitting) -> Fit:
    reason, available = _first(_failures(fitting, TABLE.devices), fitting.num_devices)
    shares = np.zeros(len(fitting.rows), np.bool_)
    idle, free_units = _idle(fitting.cluster, fitting.rows)
    return Fit(reason, available, fitting.room, idle, free_units, fitting.num_gpus, shares)


def _fit_without_gpus(cluster: Cluster, rows: Rows) -> Fit:
    """Fits everywhere: kube-scheduler itself checks CPU and main memory."""
    idle, free_units = _idle(cluster, rows)
    nothing = np.zeros(len(rows), np.int64)
    reason = np.full(len(rows), Reason.FITS, np.uint8)
    return Fit(reason, nothing, np.zeros_like(idle), idle, free_units, nothing, np.zeros(len(rows), np.bool_))


def _idle(cluster: Cluster, rows: Rows) -> tuple[Mask, Longs]:
    """(R, G) GPUs without any booking, and (R,) the least number of units that these have free."""
    milli, mib = cluster.take_rows(cluster.gpu_free_milli, rows), cluster.take_rows(cluster.gpu_free_mib, rows)
    idle = (milli == WHOLE_MILLI) & (mib == cluster.take_rows(cluster.gpu_memory_mib, rows))
    units = num_true(idle) * cluster.take_rows(cluster.units_per_gpu, rows)
    return idle, np.maximum(units - cluster.take_rows(cluster.untracked_units, rows), 0)


def _failures(
    fitting: _FittingT, checks: Sequence[tuple[int, Callable[[_FittingT], Failure | None]]]
) -> list[tuple[int, Failure]]:
    failures = []
    for code, check in checks:
        fitting.check = code
        if (failure := check(fitting)) is not None:
            failures.append((code, failure))
    return failures


def _first(failures: list[tuple[int, Failure]], available: Longs) -> tuple[npt.NDArray[np.uint8], Longs]:
    """(R,) the code of the first check that fails, and (R,) its number: `available` where none fails."""
    if len(available) == 1:  # the usual case: one changed node
        code, number = next(((code, number) for code, (failed, number) in failures if failed[0]), (0, available))
        return np.array([code], np.uint8), number
    reason = np.full(len(available), Reason.FITS, dtype=np.uint8)
    for code, (failed, number) in reversed(failures):  # so that the first failed check overwrites later ones
        if failed.any():
            reason[failed] = code
            available = np.where(failed, number, available)
    return reason, available


def enough_compute(cluster: Cluster, cpu_milli: int, memory_mib: int, rows: Rows) -> Mask:
    """(R,) where enough CPU and main memory are free. `fit` leaves this to kube-scheduler's own filter."""
    enough: Mask = cluster.take_rows(cluster.cpu_free_milli, rows) >= cpu_milli
    return enough & (cluster.take_rows(cluster.memory_free_mib, rows) >= memory_mib)


def smallest_mib(cluster: Cluster, rows: Rows, fit: Fit) -> Floats:
    """(R,) MiB of the smallest GPU with room on each row, LARGEST_MIB where none has room."""
    memory = np.where(fit.room, cluster.take_rows(cluster.gpu_memory_mib, rows), LARGEST_MIB)  # (R, G)
    smallest: Floats = memory.min(axis=1, initial=LARGEST_MIB)
    return smallest


def free_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) free fraction of each GPU, 0..1: of its compute, or of its memory if the request has no compute."""
    if request.milli:
        return cluster.take_rows(cluster.gpu_free_milli, rows) / WHOLE_MILLI
    memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
    free: Floats = cluster.take_rows(cluster.gpu_free_mib, rows) / np.maximum(memory, 1)
    return free


def asked_fraction(cluster: Cluster, request: GpuRequest, rows: Rows) -> Floats:
    """(R, G) fraction of each GPU that the request would take, in the same terms."""
    memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
    if request.milli:
        return np.full(memory.shape, request.milli / WHOLE_MILLI)
    asked: Floats = share_mib(request, memory) / np.maximum(memory, 1)
    return asked


filters.load_installed()  # in each process that runs checks
