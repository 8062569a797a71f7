"""What labels and exporters seldom tell of a product, by canonical name. Memory is what `nvidia-smi` reports."""

from collections.abc import Mapping
from typing import Final

from extender.core.vendors.names import as_label, brands_pattern
from extender.core.vendors.vendor import Product

BRANDS: Final = "nvidia|tesla|geforce|quadro"
_BRANDS: Final = brands_pattern(BRANDS)

# Data sheets and the NVENC/NVDEC support matrix of NVIDIA. Boards of several GPUs (A16, M60) count per GPU.
_DATA_CENTER: Final[Mapping[str, Product]] = {
    "a10": Product(72, 2, 1, 600, 150, 23028),
    "a10g": Product(80, 2, 1, 600, 300, 23028),
    "a100-80gb-pcie": Product(108, 5, 0, 1935, 300, 81920),
    "a100-pcie-40gb": Product(108, 5, 0, 1555, 250, 40960),
    "a100-sxm4-40gb": Product(108, 5, 0, 1555, 400, 40960),
    "a100-sxm4-80gb": Product(108, 5, 0, 2039, 400, 81920),
    "a100x": Product(108, 5, 0, 2039, 300, 81920),
    "a16": Product(10, 2, 1, 200, 62.5, 15356),
    "a2": Product(10, 2, 1, 200, 60, 15356),
    "a30": Product(56, 4, 0, 933, 165, 24576),
    "a30x": Product(56, 4, 0, 1223, 230, 24576),
    "a40": Product(84, 2, 1, 696, 300, 46068),
    "a800-40gb-active": Product(108, 5, 0, 1555, 240, 40960),
    "a800-80gb-pcie": Product(108, 5, 0, 1935, 300, 81920),
    "a800-sxm4-40gb": Product(108, 5, 0, 1555, 400, 40960),
    "a800-sxm4-80gb": Product(108, 5, 0, 2039, 400, 81920),
    "b200": Product(148, 7, 0, 8000, 1000, 183359),
    "b300-sxm6-ac": Product(148, 7, 0, 8000, 1100, 275040),
    "gb200": Product(152, 7, 0, 8000, 1200, 189471),
    "gb300": Product(152, 7, 0, 8000, 1400),
    "gh200-120gb": Product(132, 7, 0, 4000, 900, 97871),
    "gh200-480gb": Product(132, 7, 0, 4000, 900, 97871),
    "h100-80gb-hbm3": Product(132, 7, 0, 3350, 700, 81559),
    "h100-nvl": Product(132, 7, 0, 3938, 400, 95830),
    "h100-pcie": Product(114, 7, 0, 2000, 350, 81559),
    "h20": Product(78, 7, 0, 4000, 400, 97871),
    "h20-3e": Product(78, 7, 0, 4800, 400),
    "h200": Product(132, 7, 0, 4800, 700, 143771),
    "h200-nvl": Product(132, 7, 0, 4800, 600, 143771),
    "h800": Product(132, 7, 0, 3350, 700, 81559),
    "h800-pcie": Product(114, 7, 0, 2000, 350, 81559),
    "l20": Product(92, 3, 3, 864, 275, 46068),
    "l4": Product(58, 4, 2, 300, 72, 23034),
    "l40": Product(142, 3, 3, 864, 300, 46068),
    "l40s": Product(142, 3, 3, 864, 350, 46068),
    "m40": Product(24, 1, 2, 288, 250),
    "m60": Product(16, 1, 2, 160, 150),
    "p100-pcie-12gb": Product(56, 1, 3, 549, 250, 12288),
    "p100-pcie-16gb": Product(56, 1, 3, 732, 250, 16384),
    "p100-sxm2-16gb": Product(56, 1, 3, 732, 300, 16384),
    "p4": Product(20, 1, 2, 192, 75),
    "p40": Product(30, 1, 2, 346, 250),
    "t4": Product(40, 2, 1, 320, 70, 15360),
    "t4g": Product(40, 2, 1, 320, 70, 15360),
    "v100-pcie-16gb": Product(80, 1, 3, 900, 250, 16384),
    "v100-pcie-32gb": Product(80, 1, 3, 900, 250, 32768),
    "v100-sxm2-16gb": Product(80, 1, 3, 900, 300, 16384),
    "v100-sxm2-32gb": Product(80, 1, 3, 900, 300, 32768),
    "v100-sxm3-32gb": Product(80, 1, 3, 981, 350, 32768),
    "v100s-pcie-32gb": Product(80, 1, 3, 1134, 250, 32768),
}
_WORKSTATION: Final[Mapping[str, Product]] = {
    "rtx-2000-ada-generation": Product(22, 1, 1, 224, 70, 16380),
    "rtx-4000": Product(36, 2, 1, 416, 160),
    "rtx-4000-ada-generation": Product(48, 2, 2, 360, 130, 20475),
    "rtx-4000-sff-ada-generation": Product(48, 2, 2, 280, 70, 20475),
    "rtx-4500-ada-generation": Product(60, 2, 2, 432, 210, 24570),
    "rtx-5000": Product(48, 2, 1, 448, 230),
    "rtx-5000-ada-generation": Product(100, 2, 2, 576, 250, 32760),
    "rtx-5880-ada-generation": Product(110, 3, 3, 960, 285, 49140),
    "rtx-6000": Product(72, 1, 1, 672, 260),
    "rtx-6000-ada-generation": Product(142, 3, 3, 960, 300, 49140),
    "rtx-8000": Product(72, 1, 1, 672, 260),
    "rtx-a2000": Product(26, 1, 1, 288, 70, 6138),
    "rtx-a2000-12gb": Product(26, 1, 1, 288, 70, 12282),
    "rtx-a4000": Product(48, 1, 1, 448, 140, 16376),
    "rtx-a4500": Product(56, 2, 1, 640, 200, 20470),
    "rtx-a5000": Product(64, 2, 1, 768, 230, 24564),
    "rtx-a5500": Product(80, 2, 1, 768, 230, 24564),
    "rtx-a6000": Product(84, 2, 1, 768, 300, 49140),
    "rtx-pro-2000-blackwell": Product(34, 1, 1, 288, 70),
    "rtx-pro-4000-blackwell": Product(70, 2, 2, 672, 140),
    "rtx-pro-4500-blackwell": Product(82, 2, 2, 896, 200),
    "rtx-pro-5000-blackwell": Product(110, 3, 3, 1344, 300),
    "rtx-pro-6000-blackwell-max-q-workstation-edition": Product(188, 4, 4, 1792, 300, 97887),
    "rtx-pro-6000-blackwell-server-edition": Product(188, 4, 4, 1597, 600, 97887),
    "rtx-pro-6000-blackwell-workstation-edition": Product(188, 4, 4, 1792, 600, 97887),
    "titan-rtx": Product(72, 1, 1, 672, 280),
    "titan-v": Product(80, 1, 3, 653, 250),
    "titan-xp": Product(30, 1, 2, 548, 250),
}
_GEFORCE: Final[Mapping[str, Product]] = {
    "gtx-1070": Product(15, 1, 2, 256, 150, 8192),
    "gtx-1070-ti": Product(19, 1, 2, 256, 180, 8192),
    "gtx-1080": Product(20, 1, 2, 320, 180, 8192),
    "gtx-1080-ti": Product(28, 1, 2, 484, 250, 11264),
    "gtx-1660-ti": Product(24, 1, 1, 288, 120, 6144),
    "rtx-2060": Product(30, 1, 1, 336, 160),
    "rtx-2070": Product(36, 1, 1, 448, 175, 8192),
    "rtx-2070-super": Product(40, 1, 1, 448, 215, 8192),
    "rtx-2080": Product(46, 1, 1, 448, 215, 8192),
    "rtx-2080-super": Product(48, 1, 1, 496, 250, 8192),
    "rtx-2080-ti": Product(68, 1, 1, 616, 250, 11264),
    "rtx-3060": Product(28, 1, 1, 360, 170),
    "rtx-3060-ti": Product(38, 1, 1, 448, 200, 8192),
    "rtx-3070": Product(46, 1, 1, 448, 220, 8192),
    "rtx-3070-ti": Product(48, 1, 1, 608, 290, 8192),
    "rtx-3080": Product(68, 1, 1, 760, 320),
    "rtx-3080-ti": Product(80, 1, 1, 912, 350, 12288),
    "rtx-3090": Product(82, 1, 1, 936, 350, 24576),
    "rtx-3090-ti": Product(84, 1, 1, 1008, 450, 24564),
    "rtx-4060": Product(24, 1, 1, 272, 115, 8188),
    "rtx-4060-ti": Product(34, 1, 1, 288, 160),
    "rtx-4070": Product(46, 1, 1, 504, 200, 12282),
    "rtx-4070-super": Product(56, 1, 1, 504, 220, 12282),
    "rtx-4070-ti": Product(60, 1, 2, 504, 285, 12282),
    "rtx-4070-ti-super": Product(66, 1, 2, 672, 285, 16376),
    "rtx-4080": Product(76, 1, 2, 717, 320, 16376),
    "rtx-4080-super": Product(80, 1, 2, 736, 320, 16376),
    "rtx-4090": Product(128, 1, 2, 1008, 450, 24564),
    "rtx-4090-d": Product(114, 1, 2, 1008, 425, 24564),
    "rtx-5060": Product(30, 1, 1, 448, 145),
    "rtx-5060-ti": Product(36, 1, 1, 448, 180),
    "rtx-5070": Product(48, 1, 1, 672, 250, 12227),
    "rtx-5070-ti": Product(70, 1, 2, 896, 300, 16303),
    "rtx-5080": Product(84, 2, 2, 960, 360, 16303),
    "rtx-5090": Product(170, 2, 3, 1792, 575, 32607),
    "rtx-5090-d": Product(170, 2, 3, 1792, 575, 32607),
}
PRODUCTS: Final[Mapping[str, Product]] = {**_DATA_CENTER, **_WORKSTATION, **_GEFORCE}


def canonical(product: str) -> str:
    """A product's name as the table has it: "NVIDIA-Tesla-T4" is "t4"."""
    return _BRANDS.sub("", as_label(product))


def memory_mib_of(product: str) -> int:
    """MiB of a product, 0 where that is not known."""
    found = PRODUCTS.get(canonical(product))
    return found.memory_mib if found else 0
