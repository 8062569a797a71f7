"""Variants of a trace's cluster: subsets of its nodes, and nodes with less CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import Longs
from model.workloads.traces import NodeList

_LARGE_GPUS: Final = 8
"""Least GPUs of a large node."""
_LEAN_FRAC: Final = 0.75
"""Fraction of the CPU that nodes of a lean cluster keep."""
WHOLE: Final = "all"
"""The unchanged cluster."""


def shaped(node_list: NodeList, shape: str) -> NodeList:
    """Return a cluster in one of SHAPES. Raises ValueError for unknown names, and if no GPUs are left."""
    if shape not in _SHAPES:
        raise ValueError(f"no shape of nodes {shape!r}; there are {', '.join(_SHAPES)}")
    found = _SHAPES[shape](node_list)
    if not found.gpu_milli:
        raise ValueError(f"shape {shape!r} leaves no GPUs")
    return found


def chosen(node_list: NodeList, rows: Longs) -> NodeList:
    """Return the nodes of the rows."""
    return NodeList(
        tuple(node_list.names[i] for i in rows),
        node_list.cpu_milli[rows],
        node_list.memory_mib[rows],
        node_list.num_gpus[rows],
        tuple(node_list.models[i] for i in rows),
    )


def _quarter_of(node_list: NodeList, *, large: bool) -> NodeList:
    """Return the nodes with only every fourth of the large ones, or of the others."""
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
