"""An upper bound for policies that place pods as they arrive: the cluster without node boundaries.

Each GPU model is one pool, and CPU is shared by all: a pod's GPUs can be spread over nodes. Memory is ignored.
"""

from collections.abc import Sequence

import numpy as np

from extender.core.clusters import Longs, Mask
from extender.core.fragmentation import Nodes, PodClasses
from model.engine import kernels


class Pools:
    """Engine over one pool for each GPU model."""

    def __init__(self, nodes: Nodes, asks: PodClasses) -> None:
        """`nodes` and `asks` come from `pooled`; nodes are updated in place and share the same CPU."""
        self.nodes, self._asks = nodes, asks

    def decide(self, c: int, draw: float = 0.0) -> int:
        """Return the pool with most free GPU that has room for a class, -1 if none has."""
        fitting = kernels.fitting(self.nodes, self._asks, c)
        if not fitting.any():
            return -1
        return int(np.where(fitting, self.nodes.gpu_free_milli[:, 0], -1).argmax())

    def take(self, c: int, node: int) -> int:
        """Book a class on a pool."""
        self._move(c, node, -1)
        return 1

    def give_back(self, c: int, node: int, gpus: int) -> None:
        """Undo `take`."""
        self._move(c, node, 1)

    def mark_fitting(self, node: int, fitting: Mask) -> None:
        """Set (C,) `fitting` for each class that fits in any pool."""
        for pool in range(len(self.nodes.cpu_milli)):
            kernels.mark_fitting(self.nodes, self._asks, pool, fitting)

    def changed(self, node: int) -> None:
        """Do nothing: nodes of a pool do not fail."""

    def fragment_milli(self, without: Sequence[int] = ()) -> float:
        """Return 0: a pool has no fragmentation."""
        return 0.0

    def _move(self, c: int, node: int, sign: int) -> None:
        self.nodes.cpu_free_milli[:] += sign * self._asks.cpu_milli[c]
        self.nodes.gpu_free_milli[node, 0] += sign * self._asks.gpu_milli[c]


def pooled(nodes: Nodes, asks: PodClasses) -> tuple[Nodes, PodClasses]:
    """Return the pools, in model order, with the nodes' free capacity, and the classes' requests to them."""
    with_gpus = nodes.model >= 0
    num_models = int(nodes.model.max(initial=-1)) + 1
    milli = np.bincount(nodes.model[with_gpus], nodes.gpu_free_milli[with_gpus].sum(axis=1), num_models)
    num_pools = max(num_models, 1)
    cpu: Longs = np.full(num_pools, nodes.cpu_free_milli.sum())
    plenty: Longs = np.full(num_pools, 1)
    pools = Nodes(
        cpu.copy(), plenty, plenty, np.arange(num_pools) if num_models else np.full(1, -1), cpu, plenty.copy(),
        np.rint(milli if num_models else np.zeros(1)).astype(np.int32)[:, None],
    )  # fmt: skip
    total_milli = asks.num_gpus * asks.gpu_milli
    return pools, asks._replace(
        memory_mib=np.zeros_like(asks.memory_mib), num_gpus=np.minimum(asks.num_gpus, 1), gpu_milli=total_milli
    )
