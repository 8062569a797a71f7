"""The writer's side of the cluster arrays and observations.

`ClusterArrays` grow and change in place and are copied into immutable snapshots; `_FIELDS` lists them.
`ObservedArrays` hold GPU samples, their ageing, and the load expected of pods just placed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import OFFERED, WHOLE_MILLI, Cluster, Rows
from extender.core.dra.devices import NodeDevices
from extender.core.gauges import Gauge
from extender.core.observations import Gauges, Observations, SampleState
from extender.core.resources.gpu_models import GpuModel
from extender.core.resources.nodes import NO_GPUS, GpuUnit, NodeOffer

_Array = npt.NDArray[Any]


class _Field(NamedTuple):
    dtype: type[np.generic]
    fill: Any
    columns: str
    """"" for one value per node, "gpu" per GPU slot, "mig" per MIG profile."""


_FIELDS: Final = {
    "row_version": _Field(np.int64, 0, ""),
    "unit": _Field(np.int8, GpuUnit.NONE, ""),
    "units_per_gpu": _Field(np.int32, 1, ""),
    "gpu_model": _Field(np.int32, -1, "gpu"),
    "gpu_memory_mib": _Field(np.int32, 0, "gpu"),
    "gpu_healthy": _Field(np.bool_, False, "gpu"),
    "gpu_numa": _Field(np.int32, -1, "gpu"),
    "gpu_link": _Field(np.int32, -1, "gpu"),
    "plugin_picks": _Field(np.bool_, False, ""),
    "slices_led": _Field(np.bool_, False, ""),
    "set_aside": _Field(np.int32, 0, ""),
    "left_out": _Field(np.int8, 0, ""),
    "vendor": _Field(np.int8, 0, ""),
    "withheld_units": _Field(np.int32, 0, ""),
    "mig_installed": _Field(np.int32, 0, "mig"),
    "cpu_milli": _Field(np.int64, 0, ""),
    "memory_mib": _Field(np.int64, 0, ""),
    "closed": _Field(np.bool_, False, ""),
    "gpu_free_milli": _Field(np.int32, 0, "gpu"),
    "gpu_free_mib": _Field(np.int32, 0, "gpu"),
    "gpu_slices": _Field(np.int32, 0, "gpu"),
    "untracked_units": _Field(np.int32, 0, ""),
    "num_served": _Field(np.int32, 0, ""),
    "num_unserved": _Field(np.int32, 0, ""),
    "mig_free": _Field(np.int32, 0, "mig"),
    "devices": _Field(np.object_, None, ""),
    "cpu_free_milli": _Field(np.int64, 0, ""),
    "memory_free_mib": _Field(np.int64, 0, ""),
}


def _size(field: _Field, shape: Mapping[str, int]) -> tuple[int, ...]:
    return (shape[""], shape[field.columns]) if field.columns else (shape[""],)


def _grown(array: _Array, shape: int | tuple[int, ...], fill: float) -> _Array:
    """Return the array resized to a shape; new cells are `fill`."""
    larger = np.full(shape, fill, array.dtype)
    kept = tuple(map(slice, np.minimum(array.shape, larger.shape)))
    larger[kept] = array[kept]
    return larger


def _frozen(array: _Array) -> _Array:
    array.flags.writeable = False
    return array


_NUM_GAUGES: Final = len(Gauge)
_NO_ROWS: Final[Rows] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """Limits on the age of samples."""

    fresh_s: float = 90.0
    """Older samples are stale."""
    forget_s: float = 900.0
    """Older samples count as missing."""
    warmup_s: float = 45.0
    """Time after a placement in which samples may not show the pod's load."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A pod whose load samples may not show yet."""

    at: float
    """Monotonic time of the placement."""
    slots: tuple[int, ...]
    load: float


