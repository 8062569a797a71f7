"""Compiled equivalents of fit, booking and scores, one node at a time, with bit-identical results.

The rules are those of `extender.core` (`fit`, `bookings`, and one file for each policy), reduced to what traces have:
no GPU memory, links or time slices. tests/model/engine compares them for each policy.
"""

from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Ints, Longs
from extender.core.fragmentation import Mix, Nodes, PodClasses
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, MAX_MEMORY_MIB
from extender.core.valuenet.features import FEATURES, Outlook
from extender.core.valuenet.potentials import TOLERANCE, Potential, in_context
from model.engine import node_values
from model.engine.compiling import compiled
from model.engine.ranks import Rank
from model.policies import bestfit, kube_default

_FGD, _BESTFIT, _BINPACK, _SPREAD, _KUBE, _TIGHTEST, _LISTED = (
    int(rank) for rank in (Rank.FGD, Rank.BESTFIT, Rank.BINPACK, Rank.SPREAD, Rank.KUBE, Rank.TIGHTEST, Rank.LISTED)
)
_WHOLE_MILLI: Final = WHOLE_MILLI
_TOLERANCE: Final = TOLERANCE
_KUBE_CPU, _KUBE_MEMORY = kube_default.CPU_MILLI, kube_default.MEMORY_MIB
_BESTFIT_CPU, _BESTFIT_GPU = bestfit.CPU_MILLI, bestfit.GPU_MILLI
_LARGEST_MIB: Final = float(MAX_MEMORY_MIB)
_MAX_GPUS: Final = MAX_GPUS_PER_NODE
_NOWHERE: Final = -np.inf


class Learned(NamedTuple):
    """A learned rank on N nodes, with scratch arrays."""

    outlook: Outlook
    potential: Potential
    values: Floats
    """(N,) V of each node after the memo's first `known` changes."""
    known: Longs
    """(1,) -1 before the first computation."""
    inputs: Floats
    """(F,) scratch."""
    scratch: Longs
    """(G,) scratch."""


def learned_on(nodes: Nodes, outlook: Outlook, potential: Potential) -> Learned:
    """Return a learned rank on nodes, before the first computation."""
    num_nodes, num_slots = nodes.gpu_free_milli.shape
    known, inputs = np.full(1, -1, np.int64), np.zeros(len(FEATURES))
    potential = in_context(potential, outlook.context)
    return Learned(outlook, potential, np.zeros(num_nodes), known, inputs, np.zeros(num_slots, np.int64))


@compiled
def fit_node(nodes: Nodes, asks: PodClasses, c: int, node: int) -> bool:
    """Whether a class fits now: CPU, memory, model, and one GPU with enough free or enough idle GPUs."""
    if nodes.cpu_free_milli[node] < asks.cpu_milli[c] or nodes.memory_free_mib[node] < asks.memory_mib[c]:
        return False
    num = asks.num_gpus[c]
    if num == 0:
        return True
    if nodes.model[node] < 0 or (asks.models[c] >> nodes.model[node]) & 1 == 0:
        return False
    num_enough = 0
    for g in range(nodes.gpu_free_milli.shape[1]):
        if nodes.gpu_free_milli[node, g] >= asks.gpu_milli[c]:
            num_enough += 1
            if num_enough >= num:
                return True
    return False


@compiled
def book(nodes: Nodes, asks: PodClasses, c: int, node: int, gpu: int) -> int:
    """Book a class on a node, in place; returns the mask of GPUs taken: the share's `gpu`, or the first idle ones."""
    nodes.cpu_free_milli[node] -= asks.cpu_milli[c]
    nodes.memory_free_mib[node] -= asks.memory_mib[c]
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    if 0 < milli < _WHOLE_MILLI:
        nodes.gpu_free_milli[node, gpu] -= milli
        return 1 << int(gpu)  # not compiled, an int8 would overflow at GPU 7
    taken = 0
    for g in range(nodes.gpu_free_milli.shape[1]):
        if num > 0 and nodes.gpu_free_milli[node, g] == _WHOLE_MILLI:
            nodes.gpu_free_milli[node, g] = 0
            taken |= 1 << g
            num -= 1
    return taken


@compiled
def release(nodes: Nodes, asks: PodClasses, c: int, node: int, gpus: int) -> None:
    """Undo `book`, in place; `gpus` is the mask that it returned."""
    _move(nodes, asks, c, node, gpus, 1)


@compiled
def retake(nodes: Nodes, asks: PodClasses, c: int, node: int, gpus: int) -> None:
    """Book a class on given GPUs, in place."""
    _move(nodes, asks, c, node, gpus, -1)


@compiled
def _move(nodes: Nodes, asks: PodClasses, c: int, node: int, gpus: int, sign: int) -> None:
    nodes.cpu_free_milli[node] += sign * asks.cpu_milli[c]
    nodes.memory_free_mib[node] += sign * asks.memory_mib[c]
    for g in range(nodes.gpu_free_milli.shape[1]):
        if (gpus >> g) & 1 == 1:
            nodes.gpu_free_milli[node, g] += sign * asks.gpu_milli[c]


@compiled
def _balance(cpu_used: int, cpu: int, memory_used: int, memory: int) -> int:
    """`kube_default._balance` of one node."""
    cpu_frac = min(cpu_used / max(cpu, 1), 1.0)
    memory_frac = min(memory_used / max(memory, 1), 1.0)
    return int((1 - abs((cpu_frac - memory_frac) / 2)) * 100)


