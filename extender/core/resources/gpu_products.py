"""What exporters seldom tell of a GPU product: a table by canonical model name."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.resources.gpu_models import GpuModel


class _Product(NamedTuple):
    """A GPU product as its data sheet describes it."""

    multiprocessors: int
    decoders: int
    encoders: int
    bandwidth_gb_s: float
    power_limit_w: float
    memory_mib: int = 0
    """As `nvidia-smi` reports the total, for nodes without the label `nvidia.com/gpu.memory`; 0 when not known, or when
    products of several sizes have one name."""


# Data sheets and the NVENC/NVDEC support matrix of NVIDIA. Boards of several GPUs (A16, M60) count per GPU.
_DATA_CENTER: Final[Mapping[str, _Product]] = {
    "a10": _Product(72, 2, 1, 600, 150, 23028),
    "a10g": _Product(80, 2, 1, 600, 300, 23028),
    "a100-80gb-pcie": _Product(108, 5, 0, 1935, 300, 81920),
    "a100-pcie-40gb": _Product(108, 5, 0, 1555, 250, 40960),
    "a100-sxm4-40gb": _Product(108, 5, 0, 1555, 400, 40960),
    "a100-sxm4-80gb": _Product(108, 5, 0, 2039, 400, 81920),
    "a100x": _Product(108, 5, 0, 2039, 300, 81920),
    "a16": _Product(10, 2, 1, 200, 62.5, 15356),
    "a2": _Product(10, 2, 1, 200, 60, 15356),
    "a30": _Product(56, 4, 0, 933, 165, 24576),
    "a30x": _Product(56, 4, 0, 1223, 230, 24576),
    "a40": _Product(84, 2, 1, 696, 300, 46068),
    "a800-40gb-active": _Product(108, 5, 0, 1555, 240, 40960),
    "a800-80gb-pcie": _Product(108, 5, 0, 1935, 300, 81920),
    "a800-sxm4-40gb": _Product(108, 5, 0, 1555, 400, 40960),
    "a800-sxm4-80gb": _Product(108, 5, 0, 2039, 400, 81920),
    "b200": _Product(148, 7, 0, 8000, 1000, 183359),
    "b300-sxm6-ac": _Product(148, 7, 0, 8000, 1100, 275040),
    "gb200": _Product(152, 7, 0, 8000, 1200, 189471),
    "gb300": _Product(152, 7, 0, 8000, 1400),
    "gh200-120gb": _Product(132, 7, 0, 4000, 900, 97871),
    "gh200-480gb": _Product(132, 7, 0, 4000, 900, 97871),
    "h100-80gb-hbm3": _Product(132, 7, 0, 3350, 700, 81559),
    "h100-nvl": _Product(132, 7, 0, 3938, 400, 95830),
    "h100-pcie": _Product(114, 7, 0, 2000, 350, 81559),
    "h20": _Product(78, 7, 0, 4000, 400, 97871),
    "h20-3e": _Product(78, 7, 0, 4800, 400),
    "h200": _Product(132, 7, 0, 4800, 700, 143771),
    "h200-nvl": _Product(132, 7, 0, 4800, 600, 143771),
    "h800": _Product(132, 7, 0, 3350, 700, 81559),
    "h800-pcie": _Product(114, 7, 0, 2000, 350, 81559),
    "l20": _Product(92, 3, 3, 864, 275, 46068),
    "l4": _Product(58, 4, 2, 300, 72, 23034),
    "l40": _Product(142, 3, 3, 864, 300, 46068),
    "l40s": _Product(142, 3, 3, 864, 350, 46068),
    "m40": _Product(24, 1, 2, 288, 250),
    "m60": _Product(16, 1, 2, 160, 150),
    "p100-pcie-12gb": _Product(56, 1, 3, 549, 250, 12288),
    "p100-pcie-16gb": _Product(56, 1, 3, 732, 250, 16384),
    "p100-sxm2-16gb": _Product(56, 1, 3, 732, 300, 16384),
    "p4": _Product(20, 1, 2, 192, 75),
    "p40": _Product(30, 1, 2, 346, 250),
    "t4": _Product(40, 2, 1, 320, 70, 15360),
    "t4g": _Product(40, 2, 1, 320, 70, 15360),
    "v100-pcie-16gb": _Product(80, 1, 3, 900, 250, 16384),
    "v100-pcie-32gb": _Product(80, 1, 3, 900, 250, 32768),
    "v100-sxm2-16gb": _Product(80, 1, 3, 900, 300, 16384),
    "v100-sxm2-32gb": _Product(80, 1, 3, 900, 300, 32768),
    "v100-sxm3-32gb": _Product(80, 1, 3, 981, 350, 32768),
    "v100s-pcie-32gb": _Product(80, 1, 3, 1134, 250, 32768),
}
_WORKSTATION: Final[Mapping[str, _Product]] = {
    "rtx-2000-ada-generation": _Product(22, 1, 1, 224, 70, 16380),
    "rtx-4000": _Product(36, 2, 1, 416, 160),
    "rtx-4000-ada-generation": _Product(48, 2, 2, 360, 130, 20475),
    "rtx-4000-sff-ada-generation": _Product(48, 2, 2, 280, 70, 20475),
    "rtx-4500-ada-generation": _Product(60, 2, 2, 432, 210, 24570),
    "rtx-5000": _Product(48, 2, 1, 448, 230),
    "rtx-5000-ada-generation": _Product(100, 2, 2, 576, 250, 32760),
    "rtx-5880-ada-generation": _Product(110, 3, 3, 960, 285, 49140),
    "rtx-6000": _Product(72, 1, 1, 672, 260),
    "rtx-6000-ada-generation": _Product(142, 3, 3, 960, 300, 49140),
    "rtx-8000": _Product(72, 1, 1, 672, 260),
    "rtx-a2000": _Product(26, 1, 1, 288, 70, 6138),
    "rtx-a2000-12gb": _Product(26, 1, 1, 288, 70, 12282),
    "rtx-a4000": _Product(48, 1, 1, 448, 140, 16376),
    "rtx-a4500": _Product(56, 2, 1, 640, 200, 20470),
    "rtx-a5000": _Product(64, 2, 1, 768, 230, 24564),
    "rtx-a5500": _Product(80, 2, 1, 768, 230, 24564),
    "rtx-a6000": _Product(84, 2, 1, 768, 300, 49140),
    "rtx-pro-2000-blackwell": _Product(34, 1, 1, 288, 70),
    "rtx-pro-4000-blackwell": _Product(70, 2, 2, 672, 140),
    "rtx-pro-4500-blackwell": _Product(82, 2, 2, 896, 200),
    "rtx-pro-5000-blackwell": _Product(110, 3, 3, 1344, 300),
    "rtx-pro-6000-blackwell-max-q-workstation-edition": _Product(188, 4, 4, 1792, 300, 97887),
    "rtx-pro-6000-blackwell-server-edition": _Product(188, 4, 4, 1597, 600, 97887),
    "rtx-pro-6000-blackwell-workstation-edition": _Product(188, 4, 4, 1792, 600, 97887),
    "titan-rtx": _Product(72, 1, 1, 672, 280),
    "titan-v": _Product(80, 1, 3, 653, 250),
    "titan-xp": _Product(30, 1, 2, 548, 250),
}
_GEFORCE: Final[Mapping[str, _Product]] = {
    "gtx-1070": _Product(15, 1, 2, 256, 150, 8192),
    "gtx-1070-ti": _Product(19, 1, 2, 256, 180, 8192),
    "gtx-1080": _Product(20, 1, 2, 320, 180, 8192),
    "gtx-1080-ti": _Product(28, 1, 2, 484, 250, 11264),
    "gtx-1660-ti": _Product(24, 1, 1, 288, 120, 6144),
    "rtx-2060": _Product(30, 1, 1, 336, 160),
    "rtx-2070": _Product(36, 1, 1, 448, 175, 8192),
    "rtx-2070-super": _Product(40, 1, 1, 448, 215, 8192),
    "rtx-2080": _Product(46, 1, 1, 448, 215, 8192),
    "rtx-2080-super": _Product(48, 1, 1, 496, 250, 8192),
    "rtx-2080-ti": _Product(68, 1, 1, 616, 250, 11264),
    "rtx-3060": _Product(28, 1, 1, 360, 170),
    "rtx-3060-ti": _Product(38, 1, 1, 448, 200, 8192),
    "rtx-3070": _Product(46, 1, 1, 448, 220, 8192),
    "rtx-3070-ti": _Product(48, 1, 1, 608, 290, 8192),
    "rtx-3080": _Product(68, 1, 1, 760, 320),
    "rtx-3080-ti": _Product(80, 1, 1, 912, 350, 12288),
    "rtx-3090": _Product(82, 1, 1, 936, 350, 24576),
    "rtx-3090-ti": _Product(84, 1, 1, 1008, 450, 24564),
    "rtx-4060": _Product(24, 1, 1, 272, 115, 8188),
    "rtx-4060-ti": _Product(34, 1, 1, 288, 160),
    "rtx-4070": _Product(46, 1, 1, 504, 200, 12282),
    "rtx-4070-super": _Product(56, 1, 1, 504, 220, 12282),
    "rtx-4070-ti": _Product(60, 1, 2, 504, 285, 12282),
    "rtx-4070-ti-super": _Product(66, 1, 2, 672, 285, 16376),
    "rtx-4080": _Product(76, 1, 2, 717, 320, 16376),
    "rtx-4080-super": _Product(80, 1, 2, 736, 320, 16376),
    "rtx-4090": _Product(128, 1, 2, 1008, 450, 24564),
    "rtx-4090-d": _Product(114, 1, 2, 1008, 425, 24564),
    "rtx-5060": _Product(30, 1, 1, 448, 145),
    "rtx-5060-ti": _Product(36, 1, 1, 448, 180),
    "rtx-5070": _Product(48, 1, 1, 672, 250, 12227),
    "rtx-5070-ti": _Product(70, 1, 2, 896, 300, 16303),
    "rtx-5080": _Product(84, 2, 2, 960, 360, 16303),
    "rtx-5090": _Product(170, 2, 3, 1792, 575, 32607),
    "rtx-5090-d": _Product(170, 2, 3, 1792, 575, 32607),
}
_PRODUCTS: Final[Mapping[str, _Product]] = {**_DATA_CENTER, **_WORKSTATION, **_GEFORCE}
PRODUCT_MEMORY_MIB: Final = {name: product.memory_mib for name, product in _PRODUCTS.items()}


def attributes(models: Sequence[GpuModel]) -> npt.NDArray[np.float64]:
    """(5, M + 1) multiprocessors, decoders, encoders, bandwidth in GB/s and power limit in W of each model; NaN where
    the table has it not. The last column, for "no GPU" (-1), is NaN."""
    table = np.full((5, len(models) + 1), np.nan)
    for index, model in enumerate(models):
        if product := _PRODUCTS.get(model.name):
            table[:, index] = product[:5]
    return table
