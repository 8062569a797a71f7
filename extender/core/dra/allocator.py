"""Allocation of a node's devices to a pod's claims, by exact search.

Valid allocations are those of kube-scheduler's allocator (1.37.2, `dynamic-resource-allocation/structured`). Among them
Kerf prefers the earliest alternatives of requests, then the least loss of worth, then devices on one PCIe root or NUMA
node, then the first devices.

The search is a dynamic program over groups of devices. After each group, a table holds the cheapest way to each state:
the remaining demands and, under constraints, the values in use. Equal groups offer the same ways, so that many GPUs
make few states: 16 partitions of 8 GPUs have 17.

`Allocations` caches results by node state. Nodes are equal if their devices match in order, partitions, counters,
capacities, what the selectors read, which devices share values of constrained attributes, and what is allocated. Names
and UUIDs don't count unless a selector reads them.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from extender.core.dra.asks import DeviceClaims, Fault
from extender.core.dra.devices import Device, Inventory, NodeDevices, Taking
from extender.core.dra.packing import (
    GPU,
    Group,
    Keys,
    Packer,
    Room,
    Shape,
    Values,
    Way,
    Weights,
    enough,
    kind_of,
    overdrawn,
    shape_of,
)
from extender.core.dra.slots import (
    DRIVER,
    MAX_DEVICES,
    MAX_STEPS,
    Asked,
    Demand,
    Matcher,
    Matches,
    Request,
    SearchLimit,
    Slot,
    Steps,
    Typed,
    asked_of,
    contents,
    faults_of,
    read,
    requests_of,
    typed_value,
)

_Value = TypeVar("_Value")

_LINK: Final = "resource.kubernetes.io/pcieRoot"
_NUMA: Final = ("numaNode", "numa")
_State = tuple[tuple[int, ...], Values]
"""(D,) devices still needed, and the values in use under each constraint."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A linked list of the ways chosen so far, last group first."""

    group: Group
    way: Way
    before: "_Chosen | None"

    def __iter__(self) -> Iterator[tuple[Group, Way]]:
        chosen: _Chosen | None = self
        while chosen is not None:
            yield chosen.group, chosen.way
            chosen = chosen.before


_Offer = tuple[Group, tuple[Way, ...]]


def _cheapest(asked: Asked, offers: Sequence[_Offer], steps: Steps) -> tuple[int, _Chosen | None] | None:
    """The cost of the cheapest ways that meet all demands, and these ways; None if there are none.

    Ties break by the first devices. Raises SearchLimit.
    """
    needed = tuple(demand.count for demand in asked.demands)
    offers = _useful(offers, sum(needed))
    supply = _supply(offers, len(needed))
    effort = 1 + len(needed) // 4  # steps per way
    start: _State = needed, tuple(frozenset[Typed]() for _ in asked.values)
    table: dict[_State, tuple[int, _Chosen | None]] = {start: (0, None)} if _met(needed, supply[0]) else {}
    for number, (group, ways) in enumerate(offers):
        after = {state: entry for state, entry in table.items() if _met(state[0], supply[number + 1])}
        for state, (cost, chosen) in table.items():
            steps.take(len(ways) * effort)
            for way in ways:
                reached = _reached(asked, state, way)
                if reached is None or not _met(reached[0], supply[number + 1]):
                    continue
                known = after.get(reached)
                if known is None or cost + way.cost < known[0]:
                    after[reached] = cost + way.cost, _Chosen(group, way, chosen)
        table = after
    ends = [entry for state, entry in table.items() if not any(state[0])]
    return min(ends, key=lambda entry: entry[0]) if ends else None


