"""Ceilings by hand, and above what any policy allocates."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.evaluation.ceilings import ceiling
from model.simulations.baselines import baseline
from model.simulations.measures import allocation_curve
from model.simulations.replays import replay
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.model.builders import write_openb


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = write_openb(tmp_path_factory.mktemp("traces"), num_nodes=30, num_pods=200, seed=3)
    return workload(directory, "small", 5, read_nodes(directory), read_pods(directory, "small"))


def test_half_of_each_gpu_is_lost_where_everybody_asks_for_more_than_half(small: Workload) -> None:
    gpus = np.minimum(small.asks.num_gpus, 1)
    none = np.zeros_like(gpus)
    asks = small.asks._replace(
        num_gpus=gpus, gpu_milli=600 * gpus, cpu_milli=none, memory_mib=none, models=np.full_like(gpus, -1)
    )
    classes = np.tile(small.classes, 20)
    wanting = replace(small, asks=asks, classes=classes, asked_milli=600 * gpus[classes])
    assert ceiling(wanting) == pytest.approx(60)  # one share of 600 on each GPU, and 400 that nobody can use


def test_no_policy_passes_it_nor_what_came_first_lowers_it_to(small: Workload) -> None:
    highest = ceiling(small)
    assert highest is not None and highest <= 100.5
    assert ceiling(small, load=500) is None  # never reached
    for policy in ("fgd", "random"):
        done = replay(small, baseline(policy), 5)
        bound = ceiling(small, num_placed=int(np.flatnonzero(done.placed < 0)[0]))
        reached = allocation_curve(small, done.placed).at(100)
        assert bound is not None and reached is not None
        assert reached <= bound <= highest + 1e-6


def test_pods_without_gpus_that_came_first_take_their_cpu_from_gpus(small: Workload) -> None:
    asks = small.asks.at(np.array([0, 0]))._replace(
        cpu_milli=np.array([1000, 1000]), memory_mib=np.array([0, 0]), num_gpus=np.array([0, 1]),
        gpu_milli=np.array([0, 1000]), models=np.array([-1, -1]),
    )  # fmt: skip
    num_first = int((small.nodes.cpu_milli // 1000).sum())  # they request all of the CPU
    classes = np.array([0] * num_first + [1] * 2 * small.num_gpus)
    offered = replace(
        small, asks=asks, classes=classes, asked_milli=asks.gpu_milli[classes], pods=np.arange(len(classes))
    )
    assert ceiling(offered) == pytest.approx(100, abs=0.5)
    assert ceiling(offered, num_placed=num_first) == pytest.approx(0, abs=0.5)
    assert ceiling(offered, num_placed=num_first + small.num_gpus // 2) is None  # more than can be placed
