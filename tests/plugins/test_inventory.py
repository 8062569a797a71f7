"""What a node offers when several sources speak, and when one of them can't be read."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.core.resources.nodes import NO_GPUS, Gpu, GpuUnit, NodeOffer, NodeReading
from extender.kube import objects
from extender.plugins.kerf import GPUS
from extender.plugins.nodes import read_capacity, read_offer
from tests.ledger.builders import node_manifest

A100 = {"index": 0, "uuid": "GPU-a", "model": "A100-SXM4-40GB", "memory_mib": 40536, "numa": 0, "link": 0}
T4 = {"index": 1, "uuid": "GPU-b", "model": "Tesla-T4", "memory_mib": 15360, "numa": 1, "link": 1}


def node(
    gpus: object = None, allocatable: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> objects.Node:
    annotations = {} if gpus is None else {GPUS: gpus if isinstance(gpus, str) else json.dumps(gpus)}
    metadata = {"name": "n", "annotations": annotations, "labels": labels or {}}
    return msgspec.convert({"metadata": metadata, "status": {"allocatable": allocatable or {}}}, objects.Node)


def offer(
    gpus: object = None, allocatable: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> NodeOffer:
    return read_offer(node(gpus, allocatable, labels), NodeReading())


def test_the_annotation_describes_each_gpu() -> None:
    found = offer([A100, T4])
    assert [(gpu.model.name, gpu.memory_mib, gpu.uuid, gpu.numa, gpu.link) for gpu in found.gpus] == [
        ("a100-sxm4-40gb", 40960, "GPU-a", 0, 0),
        ("t4", 15360, "GPU-b", 1, 1),
    ]
    assert (found.unit, found.allocatable_units, found.withheld_units) == (GpuUnit.WHOLE, 2, 0)


def test_it_beats_labels_and_keeps_the_units_of_the_plugin() -> None:
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    found = read_offer(node([A100, T4], {"nvidia.com/gpu": "8"}, labels), NodeReading())
    assert [gpu.model.name for gpu in found.gpus] == ["a100-sxm4-40gb", "t4"]
    assert (found.unit, found.units_per_gpu, found.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 4, 8)


@pytest.mark.parametrize(
    ("gpus", "allocatable", "units", "withheld"),
    [
        pytest.param([A100, T4], {"nvidia.com/gpu": "1"}, 1, 1, id="the kubelet offers fewer: one is withheld"),
        pytest.param([A100, T4], {"nvidia.com/gpu": "0"}, 0, 2, id="its plugin is down"),
        pytest.param([A100, T4], {"nvidia.com/gpu": "4"}, 2, 0, id="no more than are described"),
        pytest.param([A100, {**T4, "healthy": False}], {"nvidia.com/gpu": "1"}, 1, 0, id="the broken one is known"),
        pytest.param([A100, {**T4, "healthy": False}], {}, 1, 0, id="no plugin: what is healthy"),
        pytest.param([T4], {}, 1, 0, id="index 0 is left out"),
    ],
)
def test_units(gpus: object, allocatable: dict[str, str], units: int, withheld: int) -> None:
    found = offer(gpus, allocatable)
    assert (found.allocatable_units, found.withheld_units) == (units, withheld)


def test_an_index_left_out_is_nobodys() -> None:
    assert [gpu.healthy for gpu in offer([T4]).gpus] == [False, True]


def test_no_gpus_are_no_gpus() -> None:
    assert offer([], {"nvidia.com/gpu": "4"}) == NO_GPUS


def test_mig_devices_are_counted_by_profile() -> None:
    found = offer(None, {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-3g.20gb": "2", "nvidia.com/gpu": "1"})
    assert found.mig == (("1g.5gb", 7), ("3g.20gb", 2))
    assert len(found.gpus) == 1


def test_gpus_cut_into_mig_devices_are_not_offered_whole() -> None:
    labels = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    found = offer(None, {"nvidia.com/mig-1g.5gb": "14", "nvidia.com/gpu": "6"}, labels)
    assert (len(found.gpus), found.allocatable_units, found.withheld_units) == (8, 6, 2)


def test_with_the_single_strategy_a_gpu_is_a_mig_device() -> None:
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
    found = offer(None, {"nvidia.com/gpu": "14"}, labels)
    assert (found.unit, found.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 14)


UNREADABLE = [
    pytest.param("", id="empty"),
    pytest.param("[{", id="truncated"),
    pytest.param("{}", id="no list"),
    pytest.param('[{"uuid":"GPU-a"}]', id="no index"),
    pytest.param('[{"index":"0"}]', id="index as text"),
    pytest.param('[{"index":-1}]', id="negative index"),
    pytest.param('[{"index":64}]', id="index too large"),
    pytest.param('[{"index":0},{"index":0}]', id="an index twice"),
    pytest.param('[{"index":0,"uuid":"a"},{"index":1,"uuid":"a"}]', id="a UUID twice"),
    pytest.param('[{"index":0,"memory_mib":1e30}]', id="absurd memory"),
    pytest.param('[{"index":0,"healthy":"yes"}]', id="another version's health"),
    pytest.param("[" * 5000, id="deeply nested"),
    pytest.param(json.dumps([{"index": 0, "note": "x" * 70000}]), id="huge"),
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_offers_nothing_and_says_so(text: str) -> None:
    found = offer(text, {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "7"})
    assert (found.allocatable_units, found.withheld_units, found.mig) == (0, 4, ())
    assert GPUS in found.warnings[0]
    assert "offers no GPUs until it can be read" in found.warnings[0]
    assert len(found.warnings[0]) < 400


def test_fields_of_later_versions_are_passed_over() -> None:
    assert len(offer([{**A100, "nvlink_gbps": 600}]).gpus) == 1


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@example("null")
def test_any_annotation_is_read_or_warned_of(text: str) -> None:
    found = offer(text, {"nvidia.com/gpu": "4"})
    assert found.warnings or found.allocatable_units <= 4
    assert not found.warnings or found.allocatable_units == 0


@given(st.dictionaries(st.sampled_from(["index", "uuid", "model", "memory_mib", "healthy", "numa", "link"]), st.text()))
def test_any_fields_are_read_or_warned_of(fields: dict[str, object]) -> None:
    found = offer([{"index": 0} | fields], {"nvidia.com/gpu": "4"})
    assert found.warnings or found.allocatable_units <= 4


@pytest.mark.parametrize(
    ("allocatable", "capacity"),
    [
        pytest.param({"cpu": "64", "memory": "256Gi"}, (64000, 262144), id="whole"),
        pytest.param({"cpu": "3920m", "memory": "1048577"}, (3920, 1), id="rounded down"),
        pytest.param({}, (0, 0), id="none"),
        pytest.param({"cpu": "lots", "memory": "-"}, (0, 0), id="garbage"),
    ],
)
def test_capacity(allocatable: dict[str, str], capacity: tuple[int, int]) -> None:
    assert read_capacity(node(None, allocatable)) == capacity


def test_without_any_annotation_the_kubelet_is_believed() -> None:
    manifest = node_manifest("n", 2)
    found = read_offer(msgspec.convert(manifest, objects.Node), NodeReading())
    assert found.gpus == (Gpu(found.gpus[0].model, 15360),) * 2
    assert replace(found, gpus=()) == NodeOffer((), GpuUnit.WHOLE, 1, 2, plugin_picks=True)
