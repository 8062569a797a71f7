"""Replays under a learned rank: the compiled engine places as the NumPy rules do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from extender.core.valuenet import potentials
from extender.core.valuenet.features import FEATURES, features
from extender.core.valuenet.potentials import _node_values
from model.engine import kernels, node_values
from model.simulations import learned
from model.simulations.learned import Foresight
from model.simulations.replays import Engine
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_nodes, write_openb


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=8, num_pods=90)


def offered(directory: Path, seed: int) -> Workload:
    return workload(directory, "small", seed, read_nodes(directory), read_pods(directory, "small"))


@pytest.mark.parametrize("seed", range(12))
def test_compiled_features_and_values_equal_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, outlook = random_nodes(rng, 8), random_outlook(rng)
    potential = random_potential(rng, seed % 4)
    scratch, inputs = np.zeros(nodes.gpu_free_milli.shape[1], np.int64), np.zeros(len(FEATURES))
    right, values = features(nodes, outlook), _node_values(nodes, outlook, potential)
    for n in range(8):
        now = node_values.value_now(nodes, n, outlook, potential, scratch, inputs)
        assert inputs == pytest.approx(right[n], rel=1e-12, abs=1e-12)
        assert now == pytest.approx(values[n], rel=1e-12, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_engines_place_the_same(small: Path, seed: int) -> None:
    arrivals = offered(small, seed)
    outlook = learned.told(
        arrivals.nodes, arrivals.asks, arrivals.mix, read_nodes(small), read_pods(small, "small"), Foresight()
    )
    potential = random_potential(np.random.default_rng(seed), seed)
    compiled, plain = (learned.replay(arrivals, outlook, potential, engine) for engine in Engine)
    assert np.array_equal(compiled.placed, plain.placed)
    assert np.array_equal(compiled.gpus, plain.gpus)
    assert compiled.fragment_milli == pytest.approx(plain.fragment_milli, rel=1e-9, abs=1e-6)


def test_no_pod_that_fits_is_refused(small: Path) -> None:
    arrivals = offered(small, 5)
    outlook = learned.told(
        arrivals.nodes, arrivals.asks, arrivals.mix, read_nodes(small), read_pods(small, "small"), Foresight()
    )
    done = learned.replay(arrivals, outlook, potentials.fragments_only())
    refused = np.flatnonzero(done.placed < 0)
    assert len(refused)
    # Nothing departs: what fits at the end fitted when the pod came.
    for c in set(arrivals.classes[refused].tolist()):
        assert not kernels.fitting(done.nodes, arrivals.asks, c).any()


def test_the_outlook_is_that_of_the_list_and_not_of_the_order(small: Path) -> None:
    pods = read_pods(small, "small")
    orders = [offered(small, seed) for seed in (1, 2)]
    one, other = (learned.told(o.nodes, o.asks, o.mix, read_nodes(small), pods, Foresight()) for o in orders)
    assert one.worth.left == pytest.approx(other.worth.left)
    assert one.worth.compute == pytest.approx(other.worth.compute)
    assert (one.cpu_need_milli, one.memory_need_mib) == (other.cpu_need_milli, other.memory_need_mib)


def test_allocation_needs_the_load_to_be_reached(small: Path) -> None:
    arrivals = offered(small, 1)
    first = replace(
        arrivals, pods=arrivals.pods[:5], classes=arrivals.classes[:5], asked_milli=arrivals.asked_milli[:5]
    )
    with pytest.raises(ValueError, match="no arrivals at 100 %"):
        learned.allocations(first, np.zeros(5, np.int64))
