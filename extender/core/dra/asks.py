"""What pods ask by ResourceClaims, as `resource.k8s.io/v1` means it, with the selectors of device classes put in.

How much of a device's capacities a claim takes: what it asks for, rounded up to what the device gives away.

As `consumable_capacity.go` of kube-scheduler's allocator has it (1.37, fractional ranges on).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from extender.core.dra.devices import Amount, Capacity, Device


class Fault(Exception):  # noqa: N818
    """Why it can't be told what is possible: the pod's claims are refused on such a node."""


class SelectorFault(Fault):
    """A selector has failed on a device, as in CEL an attribute that is not there does."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition on a device: equal when the text is equal."""

    expression: str
    matches: Callable[[Device], bool] = field(compare=False, repr=False)
    """Raises SelectorFault."""
    reads: frozenset[str] | None = field(default=None, compare=False, repr=False)
    """The attributes and capacities (`domain/name`) and "driver" that it looks at, so that devices which are alike in
    these are asked about once; None: it may look at all."""
    parts: Callable[[], "tuple[Selector, ...]"] = field(default=tuple, compare=False, repr=False)
    """The conditions that it joins by "and", for people who ask which of them fails; none where it is a single one."""
    cost: int = field(default=0, compare=False, repr=False)
    """Steps, of about a microsecond, that one device takes at most."""


class Toleration(NamedTuple):
    """Which taints a request puts up with."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """A number of devices that meet the same conditions."""

    name: str
    """Of the request; `request/subrequest` for one of several alternatives."""
    selectors: tuple[Selector, ...] = ()
    """Those of the class first."""
    count: int = 1
    """0 for all devices that meet them."""
    admin: bool = False
    """Whether it only looks: devices that others have are given as well, and stay free for them."""
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, Amount], ...] = ()
    """At least so much of each capacity, by the name as asked, sorted."""


@dataclass(frozen=True, slots=True)
class RequestAsk:
    """A request of a claim: the first of its alternatives that can be had."""

    name: str
    alternatives: tuple[DeviceAsk, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the devices of some requests must have in common, or must not."""

    attribute: str
    """`domain/name`; a device without it does not do."""
    requests: tuple[str, ...] = ()
    """Requests or subrequests by name; () for all of the claim."""
    distinct: bool = False
    """Whether the values must all differ, and not be the same."""


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """What one claim asks."""

    requests: tuple[RequestAsk, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicesAsked:
    """What a pod asks by all of its claims that have no devices yet: they are allocated together or not at all.

    Equal for pods that ask the same by claims of their own, so that decisions are remembered for all of them.
    """

    claims: tuple[ClaimAsk, ...]

    @property
    def cost(self) -> int:
        """Steps that all its different selectors take at most on one device."""
        asks = (ask for claim in self.claims for request in claim.requests for ask in request.alternatives)
        return sum(selector.cost for selector in {selector for ask in asks for selector in ask.selectors})

    @property
    def num_devices(self) -> int:
        """How many devices it asks for at least: those of the first alternatives, of "all" one."""
        asks = (request.alternatives[0] for claim in self.claims for request in claim.requests)
        return sum(max(ask.count, 1) for ask in asks)


_MAX: Final = 2**63 - 1


class CapacityFault(Fault):
    """An amount that kube-scheduler's arithmetic can't hold: it gives the pod up when it gets to such a device."""


def consumption_of(device: Device, asked: tuple[tuple[str, Amount], ...]) -> tuple[tuple[str, Amount], ...] | None:
    """How much of each capacity a request takes of a device, sorted by name.

    None where the device does not do even while nobody has any of it: it has no such capacity, not so much of it, or
    does not give it away in such amounts. Raises CapacityFault.
    """
    wanted = dict(asked)
    if not wanted.keys() <= device.capacity.keys():
        return None
    amounts = [(name, _amount(wanted.get(name), capacity)) for name, capacity in sorted(device.capacity.items())]
    for name, amount in amounts:
        if amount > device.capacity[name].value or _refused(amount, device.capacity[name]):
            return None
    return tuple(amounts)


def has_room(device: Device, used: Mapping[str, Amount], amounts: tuple[tuple[str, Amount], ...]) -> bool:
    """Whether so much more can be taken of a device's capacities."""
    return all(used.get(name, 0) + amount <= device.capacity[name].value for name, amount in amounts)


def _amount(wanted: Amount | None, capacity: Capacity) -> Amount:
    amount: Amount
    if wanted is None:
        amount = capacity.value if capacity.default is None else capacity.default
    elif capacity.valid_range is not None and capacity.valid_range[0] is not None:
        amount = _rounded(wanted, capacity.valid_range[0], capacity)
    else:
        larger = [value for value in capacity.valid_values if value >= wanted]
        amount = larger[0] if larger else wanted
    if amount < 0:
        raise CapacityFault(f"an amount of {amount} is less than nothing")
    return amount


def _rounded(wanted: Amount, least: Amount, capacity: Capacity) -> Amount:
    step = capacity.valid_range[2] if capacity.valid_range else None
    if wanted < least:
        return least
    if step is None:
        return wanted
    scale = _scale(capacity)
    if scale * wanted > _MAX or (scale > 1 and (scale * wanted) % 1):
        raise CapacityFault(f"{wanted} can't be rounded up to a step of {step}")
    start, width = math.ceil(scale * least), math.ceil(scale * step)
    if width <= 0:
        raise CapacityFault(f"a step of {step}")
    rounded = start + width * -((start - math.ceil(scale * wanted)) // width)
    if rounded > _MAX:
        raise CapacityFault(f"{wanted} can't be rounded up to a step of {step}")
    return rounded if scale == 1 else _quotient(rounded, scale)


def _refused(amount: Amount, capacity: Capacity) -> bool:
    """Whether a device does not give away this amount."""
    if amount == capacity.default:
        return False
    if capacity.valid_range is None:
        return bool(capacity.valid_values) and amount not in capacity.valid_values
    least, most, step = capacity.valid_range
    if most is not None and amount > most:
        return True
    if step is None or least is None:
        return False
    scale = _scale(capacity)
    if scale > 1 and (scale * amount) % 1:
        return True
    return bool((math.ceil(scale * amount) - math.ceil(scale * least)) % math.ceil(scale * step))


def _scale(capacity: Capacity) -> int:
    """1000 where kube-scheduler counts in thousandths: all numbers of the range are whole thousandths, in 64 bits."""
    for number in capacity.valid_range or ():
        if number is not None and ((1000 * number) % 1 or not -_MAX <= 1000 * number <= _MAX):
            return 1
    step = capacity.valid_range[2] if capacity.valid_range else None
    return 1000 if step is None or 1000 * step >= 1 else 1


def _quotient(amount: int, scale: int) -> Amount:
    return amount // scale if amount % scale == 0 else Fraction(amount, scale)
