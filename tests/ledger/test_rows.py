"""Rows of nodes beside the ledger: nodes that don't exist yet, rows without their holders, and nodes that go."""

from dataclasses import fields
from itertools import chain, combinations
from typing import Any

import numpy as np

from extender.core.clusters import Cluster
from extender.core.resources.nodes import NO_GPUS, NodeReading
from extender.kube import objects
from extender.ledger.ledger import Ledger, NodeState
from extender.ledger.rows import NodeRows
from extender.plugins.holdings import whole_gpus
from extender.queueing.pods.objects import decode_node
from tests.ledger.builders import T4_MIB, TTL_S, ledger_of, node_manifest, node_object, pod_object

GIB = 1024


def sized(name: str, gpus: int, cpu: str, memory: str, **options: Any) -> objects.Node:
    """A node with so much CPU and main memory."""
    manifest = node_manifest(name, gpus, **options)
    manifest["status"]["allocatable"] |= {"cpu": cpu, "memory": memory}
    return decode_node(manifest)


def compute(cluster: Cluster, node: str) -> tuple[int, int]:
    """CPU and main memory of a node, all of it free."""
    row = cluster.row_of[node]
    capacity = int(cluster.cpu_milli[row]), int(cluster.memory_mib[row])
    assert capacity == (cluster.cpu_free_milli[row], cluster.memory_free_mib[row])
    return capacity


def idle(cluster: Cluster, node: str) -> set[int]:
    return set(np.flatnonzero(cluster.gpu_idle[cluster.row_of[node]]).tolist())


def test_nodes_that_are_added_are_free_and_the_others_stay_as_they_are() -> None:
    ledger = ledger_of(sized("old", 2, "16", "32Gi"))
    ledger.upsert_pod(pod_object("p", 1, node="old", assigned="1"), 0.0)
    before = ledger.snapshot(0.0)
    added = [
        sized("wide", 8, "96", "512Gi", product="NVIDIA-A100-SXM4-80GB", memory_mib=81920),
        sized("part", 3, "8", "64Gi", installed=4),
    ]
    cluster = ledger.rows.extended(added)
    assert dict(cluster.row_of) == {"old": 0, "wide": 1, "part": 2}
    assert [idle(cluster, name) for name in cluster.row_of] == [{0}, set(range(8)), {0, 1, 2, 3}]
    assert cluster.untracked_units.tolist() == [0, 0, 1], "the kubelet offers one less than there are"
    assert cluster.gpu_memory_mib[1].tolist() == [81920] * 8
    assert cluster.models[cluster.gpu_model[1, 0]].name == "a100-sxm4-80gb"
    sizes = [(16_000, 32 * GIB), (96_000, 512 * GIB), (8_000, 64 * GIB)]
    assert [compute(cluster, name) for name in cluster.row_of] == sizes
    assert ledger.snapshot(0.0) is before
    assert ledger.rows.names() == ["old"]


def test_rows_without_holders_have_what_is_free_and_read_nodes_alike() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S, memory_tolerance_frac=0.05, model_aliases={"small": ["t4"]})
    ledger.upsert_node(node_object("n", 2, memory_mib=15000))
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 100.0)
    apart = ledger.without_holders(100.0)
    assert (apart.names(), list(apart.allocations)) == ([], [])
    cluster = apart.extended([node_object("new", 1, memory_mib=15000)])
    assert (idle(cluster, "n"), idle(cluster, "new")) == ({1}, {0})
    for row in (0, 1):
        assert cluster.gpu_memory_mib[row, 0] == T4_MIB, "360 missing are less than 5 % of it"
        assert "small" in cluster.models[cluster.gpu_model[row, 0]].names
    assert idle(ledger.without_holders(100.0 + TTL_S).extended([]), "n") == {0, 1}, "an expired reservation is none"


def test_a_node_without_some_of_its_pods_is_as_if_they_had_never_been_there() -> None:
    pods = (
        pod_object("whole", 2, node="n", assigned="0,3"),
        pod_object("also-3", 1, node="n", assigned="3"),  # one too many on that GPU
        pod_object("foreign", 1, node="n"),
        pod_object("elsewhere", 1, node="m", assigned="0"),
    )

    def with_pods(*present: objects.Pod) -> Ledger:
        ledger = ledger_of(m=4, n=4)
        for pod in present:
            ledger.upsert_pod(pod, 0.0)
        return ledger

    ledger = with_pods(*pods)
    before = ledger.snapshot(0.0)
    for gone in chain.from_iterable(combinations(pods, count) for count in range(len(pods) + 1)):
        alone = ledger.without("n", {pod.metadata.uid for pod in gone}, 0.0)
        assert alone is not None
        assert (alone.node_names, alone.row_of) == (("n",), {"n": 0})
        expected = with_pods(*(pod for pod in pods if pod not in gone)).snapshot(0.0)
        row = expected.row_of["n"]
        for field in fields(expected):
            value = getattr(expected, field.name)
            if isinstance(value, np.ndarray) and field.name not in ("row_version", "tie_rank", "cpu_free_milli"):
                assert np.array_equal(getattr(alone, field.name), value[row : row + 1]), field.name
    assert ledger.snapshot(0.0) is before
    assert ledger.without("unknown", set(), 0.0) is None


def test_the_rows_of_other_nodes_stay_when_one_is_gone() -> None:
    ledger = ledger_of(*(sized(name, 1, cpu, "64Gi") for name, cpu in (("a", "8"), ("b", "16"), ("c", "32"))))
    ledger.remove_node("b")
    cluster = ledger.snapshot(0.0)
    assert [compute(cluster, name) for name in "ac"] == [(8_000, 64 * GIB), (32_000, 64 * GIB)]
    columns = (cluster.cpu_milli, cluster.memory_mib, cluster.cpu_free_milli, cluster.memory_free_mib)
    assert [column[1] for column in columns] == [0, 0, 0, 0]


def test_rows_without_nodes_are_empty() -> None:
    rows = NodeRows(NodeReading(), TTL_S)
    assert (rows.names(), rows.without("n", ()), rows.extended([]).num_nodes) == ([], None, 0)
    assert rows.state_of("n") == NodeState(NO_GPUS, overbooked=False)
