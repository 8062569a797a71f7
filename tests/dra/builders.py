"""Objects of dynamic resource allocation, as the API server gives them, and what the core makes of devices."""

from typing import Any, TypeVar

import msgspec

from extender.core.dra import owning
from extender.core.dra.devices import Device, Inventory
from extender.core.resources.nodes import NodeReading
from extender.dra import objects
from extender.dra.published import NodePools, PoolId, _read_device, read_pools

DRIVER = "gpu.nvidia.com"
OWNED = owning.OWNED._asdict()
T = TypeVar("T")


def decoded(kind: type[T], manifest: Any) -> T:
    """An object from its JSON: opaque parameters are kept byte by byte, which only decoding does."""
    return msgspec.json.decode(msgspec.json.encode(manifest), type=kind)


def device(name: str, *, owned: bool = True, taints: Any = (), **more: Any) -> dict[str, Any]:
    """A device that its driver gives to Kerf."""
    return {"name": name, "taints": [*taints, *([OWNED] if owned else [])], **more}


def resource_slice(
    *devices: Any,
    name: str = "s0",
    pool: str = "p",
    driver: str = DRIVER,
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> objects.ResourceSlice:
    """A slice of node n1, unless another place is named."""
    places = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    place = {} if any(key in spec for key in places) else {"nodeName": "n1"}
    numbers = {"name": pool, "generation": generation, "resourceSliceCount": count}
    manifest = {"driver": driver, "pool": numbers, "devices": list(devices), **place, **spec}
    return decoded(objects.ResourceSlice, {"metadata": {"name": name, "uid": name}, "spec": manifest})


def counters(*sets: tuple[str, dict[str, str]], name: str = "counters", **more: Any) -> objects.ResourceSlice:
    shared = [{"name": of, "counters": {key: {"value": value} for key, value in found.items()}} for of, found in sets]
    return resource_slice(name=name, sharedCounters=shared, **more)


def consuming(counter_set: str, **amounts: str) -> dict[str, Any]:
    """What a device takes of a set of counters."""
    found = {name.replace("_", "-"): {"value": value} for name, value in amounts.items()}
    return {"consumesCounters": [{"counterSet": counter_set, "counters": found}]}


def rule(taint: Any = OWNED, **selector: str) -> objects.DeviceTaintRule:
    return decoded(objects.DeviceTaintRule, {"spec": {"deviceSelector": selector, "taint": taint}})


def claim(*requests: Any, name: str = "c", status: Any = None, **devices: Any) -> objects.ResourceClaim:
    manifest = {"metadata": {"name": name, "uid": name}, "spec": {"devices": {"requests": list(requests), **devices}}}
    return decoded(objects.ResourceClaim, manifest | ({"status": status} if status else {}))


def exactly(name: str = "r", *, device_class: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def device_class(name: str = "gpu", **spec: Any) -> objects.DeviceClass:
    return decoded(objects.DeviceClass, {"metadata": {"name": name}, "spec": spec})


def pools_of(*slices: objects.ResourceSlice, rules: Any = (), node: str = "n1", **options: Any) -> NodePools:
    return read_pools(slices, rules, NodeReading(), node=node, **options)


def inventory_of(*devices: Any) -> Inventory:
    found = pools_of(resource_slice(*devices))
    assert not found.faults
    return found.inventory


def core_device(driver: str, published: Any) -> Device:
    """A device as selectors see it."""
    return _read_device(PoolId(driver, "p"), decoded(objects.Device, published), (), {})
