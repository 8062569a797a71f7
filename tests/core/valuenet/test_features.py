"""Features of a node: vectorised, against a loop over nodes and GPUs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import Nodes, PodClasses, TypicalPod, fragment_milli, mix_of
from extender.core.valuenet.features import CONTEXT, FEATURES, _needs, features, outlook_of, plain_worth
from tests.core.valuenet.builders import Expectation, random_expectation
from tests.model.builders import random_asks, random_nodes

SEEDS = st.integers(0, 2**32)


def takes_model(asks: PodClasses, c: int, model: int) -> bool:
    return model >= 0 and int(asks.models[c]) >> model & 1 == 1


def scarcity(expectation: Expectation, c: int) -> float:
    """GPUs that a class will request, per GPU on nodes that could host it when empty."""
    nodes, asks = expectation.nodes, expectation.asks
    suitable = 0
    for n in range(len(nodes.model)):
        enough = nodes.num_gpus[n] >= asks.num_gpus[c]
        enough &= nodes.cpu_milli[n] >= asks.cpu_milli[c] and nodes.memory_mib[n] >= asks.memory_mib[c]
        suitable += int(nodes.num_gpus[n]) if enough and takes_model(asks, c, int(nodes.model[n])) else 0
    return expectation.expected[c] * asks.num_gpus[c] / suitable if suitable else 0.0


def wanted(expectation: Expectation, model: int) -> float:
    """GPUs of a model that pods that don't accept every model will request, per GPU of it."""
    nodes, asks = expectation.nodes, expectation.asks
    held = [int(nodes.num_gpus[nodes.model == m].sum()) for m in range(3)]
    if model < 0 or not held[model]:
        return 0.0
    total = 0.0
    for c in range(len(asks.models)):
        models = [m for m in range(3) if held[m] and takes_model(asks, c, m)]
        if asks.num_gpus[c] and model in models and len(models) < sum(1 for number in held if number):
            asked = expectation.expected[c] * asks.num_gpus[c] * asks.gpu_milli[c] / 1000
            total += asked * held[model] / sum(held[m] for m in models)
    return min(total / held[model], 1.0)


def oracle(nodes: Nodes, expectation: Expectation, n: int) -> dict[str, float]:
    """The features of one node, one after the other."""
    asks, outlook = expectation.asks, outlook_of(*expectation)
    free = [int(left) for left in nodes.gpu_free_milli[n]]
    num, model = int(nodes.num_gpus[n]), int(nodes.model[n])
    cpu_free, memory_free = int(nodes.cpu_free_milli[n]), int(nodes.memory_free_mib[n])
    gpu = sum(free) / 1000
    cpu = cpu_free / outlook.cpu_need_milli
    memory = memory_free / outlook.memory_need_mib
    idle = sum(1 for left in free if left == 1000)
    one = nodes.at(np.array([n]))
    fragment = fragment_milli(one.cpu_free_milli, one.gpu_free_milli.astype(np.int64), one.model, expectation.mix)[0]
    worth = sum(expectation.worth.left[model][left] for left in free) if model >= 0 else 0
    hosts = {True: 0.0, False: 0.0}
    for c in range(len(asks.models)):
        fits = takes_model(asks, c, model) and cpu_free >= asks.cpu_milli[c] and idle >= asks.num_gpus[c]
        if asks.gpu_milli[c] == 1000 and fits:
            hosts[asks.num_gpus[c] > 1] += scarcity(expectation, c)
    return {
        "fragment": fragment / 1000,
        "worth": worth,
        "gpus_idle": idle,
        "node_idle": 1 if num > 0 and idle == num else 0,
        "gpus_partly_used": sum(1 for left in free if 0 < left < 1000),
        "cpu_short_half": min(0, cpu - 0.5 * gpu),
        "cpu_short": min(0, cpu - gpu),
        "cpu_short_more": min(0, cpu - 1.5 * gpu),
        "cpu_square": cpu * cpu_free / int(nodes.cpu_milli[n]),
        "cpu_log": math.log(1 + cpu),
        "gpu_cpu": gpu * cpu_free / int(nodes.cpu_milli[n]),
        "memory_short": min(0, memory - gpu),
        "gpu_sqrt": math.sqrt(gpu),
        "gpu_square": gpu * gpu / num if num else 0,
        "gpu_wanted": gpu * wanted(expectation, model),
        "worth_fed": worth * min(cpu / gpu, 1) if gpu else 0,
        "hosts_one": hosts[False],
        "hosts_many": hosts[True],
        "compute_worth": cpu_free / 1000 * expectation.worth.compute[model][0]
        + memory_free / 1024 * expectation.worth.compute[model][1],
    }


