"""What can be taken of one group of devices at once, and which way to take it costs least: every way, one by one.

What the room that is left on a GPU is worth: by the partitions that could still be taken of it.

The worth of a group of devices that share counters, such as all partitions of one GPU, is

    V(state) = scale x (sum over kinds of w(kind) x n(kind, state) / n(kind, free)  /  sum over kinds of w(kind))^2

with n(kind, state) the most devices of a kind that can be had at once, so that a free GPU is worth `scale`, and one of
which nothing more can be had is worth nothing. The square makes the first part that is taken of a GPU dearer than the
next: those that are begun are filled. Without it small partitions were spread over free GPUs, and requests that come
and go needed more GPUs than by first fit (docs/research/simulator.md). It is a potential: what an allocation costs is
what V falls by. A device
that shares no counters is a group of its own, worth its scale until it is taken; one that several claims may have parts
of is worth by how many halves, quarters and eighths of it are left.

The devices of a node in groups: those that share counters, which one choice in the group takes from all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import has_room
from extender.core.dra.devices import WHOLE, Amount, Device, Inventory, NodeDevices
from extender.core.dra.slots import Amounts, Asked, Demand, Steps, Typed

GPU: Final = 1_000_000_000
"""A whole GPU, the largest of its node: worth is counted in billionths of one, so that sums are exact."""

_PARTS: Final = (1, 2, 4, 8)
_MAX_STEPS: Final = 500
_STEPS_A_STEP: Final = 4
"""How many of its steps are as much work as one of the search for an allocation."""

Left = tuple[Amount, ...]
Consumes = tuple[tuple[int, Amount], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much the room for a kind of partition is worth; those of a mix of requests are learned."""

    by_kind: Mapping[str, float] = field(default_factory=dict)
    """By the name of a kind (`kind_of`)."""
    default: float = 1.0
    """Of all others."""

    def of(self, kind: str) -> float:
        """The weight of a kind."""
        return self.by_kind.get(kind, self.default)


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of a group that ask for room alike."""

    name: str
    weight: float
    members: tuple[int, ...]
    """Their places in the group."""
    most: int
    """How many of them can be had at once while none is taken."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is worth something in a group of devices that share counters."""

    consumes: tuple[Consumes, ...]
    """Of each device: (place of the counter in the group, how much)."""
    kinds: tuple[Kind, ...]
    scale: int
    """Its worth while it is free, in billionths of a GPU."""


