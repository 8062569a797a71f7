"""How much of a device's capacities a claim takes: what it asks for, rounded up to what the device gives away.

As `consumable_capacity.go` of kube-scheduler's allocator has it (1.37, fractional ranges on).
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from extender.core.dra.asks import Fault
from extender.core.dra.devices import Amount, Capacity, Device

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
