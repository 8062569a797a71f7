"""Clusters of other shapes."""

import numpy as np
import pytest

from model.workloads import shapes
from model.workloads.shapes import _SHAPES
from model.workloads.traces import NodeList

GPUS = [8, 2, 8, 4, 8, 2, 8, 8, 1, 2, 0]
NODES = NodeList(
    tuple(f"node-{i:02d}" for i in range(len(GPUS))),
    np.full(len(GPUS), 64000),
    np.full(len(GPUS), 1024),
    np.array(GPUS),
    tuple(f"model-{gpus}" if gpus else "" for gpus in GPUS),
)


LEFT = {
    "all": GPUS,
    "half": [8, 8, 8, 8, 1, 0],
    "mostly-large": [8, 2, 8, 8, 8, 8, 2],  # of 2, 4, 2, 1, 2, 0 the first and the fifth
    "mostly-small": [8, 2, 4, 2, 8, 1, 2, 0],  # of the five with 8 GPUs the first and the last
    "lean": GPUS,
}


def test_what_is_left() -> None:
    assert LEFT.keys() == set(_SHAPES)
    for shape, gpus in LEFT.items():
        found = shapes.shaped(NODES, shape)
        assert found.num_gpus.tolist() == gpus
        assert set(found.cpu_milli.tolist()) == {48000 if shape == "lean" else 64000}
        assert list(found.models) == [f"model-{num}" if num else "" for num in gpus]
        assert list(found.names) == sorted(set(found.names))
        assert len(found.names) == len(found.memory_mib) == len(gpus)


def test_faults_are_told() -> None:
    with pytest.raises(ValueError, match="there are all, half"):
        shapes.shaped(NODES, "round")
    with pytest.raises(ValueError, match="leaves no GPUs"):
        shapes.shaped(shapes.chosen(NODES, np.array([10])), "half")