@given(SEEDS)
def test_features_equal_a_loop_over_nodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, expectation = random_nodes(rng, 8), random_expectation(rng)
    found = features(nodes, outlook_of(*expectation))
    assert found.shape == (8, len(FEATURES))
    for n in range(8):
        right = oracle(nodes, expectation, n)
        assert tuple(right) == FEATURES
        assert found[n].tolist() == pytest.approx(list(right.values()), rel=1e-12, abs=1e-12)


def test_features_of_a_node_worked_by_hand() -> None:
    # One class: a whole GPU of this model with 8 cores and 16 GiB; the cluster has another model. The node has 4 GPUs,
    # two idle, one with 250 milli left. 6 pods are expected for its 4 GPUs and the 4 of an equal node.
    mix = mix_of([TypicalPod(8000, 1, 1000, 1, 1)], 1)
    cpu, memory, num, model, cpu_free, memory_free = (
        np.array([amount, amount]) for amount in (32000, 65536, 4, 0, 16000, 8192)
    )
    free = np.array([[1000, 1000, 250, 0], [0, 0, 0, 0]], np.int32)
    nodes = Nodes(cpu, memory, num, model, cpu_free, memory_free, free)
    others = Nodes(*(np.concatenate([column, column[:1]]) for column in nodes))
    others.model[2] = 1
    asks = PodClasses(*(np.array([amount]) for amount in (8000, 16384, 1, 1000, 1)))
    worth = plain_worth(2)._replace(compute=np.array([[0.25, 0.5], [9, 9], [9, 9]]))
    outlook = outlook_of(others, asks, np.array([6.0]), mix, worth)
    found = dict(zip(FEATURES, features(nodes, outlook)[0].tolist(), strict=True))
    assert found == pytest.approx({
        "fragment": 0.25, "worth": 2.25, "gpus_idle": 2, "node_idle": 0, "gpus_partly_used": 1,
        "cpu_short_half": 0, "cpu_short": 2 - 2.25, "cpu_short_more": 2 - 1.5 * 2.25,
        "cpu_square": 4 / 4, "cpu_log": math.log(3), "gpu_cpu": 2.25 * 0.5,
        "memory_short": 0.5 - 2.25, "gpu_sqrt": 1.5, "gpu_square": 2.25**2 / 4,
        "gpu_wanted": 2.25 * 6 / 8, "worth_fed": 2.25 * 2 / 2.25, "hosts_one": 6 / 8, "hosts_many": 0,
        "compute_worth": 16 * 0.25 + 8 * 0.5,
    })  # fmt: skip


def test_needs_are_means_over_the_requested_gpus() -> None:
    # 3 shares of half a GPU with 2 cores, 1 pod of 4 GPUs with 40 cores; pods without GPUs don't count.
    columns = ([2000, 40000, 64000], [4096, 65536, 4096], [1, 4, 0], [500, 1000, 0], [-1, -1, -1])
    asks = PodClasses(*(np.array(column) for column in columns))
    cpu, memory = _needs(asks, np.array([3, 1, 50]))
    assert cpu == pytest.approx((3 * 2000 + 40000) / 5.5)
    assert memory == pytest.approx((3 * 4096 + 65536) / 5.5)
    assert _needs(asks, np.array([0, 0, 50])) == (1.0, 1.0)
    assert _needs(random_asks(np.random.default_rng(0), 3), np.zeros(3, np.int64)) == (1.0, 1.0)


def test_the_context_describes_the_expected_pods() -> None:
    """Two nodes of two GPUs, of two models; 4 GPUs are requested: 1 in shares, 2 by a pair, 1 of one model."""
    two = np.array([10_000, 10_000])
    nodes = Nodes(
        cpu_milli=two, memory_mib=two, num_gpus=np.array([2, 2]), model=np.array([0, 1]),
        cpu_free_milli=two, memory_free_mib=two, gpu_free_milli=np.full((2, 2), 1000, np.int32),
    )  # fmt: skip
    asks = PodClasses(
        cpu_milli=np.array([1000, 2000, 1000, 3000]), memory_mib=np.zeros(4, np.int64),
        num_gpus=np.array([1, 2, 1, 0]), gpu_milli=np.array([500, 1000, 1000, 0]), models=np.array([3, 3, 2, 3]),
    )  # fmt: skip
    expected = np.array([2.0, 1.0, 1.0, 3.0])
    context = outlook_of(nodes, asks, expected, mix_of([], 1), plain_worth(2)).context
    cpu = (2 * 1000 + 2000 + 1000 + 3 * 3000) / 20_000
    assert np.allclose(context + list(CONTEXT.values()), [cpu, 1 / 4, 2 / 4, 1 / 4])
    assert outlook_of(nodes, asks, 9 * expected, mix_of([], 1), plain_worth(2)).context[0] == 2.0 - CONTEXT["cpu_asked"]
    assert np.isfinite(outlook_of(nodes, asks, 0 * expected, mix_of([], 1), plain_worth(2)).context).all()
