"""Nodes and classes of pods as plain arrays: what value nets, prices and simulations work on.

N nodes, G GPU slots of a node, C classes of pods that ask for the same.
"""

from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Ints, Longs, Mask, Rows

ANY_MODEL: Final = -1
"""Bits of every GPU model."""
MAX_MODELS: Final = 62
"""GPU models are bits of a signed 64-bit number."""


class Nodes(NamedTuple):
    """N nodes with up to G GPUs."""

    cpu_milli: Longs
    """(N,) allocatable."""
    memory_mib: Longs
    """(N,) allocatable."""
    num_gpus: Longs
    """(N,)."""
    model: Longs
    """(N,) index of the GPUs' model, below MAX_MODELS; -1 without GPUs."""
    cpu_free_milli: Longs
    """(N,)."""
    memory_free_mib: Longs
    """(N,)."""
    gpu_free_milli: Ints
    """(N, G) 0..1000, 0 where there is no GPU."""

    def at(self, rows: Rows | Mask) -> "Nodes":
        """(R,) rows of the nodes, in arrays of their own."""
        return Nodes(*(column[rows] for column in self))  # type: ignore[arg-type]

    def copy(self) -> "Nodes":
        """The same nodes with arrays of their own, so that they can be filled."""
        return Nodes(*(column.copy() for column in self))  # type: ignore[arg-type]

    def types(self) -> tuple[Longs, Longs]:
        """(4, T) model, GPUs, CPU and memory of each type of node, whatever is free, and (T,) how many are of it."""
        columns = (self.model, self.num_gpus, self.cpu_milli, self.memory_mib)
        types, count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        return types.T, count


class Asks(NamedTuple):
    """C classes of pods."""

    cpu_milli: Longs
    memory_mib: Longs
    num_gpus: Longs
    gpu_milli: Longs
    """(C,) of each GPU: 1000 for whole ones, less for a share of one GPU, 0 without GPUs."""
    models: Longs
    """(C,) bits of the models allowed."""

    def at(self, chosen: Rows | Mask) -> "Asks":
        """A selection of the classes."""
        return Asks(*(column[chosen] for column in self))

    def hosts(self, types: Longs) -> Mask:
        """(C, T) where an empty node of some `types` (4, T) has room for a pod of a class."""
        model, num_gpus, cpu, memory = types
        allowed = (model >= 0) & ((self.models[:, None] >> np.maximum(model, 0)) & 1 == 1)
        gpus = (self.num_gpus == 0)[:, None] | (allowed & (self.num_gpus[:, None] <= num_gpus))
        enough: Mask = gpus & (self.cpu_milli[:, None] <= cpu) & (self.memory_mib[:, None] <= memory)
        return enough
