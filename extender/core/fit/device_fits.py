"""Fit of requests by ResourceClaims: turns the allocator's results per node into arrays, and explains failures.

`dra.allocator` searches a single node.
"""

from collections.abc import Hashable, Sequence
from enum import IntEnum
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import DeviceClaims, Fault
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.dra.explained import Obstacle, in_words, obstacle_of
from extender.core.dra.slots import Matcher, Steps
from extender.core.fit.fittings import Fitting
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import OF_CLAIMS
from extender.core.resources.requests import GpuRequest

_ALLOCATIONS: Final = Allocations()
"""Allocations by node state, bounded and shared by all requests."""
_LOCK: Final = Lock()
"""Plans run in threads."""
_MAX_STEPS_OF_OTHERS: Final = 20_000
"""Step limit for checking whether devices that Kerf does not allocate would match."""


class Part(NamedTuple):
    """The part of a GPU that devices take."""

    gpu: int
    milli: int
    mib: int


def best_allocation(devices: NodeDevices | None, asked: DeviceClaims) -> Allocation | Fault | None:
    """The best allocation for claims on a node, None if none is possible now, a Fault if that can't be decided."""
    if devices is None:
        return None
    with _LOCK:
        return _ALLOCATIONS.best(devices, asked)


def possible_on(inventory: Inventory, asked: DeviceClaims) -> bool:
    """Whether an empty node of this inventory can satisfy the claims."""
    return isinstance(best_allocation(NodeDevices.of(inventory), asked), Allocation)


def steps_taken(asked: DeviceClaims) -> int:
    """Steps, of about a microsecond, of all searches for these claims; may restart from 0."""
    return _ALLOCATIONS.steps_taken(asked)


def could_serve(inventory: Inventory, asked: DeviceClaims) -> bool:
    """Whether a device that Kerf does not allocate may match some request of the claims."""
    asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
    matcher, steps = Matcher(), Steps(_MAX_STEPS_OF_OTHERS)
    try:
        matches = (matcher.match(device, ask, steps) for device in inventory.unavailable for ask in asks)
        return not inventory.complete or any(match is not None for match in matches)
    except Fault:  # too many selectors to evaluate
        return True


def devices_at(cluster: Cluster, row: int) -> NodeDevices | None:
    """The devices that Kerf allocates on a node, None where it allocates none."""
    devices: NodeDevices | None = None if cluster.devices is None else cluster.devices[row]
    return devices


class SearchResult(IntEnum):
    """Result of the search for devices on a node."""

    ALL = 0
    NO_DEVICES = 1
    """Kerf allocates no devices there."""
    UNDECIDED = 2
    """A selector fails, or the search takes too long."""
    NEVER = 3
    """Not possible even on the empty node."""
    TAKEN = 4
    """Possible on the empty node, but devices are taken."""


class DeviceFitting(Fitting):
    """A request by ResourceClaims."""

    def __init__(self, cluster: Cluster, request: GpuRequest, rows: Rows) -> None:
        super().__init__(cluster, request, rows)
        asked = request.devices
        if asked is None:
            raise ValueError("the request has no devices")
        self.found = np.full(len(rows), SearchResult.ALL)  # (R,)
        self.num_devices = np.zeros(len(rows), np.int64)  # (R,) allocated devices
        self.num_gpus = np.zeros(len(rows), np.int64)  # (R,) GPUs of these devices
        self.room = np.zeros((len(rows), cluster.gpu_model.shape[1]), np.bool_)  # (R, G) GPUs of these devices
        for position, row in enumerate(rows.tolist()):
            devices = devices_at(cluster, row)
            outcome = best_allocation(devices, asked)
            if devices is None:
                self.found[position] = SearchResult.NO_DEVICES
            elif outcome is None:
                on_empty = best_allocation(NodeDevices.of(devices.inventory), asked)
                self.found[position] = SearchResult.NEVER if on_empty is None else SearchResult.TAKEN
            elif isinstance(outcome, Fault):
                self.found[position] = SearchResult.UNDECIDED
            else:
                gpus = [part.gpu for part in parts_at(cluster, row, outcome)]
                self.room[position, gpus] = True
                self.num_devices[position], self.num_gpus[position] = len(outcome.takings), len(gpus)


