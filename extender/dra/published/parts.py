"""Which GPU of its node a device is, or is a part of, and how much of it.

NVIDIA's driver (kubernetes-sigs/dra-driver-nvidia-gpu 9593204, `cmd/gpu-kubelet-plugin`) publishes partitions with
their GPU's UUID (`mig.go`), and lets all devices of a GPU share one set of counters (`partitions.go`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra.devices import Amount, Device
from extender.core.resources.quantities import MIB
from extender.dra import objects
from extender.dra.published import gpus
from extender.dra.published.gathering import NodePool

_COMPUTE: Final = "multiprocessors"
_MEMORY: Final = "memory"


def place(pool: NodePool, devices: Sequence[Device], found: gpus.Inventory) -> Iterator[Device]:
    """The devices of a pool, each with its GPU. `devices` are those of the pool, in its order."""
    if pool.id.driver != gpus.DRIVER:
        yield from devices
        return
    wholes = {
        found.index_of[pool.id.pool, device.name]: read
        for device, read in _pairs(pool, devices)
        if _whole(device) and (pool.id.pool, device.name) in found.index_of
    }
    gpu_of = _gpu_by_counters(pool, found)
    for device, read in _pairs(pool, devices):
        gpu = found.index_of.get((pool.id.pool, device.name), -1)
        if gpu < 0:
            shared = {gpu_of[name] for name in _counter_sets(device) if name in gpu_of}
            gpu = shared.pop() if len(shared) == 1 else -1
        yield read if gpu < 0 else _part(read, gpu, wholes.get(gpu), found.offer.gpus[gpu].memory_mib)


def _pairs(pool: NodePool, devices: Iterable[Device]) -> Iterator[tuple[objects.Device, Device]]:
    return zip(pool.devices, devices, strict=True)


def _whole(device: objects.Device) -> bool:
    return gpus.text_of(device, "type") == gpus.GPU


def _counter_sets(device: objects.Device) -> Iterator[str]:
    return (consumed.counter_set for consumed in device.consumes_counters or ())


def _gpu_by_counters(pool: NodePool, found: gpus.Inventory) -> dict[str, int]:
    """The GPU whose counters a set has, where one whole GPU alone consumes of it."""
    of: dict[str, set[int]] = {}
    for device in pool.devices:
        gpu = found.index_of.get((pool.id.pool, device.name))
        if gpu is not None and _whole(device):
            for name in _counter_sets(device):
                of.setdefault(name, set()).add(gpu)
    return {name: gpus_of.pop() for name, gpus_of in of.items() if len(gpus_of) == 1}


def _part(read: Device, gpu: int, whole: Device | None, gpu_mib: int) -> Device:
    """A device as so much of a GPU: compute by multiprocessors, else as memory; all of it where neither is known."""
    if whole is None or whole is read:
        return replace(read, gpu=gpu, milli=WHOLE_MILLI, mib=gpu_mib)
    memory = _share(read, whole, _MEMORY)
    compute = _share(read, whole, _COMPUTE) or memory
    mib = min(int(_capacity(read, _MEMORY) // MIB), gpu_mib)
    return replace(read, gpu=gpu, milli=compute or WHOLE_MILLI, mib=mib if memory else gpu_mib)


def _share(read: Device, whole: Device, name: str) -> int:
    """How much a part has of what its GPU has, in thousandths, rounded down so that all parts fit; 0 for unknown."""
    part, all_of_it = _capacity(read, name), _capacity(whole, name)
    return min(max(int(WHOLE_MILLI * part / all_of_it), 1), WHOLE_MILLI) if part > 0 and all_of_it > 0 else 0


def _capacity(read: Device, name: str) -> Amount:
    found = read.capacity.get(name) or read.capacity.get(f"{gpus.DRIVER}/{name}")
    return found.value if found else 0
