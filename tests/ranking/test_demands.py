"""What is expected of a cluster: kinds of pods as bits and amounts, nodes by type, needs that nobody tells."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fragmentation import ANY_MODEL, expected_count
from extender.core.policies.policy import Expected
from extender.core.resources.gpu_models import GpuModel
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.core.valuenet.features import Worth
from extender.ranking import prices
from extender.ranking.demands import Demand, Kind, _kind_expected, asks_of, demand_of, guessed, kind_of, outlook_on
from tests.core.builders import cluster_of, node, pattern
from tests.model.builders import random_asks, random_mix, random_nodes

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)


@pytest.fixture
def cluster() -> Cluster:
    found = cluster_of({"a": node(*[T4] * 4), "b": node(*[A100] * 8), "c": node()})
    cpu_milli, memory_mib = np.array([32000, 96000, 16000]), np.array([131072, 1048576, 65536])
    return dataclasses.replace(found, cpu_milli=cpu_milli, memory_mib=memory_mib)


def test_kinds_of_pods() -> None:
    assert kind_of(PodRequest(cpu_milli=100)) == Kind(100, 0)
    assert kind_of(PodRequest(GpuRequest(2), cpu_milli=100, memory_mib=5)) == Kind(100, 5, 2, 1000)
    assert kind_of(PodRequest(GpuRequest(1, milli=300))) == Kind(0, 0, 1, 300)
    assert kind_of(PodRequest(GpuRequest(0, memory_total_mib=9))) == Kind(0, 0, 1, 1000)
    assert kind_of(PodRequest(GpuRequest(1, AskedUnit.SHARED))) is None
    assert kind_of(PodRequest(GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),)))) is None
    assert _kind_expected(Expected(1, 0, 1000, 7)) == Kind(1, 0)
    assert _kind_expected(Expected(1, 2, 1000, 7, ("NVIDIA-A100-SXM4-80GB",), 5)).products == ("a100-sxm4-80gb",)


def test_models_and_memory_are_bits_of_the_clusters_models(cluster: Cluster) -> None:
    kinds = {
        Kind(1000, 0, 1, 1000): 5.0,
        Kind(1000, 0, 1, 1000, include=pattern("t4")): 4.0,
        Kind(1000, 0, 1, 1000, exclude=pattern("t4")): 3.0,
        Kind(1000, 0, 1, 1000, gpu_memory_mib=40000): 2.0,
        Kind(1000, 0, 1, 1000, products=("v100",)): 1.0,
    }
    demand = demand_of(cluster, kinds)
    assert demand.asks.models.tolist() == [ANY_MODEL, 0b01, 0b10, 0b10, 0]
    assert demand.count.tolist() == [5000, 4000, 3000, 2000, 1000]
    assert demand.nodes.num_gpus.tolist() == [4, 8, 0]
    assert demand.nodes.model.tolist() == [0, 1, -1]
    assert demand.nodes.cpu_milli.tolist() == [32000, 96000, 16000]
    assert demand.nodes.memory_mib.tolist() == [130000, 1000000, 65000]


def test_choosy_pods_take_a_model_or_one_with_more_memory() -> None:
    counts = {Kind(8000, 0, 1, 1000, choosy=True): 6.0, Kind(1000, 0): 1.0}
    models = [GpuModel(name, (name,)) for name in ("l4", "a10", "t4")]
    asks, pods = asks_of(counts, models, np.array([23034, 23028, 15360]))  # L4 and A10: 22 GiB both
    assert asks.models.tolist() == [0b001, 0b010, 0b111, ANY_MODEL]
    assert pods.tolist() == [2, 2, 2, 1]
    assert asks.cpu_milli.tolist() == [8000, 8000, 8000, 1000]
    unknown, _ = asks_of(counts, models, np.zeros(3, np.int64))
    assert unknown.models.tolist() == [0b001, 0b010, 0b100, ANY_MODEL]
    nobody, none = asks_of(counts, [], np.zeros(0, np.int64))
    assert (nobody.models.tolist(), none.tolist()) == ([ANY_MODEL], [1])


def test_only_the_default_mix_has_choosy_pods() -> None:
    told = [Expected(1000, 1, 1000, 3), Expected(1000, 1, 1000, 4, models=("T4",))]
    assert guessed(told) == {Kind(1000, 0, 1, 1000): 3, Kind(1000, 0, 1, 1000, products=("t4",)): 4}
    guess = guessed()
    choosy = sum(pods for kind, pods in guess.items() if kind.choosy)
    assert choosy == pytest.approx(0.2 * sum(guess.values()))


def test_the_larger_gpus_are_expected_to_be_wanted_more(cluster: Cluster) -> None:
    t4, a100, later, none = outlook_on(demand_of(cluster, guessed()), None, 1.0).wanted.tolist()
    assert t4 == 0 < a100  # who needs a T4 may have an A100
    assert later == none == 0


def test_nodes_that_hardly_differ_are_one_type() -> None:
    cluster = cluster_of({f"n{i:03}": node(*[T4] * 4) for i in range(90)})
    numbers = np.arange(90)
    few = dataclasses.replace(cluster, cpu_milli=63000 + numbers * 7, memory_mib=261000 + numbers)
    nodes = demand_of(few, {Kind(1000, 0, 1, 1000): 1.0}).nodes
    assert set(nodes.cpu_milli.tolist()) == {63000}
    assert set(nodes.memory_mib.tolist()) == {260000}
    many = dataclasses.replace(few, memory_mib=1000 * (10 + numbers))
    nodes = demand_of(many, {Kind(1000, 0, 1, 1000): 1.0}).nodes
    assert set(nodes.memory_mib.tolist()) == {54500}  # 90 types are too many: all have the mean


def test_unknown_needs_are_the_nodes_resources_per_gpu(cluster: Cluster) -> None:
    told = outlook_on(demand_of(cluster, {Kind(4000, 8192, 1, 500): 3.0, Kind(9000, 1): 1.0}), None, 1.0)
    assert (told.cpu_need_milli, told.memory_need_mib) == (8000.0, 16384.0)
    for counts in ({Kind(0, 0, 1, 1000): 3.0}, {}):
        unknown = outlook_on(demand_of(cluster, counts), None, 1.0)
        assert (unknown.cpu_need_milli, unknown.memory_need_mib) == (128000 / 12, 1130000 / 12)


def test_worth_has_rows_for_later_models_and_for_none(cluster: Cluster) -> None:
    demand = demand_of(cluster, {Kind(4000, 8192, 1, 500): 3.0})
    plain = outlook_on(demand, None, 1.0).worth
    assert plain.left[:, 1000].tolist() == [1, 1, 1, 0]
    assert not plain.compute.any()
    left = np.zeros((2, 1001))  # of the first model alone
    left[0] = 0.25
    found = outlook_on(demand, Worth(left, np.array([[0.5, 0.75], [0.125, 0.25]])), 1.0).worth
    assert found.left[:, 1000].tolist() == [0.25, 1, 1, 0]
    assert found.compute.tolist() == [[0.5, 0.75], [0, 0], [0, 0], [0.125, 0.25]]
    free = Worth(np.zeros((3, 1001)), np.array([[0.5, 0], [0.25, 0], [0.125, 0]]))
    found = outlook_on(demand, free, 1.0).worth
    assert found.left[:, 1000].tolist() == [0, 0, 1, 0]  # face value only where the LP has seen none
    assert found.compute[:, 0].tolist() == [0.5, 0.25, 0, 0.125]


@given(st.integers(0, 2**32))
@settings(max_examples=settings().max_examples // 4)
def test_the_service_expects_what_the_simulator_expects(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 6), random_asks(rng, 8), random_mix(rng, 4)
    empty = nodes._replace(cpu_free_milli=nodes.cpu_milli, memory_free_mib=nodes.memory_mib)
    count = rng.integers(1, 9, 8)
    simulated = prices.outlook(empty, asks, count, mix)
    num_models = len(simulated.worth.left) - 1
    expected = expected_count(asks, count, int(empty.num_gpus.sum()))
    served = outlook_on(Demand(empty, asks, count, num_models), prices.prices(empty, asks, expected).worth, 1.0)
    there = np.append(np.unique(empty.model[empty.model >= 0]), -1)
    assert np.array_equal(served.worth.left[there], simulated.worth.left[there])
    assert np.array_equal(served.worth.compute[there], simulated.worth.compute[there])


def test_absurd_requests_leave_the_outlook_finite(cluster: Cluster) -> None:
    kind = kind_of(PodRequest(GpuRequest(1), cpu_milli=10**21, memory_mib=10**21))
    assert kind is not None
    demand = demand_of(cluster, {kind: 1.0, Kind(1000, 1024, 1, 1000): 50.0})
    assert np.isfinite(outlook_on(demand, None, 1.0).cpu_need_milli)
