"""Which nodes can give a pod the devices that it asks by ResourceClaims, and how good they are for that.

The search on one node is `dra.allocator`'s; here its outcomes become the arrays that decisions work on.

Why claims get no devices, in words: what the node lacks that comes nearest to meeting them.
"""

from collections.abc import Hashable, Sequence
from enum import IntEnum
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import DevicesAsked, Fault
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.dra.explained import Obstacle, in_words, obstacle_of
from extender.core.dra.slots import Matcher, Steps
from extender.core.fit.fittings import Fitting
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import OF_CLAIMS
from extender.core.resources.requests import GpuRequest

_FOUND: Final = Allocations()
"""What was found on nodes, remembered by what they have: of use to all who ask, and bounded."""
_LOCK: Final = Lock()
"""Plans are made in threads."""
_STEPS_OF_OTHERS: Final = 20_000
"""For finding out whether devices of one node that are not Kerf's to give would do."""


class Part(NamedTuple):
    """What devices are of a GPU of their node."""

    gpu: int
    milli: int
    mib: int


def best_on(devices: NodeDevices | None, asked: DevicesAsked) -> Allocation | Fault | None:
    """What claims get on a node; None where they can't be met there now."""
    if devices is None:
        return None
    with _LOCK:
        return _FOUND.best(devices, asked)


def possible_on(inventory: Inventory, asked: DevicesAsked) -> bool:
    """Whether claims can be met by a node of which nothing is taken."""
    return isinstance(best_on(NodeDevices.of(inventory), asked), Allocation)


def steps_taken(asked: DevicesAsked) -> int:
    """Steps, of about a microsecond, of all searches for those who ask this; it may begin anew from 0."""
    return _FOUND.steps_taken(asked)


def could_serve(inventory: Inventory, asked: DevicesAsked) -> bool:
    """Whether a device that is not Kerf's to give does for some request of claims, or that can't be told."""
    asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
    matcher, steps = Matcher(), Steps(_STEPS_OF_OTHERS)
    try:
        matches = (matcher.match(device, ask, steps) for device in inventory.unavailable for ask in asks)
        return not inventory.complete or any(match is not None for match in matches)
    except Fault:  # too many selectors had to be asked
        return True


def devices_at(cluster: Cluster, row: int) -> NodeDevices | None:
    """The devices of a node that Kerf allocates."""
    found: NodeDevices | None = None if cluster.devices is None else cluster.devices[row]
    return found


class Found(IntEnum):
    """What the search for devices has come to on a node."""

    ALL = 0
    NO_DEVICES = 1
    """Kerf allocates none there."""
    UNDECIDED = 2
    """A selector fails, or the search takes too long."""
    NEVER = 3
    """The node's devices do not meet it."""
    TAKEN = 4
    """Those that would do are taken."""


class DeviceFitting(Fitting):
    """Devices asked by ResourceClaims."""

    def __init__(self, cluster: Cluster, request: GpuRequest, rows: Rows) -> None:
        super().__init__(cluster, request, rows)
        asked = request.devices
        if asked is None:
            raise ValueError("it asks for no devices")
        self.found = np.full(len(rows), Found.ALL)  # (R,)
        self.num_devices = np.zeros(len(rows), np.int64)  # (R,) of those found
        self.num_gpus = np.zeros(len(rows), np.int64)  # (R,) that they are of
        self.room = np.zeros((len(rows), cluster.gpu_model.shape[1]), np.bool_)  # (R, G) those GPUs
        for position, row in enumerate(rows.tolist()):
            devices = devices_at(cluster, row)
            given = best_on(devices, asked)
            if devices is None:
                self.found[position] = Found.NO_DEVICES
            elif given is None:
                ever = best_on(NodeDevices.of(devices.inventory), asked)
                self.found[position] = Found.NEVER if ever is None else Found.TAKEN
            elif isinstance(given, Fault):
                self.found[position] = Found.UNDECIDED
            else:
                gpus = [part.gpu for part in parts_at(cluster, row, given)]
                self.room[position, gpus] = True
                self.num_devices[position], self.num_gpus[position] = len(given.takings), len(gpus)


def given_at(cluster: Cluster, row: int, asked: DevicesAsked) -> Allocation:
    """What claims get on a row where they fit."""
    found = best_on(devices_at(cluster, row), asked)
    if not isinstance(found, Allocation):
        raise AssertionError(f"fit and devices disagree at node {cluster.node_names[row]}")
    return found


def parts_at(cluster: Cluster, row: int, allocation: Allocation) -> tuple[Part, ...]:
    """What an allocation takes of the GPUs of its node, in their order; nothing where these are a device plugin's, nor
    for devices that are no GPUs'."""
    devices = devices_at(cluster, row)
    if devices is None or cluster.unit[row] not in OF_CLAIMS:
        return ()
    parts: dict[int, Part] = {}
    for taking in allocation.takings:
        device = devices.inventory.devices[taking.device]
        if device.gpu < 0 or (device.shareable and devices.taken >> taking.device & 1):
            continue  # of a GPU that is shared already nothing more is gone
        before = parts.get(device.gpu, Part(device.gpu, 0, 0))
        parts[device.gpu] = Part(device.gpu, before.milli + device.milli, before.mib + device.mib)
    return tuple(parts[gpu] for gpu in sorted(parts))


def whole(parts: Sequence[Part]) -> bool:
    """Whether there are GPUs, and no parts of any."""
    return bool(parts) and all(part.milli >= WHOLE_MILLI for part in parts)


_MOST_KINDS: Final = 32
"""Of nodes that differ to those who ask: so many are looked at."""
_MOST_ROWS: Final = 20_000
_BOUND: Final = 10_000

_KNOWN: Final[dict[Hashable, Obstacle]] = {}
"""By what a node has and what is taken of it, as `Allocations.key`."""
_NO_DEVICES: Final = "no devices here that Kerf allocates"


def obstacle_on(devices: NodeDevices, asked: DevicesAsked) -> Obstacle:
    """What keeps claims from a node on which nothing is possible for them now."""
    with _LOCK:
        key = _FOUND.key(devices, asked)
        found = _KNOWN.get(key)
        if found is None:
            if len(_KNOWN) >= _BOUND:
                _KNOWN.clear()
            found = _KNOWN[key] = obstacle_of(devices, asked, _FOUND.matcher, _FOUND.best)
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
            with _LOCK:
                kinds.setdefault(_FOUND.key(devices, asked), (cluster.node_names[row], devices))
    first = list(kinds.values())[:_MOST_KINDS]
    found = [(node, obstacle_on(devices, asked), devices) for node, devices in first]
    return in_words(found, more=len(kinds) - len(first))


def why_not_on(devices: NodeDevices | None, asked: DevicesAsked) -> str:
    """The same of one node, whose name is known."""
    return _NO_DEVICES if devices is None else in_words([("", obstacle_on(devices, asked), devices)])
