"""Replays of a learned rank: its outlook, and its placements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Longs
from extender.core.fragmentation import Mix, Nodes, PodClasses
from extender.core.policies.registry import POLICIES
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential
from extender.ranking import prices
from model.engine import engines
from model.simulations.measures import LOADS, allocation_curve
from model.simulations.replays import Engine, Replay, check, offer
from model.workloads.traces import NodeList, PodList
from model.workloads.workloads import Workload, bits_of, classes_of


@dataclass(frozen=True)
class Learned:
    """A learned rank with its expected mix."""

    potential: Potential
    outlook: Outlook


@dataclass(frozen=True)
class Foresight:
    """How the expected pods are priced."""

    load: float = 1.0
    """GPU that the expected pods request, relative to capacity; the higher, the more even the models' prices."""
    by_lp: bool = True
    """Whether an LP prices the free part of a GPU; if not, it is worth its size."""


LEARNED: Final = "kerf"
"""Policy name of a model with the trace's mix of pods as prior knowledge, as FGD has it."""


def trace_outlook(
    nodes: Nodes, asks: PodClasses, mix: Mix, node_list: NodeList, pod_list: PodList, foresight: Foresight
) -> Outlook:
    """Return the outlook on a trace, from its list of pods without their order. FGD has the same information."""
    _, pod_class = classes_of(pod_list, bits_of(node_list))
    count = np.bincount(pod_class, minlength=len(asks.cpu_milli)).astype(np.int64)
    return prices.outlook(nodes, asks, count, mix, foresight.load, by_lp=foresight.by_lp)


class OutlookCache:
    """Cache of `told` by list of pods."""

    def __init__(self) -> None:
        self._cache: dict[tuple[int, Foresight], tuple[PodList, Outlook]] = {}

    def __call__(
        self, nodes: Nodes, asks: PodClasses, mix: Mix, node_list: NodeList, pod_list: PodList, foresight: Foresight
    ) -> Outlook:
        """Return `told` for these arguments."""
        key = id(pod_list), foresight
        if key not in self._cache:  # keeps the list alive, so that its id is not reused
            self._cache[key] = pod_list, trace_outlook(nodes, asks, mix, node_list, pod_list, foresight)
        return self._cache[key][1]


def replay(workload: Workload, outlook: Outlook, potential: Potential, engine: Engine = Engine.COMPILED) -> Replay:
    """Offer all arrivals to a learned rank. It is deterministic."""
    return replay_pieces(workload, [(slice(0, len(workload.pods)), outlook)], potential, engine)


def replay_pieces(
    workload: Workload,
    outlooks: Iterable[tuple[slice, Outlook]],
    potential: Potential,
    engine: Engine = Engine.COMPILED,
) -> Replay:
    """As `replay`, with an outlook for each slice of the arrivals, in order.

    `fragment_milli` uses the outlook of the slice.
    """
    nodes = workload.nodes.copy()
    decider: engines.Engine = engines.Compiled(nodes, workload.asks, workload.mix)
    if engine is not Engine.COMPILED:
        decider = engines.Rules(nodes, workload.asks, workload.mix, POLICIES["kerf"], model_names=workload.model_names)
    pieces = ((piece, (outlook, potential)) for piece, outlook in outlooks)
    done = offer(workload, decider, pieces, np.zeros(len(workload.classes)))
    check(workload, done)
    return done


def allocations(offered: Workload, placed: Longs) -> tuple[float, ...]:
    """Percent of the GPUs allocated at each of LOADS.

    If no arrival rounds to a load, as on small clusters, the load before counts. Raises ValueError if the arrivals end
    before a load.
    """
    curve = allocation_curve(offered, placed)
    percents = []
    for load in LOADS:
        if curve.arrived_percent[-1] < load or curve.arrived_percent[0] > load:
            raise ValueError(f"no arrivals at {load} % of the GPU capacity")
        last = int(np.searchsorted(curve.arrived_percent, load, side="right")) - 1
        percents.append(round(float(curve.percent[last]), 2))
    return tuple(percents)
