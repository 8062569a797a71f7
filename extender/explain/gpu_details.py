"""The GPUs of nodes one by one, for people: what is free of each, and what it was last seen doing."""

from math import isnan
from typing import Any

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.observations import Gauge
from extender.core.occupancies import ObservedRules, faulty, unaccounted_mib


def gpus_of(cluster: Cluster, rows: Rows, rules: ObservedRules) -> list[list[dict[str, Any]]]:
    """R lists, of the GPUs installed; worked out once for all rows, since there may be thousands."""
    result: list[list[dict[str, Any]]] = [[] for _ in rows]
    at, slots = np.nonzero(cluster.gpu_model[rows] >= 0)
    arrays = (cluster.gpu_model, cluster.gpu_memory_mib, cluster.gpu_healthy, cluster.gpu_free_milli)
    columns = [array[rows[at], slots].tolist() for array in (*arrays, cluster.gpu_free_mib)]
    observed = _observed(cluster, rows, rules)
    names = [model.name for model in cluster.models]
    for node, slot, model, memory, healthy, milli, mib in zip(at.tolist(), slots.tolist(), *columns, strict=True):
        gpu = {
            "index": slot,
            "model": names[model],
            "memoryMiB": memory,
            "free": milli == WHOLE_MILLI and mib == memory,
            "healthy": healthy,
            "freeMilli": milli,
            "freeMemoryMiB": mib,
        }
        result[node].append(gpu | observed.get((node, slot), {}))
    return result


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
