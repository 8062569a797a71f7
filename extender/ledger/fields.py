"""Which arrays a cluster has, and what shape they are of."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.resources.nodes import GpuUnit

Array = npt.NDArray[Any]


class Field(NamedTuple):
    dtype: type[np.generic]
    fill: Any
    columns: str
    """"" one value a node, "gpu" one a GPU slot, "mig" one a MIG profile."""
    inventory: bool = False
    """Whether it tells what nodes offer; else what is left of that."""


FIELDS: Final = {
    "row_version": Field(np.int64, 0, ""),
    "unit": Field(np.int8, GpuUnit.NONE, "", inventory=True),
    "units_per_gpu": Field(np.int32, 1, "", inventory=True),
    "gpu_model": Field(np.int32, -1, "gpu", inventory=True),
    "gpu_memory_mib": Field(np.int32, 0, "gpu", inventory=True),
    "gpu_healthy": Field(np.bool_, False, "gpu", inventory=True),
    "gpu_numa": Field(np.int32, -1, "gpu", inventory=True),
    "gpu_link": Field(np.int32, -1, "gpu", inventory=True),
    "plugin_picks": Field(np.bool_, False, "", inventory=True),
    "slices_led": Field(np.bool_, False, "", inventory=True),
    "set_aside": Field(np.int32, 0, "", inventory=True),
    "left_out": Field(np.int8, 0, "", inventory=True),
    "vendor": Field(np.int8, 0, "", inventory=True),
    "withheld_units": Field(np.int32, 0, "", inventory=True),
    "mig_installed": Field(np.int32, 0, "mig", inventory=True),
    "cpu_milli": Field(np.int64, 0, "", inventory=True),
    "memory_mib": Field(np.int64, 0, "", inventory=True),
    "closed": Field(np.bool_, False, ""),
    "gpu_free_milli": Field(np.int32, 0, "gpu"),
    "gpu_free_mib": Field(np.int32, 0, "gpu"),
    "gpu_slices": Field(np.int32, 0, "gpu"),
    "untracked_units": Field(np.int32, 0, ""),
    "num_served": Field(np.int32, 0, ""),
    "num_unserved": Field(np.int32, 0, ""),
    "mig_free": Field(np.int32, 0, "mig"),
    "devices": Field(np.object_, None, ""),
    "cpu_free_milli": Field(np.int64, 0, ""),
    "memory_free_mib": Field(np.int64, 0, ""),
}


INVENTORY: Final = frozenset(name for name, field in FIELDS.items() if field.inventory)


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
