"""Which rank does best on the pods that are expected: what is tried, and when another one is to serve."""

import asyncio

import numpy as np
import pytest

from extender.core.fragmentation import ANY_MODEL, Nodes, PodClasses
from extender.core.policies import binpack, spread
from extender.core.policies.policy import Options
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import linear
from extender.ranking import trials
from extender.ranking.demands import Demand
from extender.ranking.trials import _ORDERS, _filled

POLICIES = {"binpack": binpack.policy(Options()), "spread": spread.policy(Options())}


def demand(num_nodes: int = 12) -> Demand:
    """Nodes of four GPUs; most pods ask for one, and some for all four: who spreads has no room for those."""
    cpu, memory = np.full(num_nodes, 64_000), np.full(num_nodes, 256_000)
    free = np.full((num_nodes, 4), 1000, np.int32)
    nodes = Nodes(cpu, memory, np.full(num_nodes, 4), np.zeros(num_nodes, np.int64), cpu.copy(), memory.copy(), free)
    columns = ([1000, 4000, 2000], [1000, 4000, 1000], [1, 4, 0], [1000, 1000, 0], [ANY_MODEL] * 3)
    return Demand(nodes, PodClasses(*(np.array(column) for column in columns)), np.array([4000, 1000, 500]), 1)


def test_packing_does_better_than_spreading_on_the_same_pods() -> None:
    found = trials.tried(demand(6), POLICIES)
    assert [len(values) for values in found.values()] == [_ORDERS] * 2
    assert np.mean(found["binpack"]) > np.mean(found["spread"]) + 2
    assert all(0 < value <= 100 for values in found.values() for value in values)
    assert trials.tried(demand(6), POLICIES) == found
    assert trials.tried(demand(6), POLICIES, seed=1) != found


def test_the_rules_place_by_hand() -> None:
    # Two nodes: 1, 1, 4 and 1 GPUs. Packed the four have a node of their own, spread they have none.
    arrivals = np.array([0, 0, 1, 0])
    for name, allocated in (("binpack", [1, 2, 6, 7]), ("spread", [1, 2, 2, 3])):
        asked = demand(2)
        filled = _filled(asked.nodes.copy(), asked.asks, arrivals, POLICIES[name])
        assert (filled // 1000).tolist() == allocated


def test_many_nodes_are_sampled_and_without_gpus_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.ranking.trials._MAX_NODES", 4)
    assert len(trials.tried(demand(40), POLICIES)["spread"]) == _ORDERS
    asked = demand()
    nothing = Demand(asked.nodes, asked.asks, np.array([0, 0, 9]), 1)
    assert trials.tried(nothing, POLICIES) == {}


@pytest.mark.slow
def test_the_process_tries_as_the_function_does() -> None:
    weights = dict.fromkeys(FEATURES, 0.0) | {"node_idle": 1.0, "fragment": -1.0}
    potential, asked = linear(np.array(list(weights.values())), 0.01), demand(4)
    found = asyncio.run(trials.tried_aside(asked, {"kerf": potential}, None, 1.0, 120.0))
    assert found == trials.tried(asked, trials.candidates(asked, {"kerf": potential}, None, 1.0))
    assert tuple(found) == trials.CANDIDATES


EVEN = [90.0, 91.0, 89.0, 90.5, 90.0, 91.0, 89.5, 90.0]


def test_another_serves_when_it_is_better_by_more_than_chance() -> None:
    for others, serving, name, reason in (
        ([value + 1 for value in EVEN], "kerf", "fgd", "1.00 ± 0.00"),
        ([value - 1 for value in EVEN], "kerf", "kerf", "best"),
        ([value + 0.05 for value in EVEN], "kerf", "kerf", "no more than 0.10"),
        ([94.0, 87.0] * 4, "kerf", "kerf", "no more than"),  # by chance
        ([value - 1 for value in EVEN], "fgd", "kerf", "1.00 ± 0.00"),
        (EVEN, "fgd", "fgd", "best"),
    ):
        found = trials.verdict({"kerf": EVEN, "fgd": others}, serving, 0.1)
        assert found.name == name
        assert reason in found.reason
        assert (found.margin > 0) == (name != serving)
