"""Online placement of GPU partitions: policies place one request after the other.

Feasibility, and the preferences of `kerf`, come from the service's code (`extender.core.dra`), evaluated on nodes of
one GPU and cached by the GPU's state: partitions of different GPUs are independent, so the best of a node is the best
of its GPUs. All policies get the same requests in the same order.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra.allocator import Allocations
from extender.core.dra.asks import DeviceClaims, Fault
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.first_fit import first_fit
from extender.core.dra.packing import Weights
from model.workloads.nvidia import GpuKind, inventory
from model.workloads.partition_mixes import Requests, ask_for

_GPUS_PER_NODE: Final = 8
KERF: Final = "kerf"


class Offer(NamedTuple):
    """A device that a GPU can give, and its cost."""

    cost: float
    """Smaller is better; ties within a node break by position."""
    device: int


class Node(NamedTuple):
    """A node with an offer, as policies rank it."""

    cost: float
    """Cost of its best offer."""
    free_milli: float
    """Mean free compute of its GPUs."""
    row: int


@dataclass(frozen=True, slots=True)
class Policy:
    """Choice of the GPU and the device for a partition."""

    name: str
    offer: Callable[[NodeDevices, DeviceClaims], Offer | None]
    """Offer of a node with one GPU; None if it has no such partition left."""
    order: Callable[[Node], tuple[float, ...]]
    """Sort key of nodes, smallest first."""


def first_found(devices: NodeDevices, request: DeviceClaims) -> Offer | None:
    """The first matching device, as kube-scheduler's allocator chooses."""
    picked = first_fit(devices, request)
    return None if picked is None else Offer(0.0, picked[0][2].device)


def fullest(devices: NodeDevices, request: DeviceClaims) -> Offer | None:
    """The first matching device, with the free compute of its GPU as cost."""
    found = first_found(devices, request)
    return None if found is None else Offer(float(_free_milli(devices)), found.device)


FIRST_FIT: Final = Policy("first-fit", first_found, lambda node: (node.row,))
"""The first device in the slices' order, on the first node with one."""
KUBE_SCHEDULER: Final = Policy("kube-scheduler", first_found, lambda node: (-node.free_milli, node.row))
"""The first device, on the node with most free: the default scoring (`LeastAllocated`) uses CPU and memory only, which
pods here request in proportion to their partition."""
BEST_FIT: Final = Policy("best-fit", fullest, lambda node: (node.cost, node.row))
"""The first device on the GPU with least free compute."""


def kerf(weights: Weights) -> Policy:
    """The device that loses its GPU the least worth; ties go to the fuller node, as in the service."""
    allocations = Allocations(weights)

    def least_lost(devices: NodeDevices, request: DeviceClaims) -> Offer | None:
        found = allocations.best(devices, request)
        if isinstance(found, Fault):
            raise found
        return None if found is None else Offer(found.loss, found.takings[0].device)

    return Policy(KERF, least_lost, lambda node: (node.cost, node.free_milli, node.row))


def _free_milli(devices: NodeDevices) -> int:
    """Free compute of a node's only GPU."""
    taken = (device.milli for index, device in enumerate(devices.inventory.devices) if devices.taken >> index & 1)
    return WHOLE_MILLI - sum(taken)


class Memory:
    """Cache of a policy's offers by GPU state, for all runs on the same kind of GPU."""

    def __init__(self, kind: GpuKind, policy: Policy) -> None:
        self.kind, self.policy = kind, policy
        self._inventory = inventory(kind, 1)
        self._asks = [ask_for(profile) for profile in kind.profiles]
        self._states: dict[int, NodeDevices] = {}
        self._free: dict[int, int] = {}
        self._offers: list[dict[int, Offer | None]] = [{} for _ in kind.profiles]

    def offers(self, taken: Sequence[int], profile: int) -> list[tuple[float, int, int]]:
        """Return cost, position and device of each GPU's offer; `taken` are the GPUs' states."""
        cached = self._offers[profile]
        for state in taken:
            if state not in cached:
                cached[state] = self.policy.offer(self._state(state), self._asks[profile])
        return [
            (offer.cost, position, offer.device)
            for position, state in enumerate(taken)
            if (offer := cached[state]) is not None
        ]

    def free_milli(self, taken: int) -> int:
        """Return the free compute of a GPU in a state."""
        if taken not in self._free:
            self._free[taken] = _free_milli(self._state(taken))
        return self._free[taken]

    def _state(self, taken: int) -> NodeDevices:
        if taken not in self._states:
            takings = [Taking(index) for index in range(len(self._inventory.devices)) if taken >> index & 1]
            self._states[taken] = NodeDevices.of(self._inventory, takings)
        return self._states[taken]


