"""The requests of a pod on one node, which devices do for each, and what they need together.

Requests that the same devices do for, under the same constraints, are one demand: which of them gets which device is
decided at the end, and makes no difference to what is possible.

Which devices do for a request, whoever has them now.

A selector is asked once about devices that are alike in all that it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.dra.asks import (
    Constraint,
    DeviceAsk,
    DevicesAsked,
    Fault,
    Selector,
    Toleration,
    consumption_of,
    has_room,
)
from extender.core.dra.devices import Amount, Device, NodeDevices, Taint, Value

Match = tuple[tuple[str, Amount], ...] | None | Fault
"""What a request takes of a device's capacities, None where the device does not do; or why that can't be told."""

DRIVER: Final = "driver"
"""What a selector reads that looks at the driver's name."""

_STEPS_A_SELECTOR: Final = 20
"""Asking a selector takes about as long as so many steps of a search, besides its own."""

MAX_STEPS: Final = 100_000
"""Of one search for one pod on one node: about a tenth of a second."""


class SearchLimit(Fault):
    """The search has taken too many steps."""


class Steps:
    """Counts down. Raises SearchLimit when there are none left."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.limit = limit
        self.left = limit

    def take(self, steps: int = 1) -> None:
        """Take some steps."""
        self.left -= steps
        if self.left < 0:
            raise SearchLimit(f"the search has taken {self.limit} steps")


def match_of(device: Device, ask: DeviceAsk) -> Match:
    """Whether a device does, in the order in which kube-scheduler asks: class, selectors, capacity."""
    return Matcher().match(device, ask, Steps())


class Matcher:
    """Remembers what selectors have said. Bounded: it forgets all when it is full."""

    def __init__(self, bound: int = 100_000) -> None:
        self._bound = bound
        self._said: dict[tuple[str, object], bool | Fault] = {}

    def match(self, device: Device, ask: DeviceAsk, steps: Steps) -> Match:
        """Whether a device does. Raises SearchLimit where too many selectors had to be asked."""
        try:
            for selector in ask.selectors:
                said = self._ask(selector, device, steps)
                if isinstance(said, Fault):
                    return said
                if not said:
                    return None
            return consumption_of(device, ask.capacity)
        except Fault as fault:
            if steps.left < 0:
                raise
            return fault

    def meets(self, selector: Selector, device: Device, steps: Steps) -> bool:
        """Whether a device meets one condition; no where that fails. Raises SearchLimit."""
        return self._ask(selector, device, steps) is True

    def _ask(self, selector: Selector, device: Device, steps: Steps) -> bool | Fault:
        key = selector.expression, contents(device, selector.reads)
        said = self._said.get(key)
        if said is None:
            steps.take(_STEPS_A_SELECTOR + selector.cost)
            try:
                said = selector.matches(device)
            except Fault as fault:
                # Without the frames that it came through: they would stay in memory.
                said = fault.with_traceback(None)
            if len(self._said) >= self._bound:
                self._said.clear()
            self._said[key] = said
        return said


def contents(device: Device, reads: frozenset[str] | None) -> object:
    """All of a device that somebody who reads some attributes and capacities can tell from another; None reads all."""
    if reads is None:
        attributes = tuple(sorted((name, type(value), value) for name, value in device.attributes.items()))
        return device.id.driver, device.shareable, attributes, tuple(sorted(device.capacity.items()))
    return device.id.driver, device.shareable, tuple(read(device, name) for name in sorted(reads - {DRIVER}))


def read(device: Device, name: str) -> object:
    """What a selector finds under a name: an attribute, a capacity, or both."""
    domain, _, short = name.partition("/")
    value = device.attributes.get(name)
    capacity = device.capacity.get(name)
    if capacity is None and domain == device.id.driver:
        capacity = device.capacity.get(short)
    return type(value), value, capacity and capacity.value


def tolerates(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Whether all taints that keep claims off a device are put up with."""
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


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


MAX_DEVICES: Final = 32
"""How many devices a claim may have (`AllocationResultsMaxSize`)."""

Matches = Mapping[DeviceAsk, Sequence[Match]]
"""Of each request: what it makes of each device, those behind that are not Kerf's to give."""


class _AllFault(Fault):
    """A constraint may keep a request for all devices from one of them: kube-scheduler gives the pod up there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request and what its alternatives find on the node, None for one that is impossible by itself."""

    claim: int
    asks: tuple[DeviceAsk, ...]
    slots: tuple[Slot | None, ...]


