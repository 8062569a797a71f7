"""Partitions of GPUs on nodes, placed one request after the other by a policy that does not know what comes next.

What is possible on a GPU, and what `kerf` prefers there, is the service's own code (`extender.core.dra`), asked about
nodes of one GPU and remembered by what is taken of it: partitions of different GPUs share nothing, so that the best of
a node is the best of its GPUs. All policies get the same requests in the same order.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra.allocator import Allocations
from extender.core.dra.asks import DevicesAsked, Fault
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.first_fit import first_fit
from extender.core.dra.packing import Weights
from model.workloads.nvidia import GpuKind, inventory
from model.workloads.partition_mixes import Requests, ask_for

_GPUS_PER_NODE: Final = 8
KERF: Final = "kerf"


class Offer(NamedTuple):
    """What a GPU would give, and how unwelcome that is."""

    cost: float
    """Smaller is better; of equal ones of a node the first."""
    device: int


class Node(NamedTuple):
    """What a policy knows of a node that would give something."""

    cost: float
    """Of its best offer."""
    free_milli: float
    """Compute that is left of its GPUs, on average."""
    row: int


@dataclass(frozen=True, slots=True)
class Policy:
    """Which GPU gives which partition."""

    name: str
    offer: Callable[[NodeDevices, DevicesAsked], Offer | None]
    """Of a node that has one GPU; None where it has no such partition left."""
    order: Callable[[Node], tuple[float, ...]]
    """Of nodes, smaller first."""


def first_found(devices: NodeDevices, asked: DevicesAsked) -> Offer | None:
    """What kube-scheduler's allocator gives: the first device that does."""
    picked = first_fit(devices, asked)
    return None if picked is None else Offer(0.0, picked[0][2].device)


def fullest(devices: NodeDevices, asked: DevicesAsked) -> Offer | None:
    """The first device too, at the cost of all that is left of its GPU: as if that were a whole."""
    found = first_found(devices, asked)
    return None if found is None else Offer(float(_free_milli(devices)), found.device)


FIRST_FIT: Final = Policy("first-fit", first_found, lambda node: (node.row,))
"""The first device in the slices' order, on the first node that has one."""
KUBE_SCHEDULER: Final = Policy("kube-scheduler", first_found, lambda node: (-node.free_milli, node.row))
"""The first device, on the node that has most left: its default scoring (`LeastAllocated`) looks at CPU and memory
alone, which pods here ask for in proportion to their partition."""
BEST_FIT: Final = Policy("best-fit", fullest, lambda node: (node.cost, node.row))
"""The GPU with least left, as for whole devices; there the first device."""


def kerf(weights: Weights) -> Policy:
    """The device that costs its GPU least besides itself; of equal nodes the fuller one, as in the service."""
    known = Allocations(weights)

    def least_lost(devices: NodeDevices, asked: DevicesAsked) -> Offer | None:
        found = known.best(devices, asked)
        if isinstance(found, Fault):
            raise found
        return None if found is None else Offer(found.loss, found.takings[0].device)

    return Policy(KERF, least_lost, lambda node: (node.cost, node.free_milli, node.row))


def _free_milli(devices: NodeDevices) -> int:
    """Compute that is left of a node's only GPU."""
    taken = (device.milli for index, device in enumerate(devices.inventory.devices) if devices.taken >> index & 1)
    return WHOLE_MILLI - sum(taken)


