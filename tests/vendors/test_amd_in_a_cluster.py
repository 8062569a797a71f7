"""AMD and NVIDIA nodes in one cluster: the package of docs/examples/kerf-amd beside Kerf, on a real control plane."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.e2e.clusters import KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.vendors.with_amd import MI300X, RESOURCE

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def amd_node(name: str, gpus: int) -> Manifest:
    counted = {"beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": str(gpus)}
    return cpu_node(name, labels=MI300X | counted, allocatable={RESOURCE: str(gpus)})


def amd_pod(name: str, gpus: int, **options: Any) -> Manifest:
    manifest = pod(name, **options)
    manifest["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: str(gpus)}
    return manifest


@pytest.fixture
def cluster(clusters: Clusters, amd_site: Path, tmp_path_factory: pytest.TempPathFactory) -> KerfCluster:
    """With `amd.com/gpu` among the resources of the first entry."""
    config = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
    config["extenders"][0]["managedResources"].append({"name": RESOURCE})
    path = tmp_path_factory.mktemp("config") / "with-amd.yaml"
    path.write_text(yaml.safe_dump(config))
    kubeconfig = str(clusters.plane.kubeconfig("kerf"))
    return clusters.open(path, "--kubeconfig", kubeconfig, PYTHONPATH=str(amd_site), KERF_MODEL__MODE="off")


def test_each_pod_gets_gpus_of_the_vendor_that_it_asks_for(cluster: KerfCluster) -> None:
    cluster.add_nodes(amd_node("amd", 4), gpu_node("nvidia", gpus=4))
    for number in range(2):
        cluster.create(amd_pod(f"amd-{number}", 2))
        cluster.submit(f"nvidia-{number}", 2)
    for vendor in ("amd", "nvidia"):
        bound = [cluster.bound(f"{vendor}-{number}") for number in range(2)]
        assert {found["spec"]["nodeName"] for found in bound} == {vendor}
        assert sorted(gpu for found in bound for gpu in assigned_gpus(found)) == [0, 1, 2, 3]
    # Each waits for its own, though the other's are free.
    cluster.delete_pod("nvidia-0")
    cluster.create(amd_pod("late", 2))
    cluster.pending("late", "Insufficient amd.com/gpu")
    cluster.delete_pod("amd-1")
    assert cluster.bound("late")["spec"]["nodeName"] == "amd"
    cluster.delete_pod("amd-0")  # else kube-scheduler asks nobody
    cluster.create(amd_pod("large", 1, annotations={"kerf.dev/gpu-memory-each": "256Gi"}))
    assert "best here: 0 of that size" in cluster.pending("large", "needs 1 AMD GPU with 256 GiB")
