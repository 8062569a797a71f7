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


@pytest.mark.parametrize("policy", ["fgd", "bestfit", "random"])
def test_no_policy_passes_it(small: Workload, policy: str) -> None:
    highest = ceiling(small)
    assert highest is not None
    reached = allocation_curve(small, replay(small, baseline(policy), 5).placed).at(100)
    assert reached is not None
    assert reached <= highest <= 100.5


def test_half_of_each_gpu_is_lost_where_everybody_asks_for_more_than_half(small: Workload) -> None:
    asks = small.asks
    gpus = np.minimum(asks.num_gpus, 1)
    wanting = replace(
        small,
        asks=asks._replace(
            num_gpus=gpus,
            gpu_milli=np.where(gpus > 0, 600, 0),
            cpu_milli=np.zeros_like(asks.cpu_milli),
            memory_mib=np.zeros_like(asks.memory_mib),
            models=np.full_like(asks.models, -1),
        ),
        asked_milli=600 * gpus[small.classes],
        classes=small.classes,
    )
    repeated = replace(wanting, classes=np.tile(wanting.classes, 20), asked_milli=np.tile(wanting.asked_milli, 20))
    assert ceiling(repeated) == pytest.approx(60)  # one share of 600 on each GPU, and 400 that nobody can use


def test_a_load_that_is_never_reached_has_none(small: Workload) -> None:
    assert ceiling(small, load=500) is None
