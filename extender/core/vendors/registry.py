"""The vendors: Kerf's own, and those of other packages (entry point group `kerf.vendors`).

A vendor's number is its place in `VENDORS`, which is the same in every process: requests, nodes and models have it.
"""

from typing import Final

from extender.core.entry_points import Installed, told_of
from extender.core.vendors.nvidia import NVIDIA as _FIRST
from extender.core.vendors.vendor import Vendor

_OWN: Final = (_FIRST,)
_INSTALLED: Final = Installed("kerf.vendors", "vendor")
faults: Final = _INSTALLED.faults
"""Why those that could not be loaded could not, by name."""


def _load() -> tuple[Vendor, ...]:
    _INSTALLED.load([vendor.name for vendor in _OWN])
    found, taken = list(_OWN), {name for vendor in _OWN for name in vendor.resources}
    for name, vendor in sorted(_INSTALLED.found.items()):
        try:
            if not isinstance(vendor, Vendor) or vendor.name != name:
                raise TypeError(f"it is not a Vendor of that name but {vendor!r:.80}")
            if not taken.isdisjoint(vendor.resources):
                raise ValueError(f"{vendor.resource} is another vendor's")
        except (TypeError, ValueError) as error:
            faults[name] = f"vendor {name} could not be loaded: {told_of(error)}"
            continue
        found.append(vendor)
        taken.update(vendor.resources)
    return tuple(found)


VENDORS: Final = _load()
SEVERAL: Final = len(VENDORS) > 1
"""Whether there are GPUs of which somebody asks for none, whatever else they are."""
DEFAULT: Final = VENDORS[0]
"""Whose GPUs are meant where nothing says whose."""
GPU_RESOURCES: Final = tuple(name for vendor in VENDORS for name in vendor.resources)
PARTITION_PREFIXES: Final = tuple(vendor.partitions.resource_prefix for vendor in VENDORS if vendor.partitions)
DOMAINS: Final = tuple(f"{vendor.domain}/" for vendor in VENDORS)
DRIVERS: Final = {vendor.driver.name: vendor.driver for vendor in VENDORS if vendor.driver}
"""By name."""
NUMBER_OF_DRIVER: Final = {vendor.driver.name: number for number, vendor in enumerate(VENDORS) if vendor.driver}
PRODUCT_LABELS: Final = tuple(vendor.product_label for vendor in VENDORS if vendor.product_label)
"""Labels that name the product of a node's GPUs."""
PRODUCTS: Final = {name: product for vendor in reversed(VENDORS) for name, product in vendor.products.items()}
PRODUCT_MEMORY_MIB: Final = {name: product.memory_mib for name, product in PRODUCTS.items()}
"""By canonical name; 0 where it is not known."""
