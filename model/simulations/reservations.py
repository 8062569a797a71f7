"""Nodes kept for the first in the queue that has no room, as the service's queue keeps them."""

from collections.abc import Iterable

import numpy as np

from extender.core.clusters import Mask
from extender.core.fragmentation import Asks
from model.engine import kernels
from model.engine.engines import Engine
from model.engine.pools import Pools

_HIDDEN_MILLI = 1 << 41
"""CPU milli taken from a kept node while those behind the first are looked at, so that nothing fits."""


class Reservation:
    """Keeps a node for each part of one job: those with most idle GPU of the nodes that could take it, when chosen.

    They stay the same as long as that job stays the first. Only those behind it are kept off them.
    """

    def __init__(self, engine: Engine | Pools, asks: Asks) -> None:
        self._engine, self._nodes = engine, engine.nodes
        self._could: list[Mask] = [kernels.fitting(engine.nodes, asks, c) for c in range(len(asks.cpu_milli))]
        """Per class (N,) the nodes that have room for it when they are empty, as they are in the beginning."""
        self._job = -1
        self._kept: list[int] = []

    def hide(self, job: int, classes: Iterable[int]) -> None:
        """Hide the nodes kept for a job, with the class of each of its parts, until `show`."""
        if job != self._job:
            self._job, self._kept = job, self._chosen(classes)
        self._take(_HIDDEN_MILLI)

    def show(self) -> None:
        """The end of the walk: what was hidden can be used again."""
        self._take(-_HIDDEN_MILLI)

    def _take(self, cpu_milli: int) -> None:
        for node in self._kept:
            self._nodes.cpu_free_milli[node] -= cpu_milli
            self._engine.changed(node)

    def _chosen(self, classes: Iterable[int]) -> list[int]:
        idle = self._nodes.gpu_free_milli.sum(axis=1)
        chosen: list[int] = []
        for c in classes:
            could = self._could[c] & (self._nodes.cpu_free_milli >= 0)  # a node that failed has less than none
            could[chosen] = False
            if could.any():
                chosen.append(int(np.argmax(np.where(could, idle, -1))))
        return chosen
