"""A request on R rows of a cluster, as the checks see it: arrays that they share, and the GPUs that they have left.

The largest of what each node has.

The state of one row as a key: equal states are equal in all that fit and scores see of a node but its name.
"""

from collections.abc import Hashable
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Ints, Longs, Mask, Rows, num_true
from extender.core.resources.gpu_models import UNKNOWN_MODEL, models_allowed
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.vendors.registry import SEVERAL


def nth_largest(values: Ints, nth: int) -> Longs:
    """(R,) the nth largest of each row, counted from 1; 0 where there are fewer."""
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
    """(R,) the most memory that the request's number of selected units have, and (R,) how many units that takes.

    A request without a number takes the fewest that hold its total. The `untracked` units may be the largest ones,
    so those are left out. A time slice's memory is its part of the GPU's.
    """
    memory = np.where(selection, memory_mib // units_per_gpu[:, None], 0)
    memory = np.sort(memory)[:, ::-1]  # (R, G) of each GPU's unit, largest first
    per_gpu = units_per_gpu.astype(np.int64)[:, None]  # (R, 1)
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
        return most, np.full(len(memory), request.count)
    # Every GPU gives units until the total is reached: rounded up, and no more than it has.
    missing = skipped[:, None] + request.memory_total_mib - (np.cumsum(memory, axis=1) - memory) * per_gpu  # (R, G)
    given = np.clip(-(-missing // np.maximum(memory, 1)), 0, per_gpu)
    return most, given.sum(axis=1) - first


RowState = tuple[int | bytes, ...]

_NUMBERS: Final = (
    *("unit", "units_per_gpu", "untracked_units", "plugin_picks", "num_served", "num_unserved", "slices_led", "vendor"),
    *("set_aside", "left_out", "closed"),
    *("cpu_milli", "memory_mib", "cpu_free_milli", "memory_free_mib"),
)
_BY_SLOT: Final = (
    *("gpu_model", "gpu_memory_mib", "gpu_healthy", "gpu_free_milli", "gpu_free_mib", "gpu_slices"),
    *("gpu_numa", "gpu_link", "mig_installed", "mig_free"),
)
_MAX_KEPT: Final = 2048


def state_of(cluster: Cluster, row: int) -> RowState:
    """What a row's columns hold, but for `devices`, what is observed, and which row it is of which version."""
    numbers: list[int | bytes] = [getattr(cluster, name).item(row) for name in _NUMBERS]
    return *numbers, *[getattr(cluster, name)[row].tobytes() for name in _BY_SLOT]


def keep(known: dict[Any, Any], key: Hashable, value: object) -> None:
    """Remember what a state comes to; when there are too many, the one that was met first is forgotten."""
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
"""For each way of asking for GPUs, where it can be had."""
_INDEXED_UNITS: Final = np.isin(_UNITS, (GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.CLAIM, GpuUnit.OWNED))
"""Where it is known which GPU a pod gets, as a choice of UUIDs needs."""
_PARTS: Final = _UNITS == GpuUnit.PART
"""Where a share under the name of whole GPUs can be had: other plugins hand out a whole GPU for it."""


class Fitting:
    """A request on R rows."""

    check: int
    """Code of the check that is made."""

    def __init__(self, cluster: Cluster, request: GpuRequest, rows: Rows) -> None:
        self.cluster, self.request, self.rows = cluster, request, rows
        self._every = cluster.taken(cluster.unit, rows) is cluster.unit

    def rows_of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows of an (N, ...) array."""
        return array if self._every else array.take(self.rows, axis=0)


class MigFitting(Fitting):
    """MIG devices, which nodes have by number alone."""

    @cached_property
    def devices(self) -> list[tuple[int, Longs, Longs]]:
        """Of each profile asked for: how many are asked, (R,) how many are installed, (R,) how many are free."""
        return [(count, *mig_devices(self.cluster, profile, self.rows)) for profile, count in self.request.mig]


class GpuFitting(Fitting):
    """GPUs asked by number, memory, model and UUID.

    The same GPUs must satisfy all of it: `left` (R, G) are those that the checks so far have left, and each check takes
    away those that do not pass it. A GPU that somebody of unknown index may hold is never promised: `untracked` units
    count against every selection of idle GPUs. A whole GPU is given only where nobody holds anything of it, a share
    only where nobody holds the whole.
    """

    num_healthy: Longs
    """(R,) units."""
    available: Longs
    """(R,) units that can be had."""

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
        """Where too few GPUs are known to meet the condition that is checked, and (R,) units that do."""
        self.shares = _shares(request, self.unit)  # (R,)
        self.gives_shares = not request.memory_total_mib and bool(self.shares.any())
        self.num_installed = self.units(self.installed)
        """(R,) units."""
        self.lost: npt.NDArray[np.uint8] | None = None
        """(R, G) codes of the checks that have taken GPUs away, where somebody wants to know."""

    def keep(self, mask: Mask) -> None:
        """Take away the GPUs outside a mask (R, G)."""
        if self.lost is not None:
            self.lost[self.left & ~mask] = self.check
        self.left = self.left & mask

    def units(self, mask: Mask) -> Longs:
        """(R,) units of the GPUs of a mask."""
        found: Longs = num_true(mask) * self.per_gpu
        return found

    def free_units(self, mask: Mask) -> Longs:
        """(R,) units of idle GPUs of a mask that are free, whatever those of unknown index hold."""
        found: Longs = np.maximum(self.units(mask) - self.untracked, 0)
        return found

    @cached_property
    def of_model(self) -> Mask:
        """(R, G) GPUs of a model asked for."""
        found: Mask = _model_mask(self.cluster, self.request)[self.model]
        return found

    @cached_property
    def nameless(self) -> Mask:
        """(R, G) GPUs whose model is not known."""
        found: Mask = np.array([not known.names for known in (*self.cluster.models, UNKNOWN_MODEL)])[self.model]
        return found

    @cached_property
    def of_size(self) -> Mask:
        """(R, G) GPUs whose units have the memory asked for each."""
        found: Mask = self.memory // self.per_gpu[:, None] >= self.request.memory_each_mib
        return found

    @cached_property
    def total_mib(self) -> tuple[Longs, Mask]:
        """(R,) memory that the GPUs left have in total, and (R,) where there are others whose memory is not known."""
        known = self.left & self.of_size
        total, _ = most_memory_mib(self.memory, self.per_gpu, known, np.zeros_like(self.untracked), self.request)
        return total, (known & (self.memory == 0)).any(axis=1) | (self.units(known) < self.needed)

    @cached_property
    def share_mib(self) -> Ints:
        """(R, G) memory that a share takes of each GPU."""
        return share_mib(self.request, self.memory)

    def accepted(self) -> Mask:
        """(R,) rows whose unit can serve the request at all."""
        request, units = self.request, _ACCEPTED_UNITS[self.request.unit]
        if request.uuids or request.uuids_exclude:
            units = units & _INDEXED_UNITS
        if request.milli and request.unit is AskedUnit.GPU:
            units = units & _PARTS
        found: Mask = units[self.unit]
        return found & (self.rows_of(self.cluster.vendor) == request.vendor) if SEVERAL else found


def _shares(request: GpuRequest, unit: npt.NDArray[np.int8]) -> Mask:
    """(R,) where the request asks for shares."""
    if request.milli:
        return np.ones(len(unit), np.bool_)
    if request.shares_by_memory:
        parts: Mask = _PARTS[unit]
        return parts
    return np.zeros(len(unit), np.bool_)


def _model_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(M + 1,) which models of the vocabulary the request accepts; the last entry, for "no GPU" (-1), is False."""
    return np.append(models_allowed(cluster.models, request.include, request.exclude, request.vendor), False)


def uuid_mask(cluster: Cluster, request: GpuRequest) -> Mask:
    """(N, G) which GPUs the request's UUIDs allow. A GPU of unknown UUID is in no list."""
    allowed = np.full(cluster.gpu_model.shape, not request.uuids)
    for uuids, verdict in ((request.uuids, True), (request.uuids_exclude, False)):
        for uuid in uuids:
            if uuid in cluster.gpu_at:
                allowed[cluster.gpu_at[uuid]] = verdict
    return allowed


def share_mib(request: GpuRequest, memory_mib: Ints) -> Ints:
    """Memory that a share takes of GPUs of so much memory, in the same shape."""
    return np.maximum(request.memory_each_mib, memory_mib * request.memory_each_percent // 100)


def mig_devices(cluster: Cluster, profile: str, rows: Rows) -> tuple[Longs, Longs]:
    """(R,) devices of a MIG profile that nodes have, and (R,) those that are free."""
    if profile not in cluster.mig_profiles:
        nothing = np.zeros(len(rows), np.int64)
        return nothing, nothing
    column = cluster.mig_profiles.index(profile)
    installed, free = (cluster.taken(numbers, rows)[:, column] for numbers in (cluster.mig_installed, cluster.mig_free))
    return installed.astype(np.int64), free.astype(np.int64)
