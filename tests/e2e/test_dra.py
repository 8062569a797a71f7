"""Pods that ask for GPUs by ResourceClaims: kube-scheduler allocates the devices, Kerf says on which node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.objects import cpu_node, gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.claims import CLAIMS, DRIVER, add_slice, device_classes, free, make_claim, selecting, submit_naming
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

A100 = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')"


@pytest.fixture
def dra(cluster: KerfCluster) -> Iterator[KerfCluster]:
    """An empty cluster with the device class that NVIDIA's driver installs."""
    selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    with device_classes(cluster, {DRIVER: selecting(selector)}):
        yield cluster


def add_driver_node(
    cluster: KerfCluster, name: str, gpus: int, product: str = "Tesla T4", memory: str = "15Gi"
) -> None:
    """A node without any device plugin, whose driver has published its GPUs; waits until Kerf knows them."""
    cluster.add_nodes(cpu_node(name))
    known = cluster.kerf.metric("kerf_gpus")
    devices = [
        {
            "name": f"gpu-{minor}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{name}-{minor}"},
                "productName": {"string": product},
                "driverVersion": {"version": "580.65.6"},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for minor in range(gpus)
    ]
    add_slice(cluster, name, DRIVER, devices)
    wait_until(lambda: cluster.kerf.metric("kerf_gpus") == known + gpus, WITHIN_S, f"Kerf knows the GPUs of {name}")


def submit(cluster: KerfCluster, name: str, count: int, *expressions: str, **spec: Any) -> None:
    """A pod with a claim of its own."""
    make_claim(cluster, name, DRIVER, *expressions, count=count)
    submit_naming(cluster, name, name, **spec)


def devices_of(cluster: KerfCluster, name: str) -> list[str]:
    """What kube-scheduler has allocated to a claim."""
    claim: Manifest = cluster.plane.request("GET", f"{CLAIMS}/{name}")
    return [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]]


def test_pods_with_claims_are_packed(dra: KerfCluster) -> None:
    add_driver_node(dra, "eight", 8)
    add_driver_node(dra, "two", 2)
    for name, count, node in (("four", 4, "eight"), ("one", 1, "two")):
        submit(dra, name, count, nodeSelector={"kubernetes.io/hostname": node})
        assert dra.node_of(name) == node
        assert len(devices_of(dra, name)) == count
    submit(dra, "next", 1)
    assert dra.node_of("next") == "two"  # leaves 0 of 2, against 3 of 8
    submit(dra, "last", 2)
    assert dra.node_of("last") == "eight"
    submit(dra, "waiting", 3)
    dra.pending("waiting", "cannot allocate all claims")
    dra.delete_pod("four")
    free(dra, "four")
    assert dra.node_of("waiting") == "eight"


def test_conditions_of_claims_are_ranked_by(dra: KerfCluster) -> None:
    add_driver_node(dra, "large", 4, product="NVIDIA A100-SXM4-40GB", memory="40Gi")
    add_driver_node(dra, "small", 4)
    submit(dra, "any", 1)
    assert dra.node_of("any") == "small"  # the smaller GPUs, for those who do not need larger ones
    submit(dra, "a100", 1, A100)
    assert dra.node_of("a100") == "large"
    submit(dra, "memory", 1, f"device.capacity['{DRIVER}'].memory.compareTo(quantity('20Gi')) >= 0")
    assert dra.node_of("memory") == "large"


def test_claims_and_device_plugins_live_side_by_side(dra: KerfCluster) -> None:
    add_driver_node(dra, "claimed", 1)
    dra.add_nodes(gpu_node("plugin", gpus=1))
    submit(dra, "by-claim", 1)
    assert dra.node_of("by-claim") == "claimed"
    dra.submit("by-resource", gpus=1)
    assert dra.node_of("by-resource") == "plugin"
    dra.submit("by-label", labels={"genius/gpu-number": "1"})
    dra.pending("by-label", "needs 1 GPU")
