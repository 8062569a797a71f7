"""Compiled twins of `features` and `potentials`, for simulations and training: the same to rounding, a node at a time.

Needs numba, which the service does without: import it only where simulations run.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core import kernels
from extender.core.clusters import Floats, Longs
from extender.core.features import CPU_NEEDS, FEATURES, LEAST_GPU, Hosting, Outlook
from extender.core.kernels import Memo, compiled
from extender.core.packing import GPU_MILLI, Asks, Nodes, Tie
from extender.core.potentials import TOLERANCE, Potential

_GPU_MILLI: Final = GPU_MILLI
_TOLERANCE: Final = TOLERANCE
_HALF, _FULL, _MORE = CPU_NEEDS
_LEAST_GPU: Final = LEAST_GPU
_FIRST: Final = int(Tie.FIRST)
_NOWHERE: Final = -np.inf
_NUM_FEATURES: Final = len(FEATURES)


@compiled
def hosted(cpu_milli: int, left: Longs, model: int, table: Hosting, by_milli: bool) -> float:
    """`features._hosted` of one node, with what is `left` on each of its GPUs that have something left."""
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
    """`features.features` of one node with so much CPU and memory free, and `share` (GPU, milli) less of a GPU.

    `scratch` has room for a number by GPU.
    """
    gpu, milli = share
    model, num_gpus = nodes.model[node], nodes.num_gpus[node]
    total, num_idle, num_partly, num_left, worth = 0, 0, 0, 0, 0.0
    for g in range(len(free)):
        left = free[g] - (milli if g == gpu else 0)
        total += left
        if left == _GPU_MILLI:
            num_idle += 1
        elif left > 0:
            num_partly += 1
        worth += outlook.worth[model, left]
        if left > 0:
            scratch[num_left] = left
            num_left += 1
    lefts = scratch[:num_left]
    gpus = total / _GPU_MILLI
    cpu, cpu_capacity = cpu_milli / outlook.cpu_need_milli, nodes.cpu_milli[node] / outlook.cpu_need_milli
    fragment = 0.0
    if len(outlook.mix.frequency) > 0:
        fragment = (total - hosted(cpu_milli, lefts, model, outlook.typical, True)) / _GPU_MILLI
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
    into[16] = hosted(cpu_milli, lefts, model, outlook.one, False)
    into[17] = hosted(cpu_milli, lefts, model, outlook.many, False)


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
    """V of a node in its present state."""
    cpu, memory, free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node], nodes.gpu_free_milli[node]
    node_features(nodes, node, cpu, memory, free, (-1, 0), outlook, scratch, inputs)
    return float(value(inputs, potential))


@compiled
def evaluate_node(
    nodes: Nodes,
    asks: Asks,
    c: int,
    node: int,
    outlook: Outlook,
    potential: Potential,
    scratch: Longs,
    before: float,
    inputs: Floats,
) -> tuple[float, int]:
    """`potentials.evaluate` of one node whose V is `before`."""
    if not kernels.fit_node(nodes, asks, c, node):
        return _NOWHERE, -1
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    free = nodes.gpu_free_milli[node]
    cpu, memory = nodes.cpu_free_milli[node] - asks.cpu_milli[c], nodes.memory_free_mib[node] - asks.memory_mib[c]
    quantum = potential.quantum[0]
    best, gpu = _NOWHERE, -1
    if 0 < milli < _GPU_MILLI:
        for g in range(len(free)):
            if free[g] < milli:
                continue
            known = False  # equal remainders gain the same, and the first one wins
            for earlier in range(g):
                known = known or free[earlier] == free[g]
            if known:
                continue
            node_features(nodes, node, cpu, memory, free, (g, milli), outlook, scratch, inputs)
            gain = value(inputs, potential) - before
            if gain > best + _TOLERANCE * quantum:
                best, gpu = gain, g
    else:
        after = free.copy()
        for g in range(len(free)):
            if num > 0 and free[g] == _GPU_MILLI:
                after[g] = 0
                num -= 1
        node_features(nodes, node, cpu, memory, after, (-1, 0), outlook, scratch, inputs)
        best = value(inputs, potential) - before
    return np.floor(best / quantum + _TOLERANCE), gpu


@compiled
def refresh(
    nodes: Nodes,
    asks: Asks,
    c: int,
    outlook: Outlook,
    potential: Potential,
    memo: Memo,
    values: Floats,
    scratch: Longs,
    inputs: Floats,
) -> None:
    """Bring a class's remembered scores up to date, as `kernels.refresh`; (N,) `values` is V of each node now."""
    now = memo.num_changes[0]
    since = memo.seen[c]
    if since < 0 or now - since > len(memo.changed):
        for node in range(len(nodes.cpu_milli)):
            twin = memo.twin[node]
            if twin >= 0:
                memo.score[c, node], memo.gpu[c, node] = memo.score[c, twin], memo.gpu[c, twin]
            else:
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(
                    nodes, asks, c, node, outlook, potential, scratch, values[node], inputs
                )
    else:
        mark = -2 - now * len(memo.seen) - c
        for change in range(now - 1, since - 1, -1):
            node = memo.changed[change & (len(memo.changed) - 1)]
            if memo.checked[node] != mark:
                memo.checked[node] = mark
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(
                    nodes, asks, c, node, outlook, potential, scratch, values[node], inputs
                )
    memo.seen[c] = now


