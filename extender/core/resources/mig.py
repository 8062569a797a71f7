"""Partitions of GPUs, called MIG devices here for every vendor.

A MIG device may be time-sliced among several pods. Labels then give their number, and the device plugin may add
`.shared` to the resource name.
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
    """Compute slices of a profile (as from `nodes.profile_of`) on a GPU model (any name, "" if unknown).

    An unparsable profile counts as one slice.
    """
    for vendor in VENDORS[1:]:
        if vendor.partitions and profile.startswith(vendor.partitions.resource_prefix):
            return vendor.partitions.slices(profile.removeprefix(vendor.partitions.resource_prefix), model)
    first = VENDORS[0].partitions
    return first.slices(profile, model) if first else Slices(1, 1)


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the GPUs of a node are partitioned and shared, according to its labels."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """Pods that share a device, by profile without `.shared`."""
    num_gpus: int = 0
    """GPUs of the node, including partitioned ones; 0 if unknown."""
    profile: str = ""
    """Profile of all devices where they use the resource name of whole GPUs, else ""."""

    def num_holders(self, profile: str) -> int:
        """Pods that share one device of a profile (with or without `.shared`)."""
        return self.replicas.get(profile.removesuffix(_SHARED), 1)


def read_cutting(labels: Mapping[str, str], offered: Iterable[tuple[str, int]], vendor: Vendor = VENDORS[0]) -> Cutting:
    """Read a node's labels about a vendor's MIG devices; `offered` are (profile, units) of the node."""
    partitions = vendor.partitions
    if partitions is None:
        return Cutting()
    replicas: dict[str, int] = {}
    for resource, units in offered:
        profile = resource.removesuffix(_SHARED)
        prefix = f"{partitions.resource_prefix}{profile.removeprefix(partitions.resource_prefix)}"
        holders, devices = _number(labels, f"{prefix}.replicas"), _number(labels, f"{prefix}.count")
        if holders <= 1 and devices and resource.endswith(_SHARED):
            holders = -(-units // devices)
        replicas[profile] = max(holders, 1)
    if labels.get(partitions.strategy_label) == _SINGLE:
        match = partitions.in_product.search(labels.get(vendor.product_label, "").lower())
        return Cutting(replicas, 0, match[1] if match else "")
    return Cutting(replicas, _number(labels, vendor.count_label))


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0
