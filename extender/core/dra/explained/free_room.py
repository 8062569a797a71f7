"""What can still be had of a node's devices, in words: whole GPUs first, then of each GPU the largest partitions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from extender.core.dra.devices import Amount, Device, NodeDevices
from extender.core.dra.matching import tolerates
from extender.core.texts import printable

_ALL_MILLI: Final = 1000
WHOLE: Final = "GPU"
"""The kind of a device that is a whole GPU."""


def kind_of(device: Device) -> str:
    """What a device is called among its like: the profile of a partition, GPU, or the type that its driver names."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    if isinstance(profile, str):
        return printable(profile)
    if device.gpu >= 0:
        return WHOLE if device.milli >= _ALL_MILLI else f"{device.milli} milli of a GPU"
    named = device.attributes.get(f"{device.id.driver}/type")
    return printable(named) if isinstance(named, str) else "device"


def free_of(devices: NodeDevices) -> dict[int, Counter[str]]:
    """By GPU, -1 for devices of none: how many devices of each kind can be had at once, the largest first.

    Nobody has them, and nothing that they share counters with is in the way; tainted ones are left out.
    """
    left, found = list(devices.left), dict[int, Counter[str]]()
    inventory = devices.inventory.devices
    order = sorted(enumerate(inventory), key=lambda item: (-item[1].milli, -item[1].mib, item[0]))
    for index, device in order:
        if not tolerates((), device.taints):
            continue
        if devices.taken >> index & 1:
            if device.shareable and _has_some(device, devices.used(index)):
                found.setdefault(device.gpu, Counter())[f"part of {kind_of(device)}"] += 1
            continue
        if any(left[counter] < amount for counter, amount in device.consumes):
            continue
        for counter, amount in device.consumes:
            left[counter] -= amount
        found.setdefault(device.gpu, Counter())[kind_of(device)] += 1
    return found


def _has_some(device: Device, used: Mapping[str, Amount]) -> bool:
    """Whether something is left of every capacity of a device that several claims have parts of."""
    return all(used.get(name, 0) < capacity.value for name, capacity in device.capacity.items() if capacity.value)


def in_words(kinds: Mapping[str, int]) -> str:
    """How many of which kinds: "2 GPUs, 3g.20gb, 2 x 1g.5gb"; "nothing"."""
    return ", ".join(_counted(kind, count) for kind, count in kinds.items()) or "nothing"


def total(found: Iterable[Counter[str]]) -> Counter[str]:
    """All GPUs together: whole ones first, then as they come, the largest of each GPU first."""
    summed: Counter[str] = Counter()
    for kinds in found:
        summed.update(kinds)
    return Counter({kind: summed[kind] for kind in sorted(summed, key=lambda kind: kind != WHOLE)})


def _counted(kind: str, count: int) -> str:
    if kind == WHOLE:
        return WHOLE if count == 1 else f"{count} {WHOLE}s"
    return kind if count == 1 else f"{count} x {kind}"
