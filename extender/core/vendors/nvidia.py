"""NVIDIA: resources of its device plugin (`k8s-device-plugin`), labels, metrics, products and MIG.

Metrics: dcgm-exporter publishes DCGM's fields under the names in its counters file. Up to 4.8 these are the names and
units of `etc/default-counters.csv` at tag 4.5.3-4.8.2. DCGM 4.7 added twins in base units (bytes, ratios), which newer
counter files use: DCGM_FI_DEV_FB_USED_BYTES is field 1627, DCGM_FI_DEV_FB_USED, in MiB, is field 252.

Products: by canonical name; memory is what `nvidia-smi` reports.

Labels: those of GPU Feature Discovery (`k8s-device-plugin/internal/lm/resource.go`), else of clouds and node
provisioners. GKE names the product of its catalogue, Karpenter and EKS Auto Mode EC2's name for the instance type,
Karpenter for Azure that of its own catalogue. A name shared by several sizes (`a100`) is resolved by the memory label,
and stays as it is without one.

MIG: a GPU has seven compute slices, some models four (NVIDIA, "MIG User Guide", supported profiles). Profiles are those
of NVIDIA/mig-parted `deployments/systemd/config-default.yaml` 1400787, with a dot for the plus sign as in
k8s-device-plugin.
"""

import re
from collections.abc import Mapping
from typing import Final

from extender.core.gauges import Gauge
from extender.core.vendors.vendor import (
    PERCENT,
    Driver,
    Exporter,
    Installing,
    Metric,
    Partitions,
    Product,
    Slices,
    Told,
    Vendor,
    as_label,
    brands_pattern,
)

_LEGACY: Final = "dcgm-exporter up to 4.8"
_CURRENT: Final = "dcgm-exporter from 4.9"
_OBSERVERWARD: Final = "ObserverWard"
_MIB: Final = 1 / 2**20

