"""Groups of devices with shared counters: their worth, and all ways to take devices of a group.

The worth of a group, such as all partitions of one GPU, is

    V(state) = scale x (sum over kinds of w(kind) x n(kind, state) / n(kind, free)  /  sum over kinds of w(kind))^2

where n(kind, state) is the most devices of a kind that can be allocated at once. A free GPU is worth `scale`, a full
one 0, and an allocation costs the decrease of V. The square makes the first partition on a GPU cost more than the next,
so that partly used GPUs fill up first. Without it, small partitions spread over free GPUs, and more GPUs were needed
than with first fit (docs/research/simulator.md).

A device without shared counters is its own group, worth its scale until taken. A shareable device is worth by how many
halves, quarters and eighths of it are left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import has_room
from extender.core.dra.devices import WHOLE, Amount, Device, Inventory, NodeDevices
from extender.core.dra.slots import Amounts, Asked, Demand, Steps, Typed

GPU: Final = 1_000_000_000
"""Worth of a node's largest GPU when whole: worth is counted in billionths, as integers, so that sums are exact."""

_PARTS: Final = (1, 2, 4, 8)
_MAX_STEPS: Final = 500
_STEPS_A_STEP: Final = 4
"""Steps of `_most_at_once` that cost as much as one step of the search for an allocation."""

