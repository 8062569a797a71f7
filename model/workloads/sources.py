"""Sources of workloads: traces, in different orders of arrival, and generated mixes, by seed."""

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
class ClusterAndPods:
    """A cluster and its pods for one seed."""

    nodes: NodeList
    pods: PodList
    path: Path
    """File named in errors."""
    arrivals: Callable[[], Workload]
    """Returns the pods in an order of arrival."""


Source = Callable[[int], ClusterAndPods]
"""Returns the cluster and pods of a seed."""
MIXED: Final = "mix:"
"""Prefix of the name of a kind of mix in place of a trace's name."""
OF_HISTORY: Final = "history:"
"""Prefix of a part of a history and its folder, as in `history:learn:DIR`."""


def source_lookup(directory: Path | None, mixes: Path = DEMO, shape: str = WHOLE) -> Callable[[str], Source]:
    """Return a lookup of sources by name: traces of a folder, `mix:KIND` of a description, or `history:PART:DIR`.

    It raises TraceError, MixError, HistoryError and ValueError.
    """

    def source(name: str) -> Source:
        if name.startswith(MIXED):
            if shape != WHOLE:
                raise ValueError(f"{name}: --nodes applies to traces only, because the nodes of mixes are drawn")
            return mixed(read_mixes(mixes).mix(name.removeprefix(MIXED)), mixes)
        if name.startswith(OF_HISTORY):
            part, _, folder = name.removeprefix(OF_HISTORY).partition(":")
            return _of_history(Path(folder), Part(part))
        if directory is None:
            raise ValueError(f"trace {name}: --traces is missing; only mix:KIND needs no folder")
        return _traced(directory, name, shape)

    return source


def _traced(directory: Path, trace: str, shape: str = WHOLE) -> Source:
    """Return the source of a trace, with nodes in a shape; seeds are arrival orders. Raises TraceError, ValueError."""
    nodes, pods = shaped(read_nodes(directory), shape), read_pods(directory, trace)
    path, made = pods_path(directory, trace), shape != WHOLE
    return lambda seed: ClusterAndPods(
        nodes, pods, path, lambda: workload(directory, trace, seed, nodes, pods, made=made)
    )


def _of_history(directory: Path, part: Part) -> Source:
    """Return the source of a part of a history on its nodes; seeds are orders of arrival. Raises HistoryError."""
    nodes, pods = lists(directory, part)
    return lambda seed: ClusterAndPods(
        nodes, pods, directory, lambda: workload_of(nodes, pods, *made_order(pods, nodes, seed))
    )


def mixed(mix: Mix, path: Path) -> Source:
    """Return the source of a mix: the seed draws the cluster and the pods. Raises MixError."""

    def offer(seed: int) -> ClusterAndPods:
        nodes, pods = drawn(mix, seed)
        rank = np.random.default_rng([seed, 1]).permutation(len(nodes.names))
        return ClusterAndPods(nodes, pods, path, lambda: workload_of(nodes, pods, np.arange(len(pods.names)), rank))

    return offer
