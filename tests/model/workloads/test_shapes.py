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


@pytest.mark.parametrize(
    ("shape", "gpus"),
    [
        ("all", GPUS),
        ("half", [8, 8, 8, 8, 1, 0]),
        # Of 2, 4, 2, 1, 2, 0 the first and the fifth are left.
        ("mostly-large", [8, 2, 8, 8, 8, 8, 2]),
        # Of the five with 8 GPUs the first and the last.
        ("mostly-small", [8, 2, 4, 2, 8, 1, 2, 0]),
        ("lean", GPUS),
    ],
)
def test_what_is_left(shape: str, gpus: list[int]) -> None:
    found = shapes.shaped(NODES, shape)
    assert found.num_gpus.tolist() == gpus
    assert set(found.cpu_milli.tolist()) == {48000 if shape == "lean" else 64000}
    assert [model == f"model-{num}" for model, num in zip(found.models, gpus, strict=True) if num].count(False) == 0
    assert list(found.names) == sorted(set(found.names))
    assert len(found.names) == len(found.memory_mib) == len(gpus)


def test_every_shape_is_tested() -> None:
    assert set(_SHAPES) == {"all", "half", "mostly-large", "mostly-small", "lean"}


def test_faults_are_told() -> None:
    with pytest.raises(ValueError, match="there are all, half"):
        shapes.shaped(NODES, "round")
    with pytest.raises(ValueError, match="leaves no GPUs"):
        shapes.shaped(shapes.chosen(NODES, np.array([10])), "half")
