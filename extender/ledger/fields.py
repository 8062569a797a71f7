"""Which arrays a cluster has, what shape they are of, and what makes them change."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.resources.nodes import GpuUnit

Array = npt.NDArray[Any]


class Moves(Enum):
    """What makes an array change; a snapshot copies only what has changed since the last one."""

    ALWAYS = auto()
    INVENTORY = auto()
    GPUS = auto()
    COMPUTE = auto()


class Field(NamedTuple):
    dtype: type[np.generic]
    fill: Any
    columns: str
    """"" one value a node, "gpu" one a GPU slot, "mig" one a MIG profile."""
    moves: Moves


FIELDS: Final = {
    "row_version": Field(np.int64, 0, "", Moves.ALWAYS),
    "unit": Field(np.int8, GpuUnit.NONE, "", Moves.INVENTORY),
    "units_per_gpu": Field(np.int32, 1, "", Moves.INVENTORY),
    "gpu_model": Field(np.int32, -1, "gpu", Moves.INVENTORY),
    "gpu_memory_mib": Field(np.int32, 0, "gpu", Moves.INVENTORY),
    "gpu_healthy": Field(np.bool_, False, "gpu", Moves.INVENTORY),
    "gpu_numa": Field(np.int32, -1, "gpu", Moves.INVENTORY),
    "gpu_link": Field(np.int32, -1, "gpu", Moves.INVENTORY),
    "plugin_picks": Field(np.bool_, False, "", Moves.INVENTORY),
    "slices_led": Field(np.bool_, False, "", Moves.INVENTORY),
    "mig_installed": Field(np.int32, 0, "mig", Moves.INVENTORY),
    "cpu_milli": Field(np.int64, 0, "", Moves.INVENTORY),
    "memory_mib": Field(np.int64, 0, "", Moves.INVENTORY),
    "gpu_free_milli": Field(np.int32, 0, "gpu", Moves.GPUS),
    "gpu_free_mib": Field(np.int32, 0, "gpu", Moves.GPUS),
    "gpu_slices": Field(np.int32, 0, "gpu", Moves.GPUS),
    "untracked_units": Field(np.int32, 0, "", Moves.GPUS),
    "num_served": Field(np.int32, 0, "", Moves.GPUS),
    "num_unserved": Field(np.int32, 0, "", Moves.GPUS),
    "mig_free": Field(np.int32, 0, "mig", Moves.GPUS),
    "devices": Field(np.object_, None, "", Moves.GPUS),
    "cpu_free_milli": Field(np.int64, 0, "", Moves.COMPUTE),
    "memory_free_mib": Field(np.int64, 0, "", Moves.COMPUTE),
}


def size(field: Field, shape: Mapping[str, int]) -> tuple[int, ...]:
    return (shape[""], shape[field.columns]) if field.columns else (shape[""],)


def grown(array: Array, shape: int | tuple[int, ...], fill: float) -> Array:
    """The same in another shape; what was not there is `fill`, and what has no place left is gone."""
    larger = np.full(shape, fill, array.dtype)
    kept = tuple(map(slice, np.minimum(array.shape, larger.shape)))
    larger[kept] = array[kept]
    return larger


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
