"""GPU vendors: Kerf's own, and those of other packages (entry point group `kerf.vendors`).

A vendor's number, used in requests, nodes and models, is its index in `VENDORS`. It is the same in every process.
"""

from typing import Final

from extender.core.entry_points import Installed, describe_error
from extender.core.vendors.nvidia import NVIDIA as _FIRST
from extender.core.vendors.vendor import Vendor

_OWN: Final = (_FIRST,)
_INSTALLED: Final = Installed("kerf.vendors", "vendor")
faults: Final = _INSTALLED.faults
"""Why a vendor could not be loaded, by name."""


def _load() -> tuple[Vendor, ...]:
    _INSTALLED.load([vendor.name for vendor in _OWN])
    vendors, taken = list(_OWN), {name for vendor in _OWN for name in vendor.resources}
    for name, vendor in sorted(_INSTALLED.found.items()):
        try:
            if not isinstance(vendor, Vendor) or vendor.name != name:
                raise TypeError(f"it is not a Vendor of that name but {vendor!r:.80}")
            if not taken.isdisjoint(vendor.resources):
                raise ValueError(f"{vendor.resource} belongs to another vendor")
        except (TypeError, ValueError) as error:
            faults[name] = f"vendor {name} could not be loaded: {describe_error(error)}"
            continue
        vendors.append(vendor)
        taken.update(vendor.resources)
    return tuple(vendors)


VENDORS: Final = _load()
SEVERAL: Final = len(VENDORS) > 1
"""Whether requests must be matched with the vendor of GPUs."""
DEFAULT: Final = VENDORS[0]
"""The vendor of requests that don't name one."""
GPU_RESOURCES: Final = tuple(name for vendor in VENDORS for name in vendor.resources)
PARTITION_PREFIXES: Final = tuple(vendor.partitions.resource_prefix for vendor in VENDORS if vendor.partitions)
DOMAINS: Final = tuple(f"{vendor.domain}/" for vendor in VENDORS)
DRIVERS: Final = {vendor.driver.name: vendor.driver for vendor in VENDORS if vendor.driver}
"""DRA drivers by name."""
NUMBER_OF_DRIVER: Final = {vendor.driver.name: number for number, vendor in enumerate(VENDORS) if vendor.driver}
PRODUCT_LABELS: Final = tuple(vendor.product_label for vendor in VENDORS if vendor.product_label)
"""Labels with the product of a node's GPUs."""
PRODUCTS: Final = {name: product for vendor in reversed(VENDORS) for name, product in vendor.products.items()}
PRODUCT_MEMORY_MIB: Final = {name: product.memory_mib for name, product in PRODUCTS.items()}
"""MiB by canonical name, 0 if unknown."""
