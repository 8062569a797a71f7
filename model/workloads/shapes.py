"""Clusters of other shapes than a trace's own: parts of its nodes, and its nodes with less CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Longs
from model.workloads.traces import NodeList

_LARGE_GPUS: Final = 8
"""GPUs of a large node, or more."""
_LEAN_FRAC: Final = 0.75
"""Of its CPU that a node of a lean cluster has."""
WHOLE: Final = "all"
"""The cluster as it is."""


def shaped(node_list: NodeList, shape: str) -> NodeList:
    """A cluster in one of SHAPES. Raises ValueError that lists them, and when no GPUs are left."""
    if shape not in _SHAPES:
        raise ValueError(f"no shape of nodes {shape!r}; there are {', '.join(_SHAPES)}")
    found = _SHAPES[shape](node_list)
    if not found.gpu_milli:
        raise ValueError(f"shape {shape!r} leaves no GPUs")
    return found


def chosen(node_list: NodeList, rows: Longs) -> NodeList:
    """Nodes by their rows."""
    return NodeList(
        tuple(node_list.names[i] for i in rows),
        node_list.cpu_milli[rows],
        node_list.memory_mib[rows],
        node_list.num_gpus[rows],
        tuple(node_list.models[i] for i in rows),
    )


def _quarter_of(node_list: NodeList, *, large: bool) -> NodeList:
    """All nodes, but of the large ones, or of the others, every fourth."""
    thinned = (node_list.num_gpus >= _LARGE_GPUS) == large
    every_fourth = np.cumsum(thinned) % 4 == 1
    return chosen(node_list, np.flatnonzero(~thinned | every_fourth))


_SHAPES: Final[dict[str, Callable[[NodeList], NodeList]]] = {
    WHOLE: lambda nodes: nodes,
    "half": lambda nodes: chosen(nodes, np.arange(0, len(nodes.names), 2)),
    "mostly-large": lambda nodes: _quarter_of(nodes, large=False),
    "mostly-small": lambda nodes: _quarter_of(nodes, large=True),
    "lean": lambda nodes: replace(nodes, cpu_milli=(nodes.cpu_milli * _LEAN_FRAC).astype(np.int64)),
}
