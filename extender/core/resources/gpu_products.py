"""What no exporter tells of a GPU product: a table by canonical model name."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.resources.gpu_models import GpuModel


class Product(NamedTuple):
    """A GPU product as its data sheet describes it."""

    multiprocessors: int
    decoders: int
    encoders: int
    bandwidth_gb_s: float
    power_limit_w: float
    memory_mib: int
    """As `nvidia-smi` reports the total, for nodes without the label `nvidia.com/gpu.memory`; 0 when not known."""


# Data sheets and the NVENC/NVDEC support matrix of NVIDIA.
PRODUCTS: Final[Mapping[str, Product]] = {
    "a10": Product(72, 2, 1, 600, 150, 23028),
    "a100-80gb-pcie": Product(108, 5, 0, 1935, 300, 81920),
    "a100-pcie-40gb": Product(108, 5, 0, 1555, 250, 40960),
    "a100-sxm4-40gb": Product(108, 5, 0, 1555, 400, 40960),
    "a100-sxm4-80gb": Product(108, 5, 0, 2039, 400, 81920),
    "a30": Product(56, 4, 0, 933, 165, 24576),
    "b200": Product(148, 7, 0, 8000, 1000, 0),
    "h100-80gb-hbm3": Product(132, 7, 0, 3350, 700, 81559),
    "h100-pcie": Product(114, 7, 0, 2000, 350, 81559),
    "h200": Product(132, 7, 0, 4800, 700, 143771),
    "l4": Product(58, 4, 2, 300, 72, 23034),
    "l40s": Product(142, 3, 3, 864, 350, 46068),
    "p100-pcie-16gb": Product(56, 1, 3, 732, 250, 16384),
    "t4": Product(40, 2, 1, 320, 70, 15360),
    "v100-pcie-16gb": Product(80, 1, 3, 900, 250, 16384),
    "v100-pcie-32gb": Product(80, 1, 3, 900, 250, 32768),
    "v100-sxm2-16gb": Product(80, 1, 3, 900, 300, 16384),
    "v100-sxm2-32gb": Product(80, 1, 3, 900, 300, 32768),
}
PRODUCT_MEMORY_MIB: Final = {name: product.memory_mib for name, product in PRODUCTS.items()}


def attributes(models: Sequence[GpuModel]) -> npt.NDArray[np.float64]:
    """(5, M + 1) multiprocessors, decoders, encoders, bandwidth in GB/s and power limit in W of each model; NaN where
    the table has it not. The last column, for "no GPU" (-1), is NaN."""
    table = np.full((5, len(models) + 1), np.nan)
    for index, model in enumerate(models):
        if product := PRODUCTS.get(model.name):
            table[:, index] = product[:5]
    return table