def _closest(
    asked: Asked, inventory: Inventory, offers: Sequence[_Offer], found: tuple[int, _Chosen | None], steps: Steps
) -> _Chosen | None:
    """Among choices of equal cost, one whose devices are on one PCIe root, else on one NUMA node, else `found`.

    Of several roots or nodes, the one with the fewest groups wins.
    """
    cost, chosen = found
    groups = [group for group, _ in chosen or ()]
    if len(groups) < 2:
        return chosen
    for attribute in (_LINK, *_NUMA):
        links = {id(group): _link(inventory, group, attribute) for group, _ in offers}
        if len({links[id(group)] for group in groups}) == 1:
            return chosen
        of_link: dict[Typed, list[_Offer]] = {}
        for group, ways in offers:
            link = links[id(group)]
            if link is not None:
                of_link.setdefault(link, []).append((group, ways))
        for together in sorted(of_link.values(), key=len):
            try:
                better = _cheapest(asked, together, steps)
            except SearchLimit:
                return chosen
            if better is not None and better[0] <= cost:
                return better[1]
    return chosen


def _useful(offers: Sequence[_Offer], needed: int) -> list[_Offer]:
    """The offers without empty ones, and at most `needed` equal ones."""
    num_equal: dict[int, int] = {}
    useful = []
    for group, ways in offers:
        num_equal[id(ways)] = num_equal.get(id(ways), 0) + 1
        if ways and num_equal[id(ways)] <= needed:
            useful.append((group, ways))
    return useful


def _supply(offers: Sequence[_Offer], num_demands: int) -> list[tuple[int, ...]]:
    """(offers + 1, D) most devices that each demand can get from this and later offers."""
    supply = [(0,) * num_demands]
    for _, ways in reversed(offers):
        most = [max(way.given[demand] for way in ways) for demand in range(num_demands)]
        supply.append(tuple(before + more for before, more in zip(supply[-1], most, strict=True)))
    return supply[::-1]


def _met(needed: Sequence[int], supply: Sequence[int]) -> bool:
    return all(need <= most for need, most in zip(needed, supply, strict=True))


def _reached(asked: Asked, state: _State, way: Way) -> _State | None:
    """The state after taking a way, None where it gives too much or violates a constraint."""
    needed, values = state
    left = tuple(need - given for need, given in zip(needed, way.given, strict=True))
    if min(left) < 0:
        return None
    if not values:
        return left, values
    joined = []
    for distinct, before, more in zip(asked.distinct, values, way.values, strict=True):
        if before and more and (distinct == bool(before & more)):
            return None
        joined.append(before | more)
    return left, tuple(joined)


def _link(inventory: Inventory, group: Group, attribute: str) -> Typed | None:
    """The attribute's common value of a group's devices, None if it differs or is missing."""
    links = {_linked(inventory.devices[index], attribute) for index in group.members}
    return links.pop() if len(links) == 1 else None


def _linked(device: Device, attribute: str) -> Typed | None:
    return typed_value(device, attribute if "/" in attribute else f"{device.id.driver}/{attribute}")


@dataclass(frozen=True, slots=True)
class Given:
    """A device allocated to a request."""

    request: str
    """Name of the request, or `request/subrequest`."""
    taking: Taking
    admin: bool = False
    """Whether it is for admin access and stays free."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices that a pod's claims get on a node."""

    claims: tuple[tuple[Given, ...], ...]
    """The devices of each claim, in the order of the claims."""
    loss: float = 0.0
    """Worth that the node loses beyond the devices given, in GPUs: smaller is better."""
    rank: tuple[int, ...] = ()
    """Index of the alternative, for each request with several."""

    @property
    def takings(self) -> tuple[Taking, ...]:
        """What the allocation takes of the node's devices, without admin access."""
        return tuple(given.taking for claim in self.claims for given in claim if not given.admin)


_MAX_AT_ONCE: Final = 256
"""Most requests of a pod, and most devices: bounds the depth of recursion."""


@dataclass(slots=True)
class _Memory:
    """Caches shared by searches."""

    weights: Weights = field(default_factory=Weights)
    keys: Keys = field(default_factory=Keys)
    rooms: dict[int, Room] = field(default_factory=dict)
    """By `Group.key`."""
    matcher: Matcher = field(default_factory=Matcher)
    ways: dict[object, tuple[Way, ...]] = field(default_factory=dict)
    worths: dict[object, int] = field(default_factory=dict)


