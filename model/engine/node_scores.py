"""Compiled twins of fit, booking and scores, for simulations: the same bits, a node at a time.

The rules are `extender.core`'s: `fit`, `bookings`, and a file for each policy. A trace tells nothing of GPUs' memory,
links and time slices, so what is left of the rules is short. tests/model/engine compares them, policy by policy.
"""

from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Ints, Longs
from extender.core.fragmentation import Asks, Mix, Nodes
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
    """A learned rank on N nodes, and room to work it out in."""

    outlook: Outlook
    potential: Potential
    values: Floats
    """(N,) V of each node after the first `known` changes of the memo."""
    known: Longs
    """(1,) -1 when there are no values yet."""
    inputs: Floats
    """(F,)."""
    scratch: Longs
    """(G,)."""


def learned_on(nodes: Nodes, outlook: Outlook, potential: Potential) -> Learned:
    """A learned rank on nodes of which nothing is worked out yet."""
    num_nodes, num_slots = nodes.gpu_free_milli.shape
    known, inputs = np.full(1, -1, np.int64), np.zeros(len(FEATURES))
    potential = in_context(potential, outlook.context)
    return Learned(outlook, potential, np.zeros(num_nodes), known, inputs, np.zeros(num_slots, np.int64))


@compiled
def fit_node(nodes: Nodes, asks: Asks, c: int, node: int) -> bool:
    """Whether a class fits now: CPU, memory, model, and a GPU with enough left or enough idle GPUs."""
    if nodes.cpu_free_milli[node] < asks.cpu_milli[c] or nodes.memory_free_mib[node] < asks.memory_mib[c]:
        return False
    num = asks.num_gpus[c]
    if num == 0:
        return True
    if nodes.model[node] < 0 or (asks.models[c] >> nodes.model[node]) & 1 == 0:
        return False
    found = 0
    for g in range(nodes.gpu_free_milli.shape[1]):
        if nodes.gpu_free_milli[node, g] >= asks.gpu_milli[c]:
            found += 1
            if found >= num:
                return True
    return False


@compiled
def book(nodes: Nodes, asks: Asks, c: int, node: int, gpu: int) -> int:
    """Book a class on a node, in place; returns the GPUs taken as bits: the share's `gpu`, or the first idle ones."""
    nodes.cpu_free_milli[node] -= asks.cpu_milli[c]
    nodes.memory_free_mib[node] -= asks.memory_mib[c]
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    if 0 < milli < _WHOLE_MILLI:
        nodes.gpu_free_milli[node, gpu] -= milli
        return 1 << gpu
    taken = 0
    for g in range(nodes.gpu_free_milli.shape[1]):
        if num > 0 and nodes.gpu_free_milli[node, g] == _WHOLE_MILLI:
            nodes.gpu_free_milli[node, g] = 0
            taken |= 1 << g
            num -= 1
    return taken


@compiled
def release(nodes: Nodes, asks: Asks, c: int, node: int, gpus: int) -> None:
    """Undo `book`, in place; `gpus` is what it returned."""
    _move(nodes, asks, c, node, gpus, 1)


@compiled
def retake(nodes: Nodes, asks: Asks, c: int, node: int, gpus: int) -> None:
    """Book a class on GPUs that are known, in place."""
    _move(nodes, asks, c, node, gpus, -1)


@compiled
def _move(nodes: Nodes, asks: Asks, c: int, node: int, gpus: int, sign: int) -> None:
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
def _kube(nodes: Nodes, asks: Asks, c: int, node: int) -> int:
    """`kube_default.score` of one node."""
    cpu, memory = nodes.cpu_milli[node], nodes.memory_mib[node]
    cpu_free, memory_free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node]
    asked_cpu, asked_memory = asks.cpu_milli[c], asks.memory_mib[c]
    least = max(cpu_free - (asked_cpu if asked_cpu > 0 else _KUBE_CPU), 0) * 100 // max(cpu, 1)
    least += max(memory_free - (asked_memory if asked_memory > 0 else _KUBE_MEMORY), 0) * 100 // max(memory, 1)
    least //= 2
    if asked_cpu == 0 and asked_memory == 0:
        return int(least)
    after = _balance(cpu - cpu_free + asked_cpu, cpu, memory - memory_free + asked_memory, memory)
    before = _balance(cpu - cpu_free, cpu, memory - memory_free, memory)
    return int(least + 50 + (50 + after - before) // 2)


@compiled
def evaluate_node(
    nodes: Nodes,
    asks: Asks,
    c: int,
    node: int,
    rank: int,
    mix: Mix,
    learned: Learned | None,
    fragment: float,
    scratch: Longs,
) -> tuple[float, int]:
    """Score of a class on a node, -inf where it does not fit, and the GPU of a share, else -1.

    `fragment` is the node's now. With a learned rank the score is that, whatever `rank` is.
    """
    # One function, because each call costs as many increments of references as its tuples have arrays.
    if not fit_node(nodes, asks, c, node):
        return _NOWHERE, -1
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    free = nodes.gpu_free_milli[node]
    share = 0 < milli < _WHOLE_MILLI
    if learned is None and rank != _FGD:
        gpu = _share_gpu(free, milli, rank) if share else -1
        return _plain_score(nodes, asks, c, node, rank, gpu), gpu
    cpu, memory = nodes.cpu_free_milli[node] - asks.cpu_milli[c], nodes.memory_free_mib[node] - asks.memory_mib[c]
    hair = 0.0 if learned is None else _TOLERANCE * learned.potential.quantum[0]  # more by so little is no more
    num_tried, taken = len(free), milli
    if not share:  # nothing to choose: the first idle ones are taken
        free = free.copy()
        for g in range(len(free)):
            if num > 0 and free[g] == _WHOLE_MILLI:
                free[g] = 0
                num -= 1
        num_tried, taken = 1, 0
    best, gpu = _NOWHERE, -1
    for g in range(num_tried):
        if share:
            known = free[g] < milli  # equal remainders gain the same, and the first one wins
            for earlier in range(g):
                known = known or free[earlier] == free[g]
            if known:
                continue
        if learned is None:
            after = node_values.fragment(cpu, free, g, taken, nodes.model[node], mix, scratch)
            gain = float(node_values.fgd_score(fragment, after))
        else:
            left, inputs = (g, taken), learned.inputs
            node_values.node_features(nodes, node, cpu, memory, free, left, learned.outlook, learned.scratch, inputs)
            gain = node_values.value(inputs, learned.potential) - learned.values[node]
        if gain > best + hair:
            best, gpu = gain, g if share else -1
    if learned is None:
        return best, gpu
    return np.floor(best / learned.potential.quantum[0] + _TOLERANCE), gpu


@compiled
def _share_gpu(free: Ints, milli: int, rank: int) -> int:
    """The GPU of a share: the fullest that suffices, the emptiest (SPREAD), or simply the first (NONE, KUBE)."""
    gpu = -1
    fills = rank in (_BESTFIT, _BINPACK, _TIGHTEST, _LISTED)
    for g in range(len(free)):
        if free[g] < milli:
            continue
        if gpu < 0 or (fills and free[g] < free[gpu]) or (rank == _SPREAD and free[g] > free[gpu]):
            gpu = g
    return gpu


@compiled
def _plain_score(nodes: Nodes, asks: Asks, c: int, node: int, rank: int, gpu: int) -> float:
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
