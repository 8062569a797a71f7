"""What a node offers by its annotation, its labels and the kubelet, and if one of them can't be parsed."""

import json
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from extender.core.resources.nodes import NO_GPUS, Gpu, GpuUnit, NodeOffer, NodeReading
from extender.kube import objects
from extender.plugins.kerf import GPUS
from extender.plugins.nodes import read_capacity, read_offer
from tests.ledger.builders import node_manifest

GPU = "nvidia.com/gpu"
A100 = {"index": 0, "uuid": "GPU-a", "model": "A100-SXM4-40GB", "memory_mib": 40536, "numa": 0, "link": 0}
T4 = {"index": 1, "uuid": "GPU-b", "model": "Tesla-T4", "memory_mib": 15360, "numa": 1, "link": 1}


def node(gpus: Any = None, allocatable: dict[str, str] | None = None, **labels: str) -> objects.Node:
    """A node with the annotation `gpus`, as JSON unless it is text, and labels of nvidia.com."""
    annotations = {} if gpus is None else {GPUS: gpus if isinstance(gpus, str) else json.dumps(gpus)}
    named = {f"nvidia.com/{name.replace('_', '.')}": text for name, text in labels.items()}
    metadata = {"name": "n", "annotations": annotations, "labels": named}
    return msgspec.convert({"metadata": metadata, "status": {"allocatable": allocatable or {}}}, objects.Node)


def offer(gpus: Any = None, allocatable: dict[str, str] | None = None, **labels: str) -> NodeOffer:
    return read_offer(node(gpus, allocatable, **labels), NodeReading())


def test_the_annotation_describes_each_gpu_before_labels_and_in_units_of_the_plugin() -> None:
    described = offer([A100, {**T4, "nvlink_gbps": 600}])
    assert [(gpu.model.name, gpu.memory_mib, gpu.uuid, gpu.numa, gpu.link) for gpu in described.gpus] == [
        ("a100-sxm4-40gb", 40960, "GPU-a", 0, 0),
        ("t4", 15360, "GPU-b", 1, 1),
    ]
    assert (described.unit, described.allocatable_units, described.withheld_units) == (GpuUnit.WHOLE, 2, 0)
    sliced = offer([A100, T4], {GPU: "8"}, gpu_product="Tesla-T4", gpu_replicas="4", gpu_count="2")
    assert [gpu.model.name for gpu in sliced.gpus] == ["a100-sxm4-40gb", "t4"]
    assert (sliced.unit, sliced.units_per_gpu, sliced.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 4, 8)
    assert offer([], {GPU: "4"}) == NO_GPUS


def test_units() -> None:
    unhealthy = {**T4, "healthy": False}
    rows: list[tuple[list[Any], dict[str, str], int, int]] = [
        ([A100, T4], {GPU: "1"}, 1, 1),  # the kubelet offers fewer: one is withheld
        ([A100, T4], {GPU: "0"}, 0, 2),  # its plugin is down
        ([A100, T4], {GPU: "4"}, 2, 0),  # no more than are described
        ([A100, unhealthy], {GPU: "1"}, 1, 0),
        ([A100, unhealthy], {}, 1, 0),  # no plugin: what is healthy
        ([T4], {}, 1, 0),  # there is no index 0
    ]
    for gpus, allocatable, units, withheld in rows:
        found = offer(gpus, allocatable)
        assert (found.allocatable_units, found.withheld_units) == (units, withheld)
    assert [gpu.healthy for gpu in offer([T4]).gpus] == [False, True]


def test_mig_devices_are_counted_by_profile_and_their_gpus_not_offered_whole() -> None:
    found = offer(None, {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-3g.20gb": "2", GPU: "1"})
    assert (found.mig, len(found.gpus)) == ((("1g.5gb", 7), ("3g.20gb", 2)), 1)
    mixed = {"nvidia.com/mig-1g.5gb": "14", GPU: "6"}
    found = offer(None, mixed, gpu_count="8", gpu_product="NVIDIA-A100-SXM4-40GB")
    assert (len(found.gpus), found.allocatable_units, found.withheld_units) == (8, 6, 2)
    found = offer(None, {GPU: "14"}, mig_strategy="single", gpu_product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    assert (found.unit, found.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 14)


def test_an_annotation_that_can_not_be_parsed_offers_nothing_and_warns() -> None:
    for text in (
        "",
        "[{",
        "{}",
        '[{"uuid":"GPU-a"}]',
        '[{"index":"0"}]',
        '[{"index":-1}]',
        '[{"index":64}]',
        '[{"index":0},{"index":0}]',
        '[{"index":0,"uuid":"a"},{"index":1,"uuid":"a"}]',
        '[{"index":0,"memory_mib":1e30}]',
        '[{"index":0,"healthy":"yes"}]',
        "[" * 5000,
        json.dumps([{"index": 0, "note": "x" * 70000}]),
    ):
        found = offer(text, {GPU: "4", "nvidia.com/mig-1g.5gb": "7"})
        assert (found.allocatable_units, found.withheld_units, found.mig) == (0, 4, ()), text
        assert found.warnings[0].startswith(GPUS)
        assert len(found.warnings[0]) < 400


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@example("null")
def test_any_annotation_is_read_or_warned_of(text: str) -> None:
    found = offer(text, {GPU: "4"})
    assert found.warnings or found.allocatable_units <= 4
    assert not found.warnings or found.allocatable_units == 0


@given(st.dictionaries(st.sampled_from(["index", "uuid", "model", "memory_mib", "healthy", "numa", "link"]), st.text()))
def test_any_fields_are_read_or_warned_of(fields: dict[str, object]) -> None:
    found = offer([{"index": 0} | fields], {GPU: "4"})
    assert found.warnings or found.allocatable_units <= 4


def test_capacity() -> None:
    for cpu, memory, capacity in (
        ("64", "256Gi", (64000, 262144)),
        ("3920m", "1048577", (3920, 1)),
        ("lots", "-", (0, 0)),
    ):
        assert read_capacity(node(None, {"cpu": cpu, "memory": memory})) == capacity
    assert read_capacity(node()) == (0, 0)


def test_without_an_annotation_the_kubelet_counts() -> None:
    found = read_offer(msgspec.convert(node_manifest("n", 2), objects.Node), NodeReading())
    assert found.gpus == (Gpu(found.gpus[0].model, 15360),) * 2
    assert replace(found, gpus=()) == NodeOffer((), GpuUnit.WHOLE, 1, 2, plugin_picks=True)
