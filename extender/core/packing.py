"""Packing pods of CPU, memory and GPUs into nodes: fit, the GPU taken, scores, ties.

Plain arrays in, plain arrays out. These NumPy functions are the definition; `extender.core.kernels` has compiled
twins that give the same bits. N nodes, G GPU slots, C classes of pods that ask for the same, R rows.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Ints, Longs, Mask, Rows
from extender.core.fragments import Mix, fgd_score, fragment_milli

GPU_MILLI: Final = 1000
"""A whole GPU; a pod that asks less of one GPU asks for a share."""
ANY_MODEL: Final = -1
"""Bits of every model."""
MAX_MODELS: Final = 62
"""Models are bits of a signed 64-bit number."""

# Weights of BestFit as published with FGD: half for CPU, half for GPU, each over the largest node of the trace.
BESTFIT_CPU_MILLI: Final = 128000
BESTFIT_GPU_MILLI: Final = 8000

# What kube-scheduler takes for a pod that asks for none (k8s.io/component-helpers, DefaultMilliCPURequest and
# DefaultMemoryRequest, the latter 200 MiB).
KUBE_CPU_MILLI: Final = 100
KUBE_MEMORY_MIB: Final = 200


class Nodes(NamedTuple):
    """N nodes with up to G GPUs; the free amounts are changed in place by `take` and `give_back`."""

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


class Asks(NamedTuple):
    """C classes of pods."""

    cpu_milli: Longs
    memory_mib: Longs
    num_gpus: Longs
    gpu_milli: Longs
    """(C,) of each GPU: 1000 for whole ones, less for a share of one GPU, 0 without GPUs."""
    models: Longs
    """(C,) bits of the models allowed."""


def copy_of(nodes: Nodes) -> Nodes:
    """The same nodes with arrays of their own, so that they can be filled."""
    return in_order(nodes, np.arange(len(nodes.model)))


def in_order(nodes: Nodes, rows: Rows) -> Nodes:
    """(R,) rows of nodes, in arrays of their own."""
    return Nodes(
        nodes.cpu_milli[rows],
        nodes.memory_mib[rows],
        nodes.num_gpus[rows],
        nodes.model[rows],
        nodes.cpu_free_milli[rows],
        nodes.memory_free_mib[rows],
        nodes.gpu_free_milli[rows],
    )


class Rank(IntEnum):
    """How a node is scored: higher is better."""

    NONE = 0
    """All alike."""
    FGD = 1
    BESTFIT = 2
    BINPACK = 3
    SPREAD = 4
    KUBE = 5
    """NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation of kube-scheduler 1.36."""


class Tie(IntEnum):
    """Which of the best nodes is taken."""

    FIRST = 0
    RANDOM = 1
    NEXT = 2
    """The first one after the node taken last."""
    SAMPLED = 3
    """A random one of a sample of feasible nodes, as kube-scheduler takes it (`sample_size`)."""


def fits(nodes: Nodes, asks: Asks, c: int, rows: Rows) -> Mask:
    """(R,) whether a class fits now: CPU, memory, model, and a GPU with enough left or enough idle GPUs."""
    num, milli = int(asks.num_gpus[c]), int(asks.gpu_milli[c])
    fit: Mask = (nodes.cpu_free_milli[rows] >= asks.cpu_milli[c]) & (nodes.memory_free_mib[rows] >= asks.memory_mib[c])
    if num:
        model = nodes.model[rows]
        allowed = (model >= 0) & ((int(asks.models[c]) >> np.maximum(model, 0)) & 1 == 1)
        fit &= allowed & ((nodes.gpu_free_milli[rows] >= milli).sum(axis=1) >= num)
    return fit


def choose_share(nodes: Nodes, asks: Asks, c: int, rows: Rows, rank: Rank, mix: Mix) -> tuple[Ints, Floats]:
    """(R,) the GPU that a share is taken from and (R,) the score of that; only meaningful where it fits.

    FGD tries every GPU and takes the first of the best; BestFit and binpack take the smallest remainder that
    suffices, spread the largest, all others the first.
    """
    free = nodes.gpu_free_milli[rows].astype(np.int64)  # (R, G)
    usable = free >= asks.gpu_milli[c]
    if rank is Rank.FGD:
        before = fragment_milli(nodes.cpu_free_milli[rows], free, nodes.model[rows], mix)
        best = np.full(len(rows), -1.0)
        gpu = np.zeros(len(rows), np.int32)
        for g in range(free.shape[1]):
            after = free.copy()
            after[:, g] -= asks.gpu_milli[c]
            cpu_left = nodes.cpu_free_milli[rows] - asks.cpu_milli[c]
            score = fgd_score(before, fragment_milli(cpu_left, after, nodes.model[rows], mix))
            better = usable[:, g] & (score > best)
            best[better], gpu[better] = score[better], g
        return gpu, best
    if rank in (Rank.BESTFIT, Rank.BINPACK):
        chosen = np.where(usable, free, GPU_MILLI + 1).argmin(axis=1)
    elif rank is Rank.SPREAD:
        chosen = np.where(usable, free, -1).argmax(axis=1)
    else:
        chosen = usable.argmax(axis=1)
    return chosen.astype(np.int32), np.zeros(len(rows))


def evaluate(nodes: Nodes, asks: Asks, c: int, rows: Rows, rank: Rank, mix: Mix) -> tuple[Floats, Ints]:
    """(R,) score of a class on each row, -inf where it does not fit, and (R,) the GPU of a share, else -1."""
    num, milli = int(asks.num_gpus[c]), int(asks.gpu_milli[c])
    cpu, memory = int(asks.cpu_milli[c]), int(asks.memory_mib[c])
    fit = fits(nodes, asks, c, rows)
    gpu = np.full(len(rows), -1, np.int32)
    score = np.zeros(len(rows))
    cpu_left = nodes.cpu_free_milli[rows] - cpu
    gpu_left = nodes.gpu_free_milli[rows].sum(axis=1, dtype=np.int64) - num * milli
    if 0 < milli < GPU_MILLI:
        gpu, score = choose_share(nodes, asks, c, rows, rank, mix)
    elif rank is Rank.FGD:
        free = nodes.gpu_free_milli[rows].astype(np.int64)
        before = fragment_milli(nodes.cpu_free_milli[rows], free, nodes.model[rows], mix)
        idle = free == GPU_MILLI
        free[idle & (np.cumsum(idle, axis=1) <= num)] = 0
        score = fgd_score(before, fragment_milli(cpu_left, free, nodes.model[rows], mix))
    match rank:
        case Rank.BESTFIT:
            score = np.trunc((1 - (0.5 * cpu_left / BESTFIT_CPU_MILLI + 0.5 * gpu_left / BESTFIT_GPU_MILLI)) * 100)
        case Rank.BINPACK | Rank.SPREAD:
            left, capacity = (gpu_left, nodes.num_gpus[rows] * GPU_MILLI) if num else (cpu_left, nodes.cpu_milli[rows])
            used = 1 - left / np.maximum(capacity, 1)
            score = used if rank is Rank.BINPACK else -used
        case Rank.KUBE:
            score = _kube_score(nodes, cpu, memory, rows)
    return np.where(fit, score, -np.inf), np.where(fit, gpu, -1).astype(np.int32)


def _kube_score(nodes: Nodes, cpu: int, memory: int, rows: Rows) -> Floats:
    """Sum of kube-scheduler's scores that differ between nodes when pods have no preferences of their own.

    pkg/scheduler/framework/plugins/noderesources/{least,balanced}_allocation.go of Kubernetes 1.36, weights 1 and 1;
    normalisation leaves both as they are (0..100). All other default plugins score such nodes alike.
    """
    capacities = (nodes.cpu_milli[rows], nodes.memory_mib[rows])
    used = (capacities[0] - nodes.cpu_free_milli[rows], capacities[1] - nodes.memory_free_mib[rows])
    asked = (cpu or KUBE_CPU_MILLI, memory or KUBE_MEMORY_MIB)
    least = np.zeros(len(rows), np.int64)
    for capacity, taken, more in zip(capacities, used, asked, strict=True):
        least += np.maximum(capacity - taken - more, 0) * 100 // np.maximum(capacity, 1)
    balanced = 50 + (50 + _balance(capacities, used, (cpu, memory)) - _balance(capacities, used, (0, 0))) // 2
    best_effort = cpu == 0 and memory == 0  # the plugin skips those
    score: Floats = (least // 2 + (0 if best_effort else balanced)).astype(np.float64)
    return score


def _balance(capacities: tuple[Longs, Longs], used: tuple[Longs, Longs], more: tuple[int, int]) -> Longs:
    """(R,) 100 x (1 - standard deviation of the fractions of CPU and memory in use)."""
    cpu, memory = (
        np.minimum((taken + extra) / np.maximum(capacity, 1), 1.0)
        for capacity, taken, extra in zip(capacities, used, more, strict=True)
    )
    balance: Longs = ((1 - np.abs((cpu - memory) / 2)) * 100).astype(np.int64)
    return balance


def sample_size(num_nodes: int) -> int:
    """How many feasible nodes kube-scheduler looks for by default (`numFeasibleNodesToFind`)."""
    if num_nodes < 100:
        return num_nodes
    return max(num_nodes * max(50 - num_nodes // 125, 5) // 100, 100)


def pick(score: Floats, tie: Tie, draw: float, last: int) -> tuple[int, int]:
    """The node taken by (N,) scores, -1 when none fits, and what `last` is for the next decision.

    `draw` is uniform in [0, 1). `last` is the node taken last (NEXT; -1 at first) or where the next sample begins
    (SAMPLED; 0 at first).
    """
    if tie is Tie.SAMPLED:
        wanted = sample_size(len(score))
        feasible = np.flatnonzero(np.roll(score, -last) > -np.inf)
        if len(feasible) == 0:
            return -1, last
        looked_at = len(score) if len(feasible) < wanted else int(feasible[wanted - 1]) + 1
        sample = (feasible[:wanted] + last) % len(score)
        # In the order of rows, so that the compiled twin needs no second array.
        best = np.sort(sample[score[sample] == score[sample].max()])
        return int(best[int(draw * len(best))]), (last + looked_at) % len(score)
    top = score.max(initial=-np.inf)
    if top == -np.inf:
        return -1, last
    best = np.flatnonzero(score == top)
    if tie is Tie.RANDOM:
        return int(best[int(draw * len(best))]), last
    if tie is Tie.NEXT:
        later = best[best > last]
        node = int(later[0] if len(later) else best[0])
        return node, node
    return int(best[0]), last


def take(nodes: Nodes, asks: Asks, c: int, node: int, gpu: int) -> int:
    """Book a class on a node, in place; returns the GPUs taken as bits: the share's, or the first idle ones."""
    nodes.cpu_free_milli[node] -= asks.cpu_milli[c]
    nodes.memory_free_mib[node] -= asks.memory_mib[c]
    num, milli = int(asks.num_gpus[c]), int(asks.gpu_milli[c])
    if num == 0:
        return 0
    if milli < GPU_MILLI:
        nodes.gpu_free_milli[node, gpu] -= milli
        return 1 << gpu
    taken = 0
    for g in np.flatnonzero(nodes.gpu_free_milli[node] == GPU_MILLI)[:num].tolist():
        nodes.gpu_free_milli[node, g] = 0
        taken |= 1 << g
    return taken


def give_back(nodes: Nodes, asks: Asks, c: int, node: int, gpus: int) -> None:
    """Undo `take`, in place; `gpus` is what it returned."""
    nodes.cpu_free_milli[node] += asks.cpu_milli[c]
    nodes.memory_free_mib[node] += asks.memory_mib[c]
    for g in range(nodes.gpu_free_milli.shape[1]):
        if gpus >> g & 1:
            nodes.gpu_free_milli[node, g] += asks.gpu_milli[c]