def _allocate(devices: NodeDevices, asked: DeviceClaims) -> Allocation | None:
    """The best possible allocation, None if there is none.

    Raises another Fault where kube-scheduler may fail the pod although an allocation is possible, and SearchLimit after
    MAX_STEPS.
    """
    memory = _Memory()
    steps = Steps(MAX_STEPS)
    shape = shape_of(devices.inventory, memory.weights, memory.keys, memory.rooms)
    return _search(devices, asked, shape, _matches_of(devices, asked, memory.matcher, steps), memory, steps)


def _matches_of(devices: NodeDevices, asked: DeviceClaims, matcher: Matcher, steps: Steps) -> Matches:
    """The match of each request with each device, then with each unavailable one. Raises SearchLimit."""
    all_devices = (*devices.inventory.devices, *devices.inventory.unavailable)
    asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
    return {ask: tuple(matcher.match(device, ask, steps) for device in all_devices) for ask in dict.fromkeys(asks)}


def _search(
    devices: NodeDevices, asked: DeviceClaims, shape: Shape, matches: Matches, memory: _Memory, steps: Steps
) -> Allocation | None:
    """The best possible allocation, None if there is none. Raises Fault."""
    if not devices.inventory.complete and any(not ask.count for ask in matches):
        return None  # like kube-scheduler, which can't count all devices of an incomplete pool
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
    """The choice of alternatives and their devices."""

    devices: NodeDevices
    asked: DeviceClaims
    shape: Shape
    memory: _Memory
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
        """The allocation with the earliest possible alternatives for the undecided requests."""
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
        """Whether each request alone has enough devices, and no claim has too many."""
        slots = self._slots(chosen)
        if len(slots) < len(chosen):
            return False
        counts = [0] * len(self.asked.claims)
        for slot in slots:
            counts[slot.claim] += slot.count
        return max(counts, default=0) <= MAX_DEVICES

    def _solve(self, chosen: dict[int, int]) -> tuple[Sequence[Demand], int, _Chosen | None] | None:
        """The demands of the chosen alternatives, the least cost of meeting them, and the ways; None if impossible."""
        asked = asked_of(self.devices, self.asked, self._slots(chosen))
        if sum(demand.count for demand in asked.demands) > _MAX_AT_ONCE:
            raise SearchLimit(f"more than {_MAX_AT_ONCE} devices at once")
        if not enough(self.devices, self.shape.groups, asked.demands, self.steps):
            return None
        packer = Packer(self.devices, asked, self.blocked, self.steps, self.memory.ways, self.memory.worths)
        offers: list[_Offer] = [(group, packer.ways(group)) for group in self.shape.groups]
        found = _cheapest(asked, offers, self.steps)
        if found is None:
            return None
        if len(chosen) == len(self.requests):
            return asked.demands, found[0], _closest(asked, self.devices.inventory, offers, found, self.steps)
        return asked.demands, *found

    def _allocation(self, chosen: dict[int, int]) -> Allocation | None:
        solved = self._solve(chosen)
        if solved is None:
            return None
        demands, cost, choice = solved
        given: dict[int, list[list[int]]] = {}  # devices by slot, by demand
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
                Given(slot.ask.name, Taking(index, slot.matching[index]), slot.ask.admin)
                for slot in slots
                if slot.claim == claim
                for index in of_slot[id(slot)]
            )
            for claim in range(len(self.asked.claims))
        )
        rank = tuple(chosen[position] for position, request in enumerate(self.requests) if len(request.slots) > 1)
        return Allocation(claims, (cost - sum(map(self._worth_given, slots))) / GPU, rank)

    def _worth_given(self, slot: Slot) -> int:
        """The least worth of devices for a request; the worth of larger devices beyond it counts as loss."""
        if slot.ask.admin:
            return 0
        sizes = sorted(self._part(index, slot) for index in slot.matching)
        return sum(sizes) if not slot.ask.count else slot.count * sizes[0]

    def _part(self, index: int, slot: Slot) -> int:
        size, device = self.shape.sizes[index], self.devices.inventory.devices[index]
        if not device.shareable:
            return size
        parts = [
            amount / device.capacity[name].value for name, amount in slot.matching[index] if device.capacity[name].value
        ]
        return round(size * max(parts, default=0))


