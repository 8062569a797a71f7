"""Which devices of a node claims get: an exact search, and of what is possible that which leaves most.

Possible is what kube-scheduler's allocator finds possible (1.37.2, `dynamic-resource-allocation/structured`); the
choice among it is Kerf's: the earliest alternatives of requests, then the least loss of worth, then devices that are
together, then the first ones.

Which devices meet a set of demands at the least loss: groups of devices one after the other, states of demand met.

After each group there is a table of what may still be needed: for each rest of the demands (and, under constraints,
the values that are in use) the cheapest way to have come to it. Groups that are alike offer the same ways, so that
many GPUs make few states: 16 partitions of 8 GPUs have 17.

What a pod's claims get on a node.

Allocations that are remembered: nodes that are alike in all that a pod's claims can tell are searched once.

Alike are nodes whose devices come in the same order with the same partitions, counters and capacities, equal in what
the selectors read, whose constraints' attributes are equal in the same places, and of which the same is taken. Names
and UUIDs do not count unless a selector reads them.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from extender.core.dra.asks import DevicesAsked, Fault
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

_Thing = TypeVar("_Thing")

_LINK: Final = "resource.kubernetes.io/pcieRoot"
_NUMA: Final = ("numaNode", "numa")
_State = tuple[tuple[int, ...], Values]
"""(D,) devices that are still needed, and the values in use under each constraint."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A way for a group, and what was chosen before."""

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
    """The cost of the cheapest choice of ways that meets all demands, and the choice. None when there is none.

    Of equals that which takes the first devices. Raises SearchLimit.
    """
    needed = tuple(demand.count for demand in asked.demands)
    offers = _useful(offers, sum(needed))
    supply = _supply(offers, len(needed))
    effort = 1 + len(needed) // 4  # of trying one way
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
    """Of the choices that cost as little as the one found, one whose devices are together; the one found where none is.

    Together is on one PCIe root, or else one NUMA node: of several that which has least besides.
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
    """The offers without those that can't count: of equal ones at most as many as devices are needed."""
    seen: dict[int, int] = {}
    useful = []
    for group, ways in offers:
        seen[id(ways)] = seen.get(id(ways), 0) + 1
        if ways and seen[id(ways)] <= needed:
            useful.append((group, ways))
    return useful


def _supply(offers: Sequence[_Offer], num_demands: int) -> list[tuple[int, ...]]:
    """(offers + 1, D) the most that each demand can get from an offer on."""
    supply = [(0,) * num_demands]
    for _, ways in reversed(offers):
        most = [max(way.given[demand] for way in ways) for demand in range(num_demands)]
        supply.append(tuple(before + more for before, more in zip(supply[-1], most, strict=True)))
    return supply[::-1]


def _met(needed: Sequence[int], supply: Sequence[int]) -> bool:
    return all(need <= most for need, most in zip(needed, supply, strict=True))


def _reached(asked: Asked, state: _State, way: Way) -> _State | None:
    """What is needed after taking a way, None where it gives too much or the constraints are against it."""
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
    """What the devices of a group are linked to, None where that is not the same for all."""
    links = {_linked(inventory.devices[index], attribute) for index in group.members}
    return links.pop() if len(links) == 1 else None


def _linked(device: Device, attribute: str) -> Typed | None:
    return typed_value(device, attribute if "/" in attribute else f"{device.id.driver}/{attribute}")


@dataclass(frozen=True, slots=True)
class Given:
    """A device that a request gets."""

    request: str
    """Name of the request, or `request/subrequest`."""
    taking: Taking
    admin: bool = False
    """Whether it is given to look only, and stays free."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a pod's claims get on a node."""

    claims: tuple[tuple[Given, ...], ...]
    """Of each claim asked for, in that order."""
    loss: float = 0.0
    """What the node loses in worth besides what is given, in GPUs: smaller is better."""
    rank: tuple[int, ...] = ()
    """The alternatives taken, of each request that has some."""

    @property
    def takings(self) -> tuple[Taking, ...]:
        """What is taken of the node's devices."""
        return tuple(given.taking for claim in self.claims for given in claim if not given.admin)


_MAX_AT_ONCE: Final = 256
"""Requests of a pod, and devices that it is given: the search is as deep."""


@dataclass(slots=True)
class _Memory:
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
    memory = _Memory()
    steps = Steps(MAX_STEPS)
    shape = shape_of(devices.inventory, memory.weights, memory.keys, memory.rooms)
    return _search(devices, asked, shape, _matches_of(devices, asked, memory.matcher, steps), memory, steps)


def _matches_of(devices: NodeDevices, asked: DevicesAsked, matcher: Matcher, steps: Steps) -> Matches:
    """What each request makes of each device, those behind that are not Kerf's to give. Raises SearchLimit."""
    found = (*devices.inventory.devices, *devices.inventory.unavailable)
    asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
    return {ask: tuple(matcher.match(device, ask, steps) for device in found) for ask in dict.fromkeys(asks)}


