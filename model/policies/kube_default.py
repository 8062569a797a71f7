"""kube-scheduler without Kerf: the plugins whose scores differ between nodes for pods without preferences.

pkg/scheduler/framework/plugins/noderesources/{least,balanced}_allocation.go of Kubernetes 1.36, weights 1 and 1,
without normalisation (0..100). All other default plugins score such nodes equally.
"""

from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Longs, Rows
from extender.core.fit.reasons import Fit
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest
from model.policies.alike import first_gpu

CPU_MILLI: Final = 100
MEMORY_MIB: Final = 200
"""Defaults for pods without requests: k8s.io/component-helpers, DefaultMilliCPURequest and DefaultMemoryRequest."""


def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) sum of NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation."""
    cpu, memory = request.cpu_milli, request.memory_mib
    capacities = cluster.take_rows(cluster.cpu_milli, rows), cluster.take_rows(cluster.memory_mib, rows)
    frees = cluster.take_rows(cluster.cpu_free_milli, rows), cluster.take_rows(cluster.memory_free_mib, rows)
    used = (capacities[0] - frees[0], capacities[1] - frees[1])
    least = np.zeros(len(rows), np.int64)
    for capacity, taken, more in zip(capacities, used, (cpu or CPU_MILLI, memory or MEMORY_MIB), strict=True):
        least += np.maximum(capacity - taken - more, 0) * 100 // np.maximum(capacity, 1)
    balanced = 50 + (50 + _balance(capacities, used, (cpu, memory)) - _balance(capacities, used, (0, 0))) // 2
    best_effort = cpu == 0 and memory == 0  # skipped by the plugin
    return (least // 2 + (0 if best_effort else balanced)).astype(np.float64)


def _balance(capacities: tuple[Longs, Longs], used: tuple[Longs, Longs], more: tuple[int, int]) -> Longs:
    """(R,) 100 x (1 - standard deviation of the fractions of CPU and memory in use)."""
    cpu, memory = (
        np.minimum((taken + extra) / np.maximum(capacity, 1), 1.0)
        for capacity, taken, extra in zip(capacities, used, more, strict=True)
    )
    balance: Longs = ((1 - np.abs((cpu - memory) / 2)) * 100).astype(np.int64)
    return balance


POLICY: Final = Policy(
    "kube-default",
    score,
    "kube-scheduler's own plugins, sampling and random ties",
    share=first_gpu,
    weighs_cpu=True,
    weighs_memory=True,
)