def kind_of(device: Device) -> str:
    """The name of a device's kind: the profile of a MIG partition, else its share of compute and memory."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    return profile if isinstance(profile, str) else f"{device.milli}m/{device.mib}Mi"


def room_of(
    devices: Sequence[Device], consumes: tuple[Consumes, ...], free: Left, scale: int, weights: Weights
) -> Room:
    """The room of a group of devices, whose counters have so much while none is taken."""
    alike: dict[tuple[str, tuple[Amount, ...]], list[int]] = {}
    for place, device in enumerate(devices):
        amounts = tuple(sorted(amount for _, amount in consumes[place]))
        alike.setdefault((kind_of(device), amounts), []).append(place)
    kinds = []
    for (name, _), places in alike.items():
        weight = weights.of(name)
        most = _most_at_once(consumes, places, free)
        if most and weight > 0:
            kinds.append(Kind(name, weight, tuple(places), most))
    return Room(consumes, tuple(kinds), scale)


def worth_of(room: Room, taken: int, left: Left, steps: Steps | None = None) -> int:
    """V of a group of which the devices in a bit mask are taken, in billionths of a GPU. Raises SearchLimit."""
    total = sum(kind.weight for kind in room.kinds)
    if not total or not room.scale:
        return 0
    share = 0.0
    for kind in room.kinds:
        places = [place for place in kind.members if not taken >> place & 1]
        share += kind.weight * min(_most_at_once(room.consumes, places, left, steps), kind.most) / kind.most
    return round(room.scale * (share / total) ** 2)


def _worth_of_parts(scale: int, used: Mapping[str, Amount], device: Device) -> int:
    """V of a device that several claims may have parts of, in billionths of a GPU."""
    if WHOLE[0][0] in used:
        return 0
    left = min((1 - used.get(name, 0) / item.value for name, item in device.capacity.items() if item.value), default=0)
    return round(scale * sum(int(left * part) / part for part in _PARTS) / len(_PARTS)) if left > 0 else 0


def _most_at_once(consumes: Sequence[Consumes], places: Sequence[int], left: Left, budget: Steps | None = None) -> int:
    """The most of some devices that what is left of the counters is enough for, by a search that tries all sets.

    After 500 steps it is more than that, at most all of them. Raises SearchLimit where the budget is used up.
    """
    room = list(left)
    fitting = [place for place in places if all(room[counter] >= amount for counter, amount in consumes[place])]
    best, steps = 0, 0

    def search(index: int, num_taken: int) -> None:
        nonlocal best, steps
        best = max(best, num_taken)
        steps += 1
        if num_taken + len(fitting) - index <= best or steps > _MAX_STEPS:
            return
        takes = consumes[fitting[index]]
        if all(room[counter] >= amount for counter, amount in takes):
            for counter, amount in takes:
                room[counter] -= amount
            search(index + 1, num_taken + 1)
            for counter, amount in takes:
                room[counter] += amount
        search(index + 1, num_taken)

    search(0, 0)
    if budget is not None:
        budget.take(1 + steps // _STEPS_A_STEP)
    return best if steps <= _MAX_STEPS else len(fitting)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Devices that share counters; a device that shares none is alone in one."""

    members: tuple[int, ...]
    """Indices in `Inventory.devices`, rising."""
    counters: tuple[int, ...]
    """Indices in `Inventory.counters`, rising."""
    room: Room
    sizes: tuple[int, ...]
    """The part of a GPU that each member is, in billionths of one."""
    kinds: tuple[str, ...]
    """The name of each member's kind."""
    key: int
    """Equal for groups whose devices are alike, place by place."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """All of an inventory that does not depend on who asks and on what is taken."""

    groups: tuple[Group, ...]
    sizes: tuple[int, ...]
    """The part of a GPU that each device is, in billionths of one."""
    pools: tuple[tuple[tuple[int, ...], int], ...]
    """Of each pool with counters: their indices, and the bit mask of the devices that take some of them."""


class Keys:
    """Small numbers for things that are equal. Bounded: it starts again, with other numbers, when it is full."""

    def __init__(self, bound: int = 50_000) -> None:
        self._bound = bound
        self._keys: dict[object, int] = {}
        self._next = 0

    def of(self, thing: object) -> int:
        """The number of a thing; never one that another thing has had."""
        key = self._keys.get(thing)
        if key is None:
            if len(self._keys) >= self._bound:
                self._keys.clear()
            key = self._keys[thing] = self._next
            self._next += 1
        return key


def shape_of(inventory: Inventory, weights: Weights, keys: Keys, rooms: dict[int, Room]) -> Shape:
    """The groups of an inventory. Groups that are alike have one key, and one `Room` in `rooms`."""
    largest = max((device.mib for device in inventory.devices), default=0)
    groups = [
        _group(inventory, members, counters, largest, weights, keys, rooms)
        for members, counters in _components(inventory.devices)
    ]
    sizes = {index: size for group in groups for index, size in zip(group.members, group.sizes, strict=True)}
    return Shape(tuple(groups), tuple(sizes[index] for index in range(len(sizes))), _pools(inventory.devices))


def _components(devices: Sequence[Device]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Devices, and the counters that they share, of each group."""
    parent: dict[int, int] = {}

    def root(counter: int) -> int:
        while parent.setdefault(counter, counter) != counter:
            parent[counter] = counter = parent[parent[counter]]
        return counter

    for device in devices:
        for counter, _ in device.consumes:
            parent[root(counter)] = root(device.consumes[0][0])
    members: dict[int, list[int]] = {}
    for index, device in enumerate(devices):
        # Devices alone are told apart from counters by the sign.
        members.setdefault(root(device.consumes[0][0]) if device.consumes else -1 - index, []).append(index)
    counters: dict[int, list[int]] = {}
    for counter in sorted(parent):
        counters.setdefault(root(counter), []).append(counter)
    return [(tuple(indices), tuple(counters.get(name, ()))) for name, indices in members.items()]