class ObservedArrays:
    """Samples of N rows with G slots, in copy-on-write arrays."""

    def __init__(self, times: SampleTimes, num_rows: int, num_slots: int) -> None:
        self._times = times
        self._raw: Gauges = np.full((_NUM_GAUGES, num_rows, num_slots), np.nan, np.float32)
        self._sampled_at = np.full(num_rows, -np.inf)
        self._placed: dict[int, dict[str, _Placed]] = {}  # by row and UID
        self._row_of: dict[str, int] = {}
        self.has_samples = False
        """Whether any sample has ever arrived."""
        self._outdated: npt.NDArray[np.bool_] = np.zeros((num_rows, num_slots), np.bool_)
        self.current = Observations(
            version=0,
            value=self._raw,
            state=np.full(num_rows, SampleState.MISSING, np.int8),
            sampled_at=self._sampled_at,
            expected_load=np.zeros((num_rows, num_slots), np.float32),
            outdated=self._outdated,
            has_samples=False,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, G)."""
        return self._raw.shape[1], self._raw.shape[2]

    def resize(self, num_rows: int, num_slots: int) -> None:
        """Grow with the cluster."""
        if self.shape == (num_rows, num_slots):
            return
        slots, planes = (num_rows, num_slots), (_NUM_GAUGES, num_rows, num_slots)
        before = self.current
        self._outdated = _grown(self._outdated, slots, False)
        self._raw, self._sampled_at = _grown(self._raw, planes, np.nan), _grown(self._sampled_at, num_rows, -np.inf)
        state = _grown(before.state, num_rows, SampleState.MISSING)
        self._publish(_grown(before.value, planes, np.nan), state, _grown(before.expected_load, slots, 0))

    def forget(self, row: int) -> None:
        """Reset a row that another node reuses."""
        for uid in self._placed.pop(row, {}):
            del self._row_of[uid]
        self._outdated = self._outdated.copy()
        self._outdated[row] = False
        if self._sampled_at[row] == -np.inf and not self.current.expected_load[row].any():
            return
        raw, value, sampled_at = self._raw.copy(), self.current.value.copy(), self._sampled_at.copy()
        state, expected = self.current.state.copy(), self.current.expected_load.copy()
        raw[:, row] = value[:, row] = np.nan
        sampled_at[row], state[row], expected[row] = -np.inf, SampleState.MISSING, 0
        self._raw, self._sampled_at = raw, sampled_at
        self._publish(value, state, expected)

    def begin(self) -> Gauges:
        """Return (M, N, G), a copy of all samples for a refresh to write to."""
        return self._raw.copy()

    def commit(self, raw: Gauges, sampled_at: npt.NDArray[np.float64], now: float) -> Rows:
        """Apply a refresh; return the changed rows. `sampled_at` is (N,), unchanged for rows without new samples."""
        newer = sampled_at > self._sampled_at
        if self._outdated[newer].any():
            self._outdated = self._outdated & ~newer[:, None]
        self._raw, self._sampled_at = raw, sampled_at
        self.has_samples = self.has_samples or bool(newer.any())
        return self.age(now)

    def age(self, now: float) -> Rows:
        """Age the samples; return the rows whose effective samples changed."""
        age_s = now - self._sampled_at
        state = np.full(len(age_s), SampleState.MISSING, np.int8)
        state[age_s <= self._times.forget_s] = SampleState.STALE
        fresh = age_s <= self._times.fresh_s
        state[fresh] = SampleState.FRESH
        value = self._raw
        if len(old := np.flatnonzero(~fresh & np.isfinite(self._sampled_at))):
            value = self._raw.copy()
            value[:, old] = np.nan
        expected = self._expected(now)
        before = self.current
        changed = (expected != before.expected_load).any(axis=1) | (state != before.state)
        changed |= (self._outdated != before.outdated).any(axis=1)
        # Compared as bits, so that NaNs are equal.
        changed |= (value.view(np.int32) != before.value.view(np.int32)).any(axis=0).any(axis=1)
        rows = np.flatnonzero(changed)
        if len(rows):
            self._publish(value, state, expected)
        elif not np.array_equal(self._sampled_at, before.sampled_at):
            self.current = replace(before, sampled_at=self._sampled_at)
        return rows

    def expect(self, uid: str, row: int, slots: tuple[int, ...], load: float, now: float) -> Rows:
        """Expect a placed pod's load on a row's GPUs, replacing what was expected before; return the changed rows.

        Without known slots the load is spread over all GPUs of the row.
        """
        before = self._drop(uid)
        self._placed.setdefault(row, {})[uid] = _Placed(now, slots, load)
        self._row_of[uid] = row
        return self._update_expected({row} | before)

    def expect_no_more(self, uid: str) -> Rows:
        """Drop the expected load of a pod; return the changed rows."""
        return self._update_expected(self._drop(uid))

    def mark_outdated(self, row: int, slots: tuple[int, ...]) -> None:
        """Mark the memory samples of GPUs that have become freer as outdated."""
        self._outdated = self._outdated.copy()
        self._outdated[row, list(slots)] = True
        self.current = replace(self.current, version=self.current.version + 1, outdated=self._outdated)

    def _drop(self, uid: str) -> set[int]:
        """Forget a pod; return its row, if any."""
        row = self._row_of.pop(uid, None)
        if row is None:
            return set()
        del self._placed[row][uid]
        return {row}

    def _expected(self, now: float) -> npt.NDArray[np.float32]:
        """Return (N, G) the load expected of pods placed too recently to show in samples."""
        warm, late = self._times.warmup_s, self._times.warmup_s + self._times.fresh_s
        expected = np.zeros(self.shape, np.float32)
        for row, on_row in list(self._placed.items()):
            since = max(self._sampled_at[row] - warm, now - late)
            for uid in [uid for uid, placed in on_row.items() if placed.at <= since]:
                self._drop(uid)
            if on_row:
                expected[row] = self._expected_of(row)
            else:
                del self._placed[row]
        return expected

    def _expected_of(self, row: int) -> list[float]:
        """Return (G,) the load expected on a row's GPUs. Plain Python: a few pods on a few GPUs."""
        num_slots = self.shape[1]
        expected = [0.0] * num_slots
        for placed in self._placed[row].values():
            slots = [slot for slot in placed.slots if slot < num_slots]
            load = placed.load if slots else placed.load / num_slots
            for slot in slots or range(num_slots):
                expected[slot] += load
        return [min(load, 1.0) for load in expected]

    def _update_expected(self, rows: set[int]) -> Rows:
        if not rows:
            return _NO_ROWS
        expected = self.current.expected_load.copy()
        for row in rows:
            expected[row] = self._expected_of(row)
        expected.flags.writeable = False
        self.current = replace(self.current, version=self.current.version + 1, expected_load=expected)
        return np.array(sorted(rows), np.intp)

    def _publish(self, value: Gauges, state: npt.NDArray[np.int8], expected_load: npt.NDArray[np.float32]) -> None:
        for array in (value, state, expected_load, self._sampled_at):
            array.flags.writeable = False
        self.current = Observations(
            self.current.version + 1, value, state, self._sampled_at, expected_load, self._outdated, self.has_samples
        )


