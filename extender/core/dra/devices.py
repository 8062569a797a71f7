"""The devices of one node and what is allocated of them.

Follows kube-scheduler's allocator (`k8s.io/dynamic-resource-allocation/structured`, 1.37): a device goes to one claim,
or parts of its capacity to several; partitions of one GPU share its counters.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, NamedTuple

Amount = int | Fraction
"""An exact quantity."""


class DeviceId(NamedTuple):
    """The cluster-wide name of a device."""

    driver: str
    pool: str
    device: str


class CounterId(NamedTuple):
    """The cluster-wide name of a counter."""

    driver: str
    pool: str
    counter_set: str
    name: str


class Version(NamedTuple):
    """A semantic version as an attribute's value; the CEL library compares its text."""

    text: str


Value = str | int | bool | Version


class Taint(NamedTuple):
    """A device taint."""

    key: str
    value: str
    effect: str
    """"NoSchedule", "NoExecute" or "None"."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """A device's capacity, and the amounts that it allows where the device may be shared."""

    value: Amount
    default: Amount | None = None
    """Amount for claims that request none; None for all of it."""
    valid_values: tuple[Amount, ...] = ()
    valid_range: tuple[Amount | None, Amount | None, Amount | None] | None = None
    """Minimum, maximum and step."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its driver publishes it."""

    id: DeviceId
    attributes: Mapping[str, Value] = field(default_factory=dict)
    """By `domain/name`; names published without a domain get the driver's."""
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    """By the published name, with or without a domain: kube-scheduler matches requests by that spelling. Selectors use
    the full name, with the driver's domain by default."""
    consumes: tuple[tuple[int, Amount], ...] = ()
    """Counters consumed while allocated: (index in `Inventory.counters`, amount)."""
    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    """Whether several claims may have parts of it (`allowMultipleAllocations`)."""
    gpu: int = -1
    """Index of its GPU on the node, -1 for none."""
    milli: int = 0
    """Its part of the GPU's compute, 1000 for all."""
    mib: int = 0
    """Its part of the GPU's memory."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Inventory:
    """The allocatable devices of one node's pools, and their shared counters."""

    devices: tuple[Device, ...] = ()
    """In kube-scheduler's order."""
    counters: tuple[Amount, ...] = ()
    """Total of each counter."""
    index_of: Mapping[DeviceId, int] = field(default_factory=dict)
    counter_of: Mapping[CounterId, int] = field(default_factory=dict)
    """Index of each counter."""
    unavailable: tuple[Device, ...] = ()
    """Devices of the node that Kerf does not allocate: a request for all devices that matches one of them fails."""
    complete: bool = True
    """Whether `devices` and `unavailable` are all devices of the node. If not, requests for all devices fail, as in
    kube-scheduler while a pool is being updated."""


class Taking(NamedTuple):
    """What a claim takes of a device."""

    device: int
    """Index in `Inventory.devices`."""
    capacity: tuple[tuple[str, Amount], ...] = ()
    """For a shareable device: the amount of each capacity, sorted, or WHOLE; else ()."""


WHOLE: Final[tuple[tuple[str, Amount], ...]] = (("", 1),)
"""Marks a device allocated as a whole before it became shareable, so that no parts are free. No capacity has this
name."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeDevices:
    """The devices of one node, and what is allocated of them. Immutable."""

    inventory: Inventory
    taken: int = 0
    """Bit mask of devices allocated wholly or in part."""
    parts: Mapping[int, tuple[tuple[tuple[str, Amount], ...], ...]] = field(default_factory=dict)
    """Capacities of shareable devices allocated to each claim, by device."""
    left: tuple[Amount, ...] = ()
    """(C,) what is left of each counter; negative where overallocated."""

    @classmethod
    def of(
        cls, inventory: Inventory, takings: Iterable[Taking] = (), elsewhere: Iterable[tuple[int, Amount]] = ()
    ) -> "NodeDevices":
        """The devices of an inventory with `takings`; `elsewhere` are counters consumed by devices not in it."""
        left = list(inventory.counters)
        for counter, amount in elsewhere:
            left[counter] -= amount
        return cls(inventory, left=tuple(left)).taking(takings)

    def used(self, device: int) -> dict[str, Amount]:
        """Allocated amount of each capacity of a shareable device."""
        used: dict[str, Amount] = {}
        for part in self.parts.get(device, ()):
            for name, amount in part:
                used[name] = used.get(name, 0) + amount
        return used

    def is_whole(self, device: int) -> bool:
        """Whether a shareable device is allocated as a whole."""
        return WHOLE in self.parts.get(device, ())

    def taking(self, takings: Iterable[Taking]) -> "NodeDevices":
        """A copy with `takings` added."""
        taken, left, parts = self.taken, list(self.left), dict(self.parts)
        for index, capacity in takings:
            device = self.inventory.devices[index]
            if not taken >> index & 1:  # the parts of a shareable device consume its counters once
                taken |= 1 << index
                for counter, amount in device.consumes:
                    left[counter] -= amount
            if device.shareable:
                parts[index] = (*parts.get(index, ()), capacity)
        return replace(self, taken=taken, left=tuple(left), parts=parts)

    def giving_back(self, takings: Iterable[Taking]) -> "NodeDevices":
        """A copy with `takings` released."""
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