def _group(
    inventory: Inventory,
    members: tuple[int, ...],
    counters: tuple[int, ...],
    largest_mib: int,
    weights: Weights,
    keys: Keys,
    rooms: dict[int, Room],
) -> Group:
    place_of = {counter: place for place, counter in enumerate(counters)}
    devices = [inventory.devices[index] for index in members]
    consumes: tuple[Consumes, ...] = tuple(
        tuple((place_of[counter], amount) for counter, amount in device.consumes) for device in devices
    )
    mib = max(device.mib for device in devices)
    known = any(device.milli or device.mib for device in devices)
    # A device of no GPU is worth nothing by itself; partitions of something else are worth as much as those of a GPU.
    scale = (GPU * mib // largest_mib if mib else GPU) if known or len(devices) > 1 else 0
    content = (
        tuple((kind_of(device), device.milli, device.mib, device.shareable) for device in devices),
        tuple(_contents(device.capacity) for device in devices),
        consumes,
        tuple(inventory.counters[counter] for counter in counters),
        scale,
    )
    key = keys.of(content)
    room = rooms.get(key)
    if room is None:
        free = tuple(inventory.counters[counter] for counter in counters)
        room = rooms[key] = room_of(devices, consumes, free, scale, weights)
    most_of = {place: kind.most for kind in room.kinds for place in kind.members}
    sizes = [_size(device, mib, scale, most_of.get(place, 1)) for place, device in enumerate(devices)]
    return Group(members, counters, room, tuple(sizes), tuple(kind_of(device) for device in devices), key)


def _size(device: Device, mib: int, scale: int, most: int) -> int:
    """The part of its GPU that a device is, the larger one of compute and memory; else by how many there can be."""
    if not device.milli and not device.mib:
        return scale // most
    return max(scale * min(device.milli, 1000) // 1000, scale * device.mib // mib if mib else 0)


def _contents(capacity: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(capacity.items(), key=lambda item: item[0]))


def _pools(devices: Sequence[Device]) -> tuple[tuple[tuple[int, ...], int], ...]:
    counters: dict[tuple[str, str], set[int]] = {}
    members: dict[tuple[str, str], int] = {}
    for index, device in enumerate(devices):
        if device.consumes:
            pool = device.id.driver, device.id.pool
            counters.setdefault(pool, set()).update(counter for counter, _ in device.consumes)
            members[pool] = members.get(pool, 0) | 1 << index
    return tuple((tuple(sorted(counters[pool])), members[pool]) for pool in counters)


def overdrawn(shape: Shape, left: Sequence[Amount]) -> int:
    """The bit mask of devices that nobody gets, because more is taken of a counter of their pool than there is."""
    mask = 0
    for counters, members in shape.pools:
        if any(left[counter] < 0 for counter in counters):
            mask |= members
    return mask


_STEPS_A_DEVICE: Final = 4
"""Trying a device is about as much work as so many steps through the table of demands."""

Values = tuple[frozenset[Typed], ...]
"""Of each constraint: the values of the devices taken under it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to take devices of a group: the cheapest one that gives so many to each demand, with such values."""

    given: tuple[int, ...]
    """(D,) devices given to each demand."""
    values: Values
    cost: int
    """What the group's worth falls by, in billionths of a GPU."""
    places: tuple[tuple[int, int], ...]
    """Place in the group, and demand, of each device given, in order."""


class Packer:
    """The ways to take devices of the groups of one node for one set of demands."""

    def __init__(
        self,
        devices: NodeDevices,
        asked: Asked,
        blocked: int,
        steps: Steps,
        memory: dict[object, tuple[Way, ...]],
        worths: dict[object, int],
    ) -> None:
        self.devices = devices
        self.asked = asked
        self._blocked = blocked
        self.steps = steps
        self._memory = memory
        self.worths = worths
        self._asked_key = (
            tuple(
                (demand.count, len(demand.slots), demand.admin, demand.slots[0].claim, demand.constraints)
                for demand in asked.demands
            ),
            asked.distinct,
        )

    def ways(self, group: Group) -> tuple[Way, ...]:
        """All ways but that of taking nothing, those first that take the first devices. Raises SearchLimit.

        The same tuple for groups that are alike in all that counts.
        """
        demands = self.asked.demands
        if not any(index in demand.open for demand in demands for index in group.members):
            return ()
        members = tuple(
            (
                tuple(demand.open.get(index) for demand in demands),
                tuple(values.get(index) for values in self.asked.values),
                self.devices.taken >> index & 1,
                self._blocked >> index & 1,
                self._used(index),
            )
            for index in group.members
        )
        left = tuple(self.devices.left[counter] for counter in group.counters)
        key = self._asked_key, group.key, members, left
        ways = self._memory.get(key)
        if ways is None:
            ways = self._memory[key] = _Run(self, group, members, left).ways()
        return ways

    def _used(self, index: int) -> Amounts:
        return tuple(sorted(self.devices.used(index).items())) if index in self.devices.parts else ()


def enough(devices: NodeDevices, groups: Sequence[Group], demands: Sequence[Demand], steps: Steps) -> bool:
    """Whether counters are enough for each demand by itself: where not, nothing needs to be tried."""
    return all(_supply(devices, groups, demand, steps) >= demand.count for demand in demands)


def _supply(devices: NodeDevices, groups: Sequence[Group], demand: Demand, steps: Steps) -> int:
    supply = 0
    for group in groups:
        open_ = [place for place, index in enumerate(group.members) if index in demand.open]
        if not open_:
            continue
        shared = [place for place in open_ if devices.inventory.devices[group.members[place]].shareable]
        if shared or not group.counters:
            supply += len(shared) * len(demand.slots) + len(open_) - len(shared)
        else:
            left = tuple(devices.left[counter] for counter in group.counters)
            supply += _most_at_once(group.room.consumes, open_, left, steps)
    return supply


_Member = tuple[tuple[Amounts | None, ...], tuple[Typed | None, ...], int, int, Amounts]


class _Run:
    """One search through a group, and what is taken at this point of it."""

    def __init__(self, packer: Packer, group: Group, members: Sequence[_Member], left: tuple[Amount, ...]) -> None:
        self._packer = packer
        self._group = group
        self._members = members
        self._devices = [packer.devices.inventory.devices[index] for index in group.members]
        self._alike = _alike(group, members, self._devices)
        self._given = [0] * len(packer.asked.demands)
        self._values: list[list[Typed]] = [[] for _ in packer.asked.values]
        self._left = list(left)
        self._kept = list(left)
        """What is left where those who only look take nothing."""
        self._taken = sum(member[2] << place for place, member in enumerate(members))
        self._uses: list[list[int]] = [[] for _ in members]
        self._places: list[tuple[int, int]] = []
        self._best: dict[tuple[tuple[int, ...], Values], Way] = {}

    def ways(self) -> tuple[Way, ...]:
        before = self._worth()
        self._search(0, 0, before)
        return tuple(self._best.values())

    def _search(self, first_place: int, first_demand: int, before: int) -> None:
        """Give one device more, at this place and to this demand or later ones."""
        demands = self._packer.asked.demands
        for place in range(first_place, len(self._members)):
            alike = self._alike[place]
            if alike >= 0 and not self._uses[alike]:
                continue
            for number in range(first_demand if place == first_place else 0, len(demands)):
                amounts = self._members[place][0][number]
                if amounts is None or self._given[number] >= demands[number].count:
                    continue
                self._packer.steps.take(_STEPS_A_DEVICE)
                kept, left = self._kept.copy(), self._left.copy()
                if not self._give(place, number, demands[number], amounts):
                    continue
                self._record(before)
                self._search(place, number, before)
                self._take_back(place, number, demands[number])
                self._kept, self._left = kept, left

    def _give(self, place: int, number: int, demand: Demand, amounts: Amounts) -> bool:
        uses = self._uses[place]
        if self._alike[place] >= 0 and [*uses, number] > self._uses[self._alike[place]]:
            return False
        if not all(self._agrees(index, place) for index in demand.constraints):
            return False
        if not self._meets(place, number, demand, amounts) or not self._draw(place, demand):
            return False
        for index in demand.constraints:
            value = self._members[place][1][index]
            if value is not None:
                self._values[index].append(value)
        uses.append(number)
        self._places.append((place, number))
        self._given[number] += 1
        return True

    def _take_back(self, place: int, number: int, demand: Demand) -> None:
        for index in demand.constraints:
            self._values[index].pop()
        self._uses[place].pop()
        self._places.pop()
        self._given[number] -= 1

    def _meets(self, place: int, number: int, demand: Demand, amounts: Amounts) -> bool:
        """Whether a device can be given once more, besides to those who are given it already."""
        uses = self._uses[place]
        demands = self._packer.asked.demands
        if self._devices[place].shareable:
            if uses.count(number) >= len(demand.slots):
                return False
            return has_room(self._devices[place], self._used(place), amounts)
        return all(_may_meet(demands[other], demand) for other in uses)

    def _agrees(self, index: int, place: int) -> bool:
        value, values = self._members[place][1][index], self._values[index]
        if value is None:
            return False
        return not values or (value in values) != self._packer.asked.distinct[index]

    def _draw(self, place: int, demand: Demand) -> bool:
        """Take the counters of a device: parts of one that is shared take them once."""
        takes = self._group.room.consumes[place]
        _, _, taken, blocked, _ = self._members[place]
        if not takes or (self._devices[place].shareable and (taken or self._uses[place])):
            return True
        if blocked or any(self._left[counter] < amount for counter, amount in takes):
            return False
        for counter, amount in takes:
            self._left[counter] -= amount
            if not demand.admin:
                self._kept[counter] -= amount
        return True

    def _used(self, place: int) -> Mapping[str, Amount]:
        used = dict(self._members[place][4])
        for number in self._uses[place]:
            for name, amount in self._members[place][0][number] or ():
                used[name] = used.get(name, 0) + amount
        return used

    def _record(self, before: int) -> None:
        key = tuple(self._given), tuple(frozenset(values) for values in self._values)
        cost = before - self._worth()
        if key not in self._best or cost < self._best[key].cost:
            self._best[key] = Way(*key, cost, tuple(self._places))

    def _worth(self) -> int:
        demands = self._packer.asked.demands
        if len(self._devices) == 1 and self._devices[0].shareable:
            used = dict(self._members[0][4])
            for number in self._uses[0]:
                for name, amount in () if demands[number].admin else self._members[0][0][number] or ():
                    used[name] = used.get(name, 0) + amount
            return _worth_of_parts(self._group.room.scale, used, self._devices[0])
        taken = self._taken
        for place, number in self._places:
            if not demands[number].admin:
                taken |= 1 << place
        key = self._group.key, taken, tuple(self._kept)
        worth = self._packer.worths.get(key)
        if worth is None:
            worth = self._packer.worths[key] = worth_of(self._group.room, taken, key[2], self._packer.steps)
        return worth


def _alike(group: Group, members: Sequence[_Member], devices: Sequence[Device]) -> list[int]:
    """Of each place the one before it whose device is alike, -1 for none: the later one is given no more than it."""
    last: dict[object, int] = {}
    alike = []
    for place, member in enumerate(members):
        device = devices[place]
        capacity = tuple(sorted(device.capacity.items())) if device.shareable else None
        key = member, group.room.consumes[place], capacity, group.sizes[place], group.kinds[place]
        alike.append(last.get(key, -1))
        last[key] = place
    return alike


def _may_meet(one: Demand, other: Demand) -> bool:
    """Whether two requests may be given the same device: only who looks later, for another claim."""
    first, second = sorted((one, other), key=lambda demand: demand.order)
    return second.admin and first.slots[0].claim != second.slots[0].claim
