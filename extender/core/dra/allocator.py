"""Which devices of a node claims get: an exact search, and of what is possible that which leaves most.

Possible is what kube-scheduler's allocator finds possible (1.37.2, `dynamic-resource-allocation/structured`); the
choice among it is Kerf's: the earliest alternatives of requests, then the least loss of worth, then devices that are
together, then the first ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.given import Allocation, Given
from extender.core.dra.groups import Keys, Shape, overdrawn, shape_of
from extender.core.dra.matching import MAX_STEPS, Matcher, SearchLimit, Steps
from extender.core.dra.packing import Packer, Way, enough
from extender.core.dra.search import Chosen, Offer, cheapest, closest
from extender.core.dra.slots import MAX_DEVICES, Demand, Matches, Request, Slot, asked_of, faults_of, requests_of
from extender.core.dra.worth import GPU, Room, Weights

_MAX_AT_ONCE: Final = 256
"""Requests of a pod, and devices that it is given: the search is as deep."""

__all__ = ["Allocation", "Given", "Memory"]


@dataclass(slots=True)
class Memory:
    """What searches have found out that others can use."""

    weights: Weights = field(default_factory=Weights)
    keys: Keys = field(default_factory=Keys)
    rooms: dict[int, Room] = field(default_factory=dict)
    """By the key of groups that are alike."""
    matcher: Matcher = field(default_factory=Matcher)
    ways: dict[object, tuple[Way, ...]] = field(default_factory=dict)
    worths: dict[object, int] = field(default_factory=dict)


def _allocate(devices: NodeDevices, asked: DevicesAsked) -> Allocation | None:
    """The best allocation that is possible, None when none is.

    Raises SelectorFault, CapacityFault and AllFault where kube-scheduler may give the pod up though something is
    possible, and SearchLimit after 100,000 steps, a tenth of a second.
    """
    memory = Memory()
    steps = Steps(MAX_STEPS)
    shape = shape_of(devices.inventory, memory.weights, memory.keys, memory.rooms)
    return search(devices, asked, shape, matches_of(devices, asked, memory.matcher, steps), memory, steps)


def matches_of(devices: NodeDevices, asked: DevicesAsked, matcher: Matcher, steps: Steps) -> Matches:
    """What each request makes of each device, those behind that are not Kerf's to give. Raises SearchLimit."""
    found = (*devices.inventory.devices, *devices.inventory.unavailable)
    asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
    return {ask: tuple(matcher.match(device, ask, steps) for device in found) for ask in dict.fromkeys(asks)}


def search(
    devices: NodeDevices, asked: DevicesAsked, shape: Shape, matches: Matches, memory: Memory, steps: Steps
) -> Allocation | None:
    """The best allocation that is possible, None when none is. Raises Fault."""
    if not devices.inventory.complete and any(not ask.count for ask in matches):
        return None  # kube-scheduler does not even look, as long as it can't know how many all are
    blocked = overdrawn(shape, devices.left)
    requests = requests_of(devices, asked, matches, blocked)
    allocation = _Choice(devices, asked, shape, memory, steps, blocked, requests).best()
    if allocation is not None:
        fault = faults_of(devices, asked, requests, matches)
        if fault is not None:
            raise fault
    return allocation


