"""What a learned rank sees of a node: features of the state that a decision would leave behind.

The value of a node is a function of these (`extender.core.potentials`), and a decision is worth the value after it
minus the value before. They depend on the node's own state and on the pods that are expected to come, the outlook, so
that they can be remembered until the node changes. A model names the version that it was trained on.

Amounts are in GPUs: free CPU and memory are counted as the GPUs whose expected need they would cover.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Floats, Longs
from extender.core.fragments import Mix, fragment_milli
from extender.core.packing import GPU_MILLI, Asks, Nodes

FEATURES_VERSION: Final = 1
"""Changes whenever a feature changes its meaning, its place or its unit."""

FEATURES: Final = (
    "fragment",  # idle GPU that a typical pod is expected to be unable to use
    "worth",  # shadow prices of what is left of each GPU
    "gpus_idle",
    "node_idle",  # 1 when all GPUs of the node are idle
    "gpus_partly_used",
    "cpu_short_half",  # min(0, free CPU - 0.5 x need of the free GPU)
    "cpu_short",
    "cpu_short_more",  # 1.5 x need
    "cpu",
    "cpu_square",  # by capacity
    "cpu_log",  # log(1 + free)
    "gpu_cpu",  # free GPU x free fraction of the CPU
    "memory_short",
    "memory",
    "memory_square",
    "gpu_memory",
    "gpu_sqrt",
    "gpu_square",  # by number of GPUs
)
"""Names of the F features, in order."""

CPU_NEEDS: Final = (0.5, 1.0, 1.5)
"""Multiples of the expected need at which CPU counts as short."""


class Outlook(NamedTuple):
    """The pods that are expected to come."""

    mix: Mix
    worth: Floats
    """(M + 1, 1001) GPUs that each number of milli left on a GPU of each model is worth; the last row, for nodes
    without GPUs, is 0."""
    cpu_need_milli: float
    """CPU that the expected pods ask for by whole GPU."""
    memory_need_mib: float
    """Memory, likewise."""


def plain_worth(num_models: int) -> Floats:
    """(M + 1, 1001) worth without prices: what is left, as it is."""
    worth = np.zeros((num_models + 1, GPU_MILLI + 1))
    worth[:num_models] = np.arange(GPU_MILLI + 1) / GPU_MILLI
    return worth


def needs(asks: Asks, count: Longs) -> tuple[float, float]:
    """CPU milli and memory MiB by whole GPU over classes of pods, `count` (C,) times each; 1 and 1 without GPUs.

    Pods without GPUs are left out: they don't compete for the CPU beside a GPU in particular.
    """
    asking = np.where(asks.num_gpus > 0, count, 0)
    num_gpus = float((asking * asks.num_gpus * asks.gpu_milli).sum()) / GPU_MILLI
    if num_gpus == 0:
        return 1.0, 1.0
    cpu, memory = (float((asking * amount).sum()) / num_gpus for amount in (asks.cpu_milli, asks.memory_mib))
    return max(cpu, 1.0), max(memory, 1.0)


def features(nodes: Nodes, outlook: Outlook) -> Floats:
    """(R, F) features of R nodes in their present state."""
    free = nodes.gpu_free_milli.astype(np.int64)  # (R, G)
    has_gpus = nodes.num_gpus > 0
    num_gpus = np.maximum(nodes.num_gpus, 1)
    gpu = free.sum(axis=1) / GPU_MILLI
    idle = (free == GPU_MILLI).sum(axis=1)
    cpu, cpu_capacity = nodes.cpu_free_milli / outlook.cpu_need_milli, nodes.cpu_milli / outlook.cpu_need_milli
    memory = nodes.memory_free_mib / outlook.memory_need_mib
    memory_capacity = nodes.memory_mib / outlook.memory_need_mib
    cpu_frac = nodes.cpu_free_milli / np.maximum(nodes.cpu_milli, 1)
    memory_frac = nodes.memory_free_mib / np.maximum(nodes.memory_mib, 1)
    columns: list[npt.NDArray[np.generic]] = [
        fragment_milli(nodes.cpu_free_milli, free, nodes.model, outlook.mix) / GPU_MILLI,
        outlook.worth[nodes.model[:, None], free].sum(axis=1),  # model -1 is the last row
        idle,
        has_gpus & (idle == nodes.num_gpus),
        ((free > 0) & (free < GPU_MILLI)).sum(axis=1),
        *(np.minimum(0, cpu - need * gpu) for need in CPU_NEEDS),
        cpu,
        cpu * cpu / np.maximum(cpu_capacity, 1e-9),
        np.log1p(cpu),
        gpu * cpu_frac,
        np.minimum(0, memory - gpu),
        memory,
        memory * memory / np.maximum(memory_capacity, 1e-9),
        gpu * memory_frac,
        np.sqrt(gpu),
        gpu * gpu / num_gpus,
    ]
    return np.column_stack([column.astype(np.float64) for column in columns])
