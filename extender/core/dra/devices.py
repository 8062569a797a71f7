"""The devices of one node, and what is taken of them.

As kube-scheduler's allocator understands them (`k8s.io/dynamic-resource-allocation/structured`, 1.37): a device is
given whole to one claim, or in parts of its capacity to several; partitions of one GPU share its counters.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, NamedTuple

Amount = int | Fraction
"""An exact quantity: equal numbers are equal, whatever their type."""


class DeviceId(NamedTuple):
    """What a device is called in a cluster."""

    driver: str
    pool: str
    device: str


class CounterId(NamedTuple):
    """What a counter is called in a cluster."""

    driver: str
    pool: str
    counter_set: str
    name: str


class Version(NamedTuple):
    """A semantic version, as an attribute's value: its text, compared by the selectors' library."""

    text: str


Value = str | int | bool | Version


class Taint(NamedTuple):
    """What keeps claims off a device that do not tolerate it."""

    key: str
    value: str
    effect: str
    """"NoSchedule", "NoExecute" or "None"."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a device has of something, and in which amounts it gives that away where it may be shared."""

    value: Amount
    default: Amount | None = None
    """What a claim takes that asks for none; None: all of it."""
    valid_values: tuple[Amount, ...] = ()
    valid_range: tuple[Amount | None, Amount | None, Amount | None] | None = None
    """Least, most and step."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its driver publishes it."""

    id: DeviceId
    attributes: Mapping[str, Value] = field(default_factory=dict)
    """By `domain/name`: a name without a domain has its driver's."""
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    """By the name as published, with a domain or without: kube-scheduler gives capacity to those who spell it alike.
    Selectors read it by its full name, with the driver's domain where none is published."""
    consumes: tuple[tuple[int, Amount], ...] = ()
    """What it takes of counters while it is taken: (index in `Inventory.counters`, how much)."""
    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    """Whether several claims may have parts of it (`allowMultipleAllocations`)."""
    gpu: int = -1
    """Index of the GPU of its node that it is, or is a part of; -1 for none."""
    milli: int = 0
    """Compute of that GPU which it has, 1000 for all of it."""
    mib: int = 0
    """Memory of that GPU which it has."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Inventory:
    """The devices of one node's pools that claims may be given, and the counters that they share."""

    devices: tuple[Device, ...] = ()
    """In the order in which kube-scheduler looks at them."""
    counters: tuple[Amount, ...] = ()
    """What there is of each counter while no device is taken."""
    index_of: Mapping[DeviceId, int] = field(default_factory=dict)
    counter_of: Mapping[CounterId, int] = field(default_factory=dict)
    """Index of each counter."""
    unavailable: tuple[Device, ...] = ()
    """Devices of the node that are not Kerf's to give: who asks for all devices and would have to get one of these,
    gets none."""
    complete: bool = True
    """Whether `devices` and `unavailable` are all that the node has; where not, who asks for all devices gets none, as
    kube-scheduler has it while a pool is being updated."""


class Taking(NamedTuple):
    """What a claim takes of a device."""

    device: int
    """Index in `Inventory.devices`."""
    capacity: tuple[tuple[str, Amount], ...] = ()
    """Of a shareable device: how much of each of its capacities, sorted, or WHOLE; () of any other."""


WHOLE: Final[tuple[tuple[str, Amount], ...]] = (("", 1),)
"""What is taken of a device that was given as a whole before it became shareable: nobody gets a part of it. No
capacity has this name."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeDevices:
    """The devices of one node, and what is taken of them. Never changes."""

    inventory: Inventory
    taken: int = 0
    """Bit i is set where device i is taken, wholly or in part."""
    parts: Mapping[int, tuple[tuple[tuple[str, Amount], ...], ...]] = field(default_factory=dict)
    """What is taken of the capacities of shareable devices, by device: that of each claim."""
    left: tuple[Amount, ...] = ()
    """(C,) what is left of each counter; less than nothing where more is taken than there is."""

    @classmethod
    def of(
        cls, inventory: Inventory, takings: Iterable[Taking] = (), elsewhere: Iterable[tuple[int, Amount]] = ()
    ) -> "NodeDevices":
        """The devices of an inventory, of which so much is taken; `elsewhere` is what devices that are not in it take
        of counters."""
        left = list(inventory.counters)
        for counter, amount in elsewhere:
            left[counter] -= amount
        return cls(inventory, left=tuple(left)).taking(takings)

    def used(self, device: int) -> dict[str, Amount]:
        """What is taken of each capacity of a shareable device."""
        used: dict[str, Amount] = {}
        for part in self.parts.get(device, ()):
            for name, amount in part:
                used[name] = used.get(name, 0) + amount
        return used

    def is_whole(self, device: int) -> bool:
        """Whether a shareable device is taken as a whole."""
        return WHOLE in self.parts.get(device, ())

    def taking(self, takings: Iterable[Taking]) -> "NodeDevices":
        """The same with more taken."""
        taken, left, parts = self.taken, list(self.left), dict(self.parts)
        for index, capacity in takings:
            device = self.inventory.devices[index]
            if not taken >> index & 1:  # the parts of a shareable device take its counters once
                taken |= 1 << index
                for counter, amount in device.consumes:
                    left[counter] -= amount
            if device.shareable:
                parts[index] = (*parts.get(index, ()), capacity)
        return replace(self, taken=taken, left=tuple(left), parts=parts)

    def giving_back(self, takings: Iterable[Taking]) -> "NodeDevices":
        """The same with some of what is taken given back."""
        taken, left, parts = self.taken, list(self.left), dict(self.parts)
        for index, capacity in takings:
            device = self.inventory.devices[index]
            if device.shareable:
                others = list(parts[index])
                others.remove(capacity)
                parts[index] = tuple(others)
                if others:
                    continue
                del parts[index]
            taken &= ~(1 << index)
            for counter, amount in device.consumes:
                left[counter] += amount
        return replace(self, taken=taken, left=tuple(left), parts=parts)


NO_DEVICES: Final = Inventory()