_MAX_UNTRACKED: Final = 2**31 - 1  # pods may request absurd numbers; these are clipped to int32
_MAX_COMPUTE: Final = 2**62


class HeldAmounts(NamedTuple):
    """What is held on a node. Amounts above the capacity count as all of it."""

    gpus: Mapping[int, tuple[int, int]]
    """(milli, MiB) by GPU index. Memory held on a GPU of unknown memory counts as the whole GPU."""
    untracked: int
    """Units of unknown index."""
    mig: Iterable[tuple[str, int]] = ()
    num_served: int = 0
    """Pods that get GPUs from the node's device plugin."""
    num_unserved: int = 0
    """Pods with GPUs that the device plugin does not know about."""
    slices: Mapping[int, int] = {}
    """Untracked units that are time slices of a known GPU, by its index."""


class ClusterArrays:
    """The nodes' rows. Not thread-safe: one writer, which also takes the snapshots."""

    def __init__(self) -> None:
        self.version = 0
        self.row_of: dict[str, int] = {}
        self._names: list[str] = []
        self._offers: list[NodeOffer] = []
        self._uuids: list[tuple[str, ...]] = []
        self._gpu_at: dict[str, tuple[int, int]] = {}
        self._free_rows: list[int] = []
        self._model_idx: dict[GpuModel, int] = {}
        self._mig_idx: dict[str, int] = {}
        self._shape = {"": 0, "gpu": 1, "mig": 0}  # rows, and columns of each kind
        self._arrays: dict[str, _Array] = {
            name: np.full(_size(field, self._shape), field.fill, field.dtype) for name, field in _FIELDS.items()
        }
        self._changed = set(_FIELDS)  # since the last snapshot
        self._snapshot: Cluster | None = None
        self._observed: ObservedArrays | None = None
        self.inventory_version = 0
        """Grows when the meaning of a row or slot may have changed."""

    def offer(self, row: int) -> NodeOffer:
        """Return the offer of a row's node."""
        return self._offers[row]

    def set_node(self, name: str, offer: NodeOffer) -> int:
        """Add a node or change its offer; return its row. Nothing is free until `set_held`."""
        row = self.row_of.get(name)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else self._append_row()
            self.row_of[name] = row
            self._names[row] = name
            if self._observed is not None and row < self._observed.shape[0]:
                self._observed.forget(row)
        self._write_offer(row, offer)
        return row

    def remove_node(self, name: str) -> None:
        """Remove a node; its row offers nothing until it is reused."""
        row = self.row_of.pop(name)
        self._names[row] = ""
        self._write_offer(row, NO_GPUS)
        self.set_capacity(row, 0, 0)
        self.set_compute(row, 0, 0)
        self._free_rows.append(row)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without devices, which are large."""
        arrays = self._arrays | {"devices": np.full_like(self._arrays["devices"], None)}
        return vars(self) | {"_arrays": arrays, "_snapshot": None, "_changed": set(_FIELDS)}

    def set_held(self, row: int, held: HeldAmounts) -> None:
        """Set what is held on a node."""
        free = self._free(row, held)
        if self._observed is not None and self._observed.has_samples:
            # The memory samples of GPUs with more free than before are outdated.
            freer = np.flatnonzero(self._arrays["gpu_free_mib"][row] < free["gpu_free_mib"]).tolist()
            if freer and (observed := self.observed) is not None:
                observed.mark_outdated(row, tuple(freer))
        self._write(row, free)

    def set_closed(self, row: int, *, closed: bool) -> None:
        """Set whether a node is closed to new allocations."""
        self._write(row, {"closed": closed})

    def set_devices(self, row: int, devices: NodeDevices | None) -> None:
        """Set the devices of a node that Kerf allocates, and what is taken of them."""
        if self._arrays["devices"][row] is not devices:
            self._arrays["devices"][row] = devices
            self._touch(row, ["devices"])

    def alone(self, row: int, held: HeldAmounts) -> Cluster:
        """Return the cluster of one node alone, with `held` in place of what it holds."""
        free = self._free(row, held)
        arrays = {name: np.array([values], _FIELDS[name].dtype) for name, values in free.items()}
        return self.snapshot().only(row).changed(**arrays)

    def _free(self, row: int, held: HeldAmounts) -> dict[str, int | list[int]]:
        """Return what is free on a node that holds `held`, by array name."""
        offer, width = self._offers[row], self._shape["gpu"]
        milli, mib = [0] * width, [0] * width
        for index, gpu in enumerate(offer.gpus):
            if gpu.healthy:
                milli[index], mib[index] = WHOLE_MILLI, gpu.memory_mib
        for index, (held_milli, held_mib) in held.gpus.items():
            if milli[index]:
                unmeasured = held_mib and not mib[index]
                milli[index] = 0 if unmeasured else max(WHOLE_MILLI - held_milli, 0)
                mib[index] = max(mib[index] - held_mib, 0)
        result: dict[str, int | list[int]] = {
            "gpu_free_milli": milli,
            "gpu_free_mib": mib,
            "gpu_slices": [held.slices.get(index, 0) for index in range(width)],
            "untracked_units": min(held.untracked, _MAX_UNTRACKED),
            "num_served": held.num_served,
            "num_unserved": held.num_unserved,
        }
        if offer.mig:
            free = [0] * self._shape["mig"]
            for profile, count in offer.mig:
                free[self._mig_idx[profile]] = count
            for profile, count in held.mig:
                if profile in self._mig_idx:
                    free[self._mig_idx[profile]] = max(free[self._mig_idx[profile]] - count, 0)
            result["mig_free"] = free
        return result

    def set_capacity(self, row: int, cpu_milli: int, memory_mib: int) -> None:
        """Set a node's allocatable CPU and memory."""
        self._write(row, {"cpu_milli": _bounded(cpu_milli), "memory_mib": _bounded(memory_mib)})

    def set_compute(self, row: int, cpu_free_milli: int, memory_free_mib: int) -> None:
        """Set a node's CPU and memory that no pod has requested."""
        free = {"cpu_free_milli": _bounded(cpu_free_milli), "memory_free_mib": _bounded(memory_free_mib)}
        self._write(row, free)

    def observe(self, times: SampleTimes) -> None:
        """Keep observations from now on."""
        self._observed = ObservedArrays(times, len(self._names), self._shape["gpu"])

    @property
    def observed(self) -> ObservedArrays | None:
        """The observations in the current shape, None unless `observe` was called."""
        if self._observed is not None:
            self._observed.resize(len(self._names), self._shape["gpu"])
        return self._observed

    def touch(self, rows: Rows) -> None:
        """Note that the observations of some rows have changed."""
        if len(rows):
            self._touch(rows, ())

    def snapshot(self) -> Cluster:
        """Return the current state as immutable arrays; free of cost if nothing has changed since the last call."""
        last = self._snapshot
        if last is not None and last.version == self.version:
            return last
        values: dict[str, Any] = {
            name: _frozen(self._arrays[name][: len(self._names)].copy()) for name in self._changed
        }
        if OFFERED & self._changed:
            values |= self._derived()
        self._changed = set()
        values |= {"version": self.version, "observed": None if self.observed is None else self.observed.current}
        self._snapshot = Cluster(**values) if last is None else last.changed(**values)
        return self._snapshot

    def _derived(self) -> dict[str, Any]:
        """Return the fields derived from the whole inventory."""
        order = sorted(range(len(self._names)), key=self._names.__getitem__)
        tie_rank = np.empty(len(order), np.int32)
        tie_rank[order] = np.arange(len(order), dtype=np.int32)
        return {
            "row_of": dict(self.row_of),
            "node_names": tuple(self._names),
            "models": tuple(self._model_idx),
            "gpu_uuids": tuple(self._uuids),
            "gpu_at": dict(self._gpu_at),
            "mig_profiles": tuple(self._mig_idx),
            "tie_rank": _frozen(tie_rank),
        }

    def _append_row(self) -> int:
        row = len(self._names)
        self._names.append("")
        self._offers.append(NO_GPUS)
        self._uuids.append(())
        if row == self._shape[""]:
            self._resize("", max(64, 2 * row))
        return row

    def _resize(self, axis: str, length: int) -> None:
        self._shape[axis] = length
        for name, field in _FIELDS.items():
            if axis in ("", field.columns):
                self._arrays[name] = _grown(self._arrays[name], _size(field, self._shape), field.fill)
        self._changed = set(_FIELDS)

    def _write_offer(self, row: int, offer: NodeOffer) -> None:
        if len(offer.gpus) > self._shape["gpu"]:
            self._resize("gpu", len(offer.gpus))
        for profile, _ in offer.mig:
            self._mig_idx.setdefault(profile, len(self._mig_idx))
        if len(self._mig_idx) > self._shape["mig"]:
            self._resize("mig", len(self._mig_idx))
        for uuid in self._uuids[row]:
            if self._gpu_at.get(uuid, (-1, 0))[0] == row:
                del self._gpu_at[uuid]
        self._offers[row] = offer
        self._uuids[row] = tuple(gpu.uuid for gpu in offer.gpus)
        self._gpu_at.update((uuid, (row, index)) for index, uuid in enumerate(self._uuids[row]) if uuid)
        gpus = offer.gpus
        self._arrays["unit"][row] = offer.unit
        self._arrays["units_per_gpu"][row] = offer.units_per_gpu
        self._arrays["plugin_picks"][row] = offer.plugin_picks
        self._arrays["slices_led"][row] = offer.slices_led
        self._arrays["set_aside"][row] = offer.set_aside
        self._arrays["left_out"][row] = offer.left_out
        self._arrays["vendor"][row] = offer.vendor
        self._arrays["num_served"][row] = self._arrays["num_unserved"][row] = 0
        self._arrays["closed"][row] = False
        self._arrays["withheld_units"][row] = min(offer.withheld_units, _MAX_UNTRACKED)
        self._arrays["untracked_units"][row] = self._arrays["withheld_units"][row]
        self._fill(row, "gpu_model", [self._model_idx.setdefault(gpu.model, len(self._model_idx)) for gpu in gpus])
        self._fill(row, "gpu_memory_mib", [gpu.memory_mib for gpu in gpus])
        self._fill(row, "gpu_healthy", [gpu.healthy for gpu in gpus])
        self._fill(row, "gpu_numa", [gpu.numa for gpu in gpus])
        self._fill(row, "gpu_link", [gpu.link for gpu in gpus])
        for name in ("gpu_slices", "gpu_free_milli", "gpu_free_mib", "mig_free", "mig_installed"):
            self._fill(row, name, [])
        for profile, count in offer.mig:
            self._arrays["mig_installed"][row, self._mig_idx[profile]] = min(count, _MAX_UNTRACKED)
        self._changed = set(_FIELDS)  # all arrays, since the row may be new
        self.inventory_version += 1
        self._touch(row, ())

    def _fill(self, row: int, name: str, values: list[Any]) -> None:
        """Write the first columns of a row, and reset the others."""
        array = self._arrays[name]
        array[row] = _FIELDS[name].fill
        array[row, : len(values)] = values

    def _write(self, row: int, values: Mapping[str, int | list[int]]) -> None:
        """Write a row of some arrays, if changed."""
        changed = [name for name, value in values.items() if self._arrays[name][row].tolist() != value]
        for name in changed:
            self._arrays[name][row] = values[name]
        if changed:
            self._touch(row, changed)

    def _touch(self, rows: int | Rows, names: Iterable[str]) -> None:
        """Note that rows of these arrays have changed."""
        self.version += 1
        self._arrays["row_version"][rows] = self.version
        self._changed |= {"row_version", *names}
        if not OFFERED.isdisjoint(names):
            self._changed |= OFFERED  # together, so that the identity of one shows whether any has changed


def _bounded(amount: int) -> int:
    return max(min(amount, _MAX_COMPUTE), -_MAX_COMPUTE)