def requests_of(devices: NodeDevices, asked: DevicesAsked, matches: Matches, blocked: int) -> list[Request]:
    """All requests of a pod, in kube-scheduler's order."""
    return [
        Request(
            claim_idx,
            request.alternatives,
            tuple(_slot(devices, claim_idx, ask, matches[ask], blocked) for ask in request.alternatives),
        )
        for claim_idx, claim in enumerate(asked.claims)
        for request in claim.requests
    ]


def _slot(devices: NodeDevices, claim: int, ask: DeviceAsk, matches: Sequence[Match], blocked: int) -> Slot | None:
    found = devices.inventory.devices
    does: dict[int, Amounts] = {
        index: match if found[index].shareable else ()
        for index, match in enumerate(matches[: len(found)])
        if match is not None and not isinstance(match, Fault)
    }
    free = {index: amounts for index, amounts in does.items() if _is_open(devices, index, ask, amounts, blocked)}
    if ask.count:
        return Slot(claim, ask, does, free, ask.count) if ask.count <= len(free) else None
    beyond = any(match is not None for match in matches[len(found) :])
    if beyond or not devices.inventory.complete or not does or len(free) < len(does):
        return None
    return Slot(claim, ask, does, free, len(does))


def _is_open(devices: NodeDevices, index: int, ask: DeviceAsk, amounts: Amounts, blocked: int) -> bool:
    device, taken = devices.inventory.devices[index], bool(devices.taken >> index & 1)
    if taken and not ask.admin and (not device.shareable or devices.is_whole(index)):
        return False
    if not tolerates(ask.tolerations, device.taints):
        return False
    if device.shareable and not has_room(device, devices.used(index), amounts):
        return False
    if not device.consumes or (device.shareable and taken):
        return True
    return not blocked >> index & 1 and all(devices.left[counter] >= amount for counter, amount in device.consumes)


# What kube-scheduler may give the pod up for


def faults_of(devices: NodeDevices, asked: DevicesAsked, requests: Sequence[Request], matches: Matches) -> Fault | None:
    """What kube-scheduler may give the pod up for though something is possible, None when no order of it gets there.

    It does so for a selector that fails, and for an amount that it can't count, on a device that it asks about: for a
    request for all devices that is every one, for others each one that is not taken. And where a constraint keeps a
    request for all devices from one of them.
    """
    for request in requests:
        for ask in request.asks:
            faults = [match for match in matches[ask] if isinstance(match, Fault)]
            if faults and not ask.count:
                return faults[0]
    for position, request in enumerate(requests):
        for ask in request.asks:
            fault = _reached_fault(devices, ask, matches[ask])
            if fault is None and not ask.count:
                fault = _all_fault(devices, asked, requests[: position + 1], ask, matches)
            if fault is not None:
                return fault
    return None


def _reached_fault(devices: NodeDevices, ask: DeviceAsk, matches: Sequence[Match]) -> Fault | None:
    for index, device in enumerate(devices.inventory.devices):
        match = matches[index]
        if isinstance(match, Fault) and (ask.admin or device.shareable or not devices.taken >> index & 1):
            return match
    return None


def _all_fault(
    devices: NodeDevices, asked: DevicesAsked, until: Sequence[Request], ask: DeviceAsk, matches: Matches
) -> Fault | None:
    """Whether a constraint may keep a request for all from one of its devices, after what others before it have."""
    claim = until[-1].claim
    found = devices.inventory.devices
    wanted = [index for index in range(len(found)) if isinstance(matches[ask][index], tuple)]
    for constraint in asked.claims[claim].constraints:
        if not _applies(constraint, ask):
            continue
        values = [typed_value(found[index], constraint.attribute) for index in wanted]
        num_values = len(set(values))
        clash = None in values or (num_values < len(values) if constraint.distinct else num_values > 1)
        others = {
            typed_value(found[index], constraint.attribute)
            for request in until[:-1]
            if request.claim == claim
            for other in request.asks
            if _applies(constraint, other)
            for index in range(len(found))
            if isinstance(matches[other][index], tuple)
        } - {None}
        if clash or (others & set(values) if constraint.distinct else others - set(values)):
            return _AllFault(f"{constraint.attribute} may keep {ask.name} from one of its devices")
    return None


# What they need together


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


def _applies(constraint: Constraint, ask: DeviceAsk) -> bool:
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
        if any(slot.claim == claim and _applies(constraint, slot.ask) for slot in slots)
    ]
    merged: dict[object, list[tuple[int, Slot]]] = {}
    under: dict[object, tuple[int, ...]] = {}
    admin = any(slot.ask.admin for slot in slots)
    for order, slot in enumerate(slots):
        indices = tuple(
            index
            for index, (claim, constraint) in enumerate(constraints)
            if claim == slot.claim and _applies(constraint, slot.ask)
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
