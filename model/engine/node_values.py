"""Compiled equivalents of `features`, `potentials.values` and `fragments`, one node at a time.

Fragments are bit-identical; features are equal up to rounding.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import CORE_MILLI, GIB_MIB, WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import THRESHOLDS, Mix, Nodes
from extender.core.valuenet.features import CPU_NEEDS, FEATURES, LEAST_GPU, Hosting, Outlook
from extender.core.valuenet.potentials import Potential
from model.engine.compiling import compiled

_WHOLE_MILLI: Final = WHOLE_MILLI
_HALF, _FULL, _MORE = CPU_NEEDS
_LEAST_GPU: Final = LEAST_GPU
_CORE_MILLI, _GIB_MIB = CORE_MILLI, GIB_MIB
_NUM_FEATURES: Final = len(FEATURES)


@compiled
def fragment(
    cpu_free: int, free: npt.NDArray[np.int32], gpu: int, milli: int, model: int, mix: Mix, scratch: Longs
) -> float:
    """`fragmentation.fragment_milli` of one node, with `milli` less on one of its GPUs."""
    idle = 0
    num_sizes = len(mix.sizes)
    for u in range(num_sizes + 1):
        scratch[0, u] = 0
        scratch[1, u] = 0
    for g in range(len(free)):
        left = free[g] - (milli if g == gpu else 0)
        if left > 0:
            idle += left
            within = mix.num_sizes_within[left]  # too small for all larger sizes
            scratch[0, within] += 1
            scratch[1, within] += left
    if idle == 0:
        return 0.0
    # From counts by the largest size that fits a GPU to: GPUs large enough for a size, and milli on the others.
    num_enough, too_small = 0, idle
    for u in range(num_sizes, 0, -1):
        num_enough += scratch[0, u]
        too_small -= scratch[1, u]
        scratch[0, u] = num_enough
        scratch[1, u] = too_small
    lacks_both, lacks_gpu, lacks_cpu, no_gpu_asked, no_gpu_no_cpu, wrong_model = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(len(mix.frequency)):
        all_idle = mix.frequency[k] * idle
        enough_cpu = cpu_free >= mix.cpu_milli[k]
        num = mix.num_gpus[k]
        if num == 0:
            if enough_cpu:
                no_gpu_asked += all_idle
            else:
                no_gpu_no_cpu += all_idle
        elif (mix.models[k] >> model) & 1 == 0:
            wrong_model += all_idle
        elif scratch[0, mix.size[k] + 1] >= num:
            if enough_cpu:
                lacks_gpu += mix.frequency[k] * scratch[1, mix.size[k] + 1]
            else:
                lacks_cpu += all_idle
        elif enough_cpu:
            lacks_gpu += all_idle
        else:
            lacks_both += all_idle
    return ((((lacks_both + lacks_gpu) + lacks_cpu) + no_gpu_asked) + no_gpu_no_cpu) + wrong_model


@compiled
def fgd_score(before: float, after: float) -> int:
    """`fragmentation.fgd_score` of one node."""
    gain = (before - after) / 1000
    low, high = 0, len(THRESHOLDS)
    while low < high:
        middle = (low + high) // 2
        if gain >= THRESHOLDS[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _hosted(cpu_milli: int, left: Longs, model: int, table: Hosting, by_milli: bool) -> float:
    """`features._hosted` of one node; `left` is the free milli of each GPU that is not full."""
    low, high = 0, len(table.cpu_milli)
    while low < high:
        middle = (low + high) // 2
        if table.cpu_milli[middle] <= cpu_milli:
            low = middle + 1
        else:
            high = middle
    total = 0.0
    for u in range(len(table.num_gpus)):
        num_enough, enough_milli = 0, 0
        for g in range(len(left)):
            if left[g] >= table.gpu_milli[u]:
                num_enough += 1
                enough_milli += left[g]
        if num_enough >= table.num_gpus[u]:
            weight = table.weight[model, u, low]
            total += weight * enough_milli if by_milli else weight
    return total


@compiled
def node_features(
    nodes: Nodes,
    node: int,
    cpu_milli: int,
    memory_mib: int,
    free: npt.NDArray[np.int32],
    share: tuple[int, int],
    outlook: Outlook,
    scratch: Longs,
    into: Floats,
) -> None:
    """Write `features.features` of one node with the given free CPU and memory, and `share` (GPU, milli) less of a GPU.

    `scratch` has one number for each GPU.
    """
    gpu, milli = share
    model, num_gpus = nodes.model[node], nodes.num_gpus[node]
    total, num_idle, num_partly, num_left, worth = 0, 0, 0, 0, 0.0
    for g in range(len(free)):
        left = free[g] - (milli if g == gpu else 0)
        total += left
        if left == _WHOLE_MILLI:
            num_idle += 1
        elif left > 0:
            num_partly += 1
        worth += outlook.worth.left[model, left]
        if left > 0:
            scratch[num_left] = left
            num_left += 1
    lefts = scratch[:num_left]
    gpus = total / _WHOLE_MILLI
    cpu, cpu_capacity = cpu_milli / outlook.cpu_need_milli, nodes.cpu_milli[node] / outlook.cpu_need_milli
    fragment = 0.0
    if len(outlook.mix.frequency) > 0:
        fragment = (total - _hosted(cpu_milli, lefts, model, outlook.typical, True)) / _WHOLE_MILLI
    into[0] = fragment
    into[1] = worth
    into[2] = num_idle
    into[3] = 1.0 if num_gpus > 0 and num_idle == num_gpus else 0.0
    into[4] = num_partly
    into[5] = min(0.0, cpu - _HALF * gpus)
    into[6] = min(0.0, cpu - _FULL * gpus)
    into[7] = min(0.0, cpu - _MORE * gpus)
    into[8] = cpu * cpu / max(cpu_capacity, 1e-9)
    into[9] = np.log1p(cpu)
    into[10] = gpus * (cpu_milli / max(nodes.cpu_milli[node], 1))
    into[11] = min(0.0, memory_mib / outlook.memory_need_mib - gpus)
    into[12] = np.sqrt(gpus)
    into[13] = gpus * gpus / max(num_gpus, 1)
    into[14] = gpus * outlook.wanted[model]
    into[15] = worth * min(cpu / max(gpus, _LEAST_GPU), 1.0)
    into[16] = _hosted(cpu_milli, lefts, model, outlook.one, False)
    into[17] = _hosted(cpu_milli, lefts, model, outlook.many, False)
    core, gib = outlook.worth.compute[model]
    into[18] = core * (cpu_milli / _CORE_MILLI) + gib * (memory_mib / _GIB_MIB)


@compiled
def value(inputs: Floats, potential: Potential) -> float:
    """`potentials.values` of one node."""
    total = 0.0
    for f in range(_NUM_FEATURES):
        total += inputs[f] * potential.weights[f]
    for h in range(len(potential.out)):
        level = potential.bias[h]
        for f in range(_NUM_FEATURES):
            level += inputs[f] * potential.scale[f] * potential.hidden[f, h]
        total += np.tanh(level) * potential.out[h]
    return total


@compiled
def value_now(nodes: Nodes, node: int, outlook: Outlook, potential: Potential, scratch: Longs, inputs: Floats) -> float:
    """V of a node in its current state."""
    cpu, memory, free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node], nodes.gpu_free_milli[node]
    node_features(nodes, node, cpu, memory, free, (-1, 0), outlook, scratch, inputs)
    return float(value(inputs, potential))


@compiled
def fill_features(nodes: Nodes, outlook: Outlook, rows: Floats) -> None:
    """Write `features.features` of all nodes to (N, F) `rows`."""
    scratch = np.zeros(nodes.gpu_free_milli.shape[1], np.int64)
    for node in range(len(rows)):
        cpu, memory, free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node], nodes.gpu_free_milli[node]
        node_features(nodes, node, cpu, memory, free, (-1, 0), outlook, scratch, rows[node])
