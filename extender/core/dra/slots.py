"""The requests of a pod on one node: matching devices of each, and their combined demands.

Requests with the same devices and constraints are merged into one demand: which of them gets which device is decided at
the end and does not affect what is possible.

`Matcher` evaluates a selector once for all devices that are equal in what it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.dra.asks import (
    Constraint,
    DeviceClaims,
    DeviceSpec,
    Fault,
    Selector,
    Toleration,
    consumption_of,
    has_room,
)
from extender.core.dra.devices import Amount, Device, NodeDevices, Taint, Value

Match = tuple[tuple[str, Amount], ...] | None | Fault
"""Amounts that a request takes of a device's capacities, None if the device does not match, or why that is unknown."""

DRIVER: Final = "driver"
"""Entry of `Selector.reads` for the driver's name."""

_STEPS_A_SELECTOR: Final = 20
"""Overhead of evaluating a selector, in search steps."""

MAX_STEPS: Final = 100_000
"""Limit of one search for one pod on one node: about a tenth of a second."""


class SearchLimit(Fault):
    """The search took too many steps."""


class Steps:
    """A budget of search steps."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.limit = limit
        self.left = limit

    def take(self, steps: int = 1) -> None:
        """Use some steps. Raises SearchLimit when the budget is exceeded."""
        self.left -= steps
        if self.left < 0:
            raise SearchLimit(f"the search has taken {self.limit} steps")


def match_of(device: Device, ask: DeviceSpec) -> Match:
    """Match a device, in kube-scheduler's order: class, selectors, capacity."""
    return Matcher().match(device, ask, Steps())


class Matcher:
    """Caches results of selectors. A full cache is cleared."""

    def __init__(self, bound: int = 100_000) -> None:
        self._bound = bound
        self._results: dict[tuple[str, object], bool | Fault] = {}

    def match(self, device: Device, ask: DeviceSpec, steps: Steps) -> Match:
        """Match a device. Raises SearchLimit when the budget is exceeded."""
        try:
            for selector in ask.selectors:
                result = self._evaluate(selector, device, steps)
                if isinstance(result, Fault):
                    return result
                if not result:
                    return None
            return consumption_of(device, ask.capacity)
        except Fault as fault:
            if steps.left < 0:
                raise
            return fault

    def meets(self, selector: Selector, device: Device, steps: Steps) -> bool:
        """Whether a device meets one condition; False where it fails with an error. Raises SearchLimit."""
        return self._evaluate(selector, device, steps) is True

    def _evaluate(self, selector: Selector, device: Device, steps: Steps) -> bool | Fault:
        key = selector.expression, contents(device, selector.reads)
        result = self._results.get(key)
        if result is None:
            steps.take(_STEPS_A_SELECTOR + selector.cost)
            try:
                result = selector.matches(device)
            except Fault as fault:
                result = fault.with_traceback(None)  # frames would stay in memory
            if len(self._results) >= self._bound:
                self._results.clear()
            self._results[key] = result
        return result


def contents(device: Device, reads: frozenset[str] | None) -> object:
    """A key of all that a selector with these `reads` can see of a device; None reads everything."""
    if reads is None:
        attributes = tuple(sorted((name, type(value), value) for name, value in device.attributes.items()))
        return device.id.driver, device.shareable, attributes, tuple(sorted(device.capacity.items()))
    return device.id.driver, device.shareable, tuple(read(device, name) for name in sorted(reads - {DRIVER}))


def read(device: Device, name: str) -> object:
    """The attribute's type and value, and the capacity, that a selector sees under a name."""
    domain, _, short = name.partition("/")
    value = device.attributes.get(name)
    capacity = device.capacity.get(name)
    if capacity is None and domain == device.id.driver:
        capacity = device.capacity.get(short)
    return type(value), value, capacity and capacity.value


