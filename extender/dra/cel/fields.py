"""What expressions see of a device, and how parts of values are found."""

from collections.abc import Mapping
from typing import Any, Final

from extender.core.dra.devices import Device, Version
from extender.core.dra.devices import Value as Attribute
from extender.dra.cel.code import Code, Run, Scope
from extender.dra.cel.parsing import AbortError, EvaluationError, RefusedError
from extender.dra.cel.values import (
    BOOL,
    DEVICE,
    DYN,
    NONE,
    QUANTITY,
    STRING,
    Domains,
    Optional,
    Quantity,
    Value,
    map_of,
    semver_of,
)

_MAX_NAMES: Final = 32
"""Attributes and capacities of a device (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`)."""
_MAX_CHARS: Final = 64
"""Of an attribute, and of a driver's and a domain's name."""
_MISSING: Final = object()

_ATTRIBUTES: Final = map_of(STRING, DYN)
_CAPACITY: Final = map_of(STRING, QUANTITY)
THE_DEVICE: Final = Code(lambda scope: scope[0], DEVICE, path=())


def field_of_device(field: str) -> Code:
    """A field of the device. Raises RefusedError."""
    if field == "driver":
        return Code(lambda scope: scope[0].id.driver, STRING, chars=_MAX_CHARS)
    if field == "allowMultipleAllocations":
        return Code(lambda scope: scope[0].shareable, BOOL)
    if field == "attributes":
        return Code(_attributes, map_of(STRING, _ATTRIBUTES), 100, _MAX_CHARS, _MAX_NAMES, path=(field,))
    if field == "capacity":
        return Code(_capacities, map_of(STRING, _CAPACITY), 100, _MAX_CHARS, _MAX_NAMES, path=(field,))
    raise RefusedError(f"device.{field} is not known", "types")


def domain_of(field: str, domain: str) -> Code:
    """The attributes or capacities of one domain."""
    whole = _attributes if field == "attributes" else _capacities
    kind = _ATTRIBUTES if field == "attributes" else _CAPACITY
    return Code(lambda scope: whole(scope).get(domain, {}), kind, 100, _MAX_CHARS, _MAX_NAMES, path=(field, domain))


def value_of(field: str, domain: str, name: str) -> Code:
    """One attribute or capacity."""
    found = _found_in(field, domain, name)

    def run(scope: Scope) -> Value:
        value = found(scope)
        if value is _MISSING:
            raise EvaluationError(f"no such key: {name}")
        return value

    return Code(run, DYN if field == "attributes" else QUANTITY, 3, _MAX_CHARS)


def presence_of(field: str, domain: str, name: str) -> Code:
    """Whether there is an attribute or capacity."""
    found = _found_in(field, domain, name)
    return Code(lambda scope: found(scope) is not _MISSING, BOOL, 3)


def option_of(field: str, domain: str, name: str) -> Run:
    """An attribute or capacity that may not be there."""
    found = _found_in(field, domain, name)

    def run(scope: Scope) -> Value:
        value = found(scope)
        return NONE if value is _MISSING else Optional(value)

    return run


def _found_in(field: str, domain: str, name: str) -> Run:
    """One attribute or capacity, _MISSING where there is none."""
    full = f"{domain}/{name}"

    def attribute(scope: Scope) -> Value:
        value = scope[0].attributes.get(full, _MISSING)
        return _converted(value) if isinstance(value, Version) else value

    def capacity(scope: Scope) -> Value:
        device: Device = scope[0]
        found = device.capacity.get(full) or (device.capacity.get(name) if domain == device.id.driver else None)
        return _MISSING if found is None else Quantity(found.value)

    return attribute if field == "attributes" else capacity


def _converted(value: Attribute) -> Value:
    if not isinstance(value, Version):
        return value
    version = semver_of(value.text)
    if version is None:
        raise AbortError(f"{value.text} is no semantic version")
    return version


def _attributes(scope: Scope) -> Domains:
    return _by_domain(scope[0], {name: _converted(value) for name, value in scope[0].attributes.items()})


def _capacities(scope: Scope) -> Domains:
    return _by_domain(scope[0], {name: Quantity(capacity.value) for name, capacity in scope[0].capacity.items()})


def _by_domain(device: Device, values: Mapping[str, Any]) -> Domains:
    found = Domains()
    for full, value in values.items():
        domain, slash, name = full.partition("/")
        if not slash:
            domain, name = device.id.driver, full
        found.setdefault(domain, {})[name] = value
    return found


# Parts of any value


def part_of(value: Value, key: Value) -> Value:
    """A field of a map or an item of a list. Raises EvaluationError."""
    found = _find(value, key)
    if found is _MISSING:
        raise EvaluationError(f"no such key: {key}")
    return found


def has_part(value: Value, key: Value) -> bool:
    """Whether there is such a part. Raises EvaluationError."""
    return _find(value, key) is not _MISSING


def optional_part(value: Value, key: Value) -> Optional:
    """A part that may not be there. Raises EvaluationError."""
    found = _find(value, key)
    return NONE if found is _MISSING else Optional(found)


def _find(value: Value, key: Value) -> Value:
    if isinstance(value, dict):
        return value.get(key, {} if isinstance(value, Domains) else _MISSING) if isinstance(key, str) else _MISSING
    if isinstance(value, tuple):
        if type(key) is not int:
            raise EvaluationError("an index that is no integer")
        return value[key] if 0 <= key < len(value) else _MISSING
    return _MISSING
