"""Device requests of ResourceClaims (`resource.k8s.io/v1`), with the selectors of their device classes inlined.

Also the capacity that a request consumes of a device: the requested amount, rounded up to one that the device allows.
Follows `consumable_capacity.go` of kube-scheduler's allocator (1.37, fractional ranges on).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from extender.core.dra.devices import Amount, Capacity, Device


class Fault(Exception):  # noqa: N818
    """Why it can't be decided what is possible; the node is then rejected."""


class SelectorFault(Fault):
    """A selector failed on a device, such as a CEL expression that reads a missing attribute."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition on a device; equality depends only on the text."""

    expression: str
    matches: Callable[[Device], bool] = field(compare=False, repr=False)
    """Raises SelectorFault."""
    reads: frozenset[str] | None = field(default=None, compare=False, repr=False)
    """Attributes, capacities (`domain/name`) and "driver" that it reads, for use as a cache key; None for all."""
    parts: Callable[[], "tuple[Selector, ...]"] = field(default=tuple, compare=False, repr=False)
    """The conditions that it joins by "and", to explain which one fails; () for a single condition."""
    cost: int = field(default=0, compare=False, repr=False)
    """Most steps, of about a microsecond, per device."""


class Toleration(NamedTuple):
    """A toleration of device taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A request for a number of devices with the same conditions."""

    name: str
    """Name of the request, or `request/subrequest` for one of several alternatives."""
    selectors: tuple[Selector, ...] = ()
    """Selectors, those of the device class first."""
    count: int = 1
    """0 for all matching devices."""
    admin: bool = False
    """Admin access: also gets devices in use, and does not reserve them."""
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, Amount], ...] = ()
    """Least amount of each capacity, by the requested name, sorted."""


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request of a claim: the first alternative that is possible is allocated."""

    name: str
    alternatives: tuple[DeviceSpec, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on an attribute of the devices of some requests: all equal or all distinct."""

    attribute: str
    """`domain/name`; devices without it are rejected."""
    requests: tuple[str, ...] = ()
    """Names of requests or subrequests; () for all of the claim."""
    distinct: bool = False
    """Whether all values must differ instead of being equal."""


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The requests and constraints of one claim."""

    requests: tuple[RequestSpec, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceClaims:
    """All unallocated claims of a pod, which are allocated together or not at all.

    Equal for pods with equal claims, so that decisions are cached across pods.
    """

    claims: tuple[ClaimSpec, ...]

    @property
    def cost(self) -> int:
        """Most steps that its distinct selectors take on one device."""
        asks = (ask for claim in self.claims for request in claim.requests for ask in request.alternatives)
        return sum(selector.cost for selector in {selector for ask in asks for selector in ask.selectors})

    @property
    def num_devices(self) -> int:
        """Least number of devices: those of the first alternatives, one for "all"."""
        asks = (request.alternatives[0] for claim in self.claims for request in claim.requests)
        return sum(max(ask.count, 1) for ask in asks)


_MAX: Final = 2**63 - 1


class CapacityFault(Fault):
    """An amount outside kube-scheduler's arithmetic, at which it fails the pod."""


def consumption_of(device: Device, asked: tuple[tuple[str, Amount], ...]) -> tuple[tuple[str, Amount], ...] | None:
    """The amount of each capacity that a request consumes of a device, sorted by name.

    None if even the unused device can't satisfy it: it lacks the capacity, has too little, or does not allow such an
    amount. Raises CapacityFault.
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
    """Whether a device has these amounts left."""
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
        raise CapacityFault(f"an amount of {amount} is negative")
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
        raise CapacityFault(f"a step of {step} is not positive")
    rounded = start + width * -((start - math.ceil(scale * wanted)) // width)
    if rounded > _MAX:
        raise CapacityFault(f"{wanted} can't be rounded up to a step of {step}")
    return rounded if scale == 1 else _quotient(rounded, scale)


def _refused(amount: Amount, capacity: Capacity) -> bool:
    """Whether a device does not allow this amount."""
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
    """1000 where kube-scheduler counts in thousandths, i.e. the range's numbers are whole thousandths in 64 bits."""
    for number in capacity.valid_range or ():
        if number is not None and ((1000 * number) % 1 or not -_MAX <= 1000 * number <= _MAX):
            return 1
    step = capacity.valid_range[2] if capacity.valid_range else None
    return 1000 if step is None or 1000 * step >= 1 else 1


def _quotient(amount: int, scale: int) -> Amount:
    return amount // scale if amount % scale == 0 else Fraction(amount, scale)
