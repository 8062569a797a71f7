"""The writer's side of the cluster arrays: grown and changed in place here, copied into immutable snapshots."""

from typing import Any

import numpy as np
import numpy.typing as npt

from extender.cluster.observed import ObservedArrays, SampleTimes
from extender.core.clusters import Cluster, Rows
from extender.core.models import GpuModel
from extender.core.nodes import NO_GPUS, GpuUnit, NodeOffer

_Array = npt.NDArray[Any]
_MAX_UNTRACKED = 2**31 - 1  # pods may ask for absurdly many; more than a node has is all of it


class ClusterArrays:
    """Rows of nodes. Not thread-safe: one writer, which is also the one that takes snapshots."""

    def __init__(self) -> None:
        self.version = 0
        self.row_of: dict[str, int] = {}
        self._names: list[str] = []
        self._offers: list[NodeOffer] = []
        self._free_rows: list[int] = []
        self._models: list[GpuModel] = []
        self._model_idx: dict[GpuModel, int] = {}
        self._row_version = np.zeros(0, np.int64)
        self._unit = np.zeros(0, np.int8)
        self._units_per_gpu = np.ones(0, np.int32)
        self._untracked_units = np.zeros(0, np.int32)
        self._gpu_model = np.full((0, 1), -1, np.int32)
        self._gpu_memory_mib = np.zeros((0, 1), np.int32)
        self._gpu_free = np.zeros((0, 1), np.bool_)
        self._inventory_moved = True
        self._snapshot: Cluster | None = None
        self._observed: ObservedArrays | None = None
        self.inventory_version = 0
        """Grows when a row or slot may have another meaning than before."""

    def offer(self, row: int) -> NodeOffer:
        """What the node of a row offers."""
        return self._offers[row]

    def set_node(self, name: str, offer: NodeOffer) -> int:
        """Add a node or change what it offers; nothing of it is free until `set_held` says so. Returns its row."""
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
        """Forget a node; its row offers nothing until it is used again."""
        row = self.row_of.pop(name)
        self._names[row] = ""
        self._write_offer(row, NO_GPUS)
        self._free_rows.append(row)

    def set_held(self, row: int, held: set[int], untracked_units: int) -> None:
        """Write who holds what on a node: GPU indices that are held, and units whose index nobody knows."""
        untracked_units = min(untracked_units, _MAX_UNTRACKED)
        free = np.zeros(self._gpu_free.shape[1], np.bool_)
        free[: len(self._offers[row].gpus)] = True
        free[list(held)] = False
        if self._untracked_units[row] == untracked_units and np.array_equal(self._gpu_free[row], free):
            return
        self._gpu_free[row] = free
        self._untracked_units[row] = untracked_units
        self._touch(row)

    def observe(self, times: SampleTimes) -> None:
        """Keep observations from now on."""
        self._observed = ObservedArrays(times, len(self._names), self._gpu_free.shape[1])

    @property
    def observed(self) -> ObservedArrays | None:
        """Observations in the shape of the arrays now, None while nobody observes."""
        if self._observed is not None:
            self._observed.resize(len(self._names), self._gpu_free.shape[1])
        return self._observed

    def touch(self, rows: Rows) -> None:
        """Say that what is observed of some rows has changed."""
        if len(rows):
            self.version += 1
            self._row_version[rows] = self.version

    def snapshot(self) -> Cluster:
        """The state now, as arrays that never change again. Costs nothing when nothing moved since the last one."""
        last = self._snapshot
        if last is not None and last.version == self.version:
            return last
        if last is None or self._inventory_moved:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            tie_rank = np.empty(len(order), np.int32)
            tie_rank[order] = np.arange(len(order), dtype=np.int32)
            inventory: dict[str, Any] = {
                "row_of": dict(self.row_of),
                "node_names": tuple(self._names),
                "models": tuple(self._models),
                "tie_rank": _frozen(tie_rank),
                "unit": self._frozen_copy(self._unit),
                "units_per_gpu": self._frozen_copy(self._units_per_gpu),
                "gpu_model": self._frozen_copy(self._gpu_model),
                "gpu_memory_mib": self._frozen_copy(self._gpu_memory_mib),
            }
        else:
            inventory = {
                name: getattr(last, name)
                for name in (
                    [
                        "row_of",
                        "node_names",
                        "models",
                        "tie_rank",
                        "unit",
                        "units_per_gpu",
                        "gpu_model",
                        "gpu_memory_mib",
                    ]
                )
            }
        self._inventory_moved = False
        self._snapshot = Cluster(
            version=self.version,
            row_version=self._frozen_copy(self._row_version),
            gpu_free=self._frozen_copy(self._gpu_free),
            untracked_units=self._frozen_copy(self._untracked_units),
            observed=None if self.observed is None else self.observed.current,
            **inventory,
        )
        return self._snapshot

    def _append_row(self) -> int:
        row = len(self._names)
        self._names.append("")
        self._offers.append(NO_GPUS)
        if row == len(self._row_version):
            self._resize(max(64, 2 * row), self._gpu_free.shape[1])
        return row

    def _resize(self, num_rows: int, num_slots: int) -> None:
        self._row_version = _grown(self._row_version, (num_rows,), 0)
        self._unit = _grown(self._unit, (num_rows,), GpuUnit.NONE)
        self._units_per_gpu = _grown(self._units_per_gpu, (num_rows,), 1)
        self._untracked_units = _grown(self._untracked_units, (num_rows,), 0)
        self._gpu_model = _grown(self._gpu_model, (num_rows, num_slots), -1)
        self._gpu_memory_mib = _grown(self._gpu_memory_mib, (num_rows, num_slots), 0)
        self._gpu_free = _grown(self._gpu_free, (num_rows, num_slots), False)

    def _write_offer(self, row: int, offer: NodeOffer) -> None:
        num_gpus = len(offer.gpus)
        if num_gpus > self._gpu_free.shape[1]:
            self._resize(len(self._row_version), num_gpus)
        self._offers[row] = offer
        self._unit[row] = offer.unit
        self._units_per_gpu[row] = offer.units_per_gpu
        self._untracked_units[row] = offer.withheld_units
        self._gpu_free[row] = False
        self._gpu_model[row] = -1
        self._gpu_model[row, :num_gpus] = [self._index_of(gpu.model) for gpu in offer.gpus]
        self._gpu_memory_mib[row] = 0
        self._gpu_memory_mib[row, :num_gpus] = [gpu.memory_mib for gpu in offer.gpus]
        self._inventory_moved = True
        self.inventory_version += 1
        self._touch(row)

    def _index_of(self, model: GpuModel) -> int:
        index = self._model_idx.get(model)
        if index is None:
            index = self._model_idx[model] = len(self._models)
            self._models.append(model)
        return index

    def _touch(self, row: int) -> None:
        self.version += 1
        self._row_version[row] = self.version

    def _frozen_copy(self, array: _Array) -> _Array:
        return _frozen(array[: len(self._names)].copy())


def _frozen(array: _Array) -> _Array:
    array.flags.writeable = False
    return array


def _grown(array: _Array, shape: tuple[int, ...], fill: object) -> _Array:
    """The array in a larger shape, what is new filled."""
    grown = np.full(shape, fill, array.dtype)
    grown[tuple(slice(0, length) for length in array.shape)] = array
    return grown