def _shared_out(demand: Demand, indices: Sequence[int]) -> Iterator[list[int]]:
    """Yield the devices of each slot of a demand."""
    num_slots = len(demand.slots)
    if len(set(indices)) < len(indices):
        # Parts of one device are adjacent and must go to different requests.
        for number in range(num_slots):
            yield list(indices[number::num_slots])
        return
    start = 0
    for slot in demand.slots:
        yield list(indices[start : start + slot.count])
        start += slot.count


_BOUND: Final = 100_000
_MAX_ASKED: Final = 1_000
_MAX_WAYS: Final = 5_000
"""Bound of cached groups; each may have a hundred ways."""
_MAX_SHAPES: Final = 10_000
_MAX_SPENT: Final = 4 * MAX_STEPS
"""Total steps of long searches for equal claims over all nodes; after that, searches for them are short."""
_FEW_STEPS: Final = 2_000

Outcome = Allocation | None | Fault


@dataclass(slots=True)
class _Seen:
    """Cached keys of an inventory."""

    structure: int
    """Key of `_structure`."""
    shape: Shape
    columns: dict[str, int] = field(default_factory=dict)
    """Key of all devices' values, by attribute or capacity."""
    asked: dict[int, int] = field(default_factory=dict)
    """Key of all that certain claims can see of the inventory, by `_Asked.number`."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What certain claims read of devices."""

    number: int
    reads: tuple[str, ...]
    reads_all: bool
    compared: tuple[str, ...]
    """Attributes of constraints."""


