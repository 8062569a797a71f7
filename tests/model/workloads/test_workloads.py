"""Workloads: orders read and made, classes, typical pods."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.core.fragmentation import ANY_MODEL
from model.workloads.traces import NodeList, PodList, TraceError, read_nodes, read_pods
from model.workloads.workloads import ARRIVED_FRAC, classes_of, made_order, typical_pods, workload
from tests.model.builders import write_openb


def pods_of(*asked: tuple[int, int, int, str]) -> PodList:
    """Pods of (cpu_milli, num_gpus, gpu_milli, gpu_spec) with one MiB each."""
    cpu, num, milli = (np.array([pod[i] for pod in asked], dtype=np.int64) for i in range(3))
    names = tuple(f"p{i:03d}" for i in range(len(asked)))
    return PodList(names, cpu, np.ones(len(asked), np.int64), num, milli, tuple(pod[3] for pod in asked), None, None)


def test_an_order_is_made_where_none_is_given(tmp_path: Path) -> None:
    write_openb(tmp_path)
    nodes, pods = read_nodes(tmp_path), read_pods(tmp_path, "small")
    offered = workload(tmp_path, "small", 7, nodes, pods)
    asked = int(offered.asked_milli.sum())
    # The last arrival is the one that reaches 130 % of the capacity.
    assert asked - offered.asked_milli[-1] < ARRIVED_FRAC * nodes.gpu_milli <= asked
    again = workload(tmp_path, "small", 7, nodes, pods)
    assert offered.pods.tobytes() == again.pods.tobytes()
    assert offered.node_names == again.node_names
    assert workload(tmp_path, "small", 8, nodes, pods).pods.tobytes() != offered.pods.tobytes()


def test_originals_come_before_clones() -> None:
    nodes = NodeList(("n",), np.array([1]), np.array([1]), np.array([8]), ("T4",))
    order, _ = made_order(pods_of(*[(1000, 1, 1000, "")] * 5), nodes, 0)
    assert len(order) == 11  # 10.4 GPUs are 130 % of 8
    assert sorted(order[:5].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(TraceError, match="no pod of the trace requests a GPU"):
        made_order(pods_of((1000, 0, 0, "")), nodes, 0)


def test_an_order_is_read(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=3, num_pods=4)
    np.savez(tmp_path / "arrivals_small.npz", pods_7=np.array([2, 0, 2]), node_rank_7=np.array([1, 2, 0]))
    nodes, pods = read_nodes(tmp_path), read_pods(tmp_path, "small")
    offered = workload(tmp_path, "small", 7, nodes, pods)
    assert offered.pods.tolist() == [2, 0, 2]
    assert offered.node_names == (nodes.names[2], nodes.names[0], nodes.names[1])
    assert offered.nodes.cpu_milli.tolist() == nodes.cpu_milli[[2, 0, 1]].tolist()
    assert len(workload(tmp_path, "small", 8, nodes, pods).pods) > 3  # a seed that the file lacks


def test_bad_orders(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=3, num_pods=4)
    nodes, pods, path = read_nodes(tmp_path), read_pods(tmp_path, "small"), tmp_path / "arrivals_small.npz"
    given: list[tuple[dict[str, list[float]], str]] = [
        ({"pods_7": [4], "node_rank_7": [0, 1, 2]}, "pods_7: not a list of indices below 4"),
        ({"pods_7": [0.5], "node_rank_7": [0, 1, 2]}, "pods_7: not a list of indices below 4"),
        ({"pods_7": [0], "node_rank_7": [0, 1, 1]}, "node_rank_7: not a rank for each of the 3 nodes"),
        ({"pods_7": [0], "node_rank_7": [0, 1]}, "node_rank_7: not a rank for each of the 3 nodes"),
        ({"pods_7": [0]}, ".*node_rank_7"),
    ]
    for arrays, fault in given:
        columns: dict[str, Any] = {name: np.array(values) for name, values in arrays.items()}
        np.savez(path, **columns)
        with pytest.raises(TraceError, match=f"{path}: {fault}"):
            workload(tmp_path, "small", 7, nodes, pods)
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(TraceError, match=str(path)):
        workload(tmp_path, "small", 7, nodes, pods)


def test_classes() -> None:
    bits = {"A": 0, "B": 1}
    asks, pod_class = classes_of(pods_of((1, 1, 500, "A|B"), (1, 1, 500, "B|A|C"), (2, 0, 0, "")), bits)
    assert pod_class.tolist() == [0, 0, 1]
    assert asks.models.tolist() == [3, ANY_MODEL]


def test_typical_pods_cover_95_percent_by_falling_count() -> None:
    # 10 + 6 + 2 of 20 are 90 %; of the two single ones the larger CPU goes first, and with it 95 % are covered.
    rare = [(3000, 1, 300, ""), (4000, 1, 300, "")]
    mix = typical_pods(
        pods_of(*[(1000, 1, 1000, "")] * 10, *[(2000, 0, 0, "")] * 6, *[(500, 1, 250, "")] * 2, *rare), {}
    )
    assert mix.cpu_milli.tolist() == [1000, 2000, 500, 4000]
    assert mix.frequency.tolist() == pytest.approx([10 / 19, 6 / 19, 2 / 19, 1 / 19], rel=1e-15)
