"""What no exporter tells of a GPU product: a table by canonical model name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.resources.gpu_models import GpuModel


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU product as its data sheet describes it."""

    multiprocessors: int
    decoders: int
    encoders: int
    bandwidth_gb_s: float
    power_limit_w: float


# Data sheets and the NVENC/NVDEC support matrix of NVIDIA.
PRODUCTS: Final[Mapping[str, Product]] = {
    "a10": Product(72, 2, 1, 600, 150),
    "a100-80gb-pcie": Product(108, 5, 0, 1935, 300),
    "a100-pcie-40gb": Product(108, 5, 0, 1555, 250),
    "a100-sxm4-40gb": Product(108, 5, 0, 1555, 400),
    "a100-sxm4-80gb": Product(108, 5, 0, 2039, 400),
    "a30": Product(56, 4, 0, 933, 165),
    "b200": Product(148, 7, 0, 8000, 1000),
    "h100-80gb-hbm3": Product(132, 7, 0, 3350, 700),
    "h100-pcie": Product(114, 7, 0, 2000, 350),
    "h200": Product(132, 7, 0, 4800, 700),
    "l4": Product(58, 4, 2, 300, 72),
    "l40s": Product(142, 3, 3, 864, 350),
    "p100-pcie-16gb": Product(56, 1, 3, 732, 250),
    "t4": Product(40, 2, 1, 320, 70),
    "v100-pcie-16gb": Product(80, 1, 3, 900, 250),
    "v100-pcie-32gb": Product(80, 1, 3, 900, 250),
    "v100-sxm2-16gb": Product(80, 1, 3, 900, 300),
    "v100-sxm2-32gb": Product(80, 1, 3, 900, 300),
}

Attributes = npt.NDArray[np.float64]


def attributes(models: Sequence[GpuModel]) -> Attributes:
    """(5, M + 1) multiprocessors, decoders, encoders, bandwidth in GB/s and power limit in W of each model; NaN where
    the table has it not. The last column, for "no GPU" (-1), is NaN."""
    table = np.full((5, len(models) + 1), np.nan)
    for index, model in enumerate(models):
        product = PRODUCTS.get(model.name)
        if product:
            table[:, index] = (
                product.multiprocessors,
                product.decoders,
                product.encoders,
                product.bandwidth_gb_s,
                product.power_limit_w,
            )
    return table