def tolerates(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Whether all NoSchedule and NoExecute taints of a device are tolerated."""
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
    """A request with a chosen alternative."""

    claim: int
    ask: DeviceSpec
    matching: Mapping[int, Amounts]
    """Matching devices, whether free or not, with the amounts taken of their capacities."""
    open: Mapping[int, Amounts]
    """Those of them that are free and tolerated."""
    count: int
    """Number of devices that it gets: all matching ones for a request for all."""


MAX_DEVICES: Final = 32
"""Most devices per claim (`AllocationResultsMaxSize`)."""

Matches = Mapping[DeviceSpec, Sequence[Match]]
"""Of each request: its match with each device of the inventory, then with each unavailable device."""


class _AllFault(Fault):
    """A constraint may exclude a device from a request for all devices: kube-scheduler then fails the pod."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its alternatives on the node; a slot is None if the alternative is impossible by itself."""

    claim: int
    asks: tuple[DeviceSpec, ...]
    slots: tuple[Slot | None, ...]


def requests_of(devices: NodeDevices, asked: DeviceClaims, matches: Matches, blocked: int) -> list[Request]:
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


def _slot(devices: NodeDevices, claim: int, ask: DeviceSpec, matches: Sequence[Match], blocked: int) -> Slot | None:
    own_devices = devices.inventory.devices
    matching: dict[int, Amounts] = {
        index: match if own_devices[index].shareable else ()
        for index, match in enumerate(matches[: len(own_devices)])
        if match is not None and not isinstance(match, Fault)
    }
    free = {index: amounts for index, amounts in matching.items() if _is_open(devices, index, ask, amounts, blocked)}
    if ask.count:
        return Slot(claim, ask, matching, free, ask.count) if ask.count <= len(free) else None
    unavailable = any(match is not None for match in matches[len(own_devices) :])
    if unavailable or not devices.inventory.complete or not matching or len(free) < len(matching):
        return None
    return Slot(claim, ask, matching, free, len(matching))


def _is_open(devices: NodeDevices, index: int, ask: DeviceSpec, amounts: Amounts, blocked: int) -> bool:
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


# Why kube-scheduler may fail the pod


def faults_of(devices: NodeDevices, asked: DeviceClaims, requests: Sequence[Request], matches: Matches) -> Fault | None:
    """Why kube-scheduler may fail the pod although an allocation is possible, None if no search order leads there.

    It does so for a failing selector or an amount outside its arithmetic on a device that it examines: every device for
    a request for all, else every free one. It also does so where a constraint excludes a device from a request for all.
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


def _reached_fault(devices: NodeDevices, ask: DeviceSpec, matches: Sequence[Match]) -> Fault | None:
    for index, device in enumerate(devices.inventory.devices):
        match = matches[index]
        if isinstance(match, Fault) and (ask.admin or device.shareable or not devices.taken >> index & 1):
            return match
    return None


def _all_fault(
    devices: NodeDevices, asked: DeviceClaims, until: Sequence[Request], ask: DeviceSpec, matches: Matches
) -> Fault | None:
    """A fault if a constraint may exclude a device from a request for all, given the devices of earlier requests."""
    claim = until[-1].claim
    own_devices = devices.inventory.devices
    wanted = [index for index in range(len(own_devices)) if isinstance(matches[ask][index], tuple)]
    for constraint in asked.claims[claim].constraints:
        if not _applies(constraint, ask):
            continue
        values = [typed_value(own_devices[index], constraint.attribute) for index in wanted]
        num_values = len(set(values))
        clash = None in values or (num_values < len(values) if constraint.distinct else num_values > 1)
        others = {
            typed_value(own_devices[index], constraint.attribute)
            for request in until[:-1]
            if request.claim == claim
            for other in request.asks
            if _applies(constraint, other)
            for index in range(len(own_devices))
            if isinstance(matches[other][index], tuple)
        } - {None}
        if clash or (others & set(values) if constraint.distinct else others - set(values)):
            return _AllFault(f"the constraint on {constraint.attribute} may exclude a device from {ask.name}")
    return None


# Combined demands


@dataclass(frozen=True, slots=True)
class Demand:
    """A number of devices out of a set."""

    slots: tuple[Slot, ...]
    """The merged slots in order, all with the same devices."""
    order: int
    """Position of its first slot."""
    constraints: tuple[int, ...]
    """Indices of the constraints that apply."""

    @property
    def open(self) -> Mapping[int, Amounts]:
        """Matching devices that are free and tolerated, with the amounts taken."""
        return self.slots[0].open

    @property
    def count(self) -> int:
        """Number of devices needed for all slots."""
        return sum(slot.count for slot in self.slots)

    @property
    def admin(self) -> bool:
        """Whether it is for admin access."""
        return self.slots[0].ask.admin


@dataclass(frozen=True, slots=True)
class Asked:
    """The demands of a pod and their constraints."""

    demands: tuple[Demand, ...]
    values: tuple[Mapping[int, Typed], ...]
    """Of each constraint: the attribute's value by device."""
    distinct: tuple[bool, ...]


def _applies(constraint: Constraint, ask: DeviceSpec) -> bool:
    """Whether a constraint applies to a request."""
    names = constraint.requests
    return not names or ask.name in names or ask.name.partition("/")[0] in names


def typed_value(device: Device, attribute: str) -> Typed | None:
    """An attribute's value with its type, because True equals 1 in Python; None if missing."""
    value = device.attributes.get(attribute)
    return None if value is None else (type(value), value)


def asked_of(devices: NodeDevices, asked: DeviceClaims, slots: Sequence[Slot]) -> Asked:
    """The demands of a pod's slots, in order."""
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
        # With admin access, the order of requests decides which may get the same device, so none are merged.
        shared = any(devices.inventory.devices[index].shareable for index in slot.open)
        unmerged = order if admin or not slot.ask.count else -1
        key = unmerged, indices, frozenset(slot.open.items()), slot.count if shared else 0
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
