"""The GPUs of nodes one by one, for people: what is free of each, and what it was last seen doing."""

from math import isnan
from typing import Any

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules, counting_observed, faulty, unaccounted_mib
from extender.core.resources.nodes import SLICES, GpuUnit


def gpus_of(
    cluster: Cluster, rows: Rows, rules: ObservedRules, counted: ObservedRules | None
) -> list[list[dict[str, Any]]]:
    """R lists, of the GPUs installed; worked out once for all rows, since there may be thousands. `rules` say what is
    odd of a GPU, `counted` what a policy counts of it."""
    result: list[list[dict[str, Any]]] = [[] for _ in rows]
    at, slots = np.nonzero(cluster.gpu_model[rows] >= 0)
    columns = [
        array[rows[at], slots].tolist()
        for array in (
            *(cluster.gpu_model, cluster.gpu_memory_mib, cluster.gpu_healthy, cluster.gpu_free_milli),
            *(cluster.gpu_free_mib, counting_observed(cluster, counted).gpu_idle, cluster.gpu_slices),
        )
    ]
    sliced = [_slices(cluster, row) for row in rows.tolist()]
    observed = _observed(cluster, rows, rules)
    names = [model.name for model in cluster.models]
    for node, slot, model, memory, healthy, milli, mib, idle, held in zip(
        at.tolist(), slots.tolist(), *columns, strict=True
    ):
        gpu = {
            "index": slot,
            "model": names[model],
            "memoryMiB": memory,
            "free": milli == WHOLE_MILLI and mib == memory,
            "idle": idle,
            "healthy": healthy,
            "freeMilli": milli,
            "freeMemoryMiB": mib,
        }
        slices = {"slices": sliced[node], "slicesHeld": held} if sliced[node] else {}
        result[node].append(gpu | slices | observed.get((node, slot), {}))
    return result


def _slices(cluster: Cluster, row: int) -> int:
    """Time slices of each GPU of a node, 0 where it has none."""
    return int(cluster.units_per_gpu[row]) if GpuUnit(int(cluster.unit[row])) in SLICES else 0


def _observed(cluster: Cluster, rows: Rows, rules: ObservedRules) -> dict[tuple[int, int], dict[str, Any]]:
    """By position among the rows and slot, where samples are fresh or a load is expected of pods just placed."""
    observed = cluster.observed
    if observed is None:
        return {}
    values = observed.value[:, rows]
    expected = observed.expected_load[rows].round(4)
    unmanaged, broken = unaccounted_mib(cluster, rows, rules), faulty(cluster, rows, rules)
    known = (expected != 0) | ~np.isnan(values).all(axis=0)
    samples = {gauge.name.lower(): values[gauge].tolist() for gauge in Gauge}
    return {
        (node, slot): {
            "observed": {
                name: round(sample, 4) for name, found in samples.items() if not isnan(sample := found[node][slot])
            },
            "expectedLoad": round(float(expected[node, slot]), 4),
            "unmanagedMiB": int(unmanaged[node, slot]),
            "faulty": bool(broken[node, slot]),
        }
        for node, slot in np.argwhere(known).tolist()
    }
