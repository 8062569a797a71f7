"""GPU models of a trace, as the service describes them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Longs
from extender.core.resources.gpu_models import GpuModel
from extender.core.vendors.registry import PRODUCT_MEMORY_MIB

_PRODUCTS: Final = {
    "A10": "a10",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100M16": "v100-sxm2-16gb",
    "V100M32": "v100-sxm2-32gb",
}
"""Product names by the openb traces' names. The traces anonymise G1 to G3."""


def models_of(names: Sequence[str], *, product_memory: bool = False) -> tuple[list[GpuModel], Longs]:
    """Return (M,) models and the MiB of their GPUs: 0 unless `product_memory` is set and the product is known."""
    products = [_PRODUCTS.get(name, name) for name in names]
    memory = [PRODUCT_MEMORY_MIB.get(product, 0) if product_memory else 0 for product in products]
    return [GpuModel(product, (name,)) for product, name in zip(products, names, strict=True)], np.array(
        memory, np.int64
    )
