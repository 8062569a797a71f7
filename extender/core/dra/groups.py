"""The devices of a node in groups: those that share counters, which one choice in the group takes from all others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extender.core.dra.devices import Amount, Device, Inventory
from extender.core.dra.worth import GPU, Consumes, Room, Weights, kind_of, room_of


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
