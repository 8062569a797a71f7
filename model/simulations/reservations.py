"""Node reservations for the first job in the queue that does not fit, as in the service's queue."""

from collections.abc import Iterable

import numpy as np

from extender.core.clusters import Mask
from extender.core.fragmentation import PodClasses
from model.engine import kernels
from model.engine.engines import Engine
from model.engine.pools import Pools

_HIDDEN_MILLI = 1 << 41
"""CPU milli subtracted from a reserved node while later jobs are tried, so that nothing fits."""


class Reservation:
    """Reserves a node for each part of one job: of the nodes that could host it, those with most idle GPU.

    The reserved nodes stay the same while that job is the first. Only jobs behind it are kept off them.
    """

    def __init__(self, engine: Engine | Pools, asks: PodClasses) -> None:
        self._engine, self._nodes = engine, engine.nodes
        self._feasible: list[Mask] = [kernels.fitting(engine.nodes, asks, c) for c in range(len(asks.cpu_milli))]
        """Per class (N,) whether it fits on the empty nodes."""
        self._job = -1
        self._kept: list[int] = []

    def hide(self, job: int, classes: Iterable[int]) -> None:
        """Hide the nodes reserved for a job until `show`; `classes` has one entry for each of its parts."""
        if job != self._job:
            self._job, self._kept = job, self._chosen(classes)
        self._take(_HIDDEN_MILLI)

    def show(self) -> None:
        """Make the hidden nodes usable again."""
        self._take(-_HIDDEN_MILLI)

    def _take(self, cpu_milli: int) -> None:
        for node in self._kept:
            self._nodes.cpu_free_milli[node] -= cpu_milli
            self._engine.changed(node)

    def _chosen(self, classes: Iterable[int]) -> list[int]:
        idle = self._nodes.gpu_free_milli.sum(axis=1)
        chosen: list[int] = []
        for c in classes:
            feasible = self._feasible[c] & (self._nodes.cpu_free_milli >= 0)  # negative on a failed node
            feasible[chosen] = False
            if feasible.any():
                chosen.append(int(np.argmax(np.where(feasible, idle, -1))))
        return chosen