class Allocations:
    """A cache of best allocations; full tables are cleared. Not thread-safe."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._memory = _Memory(self._weights)
        self._seen: WeakKeyDictionary[Inventory, _Seen] = WeakKeyDictionary()
        self._shapes: dict[int, Shape] = {}
        self._asked: dict[DeviceClaims, _Asked] = {}
        self._num_asked = 0
        self._spent: dict[int, int] = {}  # steps of long searches, by `_Asked.number`
        self._taken: dict[DeviceClaims, int] = {}
        self._matches: dict[int, Matches] = {}
        self._outcomes: dict[object, Outcome] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Allocations, (self._weights,)

    def best(self, devices: NodeDevices, asked: DeviceClaims) -> Outcome:
        """The best possible allocation by the weights of this cache, None if there is none, a Fault if unknown."""
        known, seen, alike, key = self._keys(devices, asked)
        try:
            return self._outcomes[key]
        except KeyError:
            outcome = self._search(devices, asked, known, seen, alike)
        return _put(self._outcomes, key, outcome)

    def key(self, devices: NodeDevices, asked: DeviceClaims) -> Hashable:
        """A key that is equal for nodes in equal states, as far as these claims can see."""
        return self._keys(devices, asked)[3]

    def steps_taken(self, asked: DeviceClaims) -> int:
        """Steps of all searches for these claims since they entered the cache."""
        return self._taken.get(asked, 0)

    @property
    def num_inventories(self) -> int:
        """Number of cached inventories; they are weakly referenced."""
        return len(self._seen)

    @property
    def matcher(self) -> Matcher:
        """The cache of selector results."""
        return self._memory.matcher

    def _keys(self, devices: NodeDevices, asked: DeviceClaims) -> tuple[_Asked, _Seen, int, Hashable]:
        seen = self._seen.get(devices.inventory) or self._see(devices.inventory)
        known = self._asked.get(asked) or self._know(asked)
        alike = seen.asked.get(known.number)
        if alike is None:
            alike = self._alike(devices.inventory, seen, known)
        parts = tuple(sorted(devices.parts.items())) if devices.parts else ()
        return known, seen, alike, (alike, devices.taken, devices.left, parts)

    def _search(self, devices: NodeDevices, asked: DeviceClaims, known: _Asked, seen: _Seen, alike: int) -> Outcome:
        memory = self._memory
        for table, bound in ((memory.ways, _MAX_WAYS), (memory.worths, _BOUND), (memory.rooms, _MAX_SHAPES)):
            if len(table) > bound:
                table.clear()
        spent = self._spent.get(known.number, 0)
        steps = Steps(MAX_STEPS if spent < _MAX_SPENT else _FEW_STEPS)
        try:
            matches = self._matches.get(alike)
            if matches is None:
                matches = _put(self._matches, alike, _matches_of(devices, asked, memory.matcher, steps), _MAX_ASKED)
            return _search(devices, asked, seen.shape, matches, memory, steps)
        except Fault as fault:
            return fault.with_traceback(None)  # frames would stay in memory
        finally:
            num_steps = steps.limit - steps.left
            _put(self._taken, asked, self._taken.get(asked, 0) + num_steps, _MAX_ASKED)
            if num_steps > _FEW_STEPS:
                _put(self._spent, known.number, spent + num_steps)

    def _see(self, inventory: Inventory) -> _Seen:
        structure = self._memory.keys.of(_structure(inventory))
        shape = self._shapes.get(structure)
        if shape is None:
            shape = shape_of(inventory, self._weights, self._memory.keys, self._memory.rooms)
            _put(self._shapes, structure, shape, _MAX_SHAPES)
        seen = self._seen[inventory] = _Seen(structure, shape)
        return seen

    def _know(self, asked: DeviceClaims) -> _Asked:
        asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
        reads = {selector.reads for ask in asks for selector in ask.selectors}
        names = frozenset[str]().union(*(names for names in reads if names is not None)) - {DRIVER}
        compared = {constraint.attribute for claim in asked.claims for constraint in claim.constraints}
        known = _Asked(self._num_asked, tuple(sorted(names)), None in reads, tuple(sorted(compared)))
        self._num_asked += 1
        return _put(self._asked, asked, known, _MAX_ASKED)

    def _alike(self, inventory: Inventory, seen: _Seen, known: _Asked) -> int:
        devices = (*inventory.devices, *inventory.unavailable)
        columns = []
        for name in known.reads:
            column = seen.columns.get(name)
            if column is None:
                column = self._memory.keys.of(tuple(read(device, name) for device in devices))
                seen.columns[name] = column
            columns.append(column)
        if known.reads_all:
            columns.append(self._memory.keys.of(tuple(contents(device, None) for device in devices)))
        patterns = [_pattern(inventory.devices, (name,)) for name in known.compared]
        alike = self._memory.keys.of((known.number, seen.structure, *columns, *patterns))
        if len(seen.asked) >= _MAX_ASKED:
            seen.asked.clear()
        seen.asked[known.number] = alike
        return alike


def _structure(inventory: Inventory) -> object:
    """A key of all that a search uses besides what selectors read and constraints compare."""
    pools: dict[tuple[str, str], int] = {}
    return (
        tuple(
            (
                kind_of(device),
                device.milli,
                device.mib,
                device.shareable,
                device.consumes,
                device.taints,
                pools.setdefault((device.id.driver, device.id.pool), len(pools)),
                device.id.driver,
                tuple(sorted(device.capacity.items())),
            )
            for device in inventory.devices
        ),
        inventory.counters,
        tuple((device.id.driver, tuple(sorted(device.capacity.items()))) for device in inventory.unavailable),
        inventory.complete,
        _pattern(inventory.devices, (_LINK,)),
        *(
            _pattern(inventory.devices, (f"{driver}/{name}",))
            for name in _NUMA
            for driver in sorted({d for d, _ in pools})
        ),
    )


def _pattern(devices: Sequence[Device], names: Iterable[str]) -> tuple[int, ...]:
    """Which devices share a value of the attributes: numbers in order of first use, -1 for none."""
    numbers: dict[object, int] = {}
    pattern = []
    for name in names:
        for device in devices:
            value = typed_value(device, name)
            pattern.append(-1 if value is None else numbers.setdefault(value, len(numbers)))
    return tuple(pattern)


def _put(table: dict[Any, _Value], key: object, value: _Value, bound: int = _BOUND) -> _Value:
    if len(table) >= bound:
        table.clear()
    table[key] = value
    return value
