"""What a node's agent reports, good and bad."""

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
    told_given,
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


def gpus(*uuids: str, **more: Any) -> list[dict[str, Any]]:
    return [{"index": index, "uuid": uuid, **more} for index, uuid in enumerate(uuids)]


def test_what_each_pod_was_given_is_known_by_uid_whatever_its_containers_and_slices() -> None:
    given, warnings = told_given(
        report(
            given={
                "u1": {"main": {"nvidia.com/gpu": ["GPU-b", "GPU-a"]}, "side": {"nvidia.com/gpu": ["GPU-a"]}},
                "u2": {"main": {"nvidia.com/gpu.shared": ["GPU-c::3"]}},
                "u3": {"main": {"nvidia.com/mig-1g.5gb": ["MIG-1"], "example.com/nic": ["eth1"]}},
            }
        )
    )
    assert (given, warnings) == ({"u1": ("GPU-a", "GPU-b"), "u2": ("GPU-c",)}, ())


def test_what_was_written_by_hand_beats_the_report() -> None:
    annotations = report(given={"u1": {"c": {"nvidia.com/gpu": ["GPU-a"]}}, "u2": {"c": {"nvidia.com/gpu": ["GPU-b"]}}})
    given, _ = told_given({**annotations, _GIVEN: '{"u1": ["GPU-c"]}'})
    assert given == {"u1": ("GPU-c",), "u2": ("GPU-b",)}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="another type"),
        pytest.param('{"version": 2}', id="another version"),
        pytest.param('{"version": 1, "given": {"u": ["GPU-a"]}}', id="another form"),
        pytest.param('{"version": 1, "given": {"u": {"c": {"nvidia.com/gpu": [""]}}}}', id="empty name"),
        pytest.param('{"version": 1, "gpus": [{"index": 64}]}', id="an index beyond all nodes"),
        pytest.param('{"version": 1, "gpus": ' + "[" * 100_000, id="deep"),
        pytest.param('{"version": 1, "x": "' + "x" * _MAX_CHARS + '"}', id="huge"),
        pytest.param('{"version": 1, "x": "\ud800"}', id="half a character"),
    ],
)
def test_what_cannot_be_read_is_named_and_changes_nothing(text: str) -> None:
    with pytest.raises(UnreadableError, match=REPORT):
        _read_report({REPORT: text})
    given, (warning,) = told_given({REPORT: text, _GIVEN: '{"u1": ["GPU-c"]}'})
    assert given == {"u1": ("GPU-c",)}
    assert REPORT in warning
    assert len(warning) < 400
    assert with_report(offer(), {REPORT: text}, NodeReading()) == offer()


def test_gpus_are_known_by_uuid_and_by_what_labels_say_where_the_report_does_not() -> None:
    annotations = report(gpus=gpus("GPU-a", "GPU-b", numa=1, link=0))
    told = with_report(offer(), annotations, NodeReading())
    assert [(gpu.uuid, gpu.numa, gpu.link, gpu.memory_mib) for gpu in told.gpus] == [
        ("GPU-a", 1, 0, 40960),
        ("GPU-b", 1, 0, 40960),
    ]
    assert {gpu.model for gpu in told.gpus} == {offer().gpus[0].model}
    own = with_report(offer(), report(gpus=gpus("GPU-a", "GPU-b", model="Tesla-T4", memory_mib=15360)), NodeReading())
    assert {(gpu.model.name, gpu.memory_mib) for gpu in own.gpus} == {("t4", 15360)}


def test_a_sick_gpu_is_the_one_that_is_not_offered() -> None:
    annotations = report(gpus=[{"index": 0, "uuid": "GPU-a", "healthy": False}, {"index": 1, "uuid": "GPU-b"}])
    told = with_report(offer(1), annotations, NodeReading())
    assert [gpu.healthy for gpu in told.gpus] == [False, True]
    assert (told.allocatable_units, told.withheld_units) == (1, 0)


def test_a_report_never_adds_units_or_takes_gpus_away() -> None:
    more = with_report(offer(), report(gpus=gpus(*"abcdefgh")), NodeReading())
    assert (more.allocatable_units, more.withheld_units) == (2, 6), "six of eight are not offered, nobody knows which"
    assert with_report(offer(), report(gpus=gpus("GPU-a")), NodeReading()) == offer()
    assert with_report(offer(), report(gpus=gpus("GPU-a", "GPU-a")), NodeReading()) == offer()
    assert with_report(NodeOffer(), report(gpus=gpus("GPU-a")), NodeReading()) == NodeOffer()


def test_mig_devices_under_the_name_of_gpus_are_not_gpus() -> None:
    disguised = offer(7, **{"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "A100-MIG-1g.5gb"})
    assert disguised.unit is GpuUnit.REPLICA_AS_GPU
    assert with_report(disguised, report(gpus=gpus(*"abcdefg")), NodeReading()) == disguised


@pytest.mark.parametrize(
    ("steers", "picks"), [([], True), (["nvidia.com/gpu.shared"], True), (["nvidia.com/gpu"], False)]
)
def test_a_plugin_that_is_steered_does_not_pick(steers: list[str], picks: bool) -> None:
    assert with_report(offer(), report(steers=steers), NodeReading()).plugin_picks is picks


def test_slices_are_told_by_the_report_where_no_label_does() -> None:
    told = read_node({"nvidia.com/gpu": 8}, {})
    assert (len(told.gpus), told.unit) == (8, GpuUnit.WHOLE)
    annotations = report(gpus=gpus("GPU-a", "GPU-b"), replicas={"nvidia.com/gpu": 4})
    found = with_report(told, annotations, NodeReading())
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a", "GPU-b"]
    assert (found.unit, found.units_per_gpu, found.allocatable_units) == (GpuUnit.REPLICA_AS_GPU, 4, 8)
    assert not found.slices_led


@pytest.mark.parametrize(
    ("resource", "steers", "led"),
    [
        ("nvidia.com/gpu", ["nvidia.com/gpu"], True),
        ("nvidia.com/gpu", ["nvidia.com/gpu.shared"], False),
        ("nvidia.com/gpu.shared", ["nvidia.com/gpu.shared"], True),
        ("nvidia.com/gpu.shared", ["nvidia.com/gpu"], False),
    ],
)
def test_the_gpu_of_a_slice_is_chosen_where_its_resource_is_steered(
    resource: str, steers: list[str], led: bool
) -> None:
    sliced = read_node({resource: 8}, {**LABELS, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"})
    annotations = report(gpus=gpus("GPU-a", "GPU-b"), steers=steers)
    assert with_report(sliced, annotations, NodeReading()).slices_led is led


def test_who_describes_gpus_by_hand_does_not_undo_that_they_are_steered() -> None:
    annotations = {**report(steers=["nvidia.com/gpu"]), GPUS: json.dumps(gpus("GPU-x", "GPU-y"))}
    manifest = node_manifest("n", 2)
    manifest["metadata"]["annotations"] = annotations
    found = read_offer(msgspec.convert(manifest, objects.Node), NodeReading())
    assert ([gpu.uuid for gpu in found.gpus], found.plugin_picks) == (["GPU-x", "GPU-y"], False)
