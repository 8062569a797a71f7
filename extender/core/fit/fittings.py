"""Inputs of the checks: a request on R rows of a cluster, with shared arrays and the GPUs that still pass.

Also `state_of`, the state of a row as a cache key for fits and scores.
"""

from collections.abc import Hashable
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import OFFERED, WHOLE_MILLI, Cluster, Ints, Longs, Mask, Rows, num_true
from extender.core.resources.gpu_models import UNKNOWN_MODEL, models_allowed
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.vendors.registry import SEVERAL


def nth_largest(values: Ints, nth: int) -> Longs:
    """(R,) the nth largest value of each row, counted from 1; 0 where there are fewer."""
    if nth > values.shape[1]:
        return np.zeros(len(values), np.int64)
    if nth == 1:
        most: Longs = values.max(axis=1).astype(np.int64)
        return most
    ordered: Longs = np.partition(values, values.shape[1] - nth).astype(np.int64)
    return ordered[:, values.shape[1] - nth]


def most_memory_mib(
    memory_mib: Ints, units_per_gpu: Ints, selection: Mask, untracked: Ints, request: GpuRequest
) -> tuple[Longs, Longs]:
    """(R,) MiB of the largest selected units that the request may take, and (R,) the number of units taken.

    A request without a count takes the fewest units with its total memory. The largest `untracked` units are left out,
    because they may be in use. A time slice has its part of the GPU's memory.
    """
    memory = np.where(selection, memory_mib // units_per_gpu[:, None], 0)
    memory = np.sort(memory)[:, ::-1]  # (R, G) of each GPU's unit, largest first
    per_gpu = units_per_gpu.astype(np.int64)[:, None]  # (R, 1)
    num_units = memory.shape[1] * per_gpu[:, 0]  # (R,)
    before = np.arange(memory.shape[1]) * per_gpu  # (R, G) units on larger GPUs

    def largest(units: Longs) -> Longs:
        """(R,) MiB of the largest `units` units."""
        summed: Longs = (np.clip(units[:, None] - before, 0, per_gpu) * memory).sum(axis=1)
        return summed

    first = np.minimum(untracked, num_units)
    skipped = largest(first)
    most = largest(np.minimum(first + (request.count or num_units), num_units)) - skipped
    if request.count:
        return most, np.full(len(memory), request.count)
    # Each GPU gives units until the total is reached: rounded up, at most all of them.
    missing = skipped[:, None] + request.memory_total_mib - (np.cumsum(memory, axis=1) - memory) * per_gpu  # (R, G)
    given = np.clip(-(-missing // np.maximum(memory, 1)), 0, per_gpu)
    return most, given.sum(axis=1) - first


GpuState = tuple[int | bytes, ...]
RowState = tuple[GpuState, tuple[int, ...]]
"""A row's columns about GPUs, and its CPU and main memory."""

_COMPUTE: Final = ("cpu_milli", "memory_mib")
_OFFERED: Final = tuple(sorted(OFFERED.difference(_COMPUTE)))
_MAX_KEPT: Final = 2048


def state_of(cluster: Cluster, row: int) -> RowState:
    """A row's columns as a hashable key, without `devices`, observations, names and versions."""
    state: RowState | None = cluster.states.get(row)
    if state is None:
        offer = cluster.offers.get(row)
        if offer is None:
            offer = cluster.offers[row] = _offer_of(cluster, row)
        gpus, compute = offer
        gpu_state = (
            gpus,
            cluster.gpu_free_milli[row].tobytes(),
            cluster.gpu_free_mib[row].tobytes(),
            cluster.gpu_slices[row].tobytes(),
            cluster.mig_free[row].tobytes(),
            cluster.untracked_units.item(row),
            cluster.num_served.item(row),
            cluster.num_unserved.item(row),
            cluster.closed.item(row),
        )
        free = cluster.cpu_free_milli.item(row), cluster.memory_free_mib.item(row)
        state = cluster.states[row] = gpu_state, compute + free
    return state


def _offer_of(cluster: Cluster, row: int) -> tuple[bytes, tuple[int, ...]]:
    """What a row offers: its columns about GPUs as one key, and its CPU and main memory."""
    gpus = b"".join([getattr(cluster, name)[row].tobytes() for name in _OFFERED])
    return gpus, tuple([getattr(cluster, name).item(row) for name in _COMPUTE])


def keep(known: dict[Any, Any], key: Hashable, value: object) -> None:
    """Add an entry to a cache; a full cache drops its oldest entry."""
    if len(known) >= _MAX_KEPT:
        del known[next(iter(known))]
    known[key] = value


_UNITS: Final = np.arange(len(GpuUnit))
_ACCEPTED_UNITS: Final = {
    AskedUnit.GPU: np.isin(_UNITS, (GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU, GpuUnit.PART, GpuUnit.CLAIM)),
    AskedUnit.WHOLE: np.isin(_UNITS, (GpuUnit.WHOLE, GpuUnit.PART)),
    AskedUnit.SHARED: _UNITS == GpuUnit.REPLICA,
    AskedUnit.PART: _UNITS == GpuUnit.PART,
    AskedUnit.CLAIM: np.isin(_UNITS, (GpuUnit.CLAIM, GpuUnit.OWNED)),
}
"""Node units that can serve each kind of request."""
_INDEXED_UNITS: Final = np.isin(_UNITS, (GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.CLAIM, GpuUnit.OWNED))
"""Node units with known GPU indices, as requests for UUIDs need."""
_PARTS: Final = _UNITS == GpuUnit.PART
"""Node units where a share may be requested by the resource of whole GPUs: other plugins would hand out a whole GPU."""


class Fitting:
    """A request on R rows."""

    check: int
    """Code of the running check."""

    def __init__(self, cluster: Cluster, request: GpuRequest, rows: Rows) -> None:
        self.cluster, self.request, self.rows = cluster, request, rows
        self._every = cluster.take_rows(cluster.unit, rows) is cluster.unit

    def rows_of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows of an (N, ...) array."""
        return array if self._every else array.take(self.rows, axis=0)


class MigFitting(Fitting):
    """A request for MIG devices, which nodes have by number alone."""

    @cached_property
    def devices(self) -> list[tuple[int, Longs, Longs]]:
        """For each requested profile: number requested, (R,) number installed, (R,) number free."""
        return [(count, *mig_devices(self.cluster, profile, self.rows)) for profile, count in self.request.mig]


class GpuFitting(Fitting):
    """A request for GPUs by number, memory, model and UUID.

    The same GPUs must pass all checks: `left` (R, G) are those left by the checks so far. `untracked` units, which may
    be in use on any idle GPU, count against every selection of idle GPUs. A whole GPU needs a GPU without bookings, a
    share needs one that is not fully booked.
    """

    num_healthy: Longs
    """(R,) healthy units."""
    available: Longs
    """(R,) available units."""

    def __init__(self, cluster: Cluster, request: GpuRequest, rows: Rows) -> None:
        super().__init__(cluster, request, rows)
        self.needed = max(request.count, 1)
        self.unit = self.rows_of(cluster.unit)  # (R,)
        self.per_gpu = self.rows_of(cluster.units_per_gpu)  # (R,)
        self.untracked = self.rows_of(cluster.untracked_units)  # (R,)
        self.left_out = self.rows_of(cluster.left_out)  # (R,)
        self.memory = self.rows_of(cluster.gpu_memory_mib)  # (R, G)
        self.free_milli = self.rows_of(cluster.gpu_free_milli)  # (R, G)
        self.free_mib = self.rows_of(cluster.gpu_free_mib)  # (R, G)
        self.model = self.rows_of(cluster.gpu_model)  # (R, G)
        self.installed = self.left = self.model >= 0  # (R, G)
        self.taken = np.full(len(rows), self.needed)
        self.idle = (self.free_milli == WHOLE_MILLI) & (self.free_mib == self.memory)
        self.too_few: tuple[Mask, Longs] = (np.zeros(len(rows), np.bool_), self.taken)
        """(R,) where too few GPUs are known to meet the last condition, and (R,) units that do."""
        self.shares = _shares(request, self.unit)  # (R,)
        self.gives_shares = not request.memory_total_mib and bool(self.shares.any())
        self.num_installed = self.units(self.installed)
        """(R,) installed units."""
        self.excluded_by: npt.NDArray[np.uint8] | None = None
        """(R, G) codes of the checks that excluded GPUs; None where not recorded."""

    def keep(self, mask: Mask) -> None:
        """Exclude the GPUs outside a mask (R, G)."""
        if self.excluded_by is not None:
            self.excluded_by[self.left & ~mask] = self.check
        self.left = self.left & mask

    def units(self, mask: Mask) -> Longs:
        """(R,) units of the GPUs in a mask."""
        units: Longs = num_true(mask) * self.per_gpu
        return units

    def free_units(self, mask: Mask) -> Longs:
        """(R,) units of the idle GPUs in a mask, minus the untracked ones."""
        units: Longs = np.maximum(self.units(mask) - self.untracked, 0)
        return units

    @cached_property
    def of_model(self) -> Mask:
        """(R, G) GPUs of an accepted model."""
        mask: Mask = _model_mask(self.cluster, self.request)[self.model]
        return mask

    @cached_property
    def nameless(self) -> Mask:
        """(R, G) GPUs of unknown model."""
        mask: Mask = np.array([not known.names for known in (*self.cluster.models, UNKNOWN_MODEL)])[self.model]
        return mask

    @cached_property
    def of_size(self) -> Mask:
        """(R, G) GPUs whose units have at least the requested memory each."""
        mask: Mask = self.memory // self.per_gpu[:, None] >= self.request.memory_each_mib
        return mask

    @cached_property
    def total_mib(self) -> tuple[Longs, Mask]:
        """(R,) total MiB of the units that may be taken, and (R,) where GPUs of unknown memory may add to it."""
        known = self.left & self.of_size
        total, _ = most_memory_mib(self.memory, self.per_gpu, known, np.zeros_like(self.untracked), self.request)
        return total, (known & (self.memory == 0)).any(axis=1) | (self.units(known) < self.needed)

    @cached_property
    def share_mib(self) -> Ints:
        """(R, G) MiB that a share takes of each GPU."""
        return share_mib(self.request, self.memory)

    def accepted(self) -> Mask:
        """(R,) rows whose unit and vendor can serve the request."""
        request, units = self.request, _ACCEPTED_UNITS[self.request.unit]
        if request.uuids or request.uuids_exclude:
            units = units & _INDEXED_UNITS
        if request.milli and request.unit is AskedUnit.GPU:
            units = units & _PARTS
        mask: Mask = units[self.unit]
        return mask & (self.rows_of(self.cluster.vendor) == request.vendor) if SEVERAL else mask


def _shares(request: GpuRequest, unit: npt.NDArray[np.int8]) -> Mask:
    """(R,) where the request gets shares."""
    if request.milli:
        return np.ones(len(unit), np.bool_)
    if request.shares_by_memory:
        parts: Mask = _PARTS[unit]
        return parts
    return np.zeros(len(unit), np.bool_)


def _model_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(M + 1,) which models the request accepts; the last entry, for "no GPU" (-1), is False."""
    return np.append(models_allowed(cluster.models, request.include, request.exclude, request.vendor), False)


def uuid_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(N, G) which GPUs the request's UUIDs allow. A GPU of unknown UUID matches none."""
    allowed = np.full(cluster.gpu_model.shape, not request.uuids)
    for uuids, verdict in ((request.uuids, True), (request.uuids_exclude, False)):
        for uuid in uuids:
            if uuid in cluster.gpu_at:
                allowed[cluster.gpu_at[uuid]] = verdict
    return allowed


def share_mib(request: GpuRequest, memory_mib: Ints) -> Ints:
    """MiB that a share takes of GPUs with `memory_mib`, in the same shape."""
    return np.maximum(request.memory_each_mib, memory_mib * request.memory_each_percent // 100)


def mig_devices(cluster: Cluster, profile: str, rows: Rows) -> tuple[Longs, Longs]:
    """(R,) installed devices of a MIG profile, and (R,) free ones."""
    if profile not in cluster.mig_profiles:
        nothing = np.zeros(len(rows), np.int64)
        return nothing, nothing
    column = cluster.mig_profiles.index(profile)
    installed, free = (
        cluster.take_rows(numbers, rows)[:, column] for numbers in (cluster.mig_installed, cluster.mig_free)
    )
    return installed.astype(np.int64), free.astype(np.int64)
