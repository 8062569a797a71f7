"""Replays under a learned rank: the outlook that it is told, and its placements."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core import packing, potentials
from extender.core.clusters import Floats, Ints, Longs
from extender.core.features import Outlook
from extender.core.fragments import Mix, fragment_milli
from extender.core.packing import Asks, Nodes, Tie
from extender.core.potentials import Potential
from extender.models import prices
from model.measures import LOADS, allocation_curve
from model.replays import Engine, Replay, check
from model.traces import NodeList, PodList
from model.workloads import Workload, bits_of, classes_of


@dataclass(frozen=True)
class Learned:
    """A learned rank with what it expects."""

    potential: Potential
    outlook: Outlook


@dataclass(frozen=True)
class Foresight:
    """How the expected pods are priced."""

    load: float = 1.0
    """GPU that the expected pods ask for, by capacity: the higher, the more even are the models' prices."""
    by_lp: bool = True
    """False: what is left of a GPU is worth as much as it is."""


LEARNED: Final = "kerf"
"""The policy of a model that is told the mix of the trace's pods, as FGD is."""


def told(nodes: Nodes, asks: Asks, mix: Mix, node_list: NodeList, pod_list: PodList, foresight: Foresight) -> Outlook:
    """The outlook on a trace: the mix of its list of pods, which is what FGD is told; nothing of their order."""
    _, pod_class = classes_of(pod_list, bits_of(node_list))
    count = np.bincount(pod_class, minlength=len(asks.cpu_milli)).astype(np.int64)
    return prices.outlook(nodes, asks, count, mix, foresight.load, by_lp=foresight.by_lp)


def replay(workload: Workload, outlook: Outlook, potential: Potential, engine: Engine = Engine.COMPILED) -> Replay:
    """Offer all arrivals to a learned rank; nothing about it is random."""
    return replay_pieces(workload, [(slice(0, len(workload.pods)), outlook)], potential, engine)


def replay_pieces(
    workload: Workload,
    outlooks: Iterable[tuple[slice, Outlook]],
    potential: Potential,
    engine: Engine = Engine.COMPILED,
) -> Replay:
    """The same with an outlook that changes: each is that of a piece of the arrivals, in order.

    `fragment_milli` is by the outlook of the piece.
    """
    nodes = packing.copy_of(workload.nodes)
    num_pods = len(workload.pods)
    done = Replay(np.full(num_pods, -1, np.int64), np.zeros(num_pods, np.int64), np.zeros(num_pods), nodes, 0.0)
    run = _run_compiled if engine is Engine.COMPILED else _run_numpy
    seconds = 0.0
    for piece, outlook in outlooks:
        part = Replay(done.placed[piece], done.gpus[piece], done.fragment_milli[piece], nodes, 0.0)  # views
        seconds += run(workload, workload.classes[piece], outlook, potential, part)
    done = replace(done, seconds=seconds)
    check(workload, done)
    return done


def allocations(offered: Workload, placed: Longs) -> tuple[float, ...]:
    """Percent of the GPUs allocated at each of LOADS.

    Where no arrival rounds to a load, on small clusters, it is that of the load before. Raises ValueError when the
    arrivals end before a load.
    """
    curve = allocation_curve(offered, placed)
    found = []
    for load in LOADS:
        if curve.arrived_percent[-1] < load or curve.arrived_percent[0] > load:
            raise ValueError(f"no arrivals at {load} % of the GPU capacity")
        last = int(np.searchsorted(curve.arrived_percent, load, side="right")) - 1
        found.append(round(float(curve.percent[last]), 2))
    return tuple(found)


def _run_compiled(workload: Workload, classes: Longs, outlook: Outlook, potential: Potential, done: Replay) -> float:
    from extender.core import kernels, potential_kernels  # noqa: PLC0415 - numba takes its time

    memo = kernels.memo_of(len(workload.asks.cpu_milli), done.nodes, outlook.mix)
    begin = time.perf_counter()
    potential_kernels.place_all(
        done.nodes, workload.asks, classes, outlook, potential, memo,
        done.placed, done.gpus, done.fragment_milli,
    )  # fmt: skip
    return time.perf_counter() - begin


def _run_numpy(workload: Workload, classes: Longs, outlook: Outlook, potential: Potential, done: Replay) -> float:
    begin = time.perf_counter()
    nodes, asks = done.nodes, workload.asks
    every = np.arange(len(nodes.cpu_milli))
    scores: dict[int, tuple[int, Floats, Ints]] = {}  # per class: changes seen, scores, GPUs
    changed: list[int] = []
    for p, c in enumerate(classes.tolist()):
        seen, score, gpu = scores.get(c, (0, np.empty(0), np.empty(0, np.int32)))
        if len(score) == 0:
            score, gpu = potentials.evaluate(nodes, asks, c, every, outlook, potential)
        elif seen < len(changed):
            rows = np.unique(changed[seen:])
            score[rows], gpu[rows] = potentials.evaluate(nodes, asks, c, rows, outlook, potential)
        scores[c] = (len(changed), score, gpu)
        node, _ = packing.pick(score, Tie.FIRST, 0.0, -1)
        done.placed[p] = node
        if node >= 0:
            done.gpus[p] = packing.take(nodes, asks, c, node, int(gpu[node]))
            changed.append(node)
        free = nodes.gpu_free_milli.astype(np.int64)
        done.fragment_milli[p] = fragment_milli(nodes.cpu_free_milli, free, nodes.model, outlook.mix).sum()
    return time.perf_counter() - begin
