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
    rng, some = np.random.default_rng(0), nodes(A=40, B=20, C=20)
    found = some_nodes(some, 8, rng)
    assert Counter(found.models) == {"A": 4, "B": 2, "C": 2}
    assert len(set(found.names)) == 8 and some_nodes(some, 8, rng).names != found.names
    assert some_nodes(some, 80, rng).names == some.names
    for num in (0, 81):
        with pytest.raises(ValueError, match=f"{num} nodes requested, but the trace has 80"):
            some_nodes(some, num, rng)


def test_a_part_of_the_pods_is_drawn(tmp_path: Path) -> None:
    pods = read_pods(write_openb(tmp_path, num_pods=40), "small")
    found = some_pods(pods, 0.25, np.random.default_rng(0))
    assert len(found.names) == len(set(found.names)) == 10 and set(found.names) <= set(pods.names)
    assert some_pods(pods, 1.0, np.random.default_rng(0)).names == pods.names
