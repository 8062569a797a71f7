"""Vendors' drivers for dynamic resource allocation (DRA): GPUs that kube-scheduler itself allocates to ResourceClaims.

Read in kubernetes 1.36 `api/resource/v1/types.go`, `dynamic-resource-allocation/structured/internal/stable`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from extender.core.dra import owning
from extender.core.dra.devices import Taint
from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import (
    MAX_GPUS_PER_NODE,
    MAX_MEMORY_MIB,
    NO_GPUS,
    Gpu,
    GpuUnit,
    NodeOffer,
    NodeReading,
    nominal_mib,
)
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.vendors.registry import DRIVERS, NUMBER_OF_DRIVER
from extender.core.vendors.vendor import Driver
from extender.dra import objects
from extender.dra.published.gathering import PoolId, taints_of

_LAST: Final = 2**31


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of one node's complete pools."""

    driver: Driver | None
    """Whose they are, None for none."""
    offer: NodeOffer
    index_of: Mapping[tuple[str, str], int]
    """Index of the GPU of each device, a partition's being that of the GPU it is cut from, by pool and device."""


_NO_INVENTORY: Final = Inventory(None, NO_GPUS, {})


# ResourceSlices


def read_inventory(
    slices: Sequence[objects.ResourceSlice],
    reading: NodeReading,
    rules: Sequence[objects.DeviceTaintRule] = (),
    *,
    owned_only: bool = True,
) -> Inventory:
    """The GPUs in the slices of one node, in the order of their indices; of those of two vendors one's.

    Tainted ones are not healthy, but for the taint by which Kerf owns them. A GPU in MIG mode is published by its
    partitions alone: it counts where Kerf gives all of these (which is said without `owned_only`). Where kube-scheduler
    gives them it would pass for a whole one.
    """
    names = {item.spec.driver for item in slices}
    driver = next((driver for name, driver in DRIVERS.items() if name in names), None)
    if driver is None:
        return _NO_INVENTORY
    published = _Published(driver, reading, rules)
    devices = [
        (item.spec.pool.name, device)
        for item in slices
        if item.spec.driver == driver.name
        for device in item.spec.devices or ()
    ]
    parts: dict[str, list[tuple[str, objects.Device]]] = {}  # by the UUID of the GPU they are cut from
    for pool, device in devices:
        if parent := text_of(device, driver.parent, driver):
            parts.setdefault(parent, []).append((pool, device))
    found = {
        (_index(device.name, driver), pool, device.name): (
            published.gpu(device, published.taints(pool, device)),
            text_of(device, driver.identity, driver),
        )
        for pool, device in devices
        if text_of(device, "type", driver) == driver.whole
    }
    identities = {identity for _, identity in found.values()}
    for parent in parts.keys() - identities:
        of = parts[parent]
        taints = [published.taints(pool, device) for pool, device in of]
        if not owned_only or all(map(owning.owns, taints)):
            pool, first = of[0]
            cut = published.cut([device for _, device in of], taints)
            # Its parts have what tells GPUs apart everywhere, or nothing has.
            uuid = parent if driver.identity == driver.uuid else ""
            found[_index(first.name, driver), pool, first.name] = replace(cut, uuid=uuid), parent
    ordered = sorted(found.items(), key=lambda item: item[0])[:MAX_GPUS_PER_NODE]
    gpus = tuple(gpu for _, (gpu, _) in ordered)
    index_of = {key[1:]: index for index, (key, _) in enumerate(ordered)}
    for index, (_, (_, identity)) in enumerate(ordered):
        index_of |= dict.fromkeys(((pool, device.name) for pool, device in parts.get(identity, ())), index)
    units, vendor = sum(gpu.healthy for gpu in gpus), NUMBER_OF_DRIVER[driver.name]
    return Inventory(driver, NodeOffer(gpus, GpuUnit.CLAIM, 1, units, vendor=vendor), index_of)


def _index(name: str, driver: Driver) -> int:
    match = driver.index.fullmatch(name)
    return int(match[1]) if match else _LAST


@dataclass(frozen=True, slots=True)
class _Published:
    """Reads devices of a driver."""

    driver: Driver
    reading: NodeReading
    rules: Sequence[objects.DeviceTaintRule]

    def gpu(self, device: objects.Device, taints: Iterable[Taint]) -> Gpu:
        """A whole GPU, or what a part says of its GPU."""
        product, memory_mib = text_of(device, self.driver.product, self.driver), self._memory_mib(device)
        vendor = NUMBER_OF_DRIVER[self.driver.name]
        return Gpu(
            describe_model(product, self.reading.aliases, vendor) if product else UNKNOWN_MODEL,
            nominal_mib(memory_mib, self.reading.memory_tolerance_frac) if memory_mib else 0,
            text_of(device, self.driver.uuid, self.driver) if self.driver.uuid else "",
            healthy=not any(
                taint.effect in ("NoSchedule", "NoExecute") and taint.key != owning.KEY for taint in taints
            ),
        )

    def cut(self, parts: Sequence[objects.Device], taints: Iterable[Iterable[Taint]]) -> Gpu:
        """A GPU of which only parts are published: as large as these together, healthy while one of them is."""
        read = [self.gpu(part, of_part) for part, of_part in zip(parts, taints, strict=True)]
        memory_mib = min(sum(map(self._memory_mib, parts)), MAX_MEMORY_MIB)
        return replace(read[0], memory_mib=memory_mib, healthy=any(gpu.healthy for gpu in read))

    def taints(self, pool: str, device: objects.Device) -> tuple[Taint, ...]:
        """Those of a device, and of the rules."""
        return taints_of(PoolId(self.driver.name, pool), device, self.rules)

    def _memory_mib(self, device: objects.Device) -> int:
        """A device's memory; 0 where it is unknown, or more than any GPU has."""
        capacity = device.capacity or {}
        memory = capacity.get("memory") or capacity.get(f"{self.driver.name}/memory")
        try:
            found = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
        except ValueError:
            return 0
        return found if 0 < found <= MAX_MEMORY_MIB else 0


def text_of(device: objects.Device, name: str, driver: Driver) -> str:
    """A device's attribute, under its name or the driver's domain; "" where it has none."""
    attributes = device.attributes or {}
    found = attributes.get(name) or attributes.get(f"{driver.name}/{name}")
    return (found.string or "") if found else ""
