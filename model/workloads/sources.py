"""Where what is offered comes from: a trace in its orders of arrival, or mixes that are drawn anew for each seed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from model.workloads.histories import Part, lists
from model.workloads.mixes import DEMO, Mix, drawn, read_mixes
from model.workloads.shapes import WHOLE, shaped
from model.workloads.traces import NodeList, PodList, pods_path, read_nodes, read_pods
from model.workloads.workloads import Workload, made_order, workload, workload_of


@dataclass(frozen=True)
class Offer:
    """A cluster and its pods, for one seed."""

    nodes: NodeList
    pods: PodList
    path: Path
    """What to name where they can't be used."""
    arrivals: Callable[[], Workload]
    """The pods in an order of arrival."""


Source = Callable[[int], Offer]
"""What is offered for a seed."""
MIXED: Final = "mix:"
"""Before the name of a kind of mixes, where else the name of a trace stands."""
OF_HISTORY: Final = "history:"
"""Before a part of a history's days and its folder, as in `history:learn:DIR`."""


def named(directory: Path | None, mixes: Path = DEMO, shape: str = WHOLE) -> Callable[[str], Source]:
    """Sources by name: traces of a folder, `mix:KIND` of a description, or `history:PART:DIR`.

    They raise what `_traced`, `mixed` and `_of_history` do.
    """

    def source(name: str) -> Source:
        if name.startswith(MIXED):
            if shape != WHOLE:
                raise ValueError(f"{name}: its nodes are drawn, and come in no other shape")
            return mixed(read_mixes(mixes).mix(name.removeprefix(MIXED)), mixes)
        if name.startswith(OF_HISTORY):
            part, _, folder = name.removeprefix(OF_HISTORY).partition(":")
            return _of_history(Path(folder), Part(part))
        if directory is None:
            raise ValueError(f"trace {name}: --traces names no folder; mix:KIND needs none")
        return _traced(directory, name, shape)

    return source


def _traced(directory: Path, trace: str, shape: str = WHOLE) -> Source:
    """The pods of a trace on its own nodes in a shape; seeds are orders of arrival. Raises TraceError, ValueError."""
    nodes, pods = shaped(read_nodes(directory), shape), read_pods(directory, trace)
    path, made = pods_path(directory, trace), shape != WHOLE
    return lambda seed: Offer(nodes, pods, path, lambda: workload(directory, trace, seed, nodes, pods, made=made))


def _of_history(directory: Path, part: Part) -> Source:
    """The pods of a part of a history's days on its nodes; seeds are orders of arrival. Raises HistoryError."""
    nodes, pods = lists(directory, part)
    return lambda seed: Offer(nodes, pods, directory, lambda: workload_of(nodes, pods, *made_order(pods, nodes, seed)))


def mixed(mix: Mix, path: Path) -> Source:
    """Clusters and pods of a kind: seeds are all that is drawn. Raises MixError."""

    def offer(seed: int) -> Offer:
        nodes, pods = drawn(mix, seed)
        rank = np.random.default_rng([seed, 1]).permutation(len(nodes.names))
        return Offer(nodes, pods, path, lambda: workload_of(nodes, pods, np.arange(len(pods.names)), rank))

    return offer
