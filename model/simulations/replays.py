"""Replays of a workload without departures, as in the published experiments.

Two engines give the same placements: the service's own functions on NumPy, and their compiled equivalents.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Rows
from extender.core.fragmentation import ANY_MODEL, Mix, Nodes, PodClasses, mix_of
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential
from model.engine import engines
from model.engine.ranks import Rank
from model.simulations.baselines import Baseline
from model.workloads.workloads import Workload


class Engine(StrEnum):
    """Implementation of the decisions."""

    COMPILED = "compiled"
    NUMPY = "numpy"


class InvariantError(AssertionError):
    """An impossible placement: a bug in the simulator."""


@dataclass(frozen=True)
class Replay:
    """Placements of P arrivals."""

    placed: Longs
    """(P,) row of the node, -1 if the pod fitted nowhere."""
    gpus: Longs
    """(P,) mask of the GPUs taken."""
    fragment_milli: Floats
    """(P,) idle GPU milli that a typical pod is expected not to be able to use, after each arrival."""
    nodes: Nodes
    """The nodes afterwards."""
    seconds: float
    """Time of the decisions, without compilation."""


def replay(workload: Workload, policy: Baseline, seed: int, engine: Engine = Engine.COMPILED) -> Replay:
    """Offer all arrivals; `seed` is for policies with random tie-breaks."""
    draws = np.random.default_rng([seed, 1]).random(len(workload.pods))
    rows = np.arange(len(workload.nodes.model))
    compiled = engine is Engine.COMPILED
    if policy.rank is Rank.LISTED:
        rows = listed(policy, workload.nodes, workload.model_names)
    nodes = workload.nodes.at(rows)
    engine_on_nodes = engine_of(policy, nodes, workload.asks, workload.mix, workload.model_names, compiled=compiled)
    done = offer(workload, engine_on_nodes, [(slice(0, len(draws)), None)], draws)
    done.placed[done.placed >= 0] = rows[done.placed[done.placed >= 0]]
    done = replace(done, nodes=nodes.at(np.argsort(rows)))
    check(workload, done)
    return done


def offer(
    workload: Workload,
    decides: engines.Engine,
    pieces: Iterable[tuple[slice, tuple[Outlook, Potential] | None]],
    draws: Floats,
) -> Replay:
    """Offer slices of the arrivals, in order, each with its own learned rank, if any."""
    num_pods, seconds = len(workload.classes), 0.0
    placed, gpus, fragments = np.full(num_pods, -1, np.int64), np.zeros(num_pods, np.int64), np.zeros(num_pods)
    empty = slice(0, 0)
    for piece, learned in pieces:
        if learned is not None:
            decides.follow(*learned)
        begin = 0.0
        for part in (empty, piece):  # the empty slice compiles
            begin = time.perf_counter()
            decides.place_all(workload.classes[part], draws[part], placed[part], gpus[part], fragments[part])
        seconds += time.perf_counter() - begin
    return Replay(placed, gpus, fragments, decides.nodes, seconds)


def engine_of(
    policy: Baseline, nodes: Nodes, asks: PodClasses, mix: Mix, model_names: Sequence[str], *, compiled: bool
) -> engines.Engine:
    """Return a policy's engine on nodes, which it updates in place; `compiled` if there is such an engine."""
    if compiled and policy.rank is not None:
        return engines.Compiled(nodes, asks, mix, policy.rank, policy.tie)
    return engines.Rules(nodes, asks, mix, policy.policy, policy.tie, model_names)


def listed(policy: Baseline, nodes: Nodes, model_names: Sequence[str]) -> Rows:
    """(N,) rows by descending score of a policy whose scores never change: the first feasible row is the best."""
    one = PodClasses(*(np.array([value]) for value in (0, 0, 0, 0, ANY_MODEL)))
    scores = engines.Rules(nodes, one, mix_of([], 1), policy.policy, policy.tie, model_names).scores(0)
    return np.argsort(-scores, kind="stable")


def check(workload: Workload, done: Replay) -> None:
    """Raise InvariantError unless free and allocated resources add up to each node's capacity, for each GPU."""
    nodes, asks = workload.nodes.copy(), workload.asks
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
        raise InvariantError("more GPU, CPU or memory is allocated than the nodes have")
    if not np.array_equal(num_taken, asks.num_gpus[classes]):
        raise InvariantError("a pod has a different number of GPUs than it requested")
    for column in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli"):
        if not np.array_equal(getattr(nodes, column), getattr(done.nodes, column)):
            raise InvariantError("free and allocated resources do not add up to the capacity")
    if (done.nodes.gpu_free_milli > WHOLE_MILLI).any():
        raise InvariantError("a GPU has more free than its capacity")
