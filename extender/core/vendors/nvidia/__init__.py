"""NVIDIA. Resource names and habits are those of its device plugin (`k8s-device-plugin`), labels those of GPU Feature
Discovery, and of clouds where there is none."""

import re
from typing import Final

from extender.core.vendors.nvidia.exporters import EXPORTER
from extender.core.vendors.nvidia.labels import PRODUCT, read_labels
from extender.core.vendors.nvidia.mig import MIG
from extender.core.vendors.nvidia.products import BRANDS, PRODUCTS
from extender.core.vendors.vendor import Driver, Installing, Vendor

_HELM: Final = "helm upgrade --install"
_DEVICE_PLUGIN: Final = "nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin"

# NVIDIA's "XID errors" lists what each code means. Codes of applications (13, 31, 43, 45, 68, 94) say nothing of the
# GPU; these do: uncorrectable memory errors (48, 95), row remapping (64), NVLink (74), fallen off the bus (79), and
# GPU system processor errors (119, 120, 140).
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
    partitions=MIG,
    product_label=PRODUCT,
    count_label="nvidia.com/gpu.count",
    memory_label="nvidia.com/gpu.memory",
    replicas_label="nvidia.com/gpu.replicas",
    labels=read_labels,
    brands=BRANDS,
    products=PRODUCTS,
    fault_codes=_HARDWARE_XIDS,
    driver=_DRIVER,
    exporter=EXPORTER,
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
            "    # labels alone, and no second device plugin; or describe them: the node's annotation kerf.dev/gpus"
        ),
        exporter_name="DCGM",
        exporter=(
            f"{_HELM} dcgm-exporter dcgm-exporter --repo https://nvidia.github.io/dcgm-exporter/helm-charts "
            "--namespace monitoring --create-namespace"
        ),
        # Of KubeVirt's device plugin, which names the card, and of plugins that share GPUs and are not served.
        others=("nvidia.com/", "volcano.sh/vgpu-", "tencent.com/vcuda-"),
        operator_label="nvidia.com/gpu.deploy.device-plugin",
        operator_pods="nvidia-device-plugin-daemonset",
    ),
)
