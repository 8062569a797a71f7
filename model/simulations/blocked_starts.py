"""Starts that only a move would have allowed: jobs of several GPUs that wait while as many are free, but scattered."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Longs, Mask
from extender.core.fragmentation import Nodes
from model.engine import kernels
from model.simulations.simulated_jobs import Kind, Tasks

_SEVERAL_MILLI: Final = 2 * WHOLE_MILLI
"""Jobs of that many GPU milli and more are looked at."""


class BlockedStarts:
    """Counts each job once: when it is first seen waiting though the nodes that could take it have enough free.

    Enough: GPU, CPU and memory, summed over the nodes that are there and have room for its pods when they are empty,
    beyond what jobs counted before it and still waiting ask for. That moves would do is then likely, not certain.
    """

    def __init__(self, nodes: Nodes, tasks: Tasks) -> None:
        """`nodes` are empty here, and looked at as they are filled."""
        asks = tasks.asks
        self._nodes, self._asked_milli, self._kinds = nodes, tasks.asked_milli, tasks.kinds
        self._demand = np.column_stack([asks.num_gpus * asks.gpu_milli, asks.cpu_milli, asks.memory_mib])
        """(C, 3) GPU milli, CPU milli and memory MiB of a pod."""
        self._could: list[Mask] = [kernels.fitting(nodes, asks, c) for c in range(len(self._demand))]
        self._counted: set[int] = set()
        self._waiting: dict[Kind, set[int]] = {}
        """Counted jobs that still wait."""
        self._promised: Longs = np.zeros(3, np.int64)
        """(3,) what these ask for."""

    @property
    def jobs(self) -> frozenset[int]:
        """Those that were counted."""
        return frozenset(self._counted)

    def started(self, job: int) -> None:
        """A job waits no longer."""
        kind = self._kinds[job]
        if job in self._waiting.get(kind, ()):
            self._waiting[kind].remove(job)
            self._promised -= self._needed(kind)

    def look(self, queues: Mapping[tuple[Kind, Any], Sequence[tuple[float, float, int]]]) -> None:
        """After a walk: `queues` have (-priority, place, job) of those that wait, the first one in front."""
        heads = sorted(
            (queue[0], name)
            for name, queue in queues.items()
            if queue and self._is_large(queue[0][2]) and len(self._waiting.get(name[0], ())) < len(queue)
        )
        if not heads:
            return
        nodes = self._nodes
        there = nodes.cpu_free_milli >= 0  # a node that is gone has less than none
        free = np.column_stack([nodes.gpu_free_milli.sum(axis=1), nodes.cpu_free_milli, nodes.memory_free_mib])
        for _, name in heads:
            self._count(name[0], queues[name], free, there)

    def _count(self, kind: Kind, queue: Sequence[tuple[float, float, int]], free: Longs, there: Mask) -> None:
        """Count jobs of a kind, in their order, as long as (N, 3) `free` has enough for one more."""
        there_too = {c: self._could[c] & there for c, _ in kind}
        if any((free[there_too[c]].sum(axis=0) < count * self._demand[c]).any() for c, count in kind):
            return
        needed = self._needed(kind)
        left = free[np.logical_or.reduce(list(there_too.values()))].sum(axis=0) - self._promised
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
        """(3,) of all parts."""
        needed: Longs = np.sum([count * self._demand[c] for c, count in kind], axis=0)
        return needed

    def _is_large(self, job: int) -> bool:
        return int(self._asked_milli[job]) >= _SEVERAL_MILLI