Left = tuple[Amount, ...]
Consumes = tuple[tuple[int, Amount], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Worth of room for each kind of partition; can be learned from a mix of requests."""

    by_kind: Mapping[str, float] = field(default_factory=dict)
    """By `kind_of`."""
    default: float = 1.0
    """Weight of all other kinds."""

    def of(self, kind: str) -> float:
        """The weight of a kind."""
        return self.by_kind.get(kind, self.default)


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of a group that need equal room."""

    name: str
    weight: float
    members: tuple[int, ...]
    """Their places in the group."""
    most: int
    """Most of them that can be allocated at once in the empty group."""


@dataclass(frozen=True, slots=True)
class Room:
    """The inputs of the worth of a group."""

    consumes: tuple[Consumes, ...]
    """For each device: (place of the counter in the group, amount)."""
    kinds: tuple[Kind, ...]
    scale: int
    """Worth of the empty group, in billionths of a GPU."""


def kind_of(device: Device) -> str:
    """The name of a device's kind: the profile of a MIG partition, else its share of compute and memory."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    return profile if isinstance(profile, str) else f"{device.milli}m/{device.mib}Mi"


def room_of(
    devices: Sequence[Device], consumes: tuple[Consumes, ...], free: Left, scale: int, weights: Weights
) -> Room:
    """The room of a group of devices whose counters have `free` while none is taken."""
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
    """V of a group with the devices in bit mask `taken` allocated, in billionths of a GPU. Raises SearchLimit."""
    total = sum(kind.weight for kind in room.kinds)
    if not total or not room.scale:
        return 0
    share = 0.0
    for kind in room.kinds:
        places = [place for place in kind.members if not taken >> place & 1]
        share += kind.weight * min(_most_at_once(room.consumes, places, left, steps), kind.most) / kind.most
    return round(room.scale * (share / total) ** 2)


def _worth_of_parts(scale: int, used: Mapping[str, Amount], device: Device) -> int:
    """V of a shareable device, in billionths of a GPU."""
    if WHOLE[0][0] in used:
        return 0
    left = min((1 - used.get(name, 0) / item.value for name, item in device.capacity.items() if item.value), default=0)
    return round(scale * sum(int(left * part) / part for part in _PARTS) / len(_PARTS)) if left > 0 else 0


def _most_at_once(consumes: Sequence[Consumes], places: Sequence[int], left: Left, budget: Steps | None = None) -> int:
    """The most devices at `places` that the remaining counters allow, by exhaustive search.

    After 500 steps returns an upper bound. Raises SearchLimit where the budget is exceeded.
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
    """Devices that share counters, or a single device without."""

    members: tuple[int, ...]
    """Indices in `Inventory.devices`, ascending."""
    counters: tuple[int, ...]
    """Indices in `Inventory.counters`, ascending."""
    room: Room
    sizes: tuple[int, ...]
    """Size of each member in billionths of a GPU."""
    kinds: tuple[str, ...]
    """Name of each member's kind."""
    key: int
    """Equal for groups whose devices are equal, place by place."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The part of an inventory that depends neither on requests nor on allocations."""

    groups: tuple[Group, ...]
    sizes: tuple[int, ...]
    """Size of each device in billionths of a GPU."""
    pools: tuple[tuple[tuple[int, ...], int], ...]
    """For each pool with counters: their indices, and the bit mask of the devices that consume some of them."""


class Keys:
    """Numbers for equal values. When full, it is cleared and continues with new numbers."""

    def __init__(self, bound: int = 50_000) -> None:
        self._bound = bound
        self._keys: dict[object, int] = {}
        self._next = 0

    def of(self, value: object) -> int:
        """The number of a value; no two values ever share one."""
        key = self._keys.get(value)
        if key is None:
            if len(self._keys) >= self._bound:
                self._keys.clear()
            key = self._keys[value] = self._next
            self._next += 1
        return key


def shape_of(inventory: Inventory, weights: Weights, keys: Keys, rooms: dict[int, Room]) -> Shape:
    """The shape of an inventory. Equal groups share a key and a `Room` in `rooms`."""
    largest = max((device.mib for device in inventory.devices), default=0)
    groups = [
        _group(inventory, members, counters, largest, weights, keys, rooms)
        for members, counters in _components(inventory.devices)
    ]
    sizes = {index: size for group in groups for index, size in zip(group.members, group.sizes, strict=True)}
    return Shape(tuple(groups), tuple(sizes[index] for index in range(len(sizes))), _pools(inventory.devices))


def _components(devices: Sequence[Device]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Device indices and counter indices of each group."""
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
        # Negative keys mark devices without counters.
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
    # A single device of no GPU has no worth; partitions of other hardware count like those of a GPU.
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
    """A device's part of its GPU, the larger of compute and memory; if both are unknown, `scale` / `most`."""
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
    """The bit mask of devices that can't be allocated because a counter of their pool is overallocated."""
    mask = 0
    for counters, members in shape.pools:
        if any(left[counter] < 0 for counter in counters):
            mask |= members
    return mask


_STEPS_A_DEVICE: Final = 4
"""Trying a device costs about as much as this many steps through the table of demands."""

Values = tuple[frozenset[Typed], ...]
"""For each constraint: the values of the devices taken under it."""


@dataclass(frozen=True, slots=True)
class Way:
    """The cheapest way to give certain numbers of a group's devices to demands, with certain values."""

    given: tuple[int, ...]
    """(D,) number of devices given to each demand."""
    values: Values
    cost: int
    """Decrease of the group's worth, in billionths of a GPU."""
    places: tuple[tuple[int, int], ...]
    """(place in the group, demand) of each device given, in order."""


class Packer:
    """Finds the ways to take devices of one node's groups for a set of demands."""

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
        """All ways to take at least one device, those with the first devices first. Raises SearchLimit.

        Groups in equal states get the same tuple object.
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
    """Whether the counters suffice for each demand alone: a quick check before the search."""
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
    """A search through a group, with its current state."""

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
        """`_left` without the devices for admin access, which stay free."""
        self._taken = sum(member[2] << place for place, member in enumerate(members))
        self._uses: list[list[int]] = [[] for _ in members]
        self._places: list[tuple[int, int]] = []
        self._best: dict[tuple[tuple[int, ...], Values], Way] = {}

    def ways(self) -> tuple[Way, ...]:
        before = self._worth()
        self._search(0, 0, before)
        return tuple(self._best.values())

    def _search(self, first_place: int, first_demand: int, before: int) -> None:
        """Give one more device, at `first_place` and `first_demand` or later."""
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
        """Whether a device can also be given to `demand`, beside the demands that have it."""
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
        """Consume the counters of a device, once for all parts of a shareable one; False where they don't suffice."""
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
    """For each place, the previous place with an equal device, -1 for none; breaks symmetry in the search."""
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
    """Whether two demands may share a device: only if the later one has admin access and another claim."""
    first, second = sorted((one, other), key=lambda demand: demand.order)
    return second.admin and first.slots[0].claim != second.slots[0].claim
