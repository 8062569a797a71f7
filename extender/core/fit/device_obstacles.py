"""Why claims get no devices, in words: what the node lacks that comes nearest to meeting them."""

from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Rows
from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import NodeDevices
from extender.core.dra.explained.obstacles import Obstacle, in_words, obstacle_of
from extender.core.fit.device_fits import FOUND, LOCK, devices_at
from extender.core.fit.reasons import Reason

_MOST_KINDS: Final = 32
"""Of nodes that differ to those who ask: so many are looked at."""
_MOST_ROWS: Final = 20_000
_BOUND: Final = 10_000

_KNOWN: Final[dict[Hashable, Obstacle]] = {}
"""By what a node has and what is taken of it, as `Allocations.key`."""
_NO_DEVICES: Final = "no devices here that Kerf allocates"


def obstacle_on(devices: NodeDevices, asked: DevicesAsked) -> Obstacle:
    """What keeps claims from a node on which nothing is possible for them now."""
    with LOCK:
        key = FOUND.key(devices, asked)
        found = _KNOWN.get(key)
        if found is None:
            if len(_KNOWN) >= _BOUND:
                _KNOWN.clear()
            found = _KNOWN[key] = obstacle_of(devices, asked, FOUND.matcher, FOUND.best)
        return found


def why_not(cluster: Cluster, asked: DevicesAsked, rows: Rows, reason: npt.NDArray[np.uint8]) -> str:
    """Why claims can be met on none of R rows that do not fit, for which the reasons are these.

    Of nodes alike one is looked at, and of those that differ a bounded number, those first of which most is free: the
    same text for the same nodes, round for round.
    """
    kept = reason == Reason.KEPT_FOR_MOVE
    if kept.all() and len(kept):
        return "every node with devices that Kerf allocates is kept for a move"
    rows, reason = rows[~kept], reason[~kept]
    aside = reason == Reason.SET_ASIDE
    if aside.any() and (reason[~aside] == Reason.NO_GPUS).all():
        return "every node with devices that Kerf allocates is set aside: pods failed there soon after their start"
    rows, reason = rows[~aside], reason[~aside]
    if not len(rows) or (nearest := reason.max()) == Reason.NO_GPUS:
        return "no devices that Kerf allocates on any node that it may go to"
    rows = rows[reason == nearest]
    free = cluster.gpu_free_milli[rows].sum(axis=1)
    rows = rows[np.lexsort((cluster.tie_rank[rows], -free))][:_MOST_ROWS]
    kinds: dict[Hashable, tuple[str, NodeDevices]] = {}
    for row in rows.tolist():
        devices = devices_at(cluster, row)
        if devices is not None:
            if nearest == Reason.TOO_FEW_INSTALLED:  # whatever is taken: so that more nodes are alike
                devices = NodeDevices.of(devices.inventory)
            with LOCK:
                kinds.setdefault(FOUND.key(devices, asked), (cluster.node_names[row], devices))
    first = list(kinds.values())[:_MOST_KINDS]
    found = [(node, obstacle_on(devices, asked), devices) for node, devices in first]
    return in_words(found, more=len(kinds) - len(first))


def why_not_on(devices: NodeDevices | None, asked: DevicesAsked) -> str:
    """The same of one node, whose name is known."""
    return _NO_DEVICES if devices is None else in_words([("", obstacle_on(devices, asked), devices)])
