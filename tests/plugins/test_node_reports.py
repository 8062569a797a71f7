"""What a node's agent reports, valid or not."""

import json
from typing import Any

import msgspec
import pytest

from extender.core.resources.nodes import GpuUnit, NodeOffer, NodeReading, read_node
from extender.kube import objects
from extender.plugins.kerf import (
    _GIVEN,
    _MAX_CHARS,
    GPUS,
    REPORT,
    _read_report,
    read_given_gpus,
    with_report,
)
from extender.plugins.nodes import read_offer
from extender.plugins.protocol import UnreadableError
from tests.ledger.builders import node_manifest

LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"}


def report(**fields: Any) -> dict[str, str]:
    return {REPORT: json.dumps({"version": 1, **fields})}


def offer(units: int = 2, **labels: str) -> NodeOffer:
    return read_node({"nvidia.com/gpu": units}, LABELS | labels)


def reported(node: NodeOffer, **fields: Any) -> NodeOffer:
    """What a node offers with a report."""
    return with_report(node, report(**fields), NodeReading())


def gpus(*uuids: str, **more: Any) -> list[dict[str, Any]]:
    return [{"index": index, "uuid": uuid, **more} for index, uuid in enumerate(uuids)]


def test_given_gpus_are_known_by_uid() -> None:
    annotations = report(
        given={
            "u1": {"main": {"nvidia.com/gpu": ["GPU-b", "GPU-a"]}, "side": {"nvidia.com/gpu": ["GPU-a"]}},
            "u2": {"main": {"nvidia.com/gpu.shared": ["GPU-c::3"]}},
            "u3": {"main": {"nvidia.com/mig-1g.5gb": ["MIG-1"], "example.com/nic": ["eth1"]}},
        }
    )
    assert read_given_gpus(annotations) == ({"u1": ("GPU-a", "GPU-b"), "u2": ("GPU-c",)}, ())
    by_hand = {**annotations, _GIVEN: '{"u1": ["GPU-d"]}'}
    assert read_given_gpus(by_hand) == ({"u1": ("GPU-d",), "u2": ("GPU-c",)}, ())


def test_a_report_that_can_not_be_parsed_changes_nothing() -> None:
    for text in (
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "given": {"u": ["GPU-a"]}}',
        '{"version": 1, "given": {"u": {"c": {"nvidia.com/gpu": [""]}}}}',
        '{"version": 1, "gpus": [{"index": 64}]}',
        '{"version": 1, "gpus": ' + "[" * 100_000,
        '{"version": 1, "x": "' + "x" * _MAX_CHARS + '"}',
        '{"version": 1, "x": "\ud800"}',
    ):
        with pytest.raises(UnreadableError, match=REPORT):
            _read_report({REPORT: text})
        given, (warning,) = read_given_gpus({REPORT: text, _GIVEN: '{"u1": ["GPU-c"]}'})
        assert given == {"u1": ("GPU-c",)}
        assert REPORT in warning
        assert len(warning) < 400
        assert with_report(offer(), {REPORT: text}, NodeReading()) == offer()


def test_reported_gpus_have_what_labels_say_beside_the_report() -> None:
    told = reported(offer(), gpus=gpus("GPU-a", "GPU-b", numa=1, link=0))
    assert [(gpu.uuid, gpu.numa, gpu.link, gpu.memory_mib) for gpu in told.gpus] == [
        *(("GPU-a", 1, 0, 40960), ("GPU-b", 1, 0, 40960))
    ]
    assert {gpu.model for gpu in told.gpus} == {offer().gpus[0].model}
    own = reported(offer(), gpus=gpus("GPU-a", "GPU-b", model="Tesla-T4", memory_mib=15360))
    assert {(gpu.model.name, gpu.memory_mib) for gpu in own.gpus} == {("t4", 15360)}


def test_a_report_never_adds_units_or_removes_gpus() -> None:
    unhealthy = [{"index": 0, "uuid": "GPU-a", "healthy": False}, {"index": 1, "uuid": "GPU-b"}]
    told = reported(offer(1), gpus=unhealthy)
    assert [gpu.healthy for gpu in told.gpus] == [False, True]
    assert (told.allocatable_units, told.withheld_units) == (1, 0)
    more = reported(offer(), gpus=gpus(*"abcdefgh"))
    assert (more.allocatable_units, more.withheld_units) == (2, 6), "six of eight are not offered, not known which"
    assert reported(offer(), gpus=gpus("GPU-a")) == offer()
    assert reported(offer(), gpus=gpus("GPU-a", "GPU-a")) == offer()
    assert reported(NodeOffer(), gpus=gpus("GPU-a")) == NodeOffer()
    disguised = offer(7, **{"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-MIG-1g.5gb"})
    assert disguised.unit is GpuUnit.REPLICA_AS_GPU
    assert reported(disguised, gpus=gpus(*"abcdefg")) == disguised, "MIG devices"


def test_slices_are_known_by_the_report_where_no_label_says_so() -> None:
    found = reported(read_node({"nvidia.com/gpu": 8}, {}), gpus=gpus("GPU-a", "GPU-b"), replicas={"nvidia.com/gpu": 4})
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a", "GPU-b"]
    assert (found.unit, found.units_per_gpu, found.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 4, 8)
    assert not found.slices_led


def test_a_plugin_that_is_steered_does_not_pick() -> None:
    whole, shared = "nvidia.com/gpu", "nvidia.com/gpu.shared"
    for steers, picks in (([], True), ([shared], True), ([whole], False)):
        assert reported(offer(), steers=steers).plugin_picks is picks
    for resource in (whole, shared):
        sliced = read_node({resource: 8}, {**LABELS, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"})
        for steered in (whole, shared):
            led = reported(sliced, gpus=gpus("GPU-a", "GPU-b"), steers=[steered]).slices_led
            assert led is (steered == resource)
    manifest = node_manifest("n", 2)
    manifest["metadata"]["annotations"] = {**report(steers=[whole]), GPUS: json.dumps(gpus("GPU-x", "GPU-y"))}
    by_hand = read_offer(msgspec.convert(manifest, objects.Node), NodeReading())
    assert ([gpu.uuid for gpu in by_hand.gpus], by_hand.plugin_picks) == (["GPU-x", "GPU-y"], False)
