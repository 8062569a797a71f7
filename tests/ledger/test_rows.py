"""Rows of nodes beside the ledger: nodes that are not there yet, rows apart from their holders, and nodes that go."""

import json
from typing import Any

import msgspec
import pytest

from extender.core.clusters import Cluster
from extender.core.resources.gpu_models import describe_model
from extender.core.resources.nodes import NO_GPUS, Gpu, GpuUnit, NodeOffer, NodeReading
from extender.kube import objects
from extender.ledger.claims import Occupancy
from extender.ledger.ledger import Ledger, NodeState
from extender.ledger.rows import NodeRows
from extender.plugins.holdings import Holding, Part, whole_gpus
from extender.plugins.kerf import _GIVEN, GPUS
from tests.ledger.builders import TTL_S, ledger_of, node_manifest, node_object, pod_object

MIB = 15360
GIB = 1024


def sized(name: str, gpus: int, cpu: str, memory: str, **options: Any) -> objects.Node:
    """A node with so much CPU and main memory."""
    manifest = node_manifest(name, gpus, **options)
    manifest["status"]["allocatable"] |= {"cpu": cpu, "memory": memory}
    return msgspec.convert(manifest, objects.Node)


def told_node(given: dict[str, list[str]], num_gpus: int = 4) -> objects.Node:
    """A node on which somebody has written who was given what."""
    manifest = node_manifest("n", num_gpus)
    gpus = [{"index": index, "uuid": f"GPU-{index}", "memory_mib": MIB} for index in range(num_gpus)]
    manifest["metadata"]["annotations"] = {GPUS: json.dumps(gpus), _GIVEN: json.dumps(given)}
    return msgspec.convert(manifest, objects.Node)


def compute(cluster: Cluster, node: str) -> tuple[int, int, int, int]:
    """CPU and main memory of a node, and what of both is free."""
    row = cluster.row_of[node]
    columns = (cluster.cpu_milli, cluster.memory_mib, cluster.cpu_free_milli, cluster.memory_free_mib)
    cpu, memory, cpu_free, memory_free = (int(column[row]) for column in columns)
    return cpu, memory, cpu_free, memory_free


def idle(cluster: Cluster, node: str) -> set[int]:
    return {index for index, free in enumerate(cluster.gpu_idle[cluster.row_of[node]].tolist()) if free}


def taken(ledger: Ledger) -> set[int]:
    cluster = ledger.snapshot(0.0)
    return {index for index, milli in enumerate(cluster.gpu_free_milli[0].tolist()) if milli == 0}


# Nodes that are not there yet.


def test_nodes_that_are_added_are_free_and_the_others_stay_as_they_are() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(sized("old", 2, "16", "32Gi"))
    ledger.upsert_pod(pod_object("p", 1, node="old", assigned="1"), 0.0)
    before = ledger.snapshot(0.0)
    added = [
        sized("wide", 8, "96", "512Gi", product="NVIDIA-A100-SXM4-80GB", memory_mib=81920),
        sized("part", 3, "8", "64Gi", installed=4),
    ]
    cluster = ledger.rows.extended(added)
    assert dict(cluster.row_of) == {"old": 0, "wide": 1, "part": 2}
    assert (idle(cluster, "old"), idle(cluster, "wide"), idle(cluster, "part")) == ({0}, set(range(8)), {0, 1, 2, 3})
    assert cluster.untracked_units.tolist() == [0, 0, 1], "the kubelet offers one less than there are"
    assert cluster.gpu_memory_mib[1].tolist() == [81920] * 8
    assert cluster.models[cluster.gpu_model[1, 0]].name == "a100-sxm4-80gb"
    assert compute(cluster, "wide") == (96_000, 512 * GIB, 96_000, 512 * GIB)
    assert compute(cluster, "part") == (8_000, 64 * GIB, 8_000, 64 * GIB)
    assert compute(cluster, "old") == (16_000, 32 * GIB, 16_000, 32 * GIB)
    assert ledger.snapshot(0.0) is before
    assert ledger.rows.names() == ["old"]


def test_rows_apart_have_what_is_free_and_read_nodes_alike() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S, memory_tolerance_frac=0.05, model_aliases={"small": ["t4"]})
    ledger.upsert_node(node_object("n", 2))
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 100.0)
    apart = ledger.apart(100.0)
    assert (apart.names(), list(apart.claims)) == ([], [])
    cluster = apart.extended([node_object("new", 1, memory_mib=15000)])
    assert (idle(cluster, "n"), idle(cluster, "new")) == ({1}, {0})
    assert cluster.gpu_memory_mib[1, 0] == MIB, "360 missing are less than 5 % of it"
    assert "small" in cluster.models[cluster.gpu_model[1, 0]].names
    assert idle(ledger.apart(100.0 + TTL_S).extended([]), "n") == {0, 1}, "a reservation past its time is none"


# What is known of a node, and forgotten.


def test_what_a_binding_rests_on() -> None:
    ledger = ledger_of(n=2)
    offer = ledger.rows.offer_of("n")
    assert (offer.unit, len(offer.gpus), offer.allocatable_units) == (GpuUnit.WHOLE, 2, 2)
    assert ledger.rows.state_of("n") == NodeState(offer, crowded=False)
    ledger.upsert_pod(pod_object("too-many", 3, node="n"), 0.0)
    assert ledger.rows.state_of("n") == NodeState(offer, crowded=True)
    assert ledger.rows.state_of("unknown") == NodeState(NO_GPUS, crowded=False)


