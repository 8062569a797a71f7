"""NVIDIA's driver for dynamic resource allocation (DRA): GPUs that kube-scheduler itself allocates to ResourceClaims.

Read in kubernetes 1.36 `api/resource/v1/types.go`, `dynamic-resource-allocation/structured/internal/stable`, and in
NVIDIA/k8s-dra-driver-gpu 2240711 `cmd/gpu-kubelet-plugin/deviceinfo.go`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from extender.core.dra import owning
from extender.core.dra.devices import Taint
from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import (
    MAX_GPUS_PER_NODE,
    MAX_MEMORY_MIB,
    Gpu,
    GpuUnit,
    NodeOffer,
    NodeReading,
    nominal_mib,
)
from extender.core.resources.quantities import MIB, parse_quantity
from extender.dra import objects
from extender.dra.published.gathering import PoolId, taints_of

DRIVER: Final = "gpu.nvidia.com"
"""Its name, and that of its device class for whole GPUs."""

GPU: Final = "gpu"
_MINOR: Final = re.compile(r"gpu-([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of one node's complete pools."""

    offer: NodeOffer
    index_of: Mapping[tuple[str, str], int]
    """Index of the GPU of each device, a partition's being that of the GPU it is cut from, by pool and device."""


# ResourceSlices


def read_inventory(
    slices: Sequence[objects.ResourceSlice],
    reading: NodeReading,
    rules: Sequence[objects.DeviceTaintRule] = (),
    *,
    owned_only: bool = True,
) -> Inventory:
    """The GPUs in the slices of one node, in the order of their minor numbers.

    Tainted ones are not healthy, but for the taint by which Kerf owns them. A GPU in MIG mode is published by its
    partitions alone: it counts where Kerf gives all of these (which is said without `owned_only`). Where kube-scheduler
    gives them it would pass for a whole one.
    """
    devices = [(item.spec.pool.name, device) for item in slices for device in item.spec.devices or ()]
    parts: dict[str, list[tuple[str, objects.Device]]] = {}  # by the UUID of the GPU they are cut from
    for pool, device in devices:
        if parent := text_of(device, "parentUUID"):
            parts.setdefault(parent, []).append((pool, device))
    found = {
        (_minor(device.name), pool, device.name): _gpu(device, _taints(pool, device, rules), reading)
        for pool, device in devices
        if text_of(device, "type") == GPU
    }
    uuids = {gpu.uuid for gpu in found.values()}
    for uuid in parts.keys() - uuids:
        of = parts[uuid]
        taints = [_taints(pool, device, rules) for pool, device in of]
        if not owned_only or all(map(owning.owns, taints)):
            pool, first = of[0]
            found[_minor(first.name), pool, first.name] = _cut(uuid, [device for _, device in of], taints, reading)
    ordered = sorted(found.items())[:MAX_GPUS_PER_NODE]
    gpus = tuple(gpu for _, gpu in ordered)
    index_of = {key[1:]: index for index, (key, _) in enumerate(ordered)}
    for index, gpu in enumerate(gpus):
        index_of |= dict.fromkeys(((pool, device.name) for pool, device in parts.get(gpu.uuid, ())), index)
    return Inventory(NodeOffer(gpus, GpuUnit.CLAIM, 1, sum(gpu.healthy for gpu in gpus)), index_of)


def _minor(name: str) -> int:
    match = _MINOR.fullmatch(name)
    return int(match[1]) if match else 2**31


def _gpu(device: objects.Device, taints: Iterable[Taint], reading: NodeReading) -> Gpu:
    product, memory_mib = text_of(device, "productName"), _memory_mib(device)
    return Gpu(
        describe_model(product, reading.aliases) if product else UNKNOWN_MODEL,
        nominal_mib(memory_mib, reading.memory_tolerance_frac) if memory_mib else 0,
        text_of(device, "uuid"),
        healthy=not any(taint.effect in ("NoSchedule", "NoExecute") and taint.key != owning.KEY for taint in taints),
    )


def _cut(uuid: str, parts: Sequence[objects.Device], taints: Iterable[Iterable[Taint]], reading: NodeReading) -> Gpu:
    """A GPU of which only parts are published: as large as these together, healthy while one of them is."""
    read = [_gpu(part, of_part, reading) for part, of_part in zip(parts, taints, strict=True)]
    memory_mib = min(sum(map(_memory_mib, parts)), MAX_MEMORY_MIB)
    return replace(read[0], uuid=uuid, memory_mib=memory_mib, healthy=any(gpu.healthy for gpu in read))


def _memory_mib(device: objects.Device) -> int:
    """A device's memory; 0 where it is unknown, or more than any GPU has."""
    capacity = device.capacity or {}
    memory = capacity.get("memory") or capacity.get(f"{DRIVER}/memory")
    try:
        found = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
    except ValueError:
        return 0
    return found if 0 < found <= MAX_MEMORY_MIB else 0


def _taints(pool: str, device: objects.Device, rules: Sequence[objects.DeviceTaintRule]) -> tuple[Taint, ...]:
    return taints_of(PoolId(DRIVER, pool), device, rules)


def text_of(device: objects.Device, name: str) -> str:
    """A device's attribute, under its name or the driver's domain; "" where it has none."""
    attributes = device.attributes or {}
    found = attributes.get(name) or attributes.get(f"{DRIVER}/{name}")
    return (found.string or "") if found else ""
