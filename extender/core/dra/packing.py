"""What can be taken of one group of devices at once, and which way to take it costs least: every way, one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.dra.consumption import has_room
from extender.core.dra.devices import Amount, Device, NodeDevices
from extender.core.dra.groups import Group
from extender.core.dra.matching import Steps
from extender.core.dra.slots import Amounts, Asked, Demand, Typed
from extender.core.dra.worth import most_at_once, worth_of, worth_of_parts

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
            supply += most_at_once(group.room.consumes, open_, left, steps)
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
            return worth_of_parts(self._group.room.scale, used, self._devices[0])
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