def _search(
    devices: NodeDevices, asked: DevicesAsked, shape: Shape, matches: Matches, memory: _Memory, steps: Steps
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

    def _solve(self, chosen: dict[int, int]) -> tuple[Sequence[Demand], int, _Chosen | None] | None:
        """The demands of what is decided, what it costs to meet them, and how."""
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


_BOUND: Final = 100_000
_MAX_ASKED: Final = 1_000
_MAX_WAYS: Final = 5_000
"""Of groups of devices: those of one GPU may be a hundred."""
_MAX_SHAPES: Final = 10_000
_MAX_SPENT: Final = 4 * MAX_STEPS
"""Of all long searches for those who ask the same, whatever the number of nodes that are not alike: from then on they
get no long ones any more."""
_FEW_STEPS: Final = 2_000

Outcome = Allocation | None | Fault


@dataclass(slots=True)
class _Seen:
    """What is known of an inventory."""

    structure: int
    """Equal where devices, partitions, counters and capacities are equal, place by place."""
    shape: Shape
    columns: dict[str, int] = field(default_factory=dict)
    """Equal where all devices have the same value, by attribute or capacity."""
    asked: dict[int, int] = field(default_factory=dict)
    """Equal where nodes are alike for those who ask something, by the number of what they ask."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What matters of the devices to those who ask something."""

    number: int
    reads: tuple[str, ...]
    reads_all: bool
    compared: tuple[str, ...]
    """Attributes of constraints."""


class Allocations:
    """The best allocations that were found. Bounded: it forgets all when it is full. Not thread-safe."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._memory = _Memory(self._weights)
        self._seen: WeakKeyDictionary[Inventory, _Seen] = WeakKeyDictionary()
        self._shapes: dict[int, Shape] = {}
        self._asked: dict[DevicesAsked, _Asked] = {}
        self._num_asked = 0
        self._spent: dict[int, int] = {}  # steps of long searches, by the number of what was asked
        self._taken: dict[DevicesAsked, int] = {}
        self._matches: dict[int, Matches] = {}
        self._outcomes: dict[object, Outcome] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Allocations, (self._weights,)

    def best(self, devices: NodeDevices, asked: DevicesAsked) -> Outcome:
        """The best allocation that is possible, None when none is, a Fault where that can't be told.

        The cheapest way, by the worth of rooms that this was made with.
        """
        known, seen, alike, key = self._keys(devices, asked)
        try:
            return self._outcomes[key]
        except KeyError:
            outcome = self._search(devices, asked, known, seen, alike)
        return _put(self._outcomes, key, outcome)

    def key(self, devices: NodeDevices, asked: DevicesAsked) -> Hashable:
        """Equal for nodes that are alike, with the same taken, for those who ask this."""
        return self._keys(devices, asked)[3]

    def steps_taken(self, asked: DevicesAsked) -> int:
        """Steps of all searches for those who ask this, since it became known."""
        return self._taken.get(asked, 0)

    @property
    def num_inventories(self) -> int:
        """How many inventories it knows: those that others still have."""
        return len(self._seen)

    @property
    def matcher(self) -> Matcher:
        """What selectors have said."""
        return self._memory.matcher

    def _keys(self, devices: NodeDevices, asked: DevicesAsked) -> tuple[_Asked, _Seen, int, Hashable]:
        seen = self._seen.get(devices.inventory) or self._see(devices.inventory)
        known = self._asked.get(asked) or self._know(asked)
        alike = seen.asked.get(known.number)
        if alike is None:
            alike = self._alike(devices.inventory, seen, known)
        parts = tuple(sorted(devices.parts.items())) if devices.parts else ()
        return known, seen, alike, (alike, devices.taken, devices.left, parts)

    def _search(self, devices: NodeDevices, asked: DevicesAsked, known: _Asked, seen: _Seen, alike: int) -> Outcome:
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
            return fault.with_traceback(None)  # the frames that it came through would stay in memory
        finally:
            took = steps.limit - steps.left
            _put(self._taken, asked, self._taken.get(asked, 0) + took, _MAX_ASKED)
            if took > _FEW_STEPS:
                _put(self._spent, known.number, spent + took)

    def _see(self, inventory: Inventory) -> _Seen:
        structure = self._memory.keys.of(_structure(inventory))
        shape = self._shapes.get(structure)
        if shape is None:
            shape = shape_of(inventory, self._weights, self._memory.keys, self._memory.rooms)
            _put(self._shapes, structure, shape, _MAX_SHAPES)
        seen = self._seen[inventory] = _Seen(structure, shape)
        return seen

    def _know(self, asked: DevicesAsked) -> _Asked:
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
    """All that a search looks at besides what selectors read and constraints compare."""
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
    """Which devices have the same value of an attribute, whatever it is; -1 for those that have none."""
    seen: dict[object, int] = {}
    pattern = []
    for name in names:
        for device in devices:
            value = typed_value(device, name)
            pattern.append(-1 if value is None else seen.setdefault(value, len(seen)))
    return tuple(pattern)


def _put(table: dict[Any, _Thing], key: object, thing: _Thing, bound: int = _BOUND) -> _Thing:
    if len(table) >= bound:
        table.clear()
    table[key] = thing
    return thing
