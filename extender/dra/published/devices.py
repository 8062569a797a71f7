"""A device as a driver publishes it, read into the core's terms exactly, or not at all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from extender.core.dra.devices import Amount, Capacity, Device, DeviceId, Taint, Value, Version
from extender.dra import objects
from extender.dra.published.gathering import NodePool, PoolId, repeated
from extender.dra.quantities import amount_of

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_WORD: Final = rf"(?:{_NUMBER}|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
_MAX_VERSION_CHARS: Final = 256
_MAX_UINT64: Final = 2**64 - 1


class UnreadableDeviceError(ValueError):
    """What of a device or its slice can't be read exactly: the sentence says it."""


def _full_name(name: str, driver: str) -> str:
    """The name of an attribute or capacity with its domain, the driver's where none is published."""
    return name if "/" in name else f"{driver}/{name}"


def unhandled(pool: NodePool) -> str:
    """What of a pool Kerf does not handle, "" when it handles all of it."""
    if any(item.spec.of_network for item in (*pool.slices, *pool.elsewhere)):
        return "devices that are reached over the network are not handled"
    if any(item.spec.skip_node_operations for item in pool.slices):
        return "devices without operations on their node are not handled"
    for device in pool.devices:
        if facts := _unhandled_facts(device):
            return f"device {device.name} has {facts}: not handled"
    names = [device.name for item in (*pool.slices, *pool.elsewhere) for device in item.spec.devices or ()]
    if twice := repeated(names):
        return f"device name {twice} is there on two nodes"
    if any(device.consumes_counters for item in pool.elsewhere for device in item.spec.devices or ()):
        return "counters that devices of several nodes share are not handled"
    return ""


def _unhandled_facts(device: objects.Device) -> str:
    if device.binding_conditions or device.binding_failure_conditions:
        return "binding conditions"
    if any(consumed.compatibility_groups for consumed in device.consumes_counters or ()):
        return "compatibility groups"
    if device.node_allocatable_resources:
        return "resources of its node"
    if device.node_name or device.node_selector or device.all_nodes:
        return "nodes of its own"
    return ""


def read_device(
    pool: PoolId, device: objects.Device, taints: Sequence[Taint], counters: Mapping[tuple[str, str], int]
) -> Device:
    """A device of no GPU. Raises UnreadableDeviceError."""
    try:
        return Device(
            DeviceId(pool.driver, pool.pool, device.name),
            _attributes(pool.driver, device),
            {name: _capacity(capacity) for name, capacity in (device.capacity or {}).items()},
            tuple(sorted(_consumed(device, counters).items())),
            tuple(taints),
            shareable=bool(device.allow_multiple_allocations),
        )
    except ValueError as error:
        raise UnreadableDeviceError(f"device {device.name}: {error}") from None


def _attributes(driver: str, device: objects.Device) -> dict[str, Value]:
    for names in (device.attributes or (), device.capacity or ()):
        if twice := repeated(_full_name(name, driver) for name in names):
            raise ValueError(f"{twice} is there with its domain and without")
    return {_full_name(name, driver): _value(name, value) for name, value in (device.attributes or {}).items()}


def _value(name: str, attribute: objects.Attribute) -> Value:
    """In the order in which `k8s.io/dynamic-resource-allocation/cel` looks for it."""
    lists = (attribute.integers, attribute.booleans, attribute.strings, attribute.versions)
    if any(values is not None for values in lists):
        raise ValueError(f"attribute {name} is a list: not handled")
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.string is not None:
        return attribute.string
    if attribute.version is None:
        raise ValueError(f"attribute {name} has a value of an unknown type")
    if not is_version(attribute.version):
        raise ValueError(f"attribute {name} is no semantic version")
    return Version(attribute.version)


def is_version(text: str) -> bool:
    """Whether a text is a semantic version as `github.com/blang/semver` parses it."""
    match = _SEMVER.fullmatch(text) if len(text) <= _MAX_VERSION_CHARS else None
    if match is None:
        return False
    numbers = [match[1], match[2], match[3], *(word for word in (match[4] or "").split(".") if word.isdecimal())]
    return all(int(number) <= _MAX_UINT64 for number in numbers)


def _capacity(capacity: objects.Capacity) -> Capacity:
    policy = capacity.request_policy
    if policy is None:
        return Capacity(amount_of(capacity.value))
    span = policy.valid_range
    return Capacity(
        amount_of(capacity.value),
        None if policy.default is None else amount_of(policy.default),
        tuple(amount_of(value) for value in policy.valid_values or ()),
        (_optional(span.min), _optional(span.max), _optional(span.step)) if span else None,
    )


def _optional(quantity: objects.Quantity | None) -> Amount | None:
    return None if quantity is None else amount_of(quantity)


def _consumed(device: objects.Device, counters: Mapping[tuple[str, str], int]) -> dict[int, Amount]:
    """How much of which counter a device takes."""
    consumed: dict[int, Amount] = {}
    for name, counter, amount in _counters(device):
        index = counters[name, counter]
        consumed[index] = consumed.get(index, 0) + amount
    return consumed


def _counters(device: objects.Device) -> Iterator[tuple[str, str, Amount]]:
    for consumption in device.consumes_counters or ():
        for counter, value in (consumption.counters or {}).items():
            yield consumption.counter_set, counter, amount_of(value.value)
