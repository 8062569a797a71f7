"""Which nodes a request fits, as reason codes with the numbers behind them.

The same GPUs must satisfy model and memory, and a GPU that somebody of unknown index may hold is never promised:
`untracked_units` count against every selection.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Ints, Longs, Mask, Rows
from extender.core.models import models_allowed
from extender.core.nodes import GpuUnit
from extender.core.reasons import Reason
from extender.core.requests import AskedUnit, GpuRequest

_ACCEPTED_UNITS: Final = {
    asked: np.isin(np.arange(len(GpuUnit)), offered)
    for asked, offered in (
        (AskedUnit.GPU, (GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU)),
        (AskedUnit.WHOLE, (GpuUnit.WHOLE,)),
        (AskedUnit.SHARED, (GpuUnit.REPLICA,)),
    )
}
"""For each way of asking, one boolean per GpuUnit."""

_Failure = tuple[Mask, Reason, Longs]
"""Where a check fails, as what, and the number to tell."""


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
    of_size = installed
    available = free_units
    taken = np.full(len(rows), needed, dtype=np.int64)
    failures: list[_Failure] = [
        (unit == GpuUnit.NONE, Reason.NO_GPUS, num_installed),
        (~_ACCEPTED_UNITS[request.unit][unit], Reason.NOT_THIS_KIND, num_installed),
        (num_installed < needed, Reason.TOO_FEW_INSTALLED, num_installed),
    ]
    if request.include or request.exclude:
        of_size = installed & model_mask(cluster, request)[cluster.gpu_model[rows]]
        num_of_model = of_size.sum(axis=1) * per_gpu
        failures.append((num_of_model < needed, Reason.WRONG_MODEL, num_of_model))
    if request.memory_each_mib:
        of_size = of_size & (unit_memory_mib(cluster, rows) >= request.memory_each_mib)
        num_of_size = of_size.sum(axis=1) * per_gpu
        failures.append((num_of_size < needed, Reason.TOO_SMALL, num_of_size))
    if of_size is not installed:
        available = np.maximum((free & of_size).sum(axis=1) * per_gpu - untracked, 0)
    if request.memory_total_mib:
        total_mib, _ = _most_memory_mib(cluster, rows, of_size, np.zeros_like(untracked), request)
        free_mib, taken = _most_memory_mib(cluster, rows, of_size & free, untracked, request)
        failures += [
            (total_mib < request.memory_total_mib, Reason.TOTAL_TOO_SMALL, total_mib),
            (available < needed, Reason.BUSY, available),
            (free_mib < request.memory_total_mib, Reason.TOTAL_BUSY, free_mib),
        ]
    else:
        failures.append((available < needed, Reason.BUSY, available))

    reason = np.full(len(rows), Reason.FITS, dtype=np.uint8)
    for failed, code, number in reversed(failures):  # so that the first failed check has the last word
        reason[failed] = code
        if number is not available:
            available = np.where(failed, number, available)
    return Fit(reason, available, free_units, taken)


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
    memory = np.where(selection, unit_memory_mib(cluster, rows), 0).astype(np.int64)
    memory = -np.sort(-memory, axis=1)  # (R, G) of each GPU's unit, largest first
    per_gpu = cluster.units_per_gpu[rows].astype(np.int64)[:, None]  # (R, 1)
    num_units = memory.shape[1] * per_gpu[:, 0]  # (R,)
    before = np.arange(memory.shape[1]) * per_gpu  # (R, G) units on larger GPUs

    def largest(units: Longs) -> Longs:
        """(R,) memory of the so many largest units."""
        summed: Longs = (np.clip(units[:, None] - before, 0, per_gpu) * memory).sum(axis=1)
        return summed

    first = np.minimum(untracked, num_units)
    skipped = largest(first)
    most = largest(np.minimum(first + (request.count or num_units), num_units)) - skipped
    if request.count:
        return most, np.full(len(rows), request.count, dtype=np.int64)
    # Every GPU gives units until the total is reached: rounded up, and no more than it has.
    missing = skipped[:, None] + request.memory_total_mib - (np.cumsum(memory, axis=1) - memory) * per_gpu  # (R, G)
    given = np.clip(-(-missing // np.maximum(memory, 1)), 0, per_gpu)
    return most, given.sum(axis=1) - first
