"""The state of one row as a key: equal states are equal in all that fit and scores see of a node but its name."""

from collections.abc import Hashable
from typing import Any, Final

from extender.core.clusters import Cluster

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