_METRICS: Final = (
    Metric("DCGM_FI_DEV_GPU_UTIL", _LEGACY, Gauge.LOAD, PERCENT),
    Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _LEGACY, Gauge.LOAD, rank=1),  # the only load metric of MIG instances
    Metric("DCGM_FI_DEV_FB_USED", _LEGACY, Gauge.MEMORY_USED),
    Metric("DCGM_FI_DEV_FB_FREE", _LEGACY, Gauge.MEMORY_FREE),
    Metric("DCGM_FI_DEV_POWER_USAGE", _LEGACY, Gauge.POWER),
    Metric("DCGM_FI_DEV_GPU_TEMP", _LEGACY, Gauge.TEMPERATURE),
    Metric("DCGM_FI_DEV_ENC_UTIL", _LEGACY, Gauge.ENCODER, PERCENT),
    Metric("DCGM_FI_DEV_DEC_UTIL", _LEGACY, Gauge.DECODER, PERCENT),
    Metric("DCGM_FI_PROF_DRAM_ACTIVE", _LEGACY, Gauge.BANDWIDTH),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", _LEGACY, Gauge.BANDWIDTH, PERCENT, rank=1),
    Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _LEGACY, Gauge.TENSOR),
    Metric("DCGM_FI_DEV_XID_ERRORS", _LEGACY, Gauge.XID),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", _LEGACY, Gauge.ROW_REMAP_FAILED),
    Metric("DCGM_FI_DEV_FB_TOTAL", _LEGACY, Gauge.MEMORY_TOTAL),  # not in the default counters file
    Metric("DCGM_FI_DEV_GPU_UTIL_RATIO", _CURRENT, Gauge.LOAD),
    Metric("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", _CURRENT, Gauge.LOAD, rank=1),
    Metric("DCGM_FI_DEV_FB_USED_BYTES", _CURRENT, Gauge.MEMORY_USED, _MIB),
    Metric("DCGM_FI_DEV_FB_FREE_BYTES", _CURRENT, Gauge.MEMORY_FREE, _MIB),
    Metric("DCGM_FI_DEV_BOARD_POWER_WATTS", _CURRENT, Gauge.POWER),
    Metric("DCGM_FI_DEV_GPU_TEMP_CELSIUS", _CURRENT, Gauge.TEMPERATURE),
    Metric("DCGM_FI_DEV_ENC_UTIL_RATIO", _CURRENT, Gauge.ENCODER),
    Metric("DCGM_FI_DEV_DEC_UTIL_RATIO", _CURRENT, Gauge.DECODER),
    Metric("DCGM_FI_PROF_DRAM_UTIL_RATIO", _CURRENT, Gauge.BANDWIDTH),
    Metric("DCGM_FI_DEV_MEMORY_UTIL_RATIO", _CURRENT, Gauge.BANDWIDTH, rank=1),
    Metric("DCGM_FI_PROF_TENSOR_UTIL_RATIO", _CURRENT, Gauge.TENSOR),
    Metric("DCGM_FI_DEV_XID_ERROR", _CURRENT, Gauge.XID),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILED", _CURRENT, Gauge.ROW_REMAP_FAILED),
    # Genius' exporter (jiangxiaosheng/ObserverWard); it has no GPU load.
    Metric("observerward_dynamic_gpu_used_global_memory_MiB", _OBSERVERWARD, Gauge.MEMORY_USED),
    Metric("observerward_dynamic_gpu_free_global_memory_MiB", _OBSERVERWARD, Gauge.MEMORY_FREE),
    Metric("observerward_dynamic_gpu_power_usage_W", _OBSERVERWARD, Gauge.POWER),
    Metric("observerward_dynamic_gpu_encoder_utilization", _OBSERVERWARD, Gauge.ENCODER, PERCENT),
    Metric("observerward_dynamic_gpu_decoder_utilization", _OBSERVERWARD, Gauge.DECODER, PERCENT),
    Metric("observerward_dynamic_gpu_memory_utilization", _OBSERVERWARD, Gauge.BANDWIDTH, PERCENT),
    Metric("observerward_static_gpu_memory_size", _OBSERVERWARD, Gauge.MEMORY_TOTAL),  # in MiB, though it says MB
    Metric("observerward_static_gpu_multiprocessor_count", _OBSERVERWARD, Gauge.NUM_MULTIPROCESSORS),
    Metric("observerward_static_gpu_shared_decoder_count", _OBSERVERWARD, Gauge.NUM_DECODERS),
    Metric("observerward_static_gpu_shared_encoder_count", _OBSERVERWARD, Gauge.NUM_ENCODERS),
)

_EXPORTER: Final = Exporter(
    metrics=_METRICS,
    names=("dcgm-exporter", "nvidia-dcgm-exporter"),
    always="DCGM_FI_DEV_FB_USED",
    index=("gpu", "id"),
    uuid=("UUID", "uuid"),
    host=("Hostname", "hostname"),  # the latter since d5e5f510 (render_metrics.go)
    model="modelName",
    instance="GPU_I_ID",
    profile="GPU_I_PROFILE",
)


_BRAND_NAMES: Final = "nvidia|tesla|geforce|quadro"
_BRANDS: Final = brands_pattern(_BRAND_NAMES)

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
_PRODUCTS: Final[Mapping[str, Product]] = {**_DATA_CENTER, **_WORKSTATION, **_GEFORCE}


def _canonical(product: str) -> str:
    """A product's name as in the tables: "t4" for "NVIDIA-Tesla-T4"."""
    return _BRANDS.sub("", as_label(product))


def _memory_mib_of(product: str) -> int:
    """MiB of a product, 0 if unknown."""
    known = _PRODUCTS.get(_canonical(product))
    return known.memory_mib if known else 0


_PRODUCT: Final = "nvidia.com/gpu.product"
_STRATEGY: Final = "nvidia.com/mig.strategy"

