"""Names of NVIDIA's that manifests of the tests are written in."""

from typing import Final

from extender.core.vendors.nvidia import _MIG, _STRATEGY, NVIDIA

GPU_RESOURCE: Final = NVIDIA.resource
SHARED_GPU_RESOURCE: Final = NVIDIA.shared_resource
MIG_RESOURCE_PREFIX: Final = _MIG.resource_prefix
PRODUCT_LABEL: Final = NVIDIA.product_label
COUNT_LABEL: Final = NVIDIA.count_label
MEMORY_LABEL: Final = NVIDIA.memory_label
REPLICAS_LABEL: Final = NVIDIA.replicas_label
MIG_STRATEGY_LABEL: Final = _STRATEGY
DRIVER: Final = "gpu.nvidia.com"
