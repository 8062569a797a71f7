"""What a pod asks of a node's devices, once it is settled which alternatives it gets: so many of certain devices each.

Requests that the same devices do for, under the same constraints, are one demand: which of them gets which device is
decided at the end, and makes no difference to what is possible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extender.core.dra.asks import Constraint, DeviceAsk, DevicesAsked
from extender.core.dra.devices import Amount, Device, NodeDevices, Value

Amounts = tuple[tuple[str, Amount], ...]
Typed = tuple[type, Value]


@dataclass(frozen=True, slots=True)
class Slot:
    """A request, or the alternative that it gets."""

    claim: int
    ask: DeviceAsk
    does: Mapping[int, Amounts]
    """The devices that do while all are free, and what is taken of their capacities."""
    open: Mapping[int, Amounts]
    """Those of them that are free for it and tolerated."""
    count: int
    """How many it gets: of one that asks for all, all that do."""


@dataclass(frozen=True, slots=True)
class Demand:
    """So many devices out of some."""

    slots: tuple[Slot, ...]
    """Those it stands for, in order, with the same devices each."""
    order: int
    """Of its first slot."""
    constraints: tuple[int, ...]
    """Indices of those that apply to it."""

    @property
    def open(self) -> Mapping[int, Amounts]:
        """The devices that do, and are free for it."""
        return self.slots[0].open

    @property
    def count(self) -> int:
        """How many are needed in all."""
        return sum(slot.count for slot in self.slots)

    @property
    def admin(self) -> bool:
        """Whether it only looks at them."""
        return self.slots[0].ask.admin


@dataclass(frozen=True, slots=True)
class Asked:
    """The demands of a pod, and the constraints over them."""

    demands: tuple[Demand, ...]
    values: tuple[Mapping[int, Typed], ...]
    """Of each constraint: the values of the devices that have the attribute."""
    distinct: tuple[bool, ...]


def applies(constraint: Constraint, ask: DeviceAsk) -> bool:
    """Whether a constraint is about the devices of a request."""
    names = constraint.requests
    return not names or ask.name in names or ask.name.partition("/")[0] in names


def typed_value(device: Device, attribute: str) -> Typed | None:
    """An attribute's value with its type: in Python, True equals 1."""
    value = device.attributes.get(attribute)
    return None if value is None else (type(value), value)


def asked_of(devices: NodeDevices, asked: DevicesAsked, slots: Sequence[Slot]) -> Asked:
    """The demands of the requests of a pod, in order."""
    names = {(slot.claim, constraint): None for slot in slots for constraint in asked.claims[slot.claim].constraints}
    constraints = [
        (claim, constraint)
        for claim, constraint in names
        if any(slot.claim == claim and applies(constraint, slot.ask) for slot in slots)
    ]
    merged: dict[object, list[tuple[int, Slot]]] = {}
    under: dict[object, tuple[int, ...]] = {}
    admin = any(slot.ask.admin for slot in slots)
    for order, slot in enumerate(slots):
        indices = tuple(
            index
            for index, (claim, constraint) in enumerate(constraints)
            if claim == slot.claim and applies(constraint, slot.ask)
        )
        # Where somebody only looks, the order of requests decides what may meet on a device.
        shared = any(devices.inventory.devices[index].shareable for index in slot.open)
        apart = order if admin or not slot.ask.count else -1
        key = apart, indices, frozenset(slot.open.items()), slot.count if shared else 0
        merged.setdefault(key, []).append((order, slot))
        under[key] = indices
    demands = [Demand(tuple(slot for _, slot in members), members[0][0], under[key]) for key, members in merged.items()]
    return Asked(
        tuple(demands),
        tuple(_values(devices.inventory.devices, constraint.attribute) for _, constraint in constraints),
        tuple(constraint.distinct for _, constraint in constraints),
    )


def _values(devices: Sequence[Device], attribute: str) -> Mapping[int, Typed]:
    values = {index: typed_value(device, attribute) for index, device in enumerate(devices)}
    return {index: value for index, value in values.items() if value is not None}
