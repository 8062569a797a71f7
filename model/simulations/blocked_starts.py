"""Blocked starts: multi-GPU jobs that wait although enough GPUs are free, because these are scattered."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Longs, Mask
from extender.core.fragmentation import Nodes
from model.engine import kernels
from model.simulations.simulated_jobs import Kind, Tasks

_SEVERAL_MILLI: Final = 2 * WHOLE_MILLI
"""Least GPU milli of a multi-GPU job."""


class BlockedStarts:
    """Counts each job once, when it first waits although the nodes that could host it have enough free resources.

    These are GPU, CPU and memory, summed over present nodes that fit its pods when empty, minus the requests of
    earlier counted jobs that still wait. Moves would then likely, but not certainly, let it start.
    """

    def __init__(self, nodes: Nodes, tasks: Tasks) -> None:
        """`nodes` are empty at construction, and read as they fill."""
        asks = tasks.asks
        self._nodes, self._asked_milli, self._kinds = nodes, tasks.asked_milli, tasks.kinds
        self._demand = np.column_stack([asks.num_gpus * asks.gpu_milli, asks.cpu_milli, asks.memory_mib])
        """(C, 3) GPU milli, CPU milli and memory MiB that a pod requests."""
        self._feasible: list[Mask] = [kernels.fitting(nodes, asks, c) for c in range(len(self._demand))]
        self._counted: set[int] = set()
        self._waiting: dict[Kind, set[int]] = {}
        """Counted jobs that still wait, by kind."""
        self._promised: Longs = np.zeros(3, np.int64)
        """(3,) their requests in total."""

    @property
    def jobs(self) -> frozenset[int]:
        """The counted jobs."""
        return frozenset(self._counted)

    def started(self, job: int) -> None:
        """Record that a job started."""
        kind = self._kinds[job]
        if job in self._waiting.get(kind, ()):
            self._waiting[kind].remove(job)
            self._promised -= self._needed(kind)

    def look(self, queues: Mapping[tuple[Kind, Any], Sequence[tuple[float, float, int]]]) -> None:
        """Count blocked jobs after a pass over the queue; `queues` are heaps of (-priority, place, job)."""
        heads = sorted(
            (queue[0], name)
            for name, queue in queues.items()
            if queue and self._is_large(queue[0][2]) and len(self._waiting.get(name[0], ())) < len(queue)
        )
        if not heads:
            return
        nodes = self._nodes
        present = nodes.cpu_free_milli >= 0  # negative on a missing node
        free = np.column_stack([nodes.gpu_free_milli.sum(axis=1), nodes.cpu_free_milli, nodes.memory_free_mib])
        for _, name in heads:
            self._count(name[0], queues[name], free, present)

    def _count(self, kind: Kind, queue: Sequence[tuple[float, float, int]], free: Longs, present: Mask) -> None:
        """Count jobs of a kind, in queue order, while (N, 3) `free` has enough for one more."""
        feasible = {c: self._feasible[c] & present for c, _ in kind}
        if any((free[feasible[c]].sum(axis=0) < count * self._demand[c]).any() for c, count in kind):
            return
        needed = self._needed(kind)
        left = free[np.logical_or.reduce(list(feasible.values()))].sum(axis=0) - self._promised
        for _, _, job in sorted(queue) if (left >= needed).all() else ():
            if job in self._counted:
                continue
            if (left < needed).any():
                return
            left = left - needed
            self._counted.add(job)
            self._waiting.setdefault(kind, set()).add(job)
            self._promised += needed

    def _needed(self, kind: Kind) -> Longs:
        """(3,) requests of all parts."""
        needed: Longs = np.sum([count * self._demand[c] for c, count in kind], axis=0)
        return needed

    def _is_large(self, job: int) -> bool:
        return int(self._asked_milli[job]) >= _SEVERAL_MILLI