def allocation_at(cluster: Cluster, row: int, asked: DeviceClaims) -> Allocation:
    """The allocation of claims on a row where they fit."""
    outcome = best_allocation(devices_at(cluster, row), asked)
    if not isinstance(outcome, Allocation):
        raise AssertionError(f"fit and devices disagree at node {cluster.node_names[row]}")
    return outcome


def parts_at(cluster: Cluster, row: int, allocation: Allocation) -> tuple[Part, ...]:
    """What an allocation takes of the node's GPUs, by GPU index; () where a device plugin manages the GPUs."""
    devices = devices_at(cluster, row)
    if devices is None or cluster.unit[row] not in OF_CLAIMS:
        return ()
    parts: dict[int, Part] = {}
    for taking in allocation.takings:
        device = devices.inventory.devices[taking.device]
        if device.gpu < 0 or (device.shareable and devices.taken >> taking.device & 1):
            continue  # a shareable device books its GPU once
        before = parts.get(device.gpu, Part(device.gpu, 0, 0))
        parts[device.gpu] = Part(device.gpu, before.milli + device.milli, before.mib + device.mib)
    return tuple(parts[gpu] for gpu in sorted(parts))


def whole(parts: Sequence[Part]) -> bool:
    """Whether there are GPUs and all are taken whole."""
    return bool(parts) and all(part.milli >= WHOLE_MILLI for part in parts)


_MAX_STATES: Final = 32
"""Number of different node states to examine."""
_MAX_ROWS: Final = 20_000
_MAX_OBSTACLES: Final = 10_000

_OBSTACLES: Final[dict[Hashable, Obstacle]] = {}
"""Cached obstacles by `Allocations.key`."""
_NO_DEVICES: Final = "no devices here that Kerf allocates"


def obstacle_on(devices: NodeDevices, asked: DeviceClaims) -> Obstacle:
    """Why claims get no allocation on a node."""
    with _LOCK:
        key = _ALLOCATIONS.key(devices, asked)
        obstacle = _OBSTACLES.get(key)
        if obstacle is None:
            if len(_OBSTACLES) >= _MAX_OBSTACLES:
                _OBSTACLES.clear()
            obstacle = _OBSTACLES[key] = obstacle_of(devices, asked, _ALLOCATIONS.matcher, _ALLOCATIONS.best)
        return obstacle


def explain_no_fit(cluster: Cluster, asked: DeviceClaims, rows: Rows, reason: npt.NDArray[np.uint8]) -> str:
    """Why claims fit on none of R rows with these (R,) reasons, as a sentence.

    Examines one node of each state, and a bounded number of states, those with the most free GPUs first. The text is
    deterministic.
    """
    reserved = reason == Reason.KEPT_FOR_MOVE
    if reserved.all() and len(reserved):
        return "every node with devices that Kerf allocates is reserved for a move"
    rows, reason = rows[~reserved], reason[~reserved]
    quarantined = reason == Reason.SET_ASIDE
    if quarantined.any() and (reason[~quarantined] == Reason.NO_GPUS).all():
        return "every node with devices that Kerf allocates is quarantined: pods failed there soon after starting"
    rows, reason = rows[~quarantined], reason[~quarantined]
    if not len(rows) or (nearest := reason.max()) == Reason.NO_GPUS:
        return "no devices that Kerf allocates on any node it may run on"
    rows = rows[reason == nearest]
    free = cluster.gpu_free_milli[rows].sum(axis=1)
    rows = rows[np.lexsort((cluster.tie_rank[rows], -free))][:_MAX_ROWS]
    states: dict[Hashable, tuple[str, NodeDevices]] = {}
    for row in rows.tolist():
        devices = devices_at(cluster, row)
        if devices is not None:
            if nearest == Reason.TOO_FEW_INSTALLED:  # bookings don't matter: ignore them, for fewer states
                devices = NodeDevices.of(devices.inventory)
            with _LOCK:
                states.setdefault(_ALLOCATIONS.key(devices, asked), (cluster.node_names[row], devices))
    first = list(states.values())[:_MAX_STATES]
    obstacles = [(node, obstacle_on(devices, asked), devices) for node, devices in first]
    return in_words(obstacles, more=len(states) - len(first))


def explain_no_fit_on(devices: NodeDevices | None, asked: DeviceClaims) -> str:
    """Why claims don't fit on one node, as a sentence without its name."""
    return _NO_DEVICES if devices is None else in_words([("", obstacle_on(devices, asked), devices)])
