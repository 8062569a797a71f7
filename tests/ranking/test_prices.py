"""Shadow prices, on clusters small enough to see the right ones."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from extender.core.fragmentation import Nodes, PodClasses, expected_count
from extender.ranking import prices
from extender.ranking.prices import _rests
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import workload
from tests.model.builders import PUBLISHED, needs_traces, random_asks, random_mix, random_nodes

SEEDS = st.integers(0, 2**32)


def nodes_of(*models: int, cpu_milli: int = 64000) -> Nodes:
    """Empty nodes of four GPUs of each model."""
    N = len(models)
    cpu, memory = np.full(N, cpu_milli), np.full(N, 262144)
    return Nodes(
        cpu, memory, np.full(N, 4), np.array(models), cpu.copy(), memory.copy(), np.full((N, 4), 1000, np.int32)
    )


def asks_of(*rows: tuple[int, int, int, int]) -> PodClasses:
    """Classes of (CPU milli, GPUs, milli of each, models)."""
    cpu, num, milli, models = (np.array(column) for column in zip(*rows, strict=True))
    return PodClasses(cpu, np.full(len(rows), 1024), num, milli, models)


def test_unrequested_and_plentiful_remainders_are_worth_nothing() -> None:
    # Only shares of 810, more than there is room for: one a GPU, the rest of it is useless.
    found = prices.prices(nodes_of(0, 0), asks_of((1000, 1, 810, -1)), np.array([20.0]))
    assert found.bound == pytest.approx(8 * 0.81)
    assert found.worth.left[0, [190, 809, 810, 1000]] == pytest.approx([0, 0, 0.81, 0.81])
    assert (found.worth.left[1] == 0).all()
    found = prices.prices(nodes_of(0, 0), asks_of((1000, 1, 500, -1)), np.array([6.0]))
    assert found.bound == pytest.approx(3)
    assert found.worth.left[0] == pytest.approx(np.zeros(1001))


def test_models_that_picky_pods_need_are_worth_more() -> None:
    # Twelve pods insist on model 1, which has four GPUs; model 0 has more GPUs than the others ask for.
    asks = asks_of((1000, 1, 1000, -1), (1000, 1, 1000, 0b10))
    found = prices.prices(nodes_of(0, 0, 1), asks, np.array([3.0, 12.0]))
    assert found.bound == pytest.approx(3 + 4)
    assert found.worth.left[0, 1000] == pytest.approx(0)
    assert found.worth.left[1, 1000] == pytest.approx(1)


def test_nothing_is_worth_anything_where_no_expected_pod_fits() -> None:
    found = prices.prices(nodes_of(0, cpu_milli=1000), asks_of((2000, 1, 1000, -1)), np.array([4.0]))
    assert found.bound == 0
    assert not any(each.any() for each in found.worth)


@given(SEEDS)
@example(6)  # a size that costs nothing would sell as well as what is left beside it
def test_the_bound_is_that_of_all_patterns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.unique(rng.choice([190, 230, 320, 470, 500, 650, 810], 4))
    count = rng.integers(0, 12, len(sizes) + 1).astype(float)  # the last: whole GPUs
    asks = asks_of(*((0, 1, int(size), -1) for size in sizes), (0, 1, 1000, -1))
    whole = np.append(np.zeros(len(sizes), int), 1)
    cuts = [cut for cut in itertools.product(range(6), repeat=len(sizes)) if np.dot(cut, sizes) <= 1000]
    patterns = np.array([[*cut, 0] for cut in cuts] + [whole.tolist()])  # (P, U + 1)
    # Variables: pods of each class, then GPUs cut by each pattern.
    gain = np.append(sizes, 1000) / 1000
    num_classes, num_patterns = len(gain), len(patterns)
    rows = np.block([[np.eye(num_classes), -patterns.T], [np.zeros((1, num_classes)), np.ones((1, num_patterns))]])
    limits = np.append(np.zeros(num_classes), 8)
    bounds = [*zip(np.zeros(num_classes), count, strict=True), *[(0, None)] * num_patterns]
    found = linprog(np.append(-gain, np.zeros(num_patterns)), A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
    assert prices.prices(nodes_of(0, 0), asks, count).bound == pytest.approx(-found.fun, abs=1e-6)


@given(SEEDS)
def test_rests_equal_trying_all_ways_to_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, price = np.unique(rng.integers(150, 1000, 3)), rng.random((1, 3))
    price = price[:, : len(sizes)]
    found = _rests(sizes, price)
    for left in [0, 150, int(rng.integers(1000)), 999, 1000]:
        right = max(
            np.dot(cut, price[0])
            for cut in itertools.product(range(7), repeat=len(sizes))
            if np.dot(cut, sizes) <= left
        )
        assert found[0, left] == pytest.approx(right)


@given(SEEDS)
def test_worth_never_falls_with_what_is_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks = random_nodes(rng, 6), random_asks(rng, 6)
    found = prices.outlook(nodes, asks, rng.integers(0, 20, 6), random_mix(rng, 3))
    assert all(np.isfinite(each).all() for each in found.worth)
    assert (found.worth.compute >= 0).all()
    assert (np.diff(found.worth.left, axis=1) >= -1e-9).all()
    assert found.cpu_need_milli >= 1 and found.memory_need_mib >= 1


@pytest.mark.slow
@needs_traces
def test_the_bound_of_a_public_trace_is_the_ceiling_known_for_it() -> None:
    """shared/traces: 96.91 % on `default`, for the pods of seed 42; here for the mix of the pod list."""
    directory = PUBLISHED / "openb"
    node_list, pod_list = read_nodes(directory), read_pods(directory, "default")
    offered = workload(directory, "default", 1001, node_list, pod_list)
    count = np.bincount(offered.classes, minlength=len(offered.asks.cpu_milli))
    expected = expected_count(offered.asks, count, offered.num_gpus)
    bound = prices.prices(offered.nodes, offered.asks, expected).bound
    assert 100 * bound / offered.num_gpus == pytest.approx(96.91, abs=0.05)


def test_cpu_has_a_price_where_it_runs_out() -> None:
    """Eight pods ask for a GPU and 8 cores each; model 0 has 4 cores for each GPU, model 1 has 64."""
    nodes = nodes_of(0, 0, 1)
    nodes = nodes._replace(cpu_milli=np.array([16_000, 16_000, 256_000]))
    found = prices.prices(nodes, asks_of((8000, 1, 1000, -1)), np.array([12.0]))
    assert found.bound == pytest.approx(2 + 2 + 4)
    # A core of model 0 is an eighth of a GPU that is used; its GPUs are there in plenty, as is model 1's CPU.
    assert found.worth.compute == pytest.approx(np.array([[1 / 8, 0], [0, 0], [0, 0]]))
    assert found.worth.left[:, 1000] == pytest.approx([0, 1, 0])


def test_pods_without_gpus_give_cpu_a_price_once_it_runs_out() -> None:
    nodes = nodes_of(0, -1, cpu_milli=32_000)._replace(num_gpus=np.array([4, 0]))
    asks = PodClasses(np.array([8000, 1000]), np.full(2, 16), np.array([1, 0]), np.array([1000, 0]), np.array([-1, -1]))
    plenty = prices.prices(nodes, asks, np.array([4.0, 20.0]))
    assert plenty.bound == pytest.approx(4)
    assert not plenty.worth.compute.any()
    short = prices.prices(nodes, asks, np.array([4.0, 40.0]))
    assert short.bound == pytest.approx(4)
    by_core = 4 / 64
    assert short.worth.compute[[0, -1], 0] == pytest.approx([by_core, by_core])
