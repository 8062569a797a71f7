"""Which GPU of its node a device is, or is a part of, and how much of it.

Drivers publish partitions with what tells their GPU, and may let all devices of a GPU share one set of counters.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra.devices import Amount, Device
from extender.core.resources.quantities import MIB
from extender.core.vendors.vendor import Driver
from extender.dra import objects
from extender.dra.published import gpus
from extender.dra.published.gathering import NodePool

_MEMORY: Final = "memory"


def place(pool: NodePool, devices: Sequence[Device], found: gpus.Inventory) -> Iterator[Device]:
    """The devices of a pool, each with its GPU. `devices` are those of the pool, in its order."""
    driver = found.driver
    if driver is None or pool.id.driver != driver.name:
        yield from devices
        return
    gpu_of = _gpu_by_counters(pool, found, driver)
    placed = [
        (_whole(device, driver), read, _gpu(pool, device, found, gpu_of))
        for device, read in zip(pool.devices, devices, strict=True)
    ]
    wholes = {gpu: [read] for whole, read, gpu in placed if whole}
    parts: dict[int, list[Device]] = {}
    for whole, read, gpu in placed:
        if not whole:
            parts.setdefault(gpu, []).append(read)
    for whole, read, gpu in placed:
        if gpu < 0:
            yield read
        elif whole:
            yield replace(read, gpu=gpu, milli=WHOLE_MILLI, mib=found.offer.gpus[gpu].memory_mib)
        else:
            yield _part(read, gpu, wholes.get(gpu) or parts[gpu], found.offer.gpus[gpu].memory_mib, driver)


def _gpu(pool: NodePool, device: objects.Device, found: gpus.Inventory, gpu_of: Mapping[str, int]) -> int:
    """The index of a device's GPU; -1 for that of none, or of one that nobody can tell."""
    gpu = found.index_of.get((pool.id.pool, device.name), -1)
    if gpu >= 0:
        return gpu
    shared = {gpu_of[name] for name in _counter_sets(device) if name in gpu_of}
    return shared.pop() if len(shared) == 1 else -1


def _whole(device: objects.Device, driver: Driver) -> bool:
    return gpus.text_of(device, "type", driver) == driver.whole


def _counter_sets(device: objects.Device) -> Iterator[str]:
    return (consumed.counter_set for consumed in device.consumes_counters or ())


def _gpu_by_counters(pool: NodePool, found: gpus.Inventory, driver: Driver) -> dict[str, int]:
    """The GPU whose counters a set has, where one whole GPU alone consumes of it."""
    of: dict[str, set[int]] = {}
    for device in pool.devices:
        gpu = found.index_of.get((pool.id.pool, device.name))
        if gpu is not None and _whole(device, driver):
            for name in _counter_sets(device):
                of.setdefault(name, set()).add(gpu)
    return {name: gpus_of.pop() for name, gpus_of in of.items() if len(gpus_of) == 1}


def _part(read: Device, gpu: int, of: Sequence[Device], gpu_mib: int, driver: Driver) -> Device:
    """A device as so much of a GPU: compute by the driver's measure, else as memory; all of it where neither is known.

    `of` is the whole GPU, or all the parts that it is cut into for good.
    """
    memory = _share(read, of, _MEMORY, driver)
    compute = _share(read, of, driver.compute, driver) or memory
    mib = min(int(_capacity(read, _MEMORY, driver) // MIB), gpu_mib)
    return replace(read, gpu=gpu, milli=compute or WHOLE_MILLI, mib=mib if memory else gpu_mib)


def _share(read: Device, of: Sequence[Device], name: str, driver: Driver) -> int:
    """How much a part has of what its GPU has, in thousandths, rounded down so that all parts fit; 0 for unknown."""
    part, all_of_it = _capacity(read, name, driver), sum(_capacity(device, name, driver) for device in of)
    return min(max(int(WHOLE_MILLI * part / all_of_it), 1), WHOLE_MILLI) if part > 0 and all_of_it > 0 else 0


def _capacity(read: Device, name: str, driver: Driver) -> Amount:
    found = read.capacity.get(name) or read.capacity.get(f"{driver.name}/{name}")
    return found.value if found else 0
