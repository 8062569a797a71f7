"""What labels of clouds say of GPUs, as GKE, Karpenter, EKS Auto Mode and EKS write them."""

from extender.core.resources.nodes import GpuUnit, read_node
from tests.nvidia import GPU_RESOURCE, MEMORY_LABEL, MIG_STRATEGY_LABEL, PRODUCT_LABEL

GKE = "cloud.google.com/gke-"
AWS = "karpenter.k8s.aws/instance-gpu-"
AUTO = "eks.amazonaws.com/instance-gpu-"
AZURE = "karpenter.azure.com/sku-gpu-"
TYPE = "node.kubernetes.io/instance-type"
EKS = {"eks.amazonaws.com/nodegroup": "gpus"}


def karpenter(name: str, count: int, memory_mib: int, prefix: str = AWS) -> dict[str, str]:
    values = {"name": name, "manufacturer": "nvidia", "count": str(count), "memory": str(memory_mib)}
    return {f"{prefix}{key}": value for key, value in values.items()}


def gke(product: str, **more: str) -> dict[str, str]:
    return {f"{GKE}accelerator": product} | {f"{GKE}{key.replace('_', '-')}": value for key, value in more.items()}


SHARED = {"gpu_sharing_strategy": "time-sharing", "max_shared_clients_per_gpu": "4"}
MPS = {"gpu_sharing_strategy": "mps", "max_shared_clients_per_gpu": "2"}
A100, A100_80, H100 = "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-80gb-hbm3"


def test_gpus_by_the_labels_of_clouds() -> None:
    for labels, units, model, memory_mib, num_gpus, each in (
        (gke("nvidia-l4", **SHARED), 4, "l4", 23034, 1, 4),
        (gke("nvidia-l4", **MPS), 4, "l4", 23034, 2, 2),
        (gke("nvidia-l4", max_shared_clients_per_gpu="4"), 4, "l4", 23034, 4, 1),  # not shared
        (gke("nvidia-tesla-t4", accelerator_count="2"), 2, "t4", 15360, 2, 1),
        (gke("nvidia-tesla-a100"), 8, A100, 40960, 8, 1),
        (gke("nvidia-h100-mega-80gb"), 8, H100, 81920, 8, 1),
        (gke("nvidia-of-tomorrow"), 8, "of-tomorrow", 0, 8, 1),
        (gke("nvidia-tesla-a100", gpu_partition_size="1g.5gb"), 7, A100, 5120, 7, 1),
        (gke("nvidia-tesla-a100", gpu_partition_size="3g.20gb", **SHARED), 8, A100, 20480, 2, 4),
        (gke("tpu-v5-lite-device"), 8, "", 0, 8, 1),
        (karpenter("t4", 1, 16384), 1, "t4", 15360, 1, 1),
        (karpenter("l4", 1, 22888), 4, "l4", 23034, 1, 4),
        (karpenter("a100", 8, 40960), 8, A100, 40960, 8, 1),
        (karpenter("a100", 8, 81920), 8, A100_80, 81920, 8, 1),
        (karpenter("a100", 8, 0), 8, "a100", 0, 8, 1),  # of either size
        (karpenter("h100", 8, 81920, AUTO), 8, H100, 81920, 8, 1),
        (karpenter("l4", 1, 2861), 1, "l4", 2861, 1, 1),  # a part of a GPU
        (karpenter("radeon-pro-v520", 1, 8192) | {f"{AWS}manufacturer": "amd"}, 1, "", 0, 1, 1),
        (karpenter("t4", 1, 16384) | {f"{AWS}count": "٤", f"{AWS}memory": "-1"}, 2, "t4", 15360, 2, 1),
        ({f"{AZURE}name": "A100", f"{AZURE}manufacturer": "nvidia", f"{AZURE}count": "2"}, 2, "a100", 0, 2, 1),
        ({TYPE: "g5.12xlarge"} | EKS, 4, "a10g", 23028, 4, 1),
        ({TYPE: "g6f.xlarge"} | EKS, 1, "", 0, 1, 1),  # parts
        ({TYPE: "g5.large"}, 1, "", 0, 1, 1),  # another cloud's instance type
    ):
        offer = read_node({GPU_RESOURCE: str(units)}, labels, memory_tolerance_frac=0.02)
        gpu = offer.gpus[0]
        assert (gpu.model.name, gpu.memory_mib) == (model, memory_mib), labels
        assert (len(offer.gpus), offer.units_per_gpu) == (num_gpus, each), labels
        shared = each > 1 or f"{GKE}gpu-partition-size" in labels
        assert offer.unit is (GpuUnit.REPLICA_AS_GPU if shared else GpuUnit.WHOLE), labels
        assert (offer.allocatable_units, offer.warnings) == (units, ()), labels


def test_gpu_feature_discovery_counts_first() -> None:
    labels = gke("nvidia-l4", **SHARED) | {PRODUCT_LABEL: "NVIDIA-L4-SHARED", MEMORY_LABEL: "20000"}
    (gpu,) = read_node({GPU_RESOURCE: "4"}, labels, memory_tolerance_frac=0.0).gpus
    assert (gpu.model.name, gpu.memory_mib) == ("l4", 20000)
    # The memory of a whole GPU is not that of a MIG device.
    labels = karpenter("a100", 1, 40960) | {MIG_STRATEGY_LABEL: "single"}
    labels[PRODUCT_LABEL] = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    offer = read_node({GPU_RESOURCE: "7"}, labels)
    assert (len(offer.gpus), offer.unit, offer.gpus[0].memory_mib) == (7, GpuUnit.REPLICA_AS_GPU, 0)