class Memory:
    """What a policy does on one GPU, by what is taken of it: for all runs on the same kind of GPU."""

    def __init__(self, kind: GpuKind, policy: Policy) -> None:
        self.kind, self.policy = kind, policy
        self._inventory = inventory(kind, 1)
        self._asks = [ask_for(profile) for profile in kind.profiles]
        self._states: dict[int, NodeDevices] = {}
        self._free: dict[int, int] = {}
        self._offers: list[dict[int, Offer | None]] = [{} for _ in kind.profiles]

    def offers(self, taken: Sequence[int], profile: int) -> list[tuple[float, int, int]]:
        """Cost, position and device of what each of some GPUs would give, those alone that would."""
        known = self._offers[profile]
        for state in taken:
            if state not in known:
                known[state] = self.policy.offer(self._state(state), self._asks[profile])
        return [
            (offer.cost, position, offer.device)
            for position, state in enumerate(taken)
            if (offer := known[state]) is not None
        ]

    def free_milli(self, taken: int) -> int:
        """Compute that is left of a GPU."""
        if taken not in self._free:
            self._free[taken] = _free_milli(self._state(taken))
        return self._free[taken]

    def _state(self, taken: int) -> NodeDevices:
        if taken not in self._states:
            of = [Taking(index) for index in range(len(self._inventory.devices)) if taken >> index & 1]
            self._states[taken] = NodeDevices.of(self._inventory, of)
        return self._states[taken]


_Found = tuple[tuple[float, ...], int, int]
"""Rank of a node, GPU and device of what it would give."""


class _Placing:
    """GPUs of one kind on nodes, and what a policy has placed on them."""

    def __init__(self, memory: Memory, num_gpus: int) -> None:
        self._memory = memory
        self._nodes = [
            [0] * min(_GPUS_PER_NODE, num_gpus - first) for first in range(0, num_gpus, _GPUS_PER_NODE)
        ]  # what is taken of each GPU, its devices as bits
        self._free = [WHOLE_MILLI * len(node) for node in self._nodes]
        self._found: list[dict[int, _Found | None]] = [{} for _ in self._nodes]

    def place(self, profile: int) -> tuple[int, int] | None:
        """Give a partition: GPU and device, None where no node has one left."""
        offers = (self._offer(row, profile) for row in range(len(self._nodes)))
        best = min((offer for offer in offers if offer), default=None)
        if best is None:
            return None
        _, gpu, device = best
        self._change(gpu, device)
        return gpu, device

    def give_back(self, gpu: int, device: int) -> None:
        """What somebody has left behind."""
        self._change(gpu, device)

    def _offer(self, row: int, profile: int) -> _Found | None:
        known = self._found[row]
        if profile not in known:
            known[profile] = self._worked_out(row, profile)
        return known[profile]

    def _worked_out(self, row: int, profile: int) -> _Found | None:
        node = self._nodes[row]
        best = min(self._memory.offers(node, profile), default=None)
        if best is None:
            return None
        cost, position, device = best
        rank = self._memory.policy.order(Node(cost, self._free[row] / len(node), row))
        return rank, row * _GPUS_PER_NODE + position, device

    def _change(self, gpu: int, device: int) -> None:
        """Take a device, or give it back."""
        row, position = divmod(gpu, _GPUS_PER_NODE)
        before = self._nodes[row][position]
        after = before ^ 1 << device
        self._nodes[row][position] = after
        self._free[row] += self._memory.free_milli(after) - self._memory.free_milli(before)
        self._found[row] = {}


def placed(memory: Memory, num_gpus: int, requests: Requests, *, until_refused: bool = False) -> list[bool]:
    """(P,) which requests get a partition when they come; who gets none is gone.

    `until_refused` ends with the first that gets none.
    """
    placing = _Placing(memory, num_gpus)
    leaves: list[tuple[float, int, int]] = []
    found = []
    rows = zip(requests.profiles.tolist(), requests.arrived.tolist(), requests.duration.tolist(), strict=True)
    for profile, now, duration in rows:
        while leaves and leaves[0][0] <= now:
            placing.give_back(*heapq.heappop(leaves)[1:])
        at = placing.place(profile)
        found.append(at is not None)
        if at:
            heapq.heappush(leaves, (now + duration, *at))
        elif until_refused:
            break
    return found


def gpus_needed(memory: Memory, requests: Requests) -> int:
    """The fewest GPUs on which a policy places all requests, by bisection: as if what fits on some fits on more."""
    # What is asked for is the larger one of compute and memory, of each of which there is no more than there are GPUs.
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
