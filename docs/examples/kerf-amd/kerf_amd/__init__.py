"""AMD GPUs for Kerf: what ROCm's device plugin, node labeller, DRA driver and metrics exporter write.

Read in ROCm/k8s-device-plugin ed764684 (`cmd/k8s-node-labeller/main.go`, and the user guide's configuration),
ROCm/k8s-gpu-dra-driver 2622427 (`cmd/gpu-kubeletplugin/deviceinfo.go`) and ROCm/device-metrics-exporter afd0fe81
(`pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go`, and its list of metrics).
"""

import re
from collections.abc import Mapping

from extender.core.gauges import Gauge
from extender.core.vendors.vendor import PERCENT, Driver, Exporter, Installing, Metric, Product, Told, Vendor

PRODUCT = "amd.com/gpu.product-name"
VRAM = "amd.com/gpu.vram"
PARTITION = "amd.com/gpu.compute-memory-partition"
COUNTED = "beta.amd.com/gpu.product-name."
"""Before a product: how many of it a node has."""

_WHOLE = "spx"
"""How the partition of a GPU that is not divided begins: `spx_nps1`."""
_GIB = re.compile(r"([0-9]{1,4})G")
_PLUGIN = (
    "helm upgrade --install amd-gpu amd-gpu --repo https://rocm.github.io/k8s-device-plugin "
    "--namespace kube-system --set labeller.enabled=true"
)
"""Installs the device plugin, and the node labeller with it."""


def read_labels(labels: Mapping[str, str]) -> Told:
    """What the node labeller tells. The memory is that of a partition where GPUs are divided."""
    size = _GIB.fullmatch(labels.get(VRAM, ""))
    counts = [int(text) for key, text in labels.items() if key.startswith(COUNTED) and text.isdecimal()]
    partition = labels.get(PARTITION, "")
    return Told(
        product=labels.get(PRODUCT, ""),
        memory_mib=int(size[1]) * 1024 if size else 0,
        num_gpus=sum(counts),
        partition="" if partition.startswith(_WHOLE) else partition,
    )


def _metrics(prefix: str, exporter: str) -> tuple[Metric, ...]:
    """Percentages, MiB, W and degrees Celsius."""
    return (
        Metric(f"{prefix}gpu_gfx_activity", exporter, Gauge.LOAD, PERCENT),
        Metric(f"{prefix}gpu_used_vram", exporter, Gauge.MEMORY_USED),
        Metric(f"{prefix}gpu_free_vram", exporter, Gauge.MEMORY_FREE),
        Metric(f"{prefix}gpu_total_vram", exporter, Gauge.MEMORY_TOTAL),
        Metric(f"{prefix}gpu_umc_activity", exporter, Gauge.BANDWIDTH, PERCENT),
        Metric(f"{prefix}gpu_package_power", exporter, Gauge.POWER),
        Metric(f"{prefix}gpu_average_package_power", exporter, Gauge.POWER, rank=1),  # of MI2xx
        Metric(f"{prefix}gpu_junction_temperature", exporter, Gauge.TEMPERATURE),
        Metric(f"{prefix}gpu_edge_temperature", exporter, Gauge.TEMPERATURE, rank=1),  # of MI2xx
    )


AMD = Vendor(
    name="amd",
    title="AMD",
    domain="amd.com",
    words=("amd", "rocm", "radeon", "instinct"),
    resource="amd.com/gpu",
    product_label=PRODUCT,
    sizes_by=(VRAM,),
    labels=read_labels,
    brands="amd|instinct|radeon",
    products={
        # Compute units, decoders, encoders, GB/s, W; memory as amd-smi reports it.
        "mi210": Product(104, 0, 0, 1638, 300, 65520),
        "mi300x": Product(304, 4, 0, 5300, 750, 196592),
        "mi300x-oam": Product(304, 4, 0, 5300, 750, 196592),
        "mi325x": Product(304, 4, 0, 6000, 1000, 262128),
    },
    driver=Driver(
        name="gpu.amd.com",
        whole="amdgpu",
        identity="pciAddr",
        parent="parentPciAddr",
        product="productName",
        compute="computeUnits",
        index=re.compile(r"gpu-([0-9]{1,4})-[0-9]+"),
    ),
    exporter=Exporter(
        # With the prefix that the exporter's configuration suggests, and without.
        metrics=(
            *_metrics("", "AMD Device Metrics Exporter"),
            *_metrics("amd_", "AMD Device Metrics Exporter, prefixed"),
        ),
        names=("amdgpu-metrics-exporter", "amd-device-metrics-exporter", "device-metrics-exporter"),
        always="gpu_used_vram",
        index=("gpu_id",),
        uuid=("gpu_uuid",),
        host=("hostname",),
        model="card_series",
    ),
    installing=Installing(
        signs=("feature.node.kubernetes.io/pci-0300_1002.present", "feature.node.kubernetes.io/amd-gpu"),
        plugins=re.compile("rocm/k8s-device-plugin"),
        plugin=_PLUGIN,
        discovery_name="AMD node labeller",
        discovery=f"{_PLUGIN}    # or describe them: the node's annotation kerf.dev/gpus",
        exporter_name="AMD metrics",
        exporter=(
            "helm upgrade --install exporter device-metrics-exporter-charts --repo "
            "https://rocm.github.io/device-metrics-exporter --namespace monitoring --create-namespace"
        ),
    ),
)