_GKE_PRODUCT: Final = "cloud.google.com/gke-accelerator"
_GKE_COUNT: Final = "cloud.google.com/gke-accelerator-count"
_GKE_STRATEGY: Final = "cloud.google.com/gke-gpu-sharing-strategy"
_GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
_GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""Profile of the MIG devices on each GPU, which use the resource name of GPUs."""
_AWS: Final = ("karpenter.k8s.aws/instance-gpu-", "eks.amazonaws.com/instance-gpu-")
"""Prefixes of `name`, `manufacturer`, `count` and `memory` by Karpenter and EKS Auto Mode."""
_AZURE: Final = "karpenter.azure.com/sku-gpu-"
"""Prefix of `name`, `manufacturer` and `count`."""

_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_EKS: Final = "eks.amazonaws.com/"
"""Prefix of labels on EKS nodes: elsewhere, an instance type of the same name may be different."""

_ANY_GPU_LABEL: Final = (_GKE_PRODUCT, f"{_AWS[0]}name", f"{_AWS[1]}name", f"{_AZURE}name")

_GKE_PRODUCTS: Final = {
    "nvidia-tesla-p100": "Tesla-P100-PCIE-16GB",
    "nvidia-tesla-v100": "Tesla-V100-SXM2-16GB",
    "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h200-141gb": "NVIDIA-H200",
    "nvidia-rtx-pro-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}
"""GKE names that differ from the product's: `gcloud compute accelerator-types list`, by machine series."""
_EC2_PRODUCTS: Final = {
    "v100": ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB"),
    "a100": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"),
    "h100": ("NVIDIA-H100-80GB-HBM3",),
    "rtx-pro-server-6000": ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",),
}
"""EC2 names that differ from the product's, with all sizes (p3 and p3dn, p4d and p4de)."""
_EC2_FAMILIES: Final = {
    "g4dn": "Tesla-T4",
    "g5": "NVIDIA-A10G",
    "g5g": "NVIDIA-T4G",
    "g6": "NVIDIA-L4",
    "gr6": "NVIDIA-L4",
    "g6e": "NVIDIA-L40S",
    "p3": "Tesla-V100-SXM2-16GB",
    "p3dn": "Tesla-V100-SXM2-32GB",
    "p4d": "NVIDIA-A100-SXM4-40GB",
    "p4de": "NVIDIA-A100-SXM4-80GB",
    "p5": "NVIDIA-H100-80GB-HBM3",
    "p5e": "NVIDIA-H200",
    "p5en": "NVIDIA-H200",
    "p6-b200": "NVIDIA-B200",
}
"""Instance families with whole GPUs."""
_PARTITION: Final = re.compile(r"[1-7]g\.([0-9]{1,3})gb(?:\.me|\+me)?(?:\.all|\.gfx)?")
_TOLERANCE: Final = 0.12
"""Allowed relative difference between the memory in a cloud's label (16384 MiB for a T4) and the driver's (15360).
Instances with a part of a GPU, such as EC2's g6f, have far less."""
_NUMBER: Final = re.compile(r"[0-9]{1,7}")


_NOTHING: Final = Told()


def _read_labels(labels: Mapping[str, str]) -> Told:
    """Read the labels, except for number, memory and replicas by GPU Feature Discovery, which callers prefer."""
    cloud = _read_cloud(labels)
    product = labels.get(_PRODUCT, "") or cloud.product
    # With the MIG strategy "single", the plugin hands out equal MIG devices under the resource name of GPUs.
    as_gpus = labels.get(_STRATEGY) == "single" and "-mig-" in product.lower()
    if not as_gpus or cloud.partition:
        return cloud._replace(product=product)
    return cloud._replace(product=product, memory_mib=0, partition="single")


def _read_cloud(labels: Mapping[str, str]) -> Told:
    """Read the labels of clouds; empty for other vendors' GPUs and invalid labels."""
    if labels.keys().isdisjoint(_ANY_GPU_LABEL):
        return _of_instance_type(labels)
    if _GKE_PRODUCT in labels:
        return _of_gke(labels)
    for prefix in (*_AWS, _AZURE):
        name = labels.get(f"{prefix}name", "").strip().lower()
        if name and labels.get(f"{prefix}manufacturer", "nvidia").strip().lower() == "nvidia":
            memory_mib = _number(labels, f"{prefix}memory")
            product = _product(name, memory_mib, whole=prefix != _AZURE)
            return Told(product, _memory_of(product, memory_mib), _number(labels, f"{prefix}count"))
    return _NOTHING