@compiled
def place_all(
    nodes: Nodes,
    asks: Asks,
    classes: Longs,
    outlook: Outlook,
    potential: Potential,
    memo: Memo,
    placed: Longs,
    gpus: Longs,
    fragments: Floats,
) -> None:
    """Offer P pods one after the other, as `kernels.place_all`; the first of the best nodes is taken."""
    inputs = np.zeros(_NUM_FEATURES)
    scratch = np.zeros(nodes.gpu_free_milli.shape[1], np.int64)
    values = np.zeros(len(nodes.cpu_milli))
    total = 0.0
    for node in range(len(values)):
        values[node] = value_now(nodes, node, outlook, potential, scratch, inputs)
        total += memo.fragment[node]
    for p in range(len(classes)):
        c = classes[p]
        refresh(nodes, asks, c, outlook, potential, memo, values, scratch, inputs)
        node, _ = kernels.pick(memo.score[c], _FIRST, 0.0, -1)
        placed[p] = node
        gpus[p] = 0
        if node >= 0:
            before = memo.fragment[node]
            gpus[p] = kernels.take(nodes, asks, c, node, outlook.mix, memo)
            total += memo.fragment[node] - before
            values[node] = value_now(nodes, node, outlook, potential, scratch, inputs)
        fragments[p] = total


@compiled
def decide(
    nodes: Nodes,
    asks: Asks,
    c: int,
    outlook: Outlook,
    potential: Potential,
    memo: Memo,
    values: Floats,
    known: Longs,
) -> int:
    """The node for a class, -1 when none fits, as `kernels.decide`.

    (N,) `values` is V of each node after the first `known[0]` changes of the memo, and is brought up to date; -1 when
    there are none yet.
    """
    inputs = np.zeros(_NUM_FEATURES)
    scratch = np.zeros(nodes.gpu_free_milli.shape[1], np.int64)
    now = memo.num_changes[0]
    if known[0] < 0 or now - known[0] > len(memo.changed):
        for node in range(len(values)):
            values[node] = value_now(nodes, node, outlook, potential, scratch, inputs)
    else:
        for change in range(known[0], now):
            node = memo.changed[change & (len(memo.changed) - 1)]
            values[node] = value_now(nodes, node, outlook, potential, scratch, inputs)
    known[0] = now
    refresh(nodes, asks, c, outlook, potential, memo, values, scratch, inputs)
    node, _ = kernels.pick(memo.score[c], _FIRST, 0.0, -1)
    return node