def test_of_a_node_that_is_gone_nobody_is_mistaken() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(told_node({"u": ["GPU-3"]}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 0.0)
    assert [claim.uid for claim in ledger.mistaken()] == ["u"]
    ledger.remove_node("n")
    assert ledger.mistaken() == []
    assert ledger.rows.given.of("n", "default/p", "u") is None


def test_a_pod_known_by_name_after_all_were_listed_is_not_the_one_that_was_given_gpus() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(told_node({"default/p": ["GPU-3"]}))
    ledger.keep_pods(set(), 0.0)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0"), 1.0)
    assert taken(ledger) == {0}


@pytest.mark.parametrize("uuid_chars", [49, 50, 51])
def test_a_warning_names_two_hundred_characters_of_gpus(uuid_chars: int) -> None:
    uuids = [f"GPU-{number}".ljust(uuid_chars, "x") for number in range(4)]
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(told_node({}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n"), 0.0)
    (warning,) = ledger.upsert_node(told_node({"u": uuids}))
    assert warning == f"default/p can't have {', '.join(uuids)[:200]}: not as many GPUs of this node as it requests"


# One row.


def test_the_rows_of_other_nodes_stay_when_one_is_gone() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    for name, cpu in (("a", "8"), ("b", "16"), ("c", "32")):
        ledger.upsert_node(sized(name, 1, cpu, "64Gi"))
    ledger.remove_node("b")
    cluster = ledger.snapshot(0.0)
    assert compute(cluster, "a") == (8_000, 64 * GIB, 8_000, 64 * GIB)
    assert compute(cluster, "c") == (32_000, 64 * GIB, 32_000, 64 * GIB)
    gone = [column[1] for column in (cluster.cpu_milli, cluster.memory_mib)]
    free = [column[1] for column in (cluster.cpu_free_milli, cluster.memory_free_mib)]
    assert gone + free == [0, 0, 0, 0]


def offer_of(unit: GpuUnit, num_gpus: int = 2, units_per_gpu: int = 1) -> NodeOffer:
    gpus = tuple(Gpu(describe_model("Tesla-T4", {}), MIB, f"GPU-{index}") for index in range(num_gpus))
    return NodeOffer(gpus, unit, units_per_gpu, num_gpus * units_per_gpu)


SHARE = Holding(1, (Part(0, 500, 4096),))


@pytest.mark.parametrize(
    ("unit", "holding", "uuids", "gpus"),
    [
        pytest.param(GpuUnit.WHOLE, whole_gpus(1, (0,)), ("GPU-1",), (1,), id="another GPU"),
        pytest.param(GpuUnit.WHOLE, whole_gpus(2), ("GPU-0", "GPU-1"), (0, 1), id="GPUs of unknown index"),
        pytest.param(GpuUnit.WHOLE, whole_gpus(2), ("GPU-1", "GPU-1"), None, id="one GPU is not two"),
        pytest.param(GpuUnit.WHOLE, whole_gpus(2), ("GPU-1",), None, id="not as many"),
        pytest.param(GpuUnit.WHOLE, whole_gpus(1), ("GPU-7",), None, id="of another node"),
        pytest.param(GpuUnit.WHOLE, SHARE, ("GPU-1",), None, id="a share is no whole GPU"),
        pytest.param(GpuUnit.WHOLE, Holding(1, unserved=True), ("GPU-1",), None, id="no device plugin gave that"),
        pytest.param(GpuUnit.REPLICA, whole_gpus(2, (0, 1)), ("GPU-1", "GPU-1"), (1, 1), id="two slices of one GPU"),
        pytest.param(GpuUnit.REPLICA, SHARE, ("GPU-1",), None, id="a share is no slice"),
        pytest.param(GpuUnit.PART, whole_gpus(1, (0,)), ("GPU-1",), None, id="parts are not told so"),
        pytest.param(GpuUnit.CLAIM, whole_gpus(1, (0,)), ("GPU-1",), None, id="nor are devices of claims"),
    ],
)
def test_what_a_pod_can_have_been_given(
    unit: GpuUnit, holding: Holding, uuids: tuple[str, ...], gpus: tuple[int, ...] | None
) -> None:
    occupancy = Occupancy(offer_of(unit, units_per_gpu=2 if unit is GpuUnit.REPLICA else 1))
    given = occupancy.as_given(holding, uuids)
    assert (given and given.gpus) == gpus


def test_of_slices_too_a_uuid_is_believed_rather_than_an_index() -> None:
    occupancy = Occupancy(offer_of(GpuUnit.REPLICA, units_per_gpu=3))
    occupancy.book([Holding(2, (Part(0, uuid="GPU-1"), Part(0)))])
    assert (occupancy.left.slices, occupancy.left.untracked, occupancy.crowded) == ({1: 1, 0: 1}, 2, False)


def test_rows_without_nodes_know_nobody() -> None:
    rows = NodeRows(NodeReading(), TTL_S)
    assert (rows.names(), rows.without("n", ()), rows.extended([]).num_nodes) == ([], None, 0)
