"""Partitions of GPUs, called MIG devices here whoever makes them: what part of its GPU's compute each has.

A device may be given to several pods at once, by time slices: then labels tell to how many, and the device plugin may
call it `.shared`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import Slices, Vendor

_SHARED: Final = ".shared"
_SINGLE: Final = "single"
_MAX_DIGITS: Final = 7


def mig_slices(profile: str, model: str = "") -> Slices:
    """What a device has by its profile, as `nodes.profile_of` has it, and its GPU's model where that is known, by any
    of its names. One slice where the profile can't be read; no more than there are."""
    for vendor in VENDORS[1:]:
        if vendor.partitions and profile.startswith(vendor.partitions.resource_prefix):
            return vendor.partitions.slices(profile.removeprefix(vendor.partitions.resource_prefix), model)
    first = VENDORS[0].partitions
    return first.slices(profile, model) if first else Slices(1, 1)


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the GPUs of a node are cut and shared, as its labels tell."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """Pods that a device of a profile is given to, by profile without `.shared`."""
    num_gpus: int = 0
    """GPUs of the node, cut ones included; 0 where that is not told."""
    profile: str = ""
    """Of all its devices, where they go by the name of whole GPUs; "" where GPUs are GPUs."""

    def num_holders(self, profile: str) -> int:
        """Pods that a device, by the name of its resource, is given to at once."""
        return self.replicas.get(profile.removesuffix(_SHARED), 1)


def read_cutting(labels: Mapping[str, str], offered: Iterable[tuple[str, int]], vendor: Vendor = VENDORS[0]) -> Cutting:
    """What a node's labels tell of the devices of a vendor's GPUs that it offers, by profile."""
    partitions = vendor.partitions
    if partitions is None:
        return Cutting()
    replicas: dict[str, int] = {}
    for resource, units in offered:
        profile = resource.removesuffix(_SHARED)
        prefix = f"{partitions.resource_prefix}{profile.removeprefix(partitions.resource_prefix)}"
        told, devices = _number(labels, f"{prefix}.replicas"), _number(labels, f"{prefix}.count")
        if told <= 1 and devices and resource.endswith(_SHARED):
            told = -(-units // devices)
        replicas[profile] = max(told, 1)
    if labels.get(partitions.strategy_label) == _SINGLE:
        found = partitions.in_product.search(labels.get(vendor.product_label, "").lower())
        return Cutting(replicas, 0, found[1] if found else "")
    return Cutting(replicas, _number(labels, vendor.count_label))


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0
