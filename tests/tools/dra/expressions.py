"""The few expressions of CEL that the cases have, evaluated by themselves."""

import re

from extender.core.dra.asks import Selector, SelectorFault
from extender.core.dra.devices import Device
from extender.plugins.dra.published import amount_of
from extender.plugins.dra.unhandled import UnhandledError

_DRIVER = re.compile(r'device\.driver == "([^"]*)"')
_SHARED = re.compile(r"device\.allowMultipleAllocations == (true|false)")
_ATTRIBUTE = re.compile(r'device\.attributes\["([^"]*)"\](?:\.(\w+)|\["([^"]*)"\])(?: == (?:"([^"]*)"|(\d+)))?')
_CAPACITY = re.compile(
    r'device\.capacity\["([^"]*)"\](?:\.(\w+)|\["([^"]*)"\])\.compareTo\(quantity\("([^"]*)"\)\) >= 0'
)


def compile_expression(expression: str) -> Selector:
    """A selector. Raises UnhandledError."""
    parts = [_compile(part) for part in expression.split(" && ")]

    def matches(device: Device) -> bool:
        failed: SelectorFault | None = None
        for part in parts:
            try:
                if not part(device):
                    return False  # in CEL, false && error is false
            except SelectorFault as fault:
                failed = fault
        if failed:
            raise failed
        return True

    return Selector(expression, matches)


def _compile(text: str):
    if match := _DRIVER.fullmatch(text):
        return lambda device: device.id.driver == match[1]
    if match := _SHARED.fullmatch(text):
        return lambda device: device.shareable == (match[1] == "true")
    if match := _ATTRIBUTE.fullmatch(text):
        name = f"{match[1]}/{match[2] or match[3]}"
        wanted = match[4] if match[4] is not None else int(match[5]) if match[5] else True
        return lambda device: _equals(device, name, wanted)
    if match := _CAPACITY.fullmatch(text):
        domain, name, amount = match[1], match[2] or match[3], amount_of(match[4])
        return lambda device: _capacity(device, domain, name) >= amount
    raise UnhandledError(text, "CEL")


def _equals(device: Device, name: str, wanted: str | int | bool) -> bool:
    value = device.attributes.get(name)
    if value is None:
        raise SelectorFault(f"no such key: {name}")
    if wanted is True:
        if not isinstance(value, bool):
            raise SelectorFault(f"{name} is no bool")
        return value
    return type(value) is type(wanted) and value == wanted


def _capacity(device: Device, domain: str, name: str):
    capacity = device.capacity.get(f"{domain}/{name}") or (
        device.capacity.get(name) if domain == device.id.driver else None
    )
    if capacity is None:
        raise SelectorFault(f"no such key: {name}")
    return capacity.value