def _of_gke(labels: Mapping[str, str]) -> Told:
    name = labels[_GKE_PRODUCT].strip().lower()
    if not name.startswith("nvidia-"):
        return _NOTHING
    product = _GKE_PRODUCTS.get(name, name)
    shared = labels.get(_GKE_STRATEGY, "").strip().lower() in ("time-sharing", "mps")
    clients = _number(labels, _GKE_CLIENTS) if shared else 0
    partition = labels.get(_GKE_PARTITION, "").strip().lower()
    if not partition:
        return Told(product, _memory_mib_of(product), _number(labels, _GKE_COUNT), clients)
    match = _PARTITION.fullmatch(partition)  # no label has the number of partitions
    return Told(product, int(match[1]) * 1024 if match else 0, 0, clients, partition)


def _of_instance_type(labels: Mapping[str, str]) -> Told:
    """Derive the product from EC2's instance type on EKS nodes: a family has GPUs of one product."""
    family, _, size = labels.get(_INSTANCE_TYPE, "").partition(".")
    product = _EC2_FAMILIES.get(family, "")
    if not product or not size or not any(key.startswith(_EKS) for key in labels):
        return _NOTHING
    return Told(product, _memory_mib_of(product))


def _product(name: str, memory_mib: int, *, whole: bool) -> str:
    """The product of a name, resolved by memory; the name itself where that is ambiguous."""
    if not whole:
        return name  # Azure's `a100` has two sizes and two form factors, which no label distinguishes
    products = _EC2_PRODUCTS.get(name, ())
    if len(products) > 1:
        products = tuple(product for product in products if memory_mib and _is_size(product, memory_mib))
    return products[0] if len(products) == 1 else name


def _memory_of(product: str, labelled_mib: int) -> int:
    """The product's MiB by the driver if known and consistent with the label, else the label's."""
    known = _memory_mib_of(product)
    return known if known and (not labelled_mib or _is_size(product, labelled_mib)) else labelled_mib


def _is_size(product: str, labelled_mib: int) -> bool:
    """Whether a label is consistent with the product's memory."""
    known = _memory_mib_of(product)
    return abs(labelled_mib - known) <= _TOLERANCE * known


def _number(labels: Mapping[str, str], key: str) -> int:
    """A label's whole number, 0 if missing or invalid."""
    text = labels.get(key, "").strip()
    return int(text) if _NUMBER.fullmatch(text) else 0


_PROFILES: Final = (
    *("1g.5gb", "1g.5gb.me", "1g.6gb", "1g.6gb.me", "1g.10gb", "1g.10gb.me", "1g.12gb", "1g.12gb.me", "1g.18gb"),
    *("1g.18gb.me", "1g.20gb", "1g.23gb", "1g.23gb.me", "1g.24gb", "1g.24gb-me", "1g.24gb.gfx", "1g.24gb.me"),
    *("1g.24gb.me.all", "1g.35gb", "1g.36gb", "1g.45gb", "1g.47gb", "2g.10gb", "2g.12gb", "2g.12gb.me", "2g.20gb"),
    *("2g.24gb", "2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.48gb-me", "2g.48gb.gfx", "2g.48gb.me.all"),
    *("3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb", "3g.90gb", "3g.95gb", "4g.20gb", "4g.24gb"),
    *("4g.40gb", "4g.47gb", "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.95gb", "4g.96gb", "4g.96gb.gfx"),
    *("7g.40gb", "7g.80gb", "7g.94gb", "7g.96gb", "7g.141gb", "7g.144gb", "7g.180gb", "7g.189gb"),
)
_PROFILE: Final = re.compile(r"(?:([1-7])c\.)?(([1-7])g\.[0-9]+gb)")
"""A compute instance may precede it, as in `1c.3g.20gb`, and engines follow: `+me`, `.me`, `-me`."""
_NUM_SLICES: Final = 7
_NUM_OF_FEW: Final = 4
_MODELS_OF_FEW: Final = re.compile("a30x?|rtx-pro-6000-.*")
_PROFILES_OF_FEW: Final = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "2g.48gb", "4g.96gb"})
"""Profiles of these models only. Not `1g.24gb`: it is a quarter of an RTX PRO 6000 but a seventh of other GPUs."""


