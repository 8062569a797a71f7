"""NVIDIA's driver for dynamic resource allocation (DRA): GPUs that kube-scheduler itself allocates to ResourceClaims.

Read in kubernetes 1.36 `api/resource/v1/types.go`, `dynamic-resource-allocation/structured/internal/stable`, and in
NVIDIA/k8s-dra-driver-gpu 2240711 `cmd/gpu-kubelet-plugin/deviceinfo.go`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
) -> Inventory:
    """The GPUs in the slices of one node, in the order of their minor numbers.

    Tainted ones are not healthy, but for the taint by which Kerf owns them.
    """
    devices = [(item.spec.pool.name, device) for item in slices for device in item.spec.devices or ()]
    whole = sorted(
        ((pool, device) for pool, device in devices if text_of(device, "type") == GPU),
        key=lambda named: (_minor(named[1].name), named),
    )[:MAX_GPUS_PER_NODE]
    gpus = tuple(_gpu(device, taints_of(PoolId(DRIVER, pool), device, rules), reading) for pool, device in whole)
    index_of = {(pool, device.name): index for index, (pool, device) in enumerate(whole)}
    by_uuid = {gpu.uuid: index for index, gpu in enumerate(gpus) if gpu.uuid}
    for pool, device in devices:
        parent = by_uuid.get(text_of(device, "parentUUID"))
        if parent is not None:
            index_of[pool, device.name] = parent
    return Inventory(NodeOffer(gpus, GpuUnit.CLAIM, 1, sum(gpu.healthy for gpu in gpus)), index_of)


def _minor(name: str) -> int:
    match = _MINOR.fullmatch(name)
    return int(match[1]) if match else 2**31


def _gpu(device: objects.Device, taints: Iterable[Taint], reading: NodeReading) -> Gpu:
    product = text_of(device, "productName")
    memory = (device.capacity or {}).get("memory") or (device.capacity or {}).get(f"{DRIVER}/memory")
    try:
        memory_mib = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
    except ValueError:
        memory_mib = 0
    return Gpu(
        describe_model(product, reading.aliases) if product else UNKNOWN_MODEL,
        nominal_mib(memory_mib, reading.memory_tolerance_frac) if 0 < memory_mib <= MAX_MEMORY_MIB else 0,
        text_of(device, "uuid"),
        healthy=not any(taint.effect in ("NoSchedule", "NoExecute") and taint.key != owning.KEY for taint in taints),
    )


def text_of(device: objects.Device, name: str) -> str:
    """A device's attribute, under its name or the driver's domain; "" where it has none."""
    attributes = device.attributes or {}
    found = attributes.get(name) or attributes.get(f"{DRIVER}/{name}")
    return (found.string or "") if found else ""


# ResourceClaims


def allocated_devices(claim: objects.ResourceClaim) -> tuple[tuple[str, str], ...]:
    """The driver's devices that a claim has, as pool and device. Access for administrators takes nothing."""
    allocation = claim.status.allocation
    return tuple(
        (result.pool, result.device)
        for result in (allocation.devices.results or () if allocation else ())
        if result.driver == DRIVER and not result.admin_access
    )
