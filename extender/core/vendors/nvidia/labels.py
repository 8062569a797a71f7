"""What a node's labels tell of its GPUs: those of GPU Feature Discovery, else of clouds and their node provisioners.

GPU Feature Discovery: `k8s-device-plugin/internal/lm/resource.go`. GKE names the product of its catalogue, Karpenter
and EKS Auto Mode what EC2 says of the instance type, Karpenter for Azure what its catalogue says. A name that stands
for one product alone is that product; one that several sizes share (`a100`) is told apart by the memory that is
labelled too, and stays as it is where that does not tell.
"""

import re
from collections.abc import Mapping
from typing import Final

from extender.core.vendors.nvidia.products import memory_mib_of
from extender.core.vendors.vendor import Told

PRODUCT: Final = "nvidia.com/gpu.product"
STRATEGY: Final = "nvidia.com/mig.strategy"

_GKE_PRODUCT: Final = "cloud.google.com/gke-accelerator"
_GKE_COUNT: Final = "cloud.google.com/gke-accelerator-count"
_GKE_STRATEGY: Final = "cloud.google.com/gke-gpu-sharing-strategy"
_GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
_GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""Profile of the MIG devices that each GPU is cut into; they are handed out under the name of GPUs."""
_AWS: Final = ("karpenter.k8s.aws/instance-gpu-", "eks.amazonaws.com/instance-gpu-")
"""Before `name`, `manufacturer`, `count` and `memory`: by Karpenter, and by EKS Auto Mode."""
_AZURE: Final = "karpenter.azure.com/sku-gpu-"
"""Before `name`, `manufacturer` and `count`."""

_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_EKS: Final = "eks.amazonaws.com/"
"""Labels of EKS' nodes begin so: elsewhere an instance type of the same name may be another one."""

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
"""Of GKE's names those that are not the product's own: `gcloud compute accelerator-types list`, machine series by
machine series."""
_EC2_PRODUCTS: Final = {
    "v100": ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB"),
    "a100": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"),
    "h100": ("NVIDIA-H100-80GB-HBM3",),
    "rtx-pro-server-6000": ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",),
}
"""Of EC2's names those that are not the product's own, with the sizes there are (p3 and p3dn, p4d and p4de)."""
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
"""Families of instances with whole GPUs."""
_PARTITION: Final = re.compile(r"[1-7]g\.([0-9]{1,3})gb(?:\.me|\+me)?(?:\.all|\.gfx)?")
_TOLERANCE: Final = 0.12
"""Between the memory that a cloud names (a T4 of 16384 MiB) and what the driver has of it (15360). Instances with a
part of a GPU, as of EC2's g6f, name far less than the product has."""
_NUMBER: Final = re.compile(r"[0-9]{1,7}")


_NOTHING: Final = Told()


def read_labels(labels: Mapping[str, str]) -> Told:
    """What labels tell. Number, memory and replicas by GPU Feature Discovery, in labels of their own, are not among
    it: where they are, they are believed before this."""
    cloud = _read_cloud(labels)
    product = labels.get(PRODUCT, "") or cloud.product
    # With MIG's single strategy the plugin hands out MIG devices, all alike, under the name of GPUs.
    as_gpus = labels.get(STRATEGY) == "single" and "-mig-" in product.lower()
    if not as_gpus or cloud.partition:
        return cloud._replace(product=product)
    return cloud._replace(product=product, memory_mib=0, partition="single")


def _read_cloud(labels: Mapping[str, str]) -> Told:
    """What such labels tell of a node's GPUs; nothing of those that are not NVIDIA's, or that can't be read."""
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
        return Told(product, memory_mib_of(product), _number(labels, _GKE_COUNT), clients)
    found = _PARTITION.fullmatch(partition)  # how many of them a GPU has, no label tells
    return Told(product, int(found[1]) * 1024 if found else 0, 0, clients, partition)


def _of_instance_type(labels: Mapping[str, str]) -> Told:
    """By EC2's instance type, on nodes of EKS: a family has GPUs of one product alone."""
    family, _, size = labels.get(_INSTANCE_TYPE, "").partition(".")
    product = _EC2_FAMILIES.get(family, "")
    if not product or not size or not any(key.startswith(_EKS) for key in labels):
        return _NOTHING
    return Told(product, memory_mib_of(product))


def _product(name: str, memory_mib: int, *, whole: bool) -> str:
    """The product that a name stands for, told apart by its memory; the name itself where that leaves doubts."""
    if not whole:
        return name  # Azure's `a100` is of two sizes and two forms, and no label tells them apart
    products = _EC2_PRODUCTS.get(name, ())
    if len(products) > 1:
        products = tuple(product for product in products if memory_mib and _is_size(product, memory_mib))
    return products[0] if len(products) == 1 else name


def _memory_of(product: str, labelled_mib: int) -> int:
    """MiB as the driver counts them where the product is known and the label says no other size, else the label's."""
    known = memory_mib_of(product)
    return known if known and (not labelled_mib or _is_size(product, labelled_mib)) else labelled_mib


def _is_size(product: str, labelled_mib: int) -> bool:
    """Whether a label may mean the memory that a product is known to have."""
    known = memory_mib_of(product)
    return abs(labelled_mib - known) <= _TOLERANCE * known


def _number(labels: Mapping[str, str], key: str) -> int:
    """A whole number of a label, 0 where it is none."""
    text = labels.get(key, "").strip()
    return int(text) if _NUMBER.fullmatch(text) else 0