@dataclass(slots=True)
class _Choice:
    """The choice of alternatives, and of devices for them."""

    devices: NodeDevices
    asked: DevicesAsked
    shape: Shape
    memory: Memory
    steps: Steps
    blocked: int
    requests: Sequence[Request]

    def best(self) -> Allocation | None:
        if len(self.requests) > _MAX_AT_ONCE:
            raise SearchLimit(f"{len(self.requests)} requests at once")
        chosen = {position: 0 for position, request in enumerate(self.requests) if len(request.slots) == 1}
        if not self._possible(chosen):
            return None
        return self._choose(chosen, [position for position in range(len(self.requests)) if position not in chosen])

    def _choose(self, chosen: dict[int, int], undecided: Sequence[int]) -> Allocation | None:
        """The allocation with the earliest alternatives for those that are not decided yet."""
        if not undecided:
            return self._allocation(chosen)
        for alternative in range(len(self.requests[undecided[0]].slots)):
            with_it = chosen | {undecided[0]: alternative}
            self.steps.take()
            if self._possible(with_it) and (len(undecided) == 1 or self._solve(with_it) is not None):
                allocation = self._choose(with_it, undecided[1:])
                if allocation is not None:
                    return allocation
        return None

    def _slots(self, chosen: dict[int, int]) -> list[Slot]:
        slots = [self.requests[position].slots[alternative] for position, alternative in sorted(chosen.items())]
        return [slot for slot in slots if slot is not None]

    def _possible(self, chosen: dict[int, int]) -> bool:
        """Whether each request has enough devices by itself, and no claim too many."""
        slots = self._slots(chosen)
        if len(slots) < len(chosen):
            return False
        counts = [0] * len(self.asked.claims)
        for slot in slots:
            counts[slot.claim] += slot.count
        return max(counts, default=0) <= MAX_DEVICES

    def _solve(self, chosen: dict[int, int]) -> tuple[Sequence[Demand], int, Chosen | None] | None:
        """The demands of what is decided, what it costs to meet them, and how."""
        asked = asked_of(self.devices, self.asked, self._slots(chosen))
        if sum(demand.count for demand in asked.demands) > _MAX_AT_ONCE:
            raise SearchLimit(f"more than {_MAX_AT_ONCE} devices at once")
        if not enough(self.devices, self.shape.groups, asked.demands, self.steps):
            return None
        packer = Packer(self.devices, asked, self.blocked, self.steps, self.memory.ways, self.memory.worths)
        offers: list[Offer] = [(group, packer.ways(group)) for group in self.shape.groups]
        found = cheapest(asked, offers, self.steps)
        if found is None:
            return None
        if len(chosen) == len(self.requests):
            return asked.demands, found[0], closest(asked, self.devices.inventory, offers, found, self.steps)
        return asked.demands, *found

    def _allocation(self, chosen: dict[int, int]) -> Allocation | None:
        solved = self._solve(chosen)
        if solved is None:
            return None
        demands, cost, choice = solved
        given: dict[int, list[list[int]]] = {}  # devices of each slot of each demand
        for number, demand in enumerate(demands):
            indices = sorted(
                group.members[place]
                for group, way in choice or ()
                for place, given_to in way.places
                if given_to == number
            )
            given[number] = list(_shared_out(demand, indices))
        of_slot = {
            id(slot): indices
            for number, demand in enumerate(demands)
            for slot, indices in zip(demand.slots, given[number], strict=True)
        }
        slots = self._slots(chosen)
        claims = tuple(
            tuple(
                Given(slot.ask.name, Taking(index, slot.does[index]), slot.ask.admin)
                for slot in slots
                if slot.claim == claim
                for index in of_slot[id(slot)]
            )
            for claim in range(len(self.asked.claims))
        )
        rank = tuple(chosen[position] for position, request in enumerate(self.requests) if len(request.slots) > 1)
        return Allocation(claims, (cost - sum(map(self._worth_given, slots))) / GPU, rank)

    def _worth_given(self, slot: Slot) -> int:
        """What a request's devices are worth at least: those of more worth are given only at a loss."""
        if slot.ask.admin:
            return 0
        sizes = sorted(self._part(index, slot) for index in slot.does)
        return sum(sizes) if not slot.ask.count else slot.count * sizes[0]

    def _part(self, index: int, slot: Slot) -> int:
        size, device = self.shape.sizes[index], self.devices.inventory.devices[index]
        if not device.shareable:
            return size
        parts = [
            amount / device.capacity[name].value for name, amount in slot.does[index] if device.capacity[name].value
        ]
        return round(size * max(parts, default=0))


def _shared_out(demand: Demand, indices: Sequence[int]) -> Iterator[list[int]]:
    """The devices of each of the requests that a demand stands for."""
    num_slots = len(demand.slots)
    if len(set(indices)) < len(indices):
        # Parts of one device, which lie side by side, are for different requests.
        for number in range(num_slots):
            yield list(indices[number::num_slots])
        return
    start = 0
    for slot in demand.slots:
        yield list(indices[start : start + slot.count])
        start += slot.count