def _slices(profile: str, model: str) -> Slices:
    """Compute slices of a profile, capped at the GPU's; one for an invalid profile."""
    match = _PROFILE.match(profile)
    few = (match is not None and match[2] in _PROFILES_OF_FEW) or _MODELS_OF_FEW.fullmatch(_canonical(model))
    of = _NUM_OF_FEW if few else _NUM_SLICES
    return Slices(min(int(match[1] or match[3]), of) if match else 1, of)


_MIG: Final = Partitions(
    resource_prefix="nvidia.com/mig-",
    profiles=_PROFILES,
    slices=_slices,
    strategy_label=_STRATEGY,
    in_product=re.compile(r"-mig-([1-7]g\.[0-9]+gb)"),
)


_HELM: Final = "helm upgrade --install"
_DEVICE_PLUGIN: Final = "nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin"

# From NVIDIA's "XID errors". Application errors (13, 31, 43, 45, 68, 94) say nothing about the GPU; these do:
# uncorrectable memory errors (48, 95), row remapping (64), NVLink (74), fallen off the bus (79), and GPU system
# processor errors (119, 120, 140).
_HARDWARE_XIDS: Final = frozenset({48, 64, 74, 79, 95, 119, 120, 140})

_DRIVER: Final = Driver(
    # NVIDIA/k8s-dra-driver-gpu 2240711 and kubernetes-sigs/dra-driver-nvidia-gpu 9593204, cmd/gpu-kubelet-plugin:
    # deviceinfo.go, mig.go (partitions have their GPU's UUID), partitions.go
    name="gpu.nvidia.com",
    whole="gpu",
    uuid="uuid",
    identity="uuid",
    parent="parentUUID",
    product="productName",
    compute="multiprocessors",
    index=re.compile(r"gpu-([0-9]{1,4})"),
)

NVIDIA: Final = Vendor(
    name="nvidia",
    title="NVIDIA",
    domain="nvidia.com",
    words=("nvidia", "dcgm", "nvml", "tesla", "geforce", "quadro"),
    resource="nvidia.com/gpu",
    shared_resource="nvidia.com/gpu.shared",
    partitions=_MIG,
    product_label=_PRODUCT,
    count_label="nvidia.com/gpu.count",
    memory_label="nvidia.com/gpu.memory",
    replicas_label="nvidia.com/gpu.replicas",
    labels=_read_labels,
    brands=_BRAND_NAMES,
    products=_PRODUCTS,
    fault_codes=_HARDWARE_XIDS,
    driver=_DRIVER,
    exporter=_EXPORTER,
    plugin_guide="docs/guides/nvidia-plugin.md",
    visible_devices="NVIDIA_VISIBLE_DEVICES",
    installing=Installing(
        signs=("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present"),
        plugins=re.compile(
            "nvidia[^ ]*device-plugin|(?<!rocm/)k8s-device-plugin|projecthami/hami|gpushare-device-plugin"
        ),
        plugin=(
            f"{_HELM} nvidia-device-plugin {_DEVICE_PLUGIN} "
            "--namespace nvidia-device-plugin --create-namespace --set gfd.enabled=true"
        ),
        discovery_name="GPU Feature Discovery",
        discovery=(
            f"{_HELM} gpu-feature-discovery {_DEVICE_PLUGIN} --namespace gpu-feature-discovery --create-namespace "
            "--set gfd.enabled=true --set devicePlugin.enabled=false"
            "    # labels only, no second device plugin; or describe the GPUs in the node's annotation kerf.dev/gpus"
        ),
        exporter_name="DCGM",
        exporter=(
            f"{_HELM} dcgm-exporter dcgm-exporter --repo https://nvidia.github.io/dcgm-exporter/helm-charts "
            "--namespace monitoring --create-namespace"
        ),
        # KubeVirt's device plugin, which uses the card's name, and sharing plugins that Kerf does not support.
        others=("nvidia.com/", "volcano.sh/vgpu-", "tencent.com/vcuda-"),
        operator_label="nvidia.com/gpu.deploy.device-plugin",
        operator_pods="nvidia-device-plugin-daemonset",
    ),
)