@compiled
def _kube(nodes: Nodes, asks: PodClasses, c: int, node: int) -> int:
    """`kube_default.score` of one node."""
    cpu, memory = nodes.cpu_milli[node], nodes.memory_mib[node]
    cpu_free, memory_free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node]
    cpu_request, memory_request = asks.cpu_milli[c], asks.memory_mib[c]
    least = max(cpu_free - (cpu_request if cpu_request > 0 else _KUBE_CPU), 0) * 100 // max(cpu, 1)
    least += max(memory_free - (memory_request if memory_request > 0 else _KUBE_MEMORY), 0) * 100 // max(memory, 1)
    least //= 2
    if cpu_request == 0 and memory_request == 0:
        return int(least)
    after = _balance(cpu - cpu_free + cpu_request, cpu, memory - memory_free + memory_request, memory)
    before = _balance(cpu - cpu_free, cpu, memory - memory_free, memory)
    return int(least + 50 + (50 + after - before) // 2)


@compiled
def evaluate_node(
    nodes: Nodes,
    asks: PodClasses,
    c: int,
    node: int,
    rank: int,
    mix: Mix,
    learned: Learned | None,
    fragment: float,
    scratch: Longs,
) -> tuple[float, int]:
    """Return the score of a class on a node (-inf if it does not fit) and the GPU for a share, else -1.

    `fragment` is the node's current one. A learned rank takes precedence over `rank`.
    """
    # One function, because each call increments the reference count of every array in its tuples.
    if not fit_node(nodes, asks, c, node):
        return _NOWHERE, -1
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    free = nodes.gpu_free_milli[node]
    share = 0 < milli < _WHOLE_MILLI
    if learned is None and rank != _FGD:
        gpu = _share_gpu(free, milli, rank) if share else -1
        return _plain_score(nodes, asks, c, node, rank, gpu), gpu
    cpu, memory = nodes.cpu_free_milli[node] - asks.cpu_milli[c], nodes.memory_free_mib[node] - asks.memory_mib[c]
    tolerance = 0.0 if learned is None else _TOLERANCE * learned.potential.quantum[0]  # near-ties are ties
    num_tried, taken = len(free), milli
    if not share:  # the first idle GPUs are taken
        free = free.copy()
        for g in range(len(free)):
            if num > 0 and free[g] == _WHOLE_MILLI:
                free[g] = 0
                num -= 1
        num_tried, taken = 1, 0
    best, gpu = _NOWHERE, -1
    for g in range(num_tried):
        if share:
            skip = free[g] < milli  # GPUs with equal free capacity gain the same: the first one wins
            for earlier in range(g):
                skip = skip or free[earlier] == free[g]
            if skip:
                continue
        if learned is None:
            after = node_values.fragment(cpu, free, g, taken, nodes.model[node], mix, scratch)
            gain = float(node_values.fgd_score(fragment, after))
        else:
            left, inputs = (g, taken), learned.inputs
            node_values.node_features(nodes, node, cpu, memory, free, left, learned.outlook, learned.scratch, inputs)
            gain = node_values.value(inputs, learned.potential) - learned.values[node]
        if gain > best + tolerance:
            best, gpu = gain, g if share else -1
    if learned is None:
        return best, gpu
    return np.floor(best / learned.potential.quantum[0] + _TOLERANCE), gpu


@compiled
def _share_gpu(free: Ints, milli: int, rank: int) -> int:
    """Return the GPU for a share: the fullest with room, the emptiest (SPREAD), or the first (NONE, KUBE)."""
    gpu = -1
    fills = rank in (_BESTFIT, _BINPACK, _TIGHTEST, _LISTED)
    for g in range(len(free)):
        if free[g] < milli:
            continue
        if gpu < 0 or (fills and free[g] < free[gpu]) or (rank == _SPREAD and free[g] > free[gpu]):
            gpu = g
    return gpu


@compiled
def _plain_score(nodes: Nodes, asks: PodClasses, c: int, node: int, rank: int, gpu: int) -> float:
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    free = nodes.gpu_free_milli[node]
    total, num_idle = 0, 0
    for g in range(len(free)):
        total += free[g]
        num_idle += free[g] == _WHOLE_MILLI
    if rank == _BESTFIT:
        cpu_left, gpu_left = nodes.cpu_free_milli[node] - asks.cpu_milli[c], total - num * milli
        return float(np.trunc((1 - (0.5 * cpu_left / _BESTFIT_CPU + 0.5 * gpu_left / _BESTFIT_GPU)) * 100))
    if rank == _TIGHTEST:
        if gpu >= 0:
            left = free[gpu] / _WHOLE_MILLI - milli / _WHOLE_MILLI + (free[gpu] == _WHOLE_MILLI)
            return float(-(left + num_idle / (_MAX_GPUS * 2 * _LARGEST_MIB)))
        return float(-(num_idle - num + (0.0 if num > 0 else 0.5)))
    if rank in (_BINPACK, _SPREAD):
        left = float(num_idle - num) if gpu < 0 else total / _WHOLE_MILLI - milli / _WHOLE_MILLI
        used = 1 - left / max(nodes.num_gpus[node], 1)
        return float(used if rank == _BINPACK else -used)
    if rank == _KUBE:
        return float(_kube(nodes, asks, c, node))
    return 0.0
