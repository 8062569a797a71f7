"""Parts of a trace that are drawn: nodes of every sort, some of the pods."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from model.workloads.samples import some_nodes, some_pods
from model.workloads.traces import NodeList, read_pods
from tests.model.builders import write_openb


def nodes(**sorts: int) -> NodeList:
    models = tuple(model for model, count in sorts.items() for _ in range(count))
    num = len(models)
    columns = np.full(num, 64000), np.full(num, 262144), np.full(num, 8)
    return NodeList(tuple(f"n{i:03}" for i in range(num)), *columns, models)


def test_nodes_of_every_sort_are_drawn_by_their_share() -> None:
    found = some_nodes(nodes(A=40, B=20, C=20), 8, np.random.default_rng(0))
    assert Counter(found.models) == {"A": 4, "B": 2, "C": 2}
    assert len(set(found.names)) == 8
    other = some_nodes(nodes(A=40, B=20, C=20), 8, np.random.default_rng(1))
    assert other.names != found.names


def test_all_nodes_are_all_of_them() -> None:
    assert some_nodes(nodes(B=3, A=2), 5, np.random.default_rng(0)).names == nodes(B=3, A=2).names


@pytest.mark.parametrize("num", [0, 6])
def test_as_many_nodes_as_there_are_at_most(num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} nodes requested, but the trace has 5"):
        some_nodes(nodes(A=5), num, np.random.default_rng(0))


def test_a_part_of_the_pods_is_drawn(tmp_path: Path) -> None:
    pods = read_pods(write_openb(tmp_path, num_pods=40), "small")
    found = some_pods(pods, 0.25, np.random.default_rng(0))
    assert len(found.names) == len(set(found.names)) == 10
    assert set(found.names) <= set(pods.names)
    assert some_pods(pods, 1.0, np.random.default_rng(0)).names == pods.names
