"""What labels of clouds tell of GPUs, as GKE, Karpenter, EKS Auto Mode and EKS write them."""

from collections.abc import Mapping

import pytest

from extender.core.resources.nodes import GpuUnit, read_node
from tests.nvidia import GPU_RESOURCE, MEMORY_LABEL, MIG_STRATEGY_LABEL, PRODUCT_LABEL

GKE = "cloud.google.com/gke-"
AWS = "karpenter.k8s.aws/instance-gpu-"
AUTO = "eks.amazonaws.com/instance-gpu-"
AZURE = "karpenter.azure.com/sku-gpu-"
TYPE = "node.kubernetes.io/instance-type"


def karpenter(name: str, count: int, memory_mib: int, prefix: str = AWS) -> dict[str, str]:
    values = {"name": name, "manufacturer": "nvidia", "count": str(count), "memory": str(memory_mib)}
    return {f"{prefix}{key}": value for key, value in values.items()}


def gke(product: str, **more: str) -> dict[str, str]:
    return {f"{GKE}accelerator": product} | {f"{GKE}{key.replace('_', '-')}": value for key, value in more.items()}


SHARED = {"gpu_sharing_strategy": "time-sharing", "max_shared_clients_per_gpu": "4"}


@pytest.mark.parametrize(
    ("labels", "units", "model", "memory_mib", "num_gpus", "each"),
    [
        pytest.param(gke("nvidia-l4", **SHARED), 4, "l4", 23034, 1, 4, id="GKE: one L4 in four slices"),
        pytest.param(
            gke("nvidia-l4", gpu_sharing_strategy="mps", max_shared_clients_per_gpu="2"),
            4,
            "l4",
            23034,
            2,
            2,
            id="by MPS",
        ),
        pytest.param(gke("nvidia-l4", max_shared_clients_per_gpu="4"), 4, "l4", 23034, 4, 1, id="not shared: four"),
        pytest.param(gke("nvidia-tesla-t4", accelerator_count="2"), 2, "t4", 15360, 2, 1, id="GKE: T4"),
        pytest.param(gke("nvidia-tesla-a100"), 8, "a100-sxm4-40gb", 40960, 8, 1, id="GKE: A100 of 40 GB"),
        pytest.param(gke("nvidia-h100-mega-80gb"), 8, "h100-80gb-hbm3", 81920, 8, 1, id="GKE: H100"),
        pytest.param(gke("nvidia-of-tomorrow"), 8, "of-tomorrow", 0, 8, 1, id="GKE: one of which nobody knows"),
        pytest.param(
            gke("nvidia-tesla-a100", gpu_partition_size="1g.5gb"),
            7,
            "a100-sxm4-40gb",
            5120,
            7,
            1,
            id="GKE: MIG as GPUs",
        ),
        pytest.param(
            gke("nvidia-tesla-a100", gpu_partition_size="3g.20gb", **SHARED),
            *(8, "a100-sxm4-40gb", 20480, 2, 4),
            id="GKE: MIG devices shared by four each",
        ),
        pytest.param(gke("tpu-v5-lite-device"), 8, "", 0, 8, 1, id="no GPU of NVIDIA"),
        pytest.param(karpenter("t4", 1, 16384), 1, "t4", 15360, 1, 1, id="Karpenter: as the driver counts"),
        pytest.param(karpenter("l4", 1, 22888), 4, "l4", 23034, 1, 4, id="Karpenter: one GPU, four devices"),
        pytest.param(karpenter("a100", 8, 40960), 8, "a100-sxm4-40gb", 40960, 8, 1, id="p4d"),
        pytest.param(karpenter("a100", 8, 81920), 8, "a100-sxm4-80gb", 81920, 8, 1, id="p4de"),
        pytest.param(karpenter("a100", 8, 0), 8, "a100", 0, 8, 1, id="of either size"),
        pytest.param(karpenter("h100", 8, 81920, AUTO), 8, "h100-80gb-hbm3", 81920, 8, 1, id="EKS Auto Mode"),
        pytest.param(karpenter("l4", 1, 2861), 1, "l4", 2861, 1, 1, id="a part of a GPU"),
        pytest.param(
            karpenter("radeon-pro-v520", 1, 8192) | {f"{AWS}manufacturer": "amd"}, 1, "", 0, 1, 1, id="of somebody else"
        ),
        pytest.param(
            {f"{AZURE}name": "A100", f"{AZURE}manufacturer": "nvidia", f"{AZURE}count": "2"},
            2,
            "a100",
            0,
            2,
            1,
            id="Azure",
        ),
        pytest.param({TYPE: "g5.12xlarge", "eks.amazonaws.com/nodegroup": "gpus"}, 4, "a10g", 23028, 4, 1, id="EKS"),
        pytest.param({TYPE: "g6f.xlarge", "eks.amazonaws.com/nodegroup": "gpus"}, 1, "", 0, 1, 1, id="EKS: parts"),
        pytest.param({TYPE: "g5.large"}, 1, "", 0, 1, 1, id="an instance type of somebody else"),
        pytest.param(
            karpenter("t4", 1, 16384) | {f"{AWS}count": "٤", f"{AWS}memory": "-1"},
            2,
            "t4",
            15360,
            2,
            1,
            id="no numbers",
        ),
    ],
)
def test_gpus(labels: Mapping[str, str], units: int, model: str, memory_mib: int, num_gpus: int, each: int) -> None:
    offer = read_node({GPU_RESOURCE: str(units)}, labels, memory_tolerance_frac=0.02)
    found = offer.gpus[0]
    assert (found.model.name, len(offer.gpus), offer.units_per_gpu) == (model, num_gpus, each)
    assert found.memory_mib == memory_mib
    shared = each > 1 or f"{GKE}gpu-partition-size" in labels
    assert offer.unit is (GpuUnit.REPLICA_AS_GPU if shared else GpuUnit.WHOLE)
    assert (offer.allocatable_units, offer.warnings) == (units, ())


def test_what_gpu_feature_discovery_says_counts_first() -> None:
    labels = gke("nvidia-l4", **SHARED) | {PRODUCT_LABEL: "NVIDIA-L4-SHARED", MEMORY_LABEL: "20000"}
    (gpu,) = read_node({GPU_RESOURCE: "4"}, labels, memory_tolerance_frac=0.0).gpus
    assert (gpu.model.name, gpu.memory_mib) == ("l4", 20000)


def test_the_memory_of_a_whole_gpu_is_not_that_of_a_mig_device() -> None:
    labels = karpenter("a100", 1, 40960) | {MIG_STRATEGY_LABEL: "single"}
    labels[PRODUCT_LABEL] = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    offer = read_node({GPU_RESOURCE: "7"}, labels)
    assert (len(offer.gpus), offer.unit, offer.gpus[0].memory_mib) == (7, GpuUnit.REPLICA_AS_GPU, 0)
