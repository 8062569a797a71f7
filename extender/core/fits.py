"""Which nodes a request fits, as reason codes with the numbers behind them.

The same GPUs must satisfy model and memory, and a GPU that somebody of unknown index may hold is never promised:
`untracked_units` count against every selection.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Ints, Longs, Mask, Rows
from extender.core.models import models_allowed
from extender.core.nodes import GpuUnit
from extender.core.reasons import Reason
from extender.core.requests import AskedUnit, GpuRequest

_ACCEPTED_UNITS = {
    AskedUnit.GPU: (GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU),
    AskedUnit.WHOLE: (GpuUnit.WHOLE,),
    AskedUnit.SHARED: (GpuUnit.REPLICA,),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of one request on R rows."""

    reason: npt.NDArray[np.uint8]
    """(R,) Reason."""
    available: Longs
    """(R,) units (MiB for the TOTAL reasons) that meet the first failed condition; where it fits, the usable ones."""
    free_units: Longs
    """(R,) units free on the node, whatever their model and memory."""
    taken_units: Longs
    """(R,) units that the request would take here; meaningful where it fits."""

    @property
    def fits(self) -> Mask:
        """(R,) where the request fits."""
        fits: Mask = self.reason == Reason.FITS
        return fits


def fit(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
    """Check a request on R rows of a cluster."""
    unit = cluster.unit[rows]
    per_gpu = cluster.units_per_gpu[rows]  # (R,)
    untracked = cluster.untracked_units[rows]  # (R,)
    installed = cluster.gpu_model[rows] >= 0  # (R, G)
    free = cluster.gpu_free[rows]  # (R, G)
    needed = max(request.count, 1)

    num_installed = installed.sum(axis=1) * per_gpu
    free_units = np.maximum(free.sum(axis=1) * per_gpu - untracked, 0)
    of_model = of_size = installed
    num_of_model = num_of_size = num_installed
    available = free_units
    if request.include or request.exclude:
        of_model = installed & model_mask(cluster, request)[cluster.gpu_model[rows]]
        num_of_model = of_model.sum(axis=1) * per_gpu
        of_size, num_of_size = of_model, num_of_model
    if request.memory_each_mib:
        of_size = of_model & (unit_memory_mib(cluster, rows) >= request.memory_each_mib)
        num_of_size = of_size.sum(axis=1) * per_gpu
    if of_size is not installed:
        available = np.maximum((free & of_size).sum(axis=1) * per_gpu - untracked, 0)

    # Later checks are written first, so that the first failed one has the last word.
    reason = np.full(len(rows), Reason.FITS, dtype=np.uint8)
    number = available.astype(np.int64)
    taken = np.full(len(rows), needed, dtype=np.int64)
    if request.memory_total_mib:
        free_mib, taken = _most_memory_mib(cluster, rows, of_size & free, untracked, request)
        _mark(reason, number, free_mib < request.memory_total_mib, Reason.TOTAL_BUSY, free_mib)
    _mark(reason, number, available < needed, Reason.BUSY, available)
    if request.memory_total_mib:
        installed_mib, _ = _most_memory_mib(cluster, rows, of_size, np.zeros_like(untracked), request)
        _mark(reason, number, installed_mib < request.memory_total_mib, Reason.TOTAL_TOO_SMALL, installed_mib)
    _mark(reason, number, num_of_size < needed, Reason.TOO_SMALL, num_of_size)
    _mark(reason, number, num_of_model < needed, Reason.WRONG_MODEL, num_of_model)
    _mark(reason, number, num_installed < needed, Reason.TOO_FEW_INSTALLED, num_installed)
    accepted = np.isin(unit, _ACCEPTED_UNITS[request.unit])
    _mark(reason, number, ~accepted, Reason.NOT_THIS_KIND, num_installed)
    _mark(reason, number, unit == GpuUnit.NONE, Reason.NO_GPUS, num_installed)
    return Fit(reason, number, free_units, taken)


def model_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(M + 1,) which models of the vocabulary the request accepts; the last entry, for "no GPU" (-1), is False."""
    return np.append(models_allowed(cluster.models, request.include, request.exclude), False)


def unit_memory_mib(cluster: Cluster, rows: Rows) -> Ints:
    """(R, G) memory that one unit of each GPU can count on: a time slice's is its part of the GPU's."""
    memory: Ints = cluster.gpu_memory_mib[rows] // cluster.units_per_gpu[rows][:, None]
    return memory


def _most_memory_mib(
    cluster: Cluster, rows: Rows, selection: Mask, untracked: Ints, request: GpuRequest
) -> tuple[Longs, Longs]:
    """(R,) the most memory that the request's number of selected units have, and (R,) how many units that takes.

    A request without a number takes the fewest that hold its total. The `untracked` units may be the largest ones,
    so those are left out.
    """
    memory = np.where(selection, unit_memory_mib(cluster, rows), 0)  # (R, G)
    width = int(cluster.units_per_gpu[rows].max(initial=1))
    if width > 1:
        slots = np.arange(width) < cluster.units_per_gpu[rows][:, None]  # (R, width)
        memory = (memory[:, :, None] * slots[:, None, :]).reshape(len(rows), -1)  # (R, G * width)
    num_units = memory.shape[1]
    largest_first = -np.sort(-memory, axis=1)
    summed = np.concatenate([np.zeros((len(rows), 1), np.int64), np.cumsum(largest_first, axis=1, dtype=np.int64)], 1)
    each = np.arange(len(rows))
    first = np.minimum(untracked, num_units).astype(np.intp)
    before = summed[each, first]
    last = np.minimum(first + (request.count or num_units), num_units)
    most: Longs = summed[each, last] - before
    if request.count:
        return most, np.full(len(rows), request.count, dtype=np.int64)
    too_few = (summed - before[:, None] < request.memory_total_mib) & (np.arange(num_units + 1) >= first[:, None])
    return most, too_few.sum(axis=1)


def _mark(
    reason: npt.NDArray[np.uint8], number: Longs, failed: Mask, code: Reason, available: npt.NDArray[np.integer]
) -> None:
    """Write a reason and its number wherever a check fails."""
    reason[failed] = code
    number[failed] = available[failed]
