"""Nodes with A100s as NVIDIA's driver publishes them: whole GPUs, and all the partitions that MIG can make of them."""

from typing import Final

from extender.core.dra.devices import Amount, Device, DeviceId, Inventory

DRIVER: Final = "gpu.nvidia.com"

PROFILES: Final = {
    "1g.5gb": (1, 14, (0, 1, 2, 3, 4, 5, 6)),
    "1g.10gb": (2, 14, (0, 2, 4, 6)),
    "2g.10gb": (2, 28, (0, 2, 4)),
    "3g.20gb": (4, 42, (0, 4)),
    "4g.20gb": (4, 56, (0,)),
    "7g.40gb": (8, 98, (0,)),
}
"""Memory slices, multiprocessors, and the slices where an A100 of 40 GB can place each profile."""

_MIB: Final = 40_960
_MULTIPROCESSORS: Final = 98
_PER_ROOT: Final = 2


def a100_node(name: str, num_gpus: int = 8, mig: bool = True) -> Inventory:
    """A node with A100s, two on each PCIe root; `mig` publishes their partitions too, with counters."""
    devices: list[Device] = []
    counters: list[Amount] = []
    for gpu in range(num_gpus):
        base = len(counters)
        if mig:
            counters += [1] * 8 + [_MULTIPROCESSORS]
        devices += _gpu(name, gpu, base, mig)
    return Inventory(tuple(devices), tuple(counters), {device.id: index for index, device in enumerate(devices)})


def _gpu(node: str, gpu: int, base: int, mig: bool) -> list[Device]:
    shared = {"resource.kubernetes.io/pcieRoot": f"pci{gpu // _PER_ROOT}", f"{DRIVER}/productName": "A100"}
    uuid = f"GPU-{node}-{gpu}"
    total = (*((base + place, 1) for place in range(8)), (base + 8, _MULTIPROCESSORS)) if mig else ()
    whole = shared | {f"{DRIVER}/type": "gpu", f"{DRIVER}/uuid": uuid}
    devices = [Device(DeviceId(DRIVER, node, f"gpu-{gpu}"), whole, {}, total, (), False, gpu, 1000, _MIB)]
    for profile, (slices, multiprocessors, places) in PROFILES.items() if mig else ():
        for place in places:
            attributes = shared | {f"{DRIVER}/type": "mig", f"{DRIVER}/profile": profile, f"{DRIVER}/parentUUID": uuid}
            consumes = (*((base + place + offset, 1) for offset in range(slices)), (base + 8, multiprocessors))
            milli, mib = 1000 * multiprocessors // _MULTIPROCESSORS, _MIB * slices // 8
            called = DeviceId(DRIVER, node, f"gpu-{gpu}-mig-{profile.replace('.', '-')}-{place}")
            devices.append(Device(called, attributes, {}, consumes, (), False, gpu, milli, mib))
    return devices


def partition(inventory: Inventory, gpu: int, profile: str, place: int) -> int:
    """Index of one of a GPU's partitions."""
    name = f"gpu-{gpu}-mig-{profile.replace('.', '-')}-{place}"
    return next(index for index, device in enumerate(inventory.devices) if device.id.device == name)