_Found = tuple[tuple[float, ...], int, int]
"""Rank of a node, and GPU and device of its offer."""


class _Placing:
    """Nodes with GPUs of one kind, and the partitions placed on them."""

    def __init__(self, memory: Memory, num_gpus: int) -> None:
        self._memory = memory
        self._nodes = [
            [0] * min(_GPUS_PER_NODE, num_gpus - first) for first in range(0, num_gpus, _GPUS_PER_NODE)
        ]  # mask of the devices taken, by GPU
        self._free = [WHOLE_MILLI * len(node) for node in self._nodes]
        self._found: list[dict[int, _Found | None]] = [{} for _ in self._nodes]

    def place(self, profile: int) -> tuple[int, int] | None:
        """Place a partition; returns GPU and device, None if no node has one left."""
        offers = (self._offer(row, profile) for row in range(len(self._nodes)))
        best = min((offer for offer in offers if offer), default=None)
        if best is None:
            return None
        _, gpu, device = best
        self._change(gpu, device)
        return gpu, device

    def give_back(self, gpu: int, device: int) -> None:
        """Release a device."""
        self._change(gpu, device)

    def _offer(self, row: int, profile: int) -> _Found | None:
        offers = self._found[row]
        if profile not in offers:
            offers[profile] = self._worked_out(row, profile)
        return offers[profile]

    def _worked_out(self, row: int, profile: int) -> _Found | None:
        node = self._nodes[row]
        best = min(self._memory.offers(node, profile), default=None)
        if best is None:
            return None
        cost, position, device = best
        rank = self._memory.policy.order(Node(cost, self._free[row] / len(node), row))
        return rank, row * _GPUS_PER_NODE + position, device

    def _change(self, gpu: int, device: int) -> None:
        """Take or release a device."""
        row, position = divmod(gpu, _GPUS_PER_NODE)
        before = self._nodes[row][position]
        after = before ^ 1 << device
        self._nodes[row][position] = after
        self._free[row] += self._memory.free_milli(after) - self._memory.free_milli(before)
        self._found[row] = {}


def placed(memory: Memory, num_gpus: int, requests: Requests, *, until_refused: bool = False) -> list[bool]:
    """(P,) whether each request gets a partition on arrival; refused requests are lost.

    `until_refused` stops after the first refusal.
    """
    placing = _Placing(memory, num_gpus)
    departures: list[tuple[float, int, int]] = []
    found = []
    rows = zip(requests.profiles.tolist(), requests.arrived.tolist(), requests.duration.tolist(), strict=True)
    for profile, now, duration in rows:
        while departures and departures[0][0] <= now:
            placing.give_back(*heapq.heappop(departures)[1:])
        at = placing.place(profile)
        found.append(at is not None)
        if at:
            heapq.heappush(departures, (now + duration, *at))
        elif until_refused:
            break
    return found


def gpus_needed(memory: Memory, requests: Requests) -> int:
    """Return the fewest GPUs on which a policy places all requests, by bisection (assumes monotonicity)."""
    # Shares are the larger of compute and memory, and the GPUs bound the sum of each: hence half as a lower bound.
    low = int(np.ceil(requests.most_at_once / 2 - 1e-9)) - 1
    high = max(1, int(np.ceil(requests.most_at_once)))
    while not all(placed(memory, high, requests, until_refused=True)):
        low, high = high, high + max(1, high // 8)
    while high - low > 1:
        middle = (low + high) // 2
        if all(placed(memory, middle, requests, until_refused=True)):
            high = middle
        else:
            low = middle
    return high
