"""Which nodes can give a pod the devices that it asks by ResourceClaims, and how good they are for that.

The search on one node is `dra.allocator`'s; here its outcomes become the arrays that decisions work on.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows, num_true
from extender.core.dra.allocations import Allocations
from extender.core.dra.asks import DevicesAsked, Fault
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.dra.given import Allocation
from extender.core.dra.matching import Matcher, Steps
from extender.core.fit.reasons import Reason
from extender.core.fit.results import Fit
from extender.core.resources.nodes import OF_CLAIMS

FOUND: Final = Allocations()
"""What was found on nodes, remembered by what they have: of use to all who ask, and bounded."""
LOCK: Final = Lock()
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
    with LOCK:
        return FOUND.best(devices, asked)


def possible_on(inventory: Inventory, asked: DevicesAsked) -> bool:
    """Whether claims can be met by a node of which nothing is taken."""
    return isinstance(best_on(NodeDevices.of(inventory), asked), Allocation)


def steps_taken(asked: DevicesAsked) -> int:
    """Steps, of about a microsecond, of all searches for those who ask this; it may begin anew from 0."""
    return FOUND.steps_taken(asked)


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


def fit_devices(cluster: Cluster, asked: DevicesAsked, rows: Rows) -> Fit:
    """Check what claims ask on R rows of a cluster."""
    milli, mib = cluster.taken(cluster.gpu_free_milli, rows), cluster.taken(cluster.gpu_free_mib, rows)
    idle = (milli == WHOLE_MILLI) & (mib == cluster.taken(cluster.gpu_memory_mib, rows))
    reason = np.full(len(rows), Reason.FITS, np.uint8)
    available = np.zeros(len(rows), np.int64)
    taken = np.zeros(len(rows), np.int64)
    room = np.zeros_like(idle)
    for position, row in enumerate(rows.tolist()):
        devices = devices_at(cluster, row)
        found = best_on(devices, asked)
        if devices is None:
            reason[position] = Reason.NO_GPUS
        elif found is None:
            ever = best_on(NodeDevices.of(devices.inventory), asked)
            reason[position] = Reason.TOO_FEW_INSTALLED if ever is None else Reason.BUSY
        elif isinstance(found, Fault):
            reason[position] = Reason.NOT_THIS_KIND
        else:
            gpus = [part.gpu for part in parts_at(cluster, row, found)]
            room[position, gpus] = True
            available[position], taken[position] = len(found.takings), len(gpus)
    set_aside = cluster.taken(cluster.set_aside, rows)
    kept_off = (set_aside > 0) & np.isin(reason, (Reason.FITS, Reason.BUSY))
    reason[kept_off], available[kept_off] = Reason.SET_ASIDE, set_aside[kept_off]
    closed = cluster.taken(cluster.closed, rows) & np.isin(reason, (Reason.FITS, Reason.BUSY))
    reason[closed], available[closed] = Reason.KEPT_FOR_MOVE, 0
    free_units = np.maximum(num_true(idle) - cluster.taken(cluster.untracked_units, rows), 0)
    return Fit(reason, available, room, idle, free_units, taken, np.zeros(len(rows), np.bool_))


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
