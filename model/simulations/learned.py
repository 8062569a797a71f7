"""Replays under a learned rank: the outlook that it is told, and its placements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Longs
from extender.core.fragmentation import Asks, Mix, Nodes
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


class Telling:
    """The same, worked out once for each list of pods."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Foresight], tuple[PodList, Outlook]] = {}

    def __call__(
        self, nodes: Nodes, asks: Asks, mix: Mix, node_list: NodeList, pod_list: PodList, foresight: Foresight
    ) -> Outlook:
        """As `told`."""
        key = id(pod_list), foresight
        if key not in self._known:  # with the list, so that no other one gets its identity
            self._known[key] = pod_list, told(nodes, asks, mix, node_list, pod_list, foresight)
        return self._known[key][1]


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
    nodes = workload.nodes.copy()
    decides: engines.Engine = engines.Compiled(nodes, workload.asks, workload.mix)
    if engine is not Engine.COMPILED:
        decides = engines.Rules(nodes, workload.asks, workload.mix, POLICIES["kerf"], model_names=workload.model_names)
    pieces = ((piece, (outlook, potential)) for piece, outlook in outlooks)
    done = offer(workload, decides, pieces, np.zeros(len(workload.classes)))
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
