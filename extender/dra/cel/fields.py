"""The fields of the `device` variable, and selection of parts of values."""

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
"""Attributes and capacities per device: `ResourceSliceMaxAttributesAndCapacitiesPerDevice`."""
_MAX_CHARS: Final = 64
"""Length of an attribute's value, and of a driver's and a domain's name."""
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
    raise RefusedError(f"unknown field device.{field}", "types")


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
    """Whether an attribute or capacity exists."""
    found = _found_in(field, domain, name)
    return Code(lambda scope: found(scope) is not _MISSING, BOOL, 3)


def option_of(field: str, domain: str, name: str) -> Run:
    """An attribute or capacity as an optional value."""
    found = _found_in(field, domain, name)

    def run(scope: Scope) -> Value:
        value = found(scope)
        return NONE if value is _MISSING else Optional(value)

    return run


def _found_in(field: str, domain: str, name: str) -> Run:
    """One attribute or capacity; _MISSING if it does not exist."""
    full_name = f"{domain}/{name}"

    def attribute(scope: Scope) -> Value:
        value = scope[0].attributes.get(full_name, _MISSING)
        return _converted(value) if isinstance(value, Version) else value

    def capacity(scope: Scope) -> Value:
        device: Device = scope[0]
        found = device.capacity.get(full_name) or (device.capacity.get(name) if domain == device.id.driver else None)
        return _MISSING if found is None else Quantity(found.value)

    return attribute if field == "attributes" else capacity


def _converted(value: Attribute) -> Value:
    if not isinstance(value, Version):
        return value
    version = semver_of(value.text)
    if version is None:
        raise AbortError(f"{value.text} is not a semantic version")
    return version


def _attributes(scope: Scope) -> Domains:
    return _by_domain(scope[0], {name: _converted(value) for name, value in scope[0].attributes.items()})


def _capacities(scope: Scope) -> Domains:
    return _by_domain(scope[0], {name: Quantity(capacity.value) for name, capacity in scope[0].capacity.items()})


def _by_domain(device: Device, values: Mapping[str, Any]) -> Domains:
    domains = Domains()
    for full_name, value in values.items():
        domain, slash, name = full_name.partition("/")
        if not slash:
            domain, name = device.id.driver, full_name
        domains.setdefault(domain, {})[name] = value
    return domains


# Parts of any value


def part_of(value: Value, key: Value) -> Value:
    """A map's value or a list's item by key. Raises EvaluationError."""
    found = _find(value, key)
    if found is _MISSING:
        raise EvaluationError(f"no such key: {key}")
    return found


def has_part(value: Value, key: Value) -> bool:
    """Whether a map or list has a key. Raises EvaluationError."""
    return _find(value, key) is not _MISSING


def optional_part(value: Value, key: Value) -> Optional:
    """A part as an optional value. Raises EvaluationError."""
    found = _find(value, key)
    return NONE if found is _MISSING else Optional(found)


def _find(value: Value, key: Value) -> Value:
    if isinstance(value, dict):
        return value.get(key, {} if isinstance(value, Domains) else _MISSING) if isinstance(key, str) else _MISSING
    if isinstance(value, tuple):
        if type(key) is not int:
            raise EvaluationError("index is not an integer")
        return value[key] if 0 <= key < len(value) else _MISSING
    return _MISSING
