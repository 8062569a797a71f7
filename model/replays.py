"""Offering a whole workload to a cluster, pod after pod, nothing departing: the setting of the published experiments.

Two engines place the same pods on the same GPUs: the NumPy rules of `extender.core.packing`, and their compiled
twins.
"""

import time
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from extender.core import packing
from extender.core.clusters import Floats, Ints, Rows
from extender.core.fragments import fragment_milli
from extender.core.packing import Nodes, Tie
from model.baselines import Baseline
from model.traces import GPU_MILLI, Longs
from model.workloads import Workload


class Engine(StrEnum):
    """What computes the decisions."""

    COMPILED = "compiled"
    NUMPY = "numpy"


class InvariantError(AssertionError):
    """A placement that can't be: a fault of the simulator."""


@dataclass(frozen=True)
class Replay:
    """What became of P arrivals."""

    placed: Longs
    """(P,) row of the node, -1 where the pod fitted nowhere."""
    gpus: Longs
    """(P,) the GPUs taken, as bits."""
    fragment_milli: Floats
    """(P,) idle GPU milli of the cluster that a typical pod is expected to be unable to use, after each arrival."""
    nodes: Nodes
    """The nodes afterwards."""
    seconds: float
    """Time of the decisions alone."""


def replay(workload: Workload, policy: Baseline, seed: int, engine: Engine = Engine.COMPILED) -> Replay:
    """Offer all arrivals; `seed` draws the ties of policies that break them at random."""
    draws = np.random.default_rng([seed, 1]).random(len(workload.pods))
    rows = np.arange(len(workload.nodes.model))
    if policy.order is not None:
        rows = policy.order(workload.nodes, workload.model_names)
    nodes = packing.in_order(workload.nodes, rows)
    placed = np.full(len(draws), -1, np.int64)
    gpus = np.zeros(len(draws), np.int64)
    fragments = np.zeros(len(draws))
    run = _run_compiled if engine is Engine.COMPILED else _run_numpy
    seconds = run(workload, policy, nodes, draws, placed, gpus, fragments)
    placed[placed >= 0] = rows[placed[placed >= 0]]
    done = Replay(placed, gpus, fragments, packing.in_order(nodes, np.argsort(rows)), seconds)
    check(workload, done)
    return done


def check(workload: Workload, done: Replay) -> None:
    """Raise InvariantError unless what is free and what the pods hold add up to each node, GPU by GPU."""
    nodes, asks = packing.copy_of(workload.nodes), workload.asks
    where = np.flatnonzero(done.placed >= 0)
    rows, classes = done.placed[where], workload.classes[where]
    np.subtract.at(nodes.cpu_free_milli, rows, asks.cpu_milli[classes])
    np.subtract.at(nodes.memory_free_mib, rows, asks.memory_mib[classes])
    num_taken = np.zeros(len(where), np.int64)
    for g in range(nodes.gpu_free_milli.shape[1]):
        held = done.gpus[where] >> g & 1 == 1
        num_taken += held
        np.subtract.at(nodes.gpu_free_milli[:, g], rows[held], asks.gpu_milli[classes[held]].astype(np.int32))
    if any((column < 0).any() for column in (nodes.cpu_free_milli, nodes.memory_free_mib, nodes.gpu_free_milli)):
        raise InvariantError("more GPU, CPU or memory is given away than there is")
    if not np.array_equal(num_taken, asks.num_gpus[classes]):
        raise InvariantError("a pod has another number of GPUs than it asked for")
    for column in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli"):
        if not np.array_equal(getattr(nodes, column), getattr(done.nodes, column)):
            raise InvariantError("what is free is not what the pods leave")
    if (done.nodes.gpu_free_milli > GPU_MILLI).any():
        raise InvariantError("a GPU has more left than it is")


def _run_compiled(
    workload: Workload,
    policy: Baseline,
    nodes: Nodes,
    draws: Floats,
    placed: Longs,
    gpus: Longs,
    fragments: Floats,
) -> float:
    from extender.core import kernels  # noqa: PLC0415 - numba takes its time, and the NumPy engine does without

    memo = kernels.memo_of(len(workload.asks.cpu_milli), nodes, workload.mix)
    rules = (int(policy.rank), int(policy.tie), workload.mix, memo)
    kernels.place_all(nodes, workload.asks, workload.classes[:0], *rules, draws, placed, gpus, fragments)  # compiles
    begin = time.perf_counter()
    kernels.place_all(nodes, workload.asks, workload.classes, *rules, draws, placed, gpus, fragments)
    return time.perf_counter() - begin


def _run_numpy(
    workload: Workload,
    policy: Baseline,
    nodes: Nodes,
    draws: Floats,
    placed: Longs,
    gpus: Longs,
    fragments: Floats,
) -> float:
    begin = time.perf_counter()
    asks, mix = workload.asks, workload.mix
    every = np.arange(len(nodes.cpu_milli))
    node_fragment = _fragments(workload, nodes, every)
    total = float(np.add.accumulate(node_fragment)[-1])
    scores: dict[int, tuple[int, Floats, Ints]] = {}  # per class: changes seen, scores, GPUs
    changed: list[int] = []
    last = 0 if policy.tie is Tie.SAMPLED else -1
    for p, c in enumerate(workload.classes.tolist()):
        seen, score, gpu = scores.get(c, (0, np.empty(0), np.empty(0, np.int32)))
        if len(score) == 0:
            score, gpu = packing.evaluate(nodes, asks, c, every, policy.rank, mix)
        elif seen < len(changed):
            rows = np.unique(changed[seen:])
            score[rows], gpu[rows] = packing.evaluate(nodes, asks, c, rows, policy.rank, mix)
        scores[c] = (len(changed), score, gpu)
        node, last = packing.pick(score, policy.tie, float(draws[p]), last)
        placed[p] = node
        if node >= 0:
            gpus[p] = packing.take(nodes, asks, c, node, int(gpu[node]))
            changed.append(node)
            before = float(node_fragment[node])
            node_fragment[node] = _fragments(workload, nodes, np.array([node]))[0]
            total += float(node_fragment[node]) - before
        fragments[p] = total
    return time.perf_counter() - begin


def _fragments(workload: Workload, nodes: Nodes, rows: Rows) -> Floats:
    free = nodes.gpu_free_milli[rows].astype(np.int64)
    return fragment_milli(nodes.cpu_free_milli[rows], free, nodes.model[rows], workload.mix)
