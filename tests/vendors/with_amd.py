"""Kerf with the package of docs/examples/kerf-amd: run by `test_amd.py` in another process, as vendors load once."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from extender.cli.install.devices import devices
from extender.cli.install.kerf import CheckedCluster
from extender.core.gauges import Gauge
from extender.core.resources.gpu_models import canonical_name, describe_model
from extender.core.resources.nodes import GpuUnit, NodeOffer, NodeReading, read_node
from extender.core.resources.pod_resources import Container, RequestedGpus, requested_gpus
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.core.vendors import registry
from extender.dra.conditions import read_request
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.dra.published import read_pools
from extender.kube.memory import Manifest, MemoryCluster
from extender.plugins.pod_resources import managed_names
from extender.plugins.pods import read_pod_request
from extender.ranking.demands import asks_of, kind_of
from extender.telemetry.sources.exporters import ExporterSource
from extender.telemetry.sources.source import Access
from tests.api.services import Kerf, running
from tests.ledger.builders import node_manifest, pod_manifest, pod_object
from tests.telemetry.exporters import V4_8, Gpu, Node, dcgm_page
from tests.telemetry.servers import serving

AMD = 1
RESOURCE = "amd.com/gpu"
MI300X = {  # as the user guide of ROCm/k8s-device-plugin has it, and what the labeller writes beside it
    "amd.com/gpu.cu-count": "304",
    "amd.com/gpu.device-id": "74a1",
    "amd.com/gpu.family": "AI",
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
    "amd.com/gpu.simd-count": "1216",
    "amd.com/gpu.vram": "192G",
    "beta.amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
    "beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "8",
    "beta.amd.com/gpu.vram.192G": "8",
}


def amd_node(name: str, gpus: int = 8, labels: Mapping[str, str] = MI300X, **more: str) -> Manifest:
    manifest = node_manifest(name)
    manifest["metadata"]["labels"] = {"kubernetes.io/hostname": name, **labels}
    for amounts in (manifest["status"]["allocatable"], manifest["status"].setdefault("capacity", {})):
        amounts.update({"cpu": "96", "memory": "2Ti", RESOURCE: str(gpus), **more})
    return manifest


def amd_pod(name: str, gpus: int, **annotations: str) -> Manifest:
    manifest = pod_manifest(name, gpus, resource=RESOURCE)
    manifest["metadata"]["annotations"] = annotations
    return manifest


# What nodes and pods say


def test_the_package_is_there() -> None:
    assert [vendor.name for vendor in registry.VENDORS] == ["nvidia", "amd"]
    assert registry.faults == {}


PARTITIONED = {
    "amd.com/gpu.compute-memory-partition": "cpx_nps4",
    "amd.com/gpu.vram": "24G",
    "beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "16",
}
NODES: tuple[tuple[Mapping[str, str], int, tuple[int, GpuUnit, str, int]], ...] = (
    (MI300X, 8, (8, GpuUnit.WHOLE, "mi300x-oam", 192)),
    (MI300X, 7, (8, GpuUnit.WHOLE, "mi300x-oam", 192)),  # one is unhealthy
    (MI300X | {"amd.com/gpu.compute-memory-partition": "spx_nps1"}, 8, (8, GpuUnit.WHOLE, "mi300x-oam", 192)),
    (MI300X | PARTITIONED, 16, (16, GpuUnit.REPLICA_AS_GPU, "mi300x-oam", 24)),
    ({"amd.com/gpu.product-name": "Instinct_MI210"}, 4, (4, GpuUnit.WHOLE, "mi210", 64)),
    ({}, 2, (2, GpuUnit.WHOLE, "", 0)),  # no labeller
    ({"amd.com/gpu.vram": "lots"}, 1, (1, GpuUnit.WHOLE, "", 0)),  # not the labeller's
)
"""Labels, allocatable units; GPUs, unit, model and GiB that are read from them."""


def test_a_node_is_read() -> None:
    for labels, units, read in NODES:
        offer = read_node({RESOURCE: str(units)}, labels, capacity={RESOURCE: str(units)})
        gpu = offer.gpus[0]
        assert (len(offer.gpus), offer.unit, gpu.model.name, gpu.memory_mib / 1024) == read
        assert (offer.allocatable_units, offer.vendor, offer.warnings) == (units, AMD, ())


def test_of_a_node_with_gpus_of_two_vendors_one_s_are_counted() -> None:
    offer = read_node({RESOURCE: "2", "nvidia.com/gpu": "4"}, {})
    assert (offer.vendor, len(offer.gpus)) == (0, 4)
    assert offer.warnings == ("only GPUs of NVIDIA are used here, not those of AMD",)


def test_names_of_products() -> None:
    assert {canonical_name(name) for name in ("AMD Instinct MI300X OAM", "Instinct_MI300X_OAM")} == {"mi300x-oam"}
    assert [describe_model(name, {}).vendor for name in ("Tesla-T4", "Instinct_MI210", "unheard of")] == [0, AMD, 0]


def test_a_pod_is_read() -> None:
    assert requested_gpus([Container({RESOURCE: "2"})], [], {}) == RequestedGpus(2, vendor=AMD)
    gpus = read_pod_request(pod_object("p", 2, resource=RESOURCE)).gpus
    assert gpus == GpuRequest(2, vendor=AMD)
    assert str(gpus) == "2 AMD GPUs"
    assert RESOURCE in managed_names()


def test_nobody_asks_for_gpus_of_two_vendors() -> None:
    with pytest.raises(RequestError, match=r"amd\.com/gpu fits no node: Kerf gives a pod GPUs of one vendor"):
        requested_gpus([Container({RESOURCE: "2"}), Container({"nvidia.com/gpu": "1"})], [], {})


# Placed in one cluster


@pytest.fixture(name="kerf")
def kerf_fixture() -> Any:
    with running([amd_node("amd"), node_manifest("nvidia", 8)]) as kerf:
        yield kerf


def test_a_pod_that_asks_for_one_never_gets_the_other(kerf: Kerf) -> None:
    names = ["amd", "nvidia"]
    placed = kerf.create(amd_pod("a", 2))
    assert kerf.filter(placed, names)["NodeNames"] == ["amd"]
    assert kerf.bind(placed, "amd") == ""
    other = kerf.filter(kerf.create(pod_manifest("n", 2)), names)
    assert other["NodeNames"] == ["nvidia"]
    assert other["FailedAndUnresolvableNodes"] == {"amd": "needs 2 GPUs, only AMD GPUs here"}
    refused = kerf.filter(kerf.create(amd_pod("many", 2)), ["nvidia"])
    assert refused["FailedAndUnresolvableNodes"] == {"nvidia": "needs 2 AMD GPUs, only NVIDIA GPUs here"}
    large = amd_pod("large", 1, **{"kerf.dev/gpu-memory-each": "160Gi", "kerf.dev/gpu-model": "mi300x"})
    assert kerf.filter(kerf.create(large), names)["NodeNames"] == ["amd"]
    small = kerf.filter(kerf.create(amd_pod("small", 1, **{"kerf.dev/gpu-model": "mi210"})), names)
    assert "of model mi210, best here: 0 of that model" in small["FailedAndUnresolvableNodes"]["amd"]


def test_by_annotation_alone_gpus_of_the_first_vendor_are_asked_for(kerf: Kerf) -> None:
    pod = pod_manifest("word", 0)
    pod["metadata"]["annotations"] = {"kerf.dev/gpu-count": "1"}
    assert kerf.filter(kerf.create(pod), ["amd", "nvidia"])["NodeNames"] == ["nvidia"]  # its webhook shows it its GPUs


def test_what_is_taken_is_counted_and_told(kerf: Kerf) -> None:
    for number in range(4):
        pod = kerf.create(amd_pod(f"a{number}", 2))
        assert kerf.filter(pod, ["amd", "nvidia"])["NodeNames"] == ["amd"]
        assert kerf.bind(pod, "amd") == ""
    full = kerf.filter(kerf.create(amd_pod("late", 1)), ["amd", "nvidia"])
    assert full["FailedNodes"] == {"amd": "needs 1 AMD GPU, best here: 0 free"}
    listed = kerf.get("/nodes").json()
    assert (listed["totals"]["gpus"], listed["totals"]["gpusBooked"]) == (16, 8.0)
    shown = kerf.get("/nodes/amd").json()
    assert {gpu["model"] for gpu in shown["gpuDetails"]} == {"mi300x-oam"}
    kerf.settle()
    assert kerf.metric("kerf_gpus_by_model", gpu_model="mi300x-oam") == 8
    assert kerf.metric("kerf_gpus_booked_by_model", gpu_model="mi300x-oam") == 8
    assert kerf.metric("kerf_gpus_booked_by_model", gpu_model="t4") == 0


# What the learned rank and the simulator count


def test_a_model_of_one_vendor_serves_no_demand_for_the_other() -> None:
    models = [describe_model("Tesla-T4", {}), describe_model("Instinct_MI210", {})]
    kinds = [kind_of(read_pod_request(pod_object("p", 1, resource=name))) for name in ("nvidia.com/gpu", RESOURCE)]
    asks, _ = asks_of({kind: 1.0 for kind in kinds if kind}, models, np.array([15360, 65536]))
    assert asks.models.tolist() == [0b01, 0b10]


# By ResourceClaims


def published(node: str, *devices: Mapping[str, Any]) -> ResourceSlice:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.amd.com", "pool": pool, "nodeName": node, "devices": list(devices)}
    return msgspec.convert({"metadata": {"name": node, "uid": f"slice-{node}"}, "spec": spec}, ResourceSlice)


def device(card: int, kind: str = "amdgpu", memory: str = "206141657088", **more: str) -> dict[str, Any]:
    """As `GetDevice` of cmd/gpu-kubeletplugin/deviceinfo.go publishes it."""
    texts = {"type": kind, "family": "AI", "productName": "AMD_Instinct_MI300X_OAM", "deviceID": "0x74a1", **more}
    attributes: dict[str, Any] = {name: {"string": text} for name, text in texts.items()}
    attributes |= {"cardIndex": {"int": card}, "driverVersion": {"version": "6.10.5"}}
    capacity = {"memory": {"value": memory}, "computeUnits": {"value": "304"}, "simdUnits": {"value": "1216"}}
    return {"name": f"gpu-{card}-{128 + card}", "attributes": attributes, "capacity": capacity}


def whole(card: int) -> dict[str, Any]:
    return device(card, pciAddr=f"0000:{card:02x}:00.0")


def test_devices_of_its_driver_are_gpus() -> None:
    found = read_pools([published("n", whole(9), whole(1))], [], NodeReading())
    assert [(gpu.model.name, gpu.memory_mib, gpu.uuid) for gpu in found.offer.gpus] == [("mi300x-oam", 196608, "")] * 2
    assert (found.offer.unit, found.offer.vendor, found.driver) == (GpuUnit.CLAIM, AMD, "gpu.amd.com")
    assert found.index_of == {("n", "gpu-1-129"): 0, ("n", "gpu-9-137"): 1}
    # Partitions are those of their GPU, or not given as whole ones.
    part = device(3, "amdgpu-partition", "25767707136", parentPciAddr="0000:03:00.0")
    assert read_pools([published("n", part)], [], NodeReading()).offer.gpus == ()
    beside = read_pools([published("n", whole(3), part | {"name": "gpu-3-200"})], [], NodeReading())
    assert beside.index_of == {("n", "gpu-3-131"): 0, ("n", "gpu-3-200"): 0}


def test_a_claim_asks_for_them() -> None:
    exactly = {"deviceClassName": "gpu.amd.com", "count": 2, "selectors": [
        {"cel": {"expression": 'device.attributes["gpu.amd.com"].productName == "AMD_Instinct_MI300X_OAM"'}}
    ]}  # fmt: skip
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    claim = msgspec.convert({"metadata": {"name": "c", "namespace": "d", "uid": "c"}, "spec": spec}, ResourceClaim)
    asked = read_request([claim])
    assert asked is not None
    assert (asked.count, asked.unit, asked.vendor) == (2, AskedUnit.CLAIM, AMD)
    assert asked.include is not None
    assert asked.include.matches(describe_model("AMD_Instinct_MI300X_OAM", {}).names)


# Measured


def exported(metric: str, gpu: int, value: float, **owner: str) -> str:
    """A sample as ROCm/device-metrics-exporter writes it."""
    card = {"card_model": "0x74a1", "card_series": "AMD Instinct MI300X", "card_vendor": "AMD"}
    labels = card | {"gpu_id": str(gpu), "hostname": "amd", "pod": "", "namespace": "", "container": ""} | owner
    told = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{told}}} {value}\n"


def test_both_exporters_are_read() -> None:
    train = {"pod": "train-0", "namespace": "team", "container": "main"}
    amd = (
        "# HELP gpu_gfx_activity Graphics engine usage percentage (0 - 100)\n# TYPE gpu_gfx_activity gauge\n"
        + exported("gpu_gfx_activity", 0, 87, **train)
        + exported("gpu_gfx_activity", 1, 0)
        + exported("gpu_used_vram", 0, 120000, **train)
        + exported("gpu_used_vram", 1, 285)
        + exported("gpu_package_power", 0, 612)
    )
    pages = {"/amd": amd, "/nvidia": dcgm_page(Node("nvidia", [Gpu(0, load=0.5, used_mib=1000, uuid="GPU-0")]), V4_8)}
    with serving(lambda path, *_: (200, pages[path].encode())) as server:
        source = ExporterSource([f"{server.url}{path}" for path in pages], Access())
        samples = source.read()
        source.close()
    table = samples.table
    hosts = [table.hosts[index].names[0] for index in table.host_idx]
    at = {(host, device.number): number for number, (host, device) in enumerate(zip(hosts, table.devices, strict=True))}
    rows = [at[key] for key in (("amd", 0), ("amd", 1), ("nvidia", 0))]
    assert samples.values[Gauge.LOAD][rows].tolist() == pytest.approx([0.87, 0.0, 0.5])
    assert samples.values[Gauge.MEMORY_USED][rows].tolist() == [120000, 285, 1000]
    assert samples.values[Gauge.POWER][at["amd", 0]] == 612
    assert ("team", "train-0") in samples.pods


# Installed


async def _findings(*nodes: Manifest) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async for finding in devices(CheckedCluster(MemoryCluster(nodes), {})):
        found.setdefault(finding.what or "device plugin", []).append(finding.told)
    return found


def test_the_check_of_an_installation_looks_for_each_vendor_s() -> None:
    bare = amd_node("bare", 0, {"feature.node.kubernetes.io/amd-gpu": "true"})
    found = asyncio.run(_findings(amd_node("amd"), node_manifest("nvidia", 8), bare))
    assert "nodes with AMD cards offer no GPUs: bare" in found["device plugin"]
    assert found["AMD node labeller"] == found["GPU Feature Discovery"] == ["model and memory of all GPUs are known"]


def test_an_offer_is_somebody_s() -> None:
    assert NodeOffer().vendor == 0
