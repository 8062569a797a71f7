"""`kerf evaluate` with `--departures` and with `--nodes`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.core.fragmentation import ANY_MODEL, Nodes, PodClasses, mix_of
from extender.core.valuenet import potentials
from extender.core.valuenet.features import FEATURES, plain_worth
from model.engine.pools import Pools, pooled
from model.simulations.departures import PeriodicWorkload, simulate_churn
from model.simulations.learned import Learned
from model.simulations.simulated_jobs import Tasks
from model.training.departures import differences
from model.workloads.traces import NodeList, read_nodes
from model.workloads.workloads import bits_of, empty_nodes
from tests.core.valuenet.builders import random_outlook
from tests.model.builders import write_openb
from tests.model.cli.calls import figures, refused


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=8, num_pods=150)


def evaluated(traces: Path, *arguments: str) -> Any:
    return figures("evaluate", "--traces", traces, "--trace", "small", "--seeds", "3", *arguments)


@pytest.mark.slow
def test_figures_are_those_of_single_runs(traces: Path) -> None:
    found = evaluated(traces, "--departures", "--load", "0.8,1.2", "--seeds", "3,4")
    assert (found["trace"], found["seeds"], list(found["loads"])) == ("small", [3, 4], ["0.8", "1.2"])
    assert list(found["loads"]["1.2"]) == ["kerf", "kerf-online", "fgd", "kube-default"]
    for policy in ("kerf", "fgd", "kube-default"):
        call = ("--departures", "--load", "1.2", "--seed", "4", "--policy", policy)
        one = figures("simulate", "openb", "--traces", traces, "--trace", "small", *call)
        row = found["loads"]["1.2"][policy]
        assert row["allocated_gpus"][1] == one["mean_allocated_gpus"]
        assert row["mean_delay_s"][1] == one["queueing_delay_s"]["mean"]
        assert row["p99_delay_s"][1] == one["queueing_delay_s"]["p99"]
    used = [found["loads"][load]["kerf-online"]["allocated_gpus"] for load in ("0.8", "1.2")]
    assert all(low < high for low, high in zip(*used, strict=True))


def test_shares_that_spoil_gpus_give_way_to_those_that_come_soon_after() -> None:
    """One GPU is in use for two hours. A share of 800 waits for it since the start, who wants all of it since later."""
    node_list = NodeList(("n",), np.array([64000]), np.array([262144]), np.array([1]), ("T4",))
    asks = PodClasses(
        np.full(2, 1000), np.full(2, 1024), np.ones(2, np.int64), np.array([800, 1000]), np.full(2, ANY_MODEL)
    )
    worth = plain_worth(1)
    worth.left[0] = np.where(np.arange(1001) >= 800, 0.8, 0.0)  # the 200 beside a share of 800 are worth nothing
    worth.left[0, 1000] = 1.0
    rng = np.random.default_rng(0)
    rank = Learned(potentials.linear(np.zeros(len(FEATURES)), 1.0), random_outlook(rng)._replace(worth=worth))

    def first_of(later_s: float, patience_s: float) -> str:
        submitted = np.array([0.0, 60.0, 60.0 + later_s])
        tasks = Tasks(
            submitted, np.full(3, 7200.0), (((1, 1),), ((0, 1),), ((1, 1),)), np.zeros(3, np.int64),
            np.array([1000, 800, 1000]), asks, mix_of([], 1),
        )  # fmt: skip
        nodes = empty_nodes(node_list, bits_of(node_list), np.zeros(1, np.int64))
        offered = PeriodicWorkload(tasks, nodes, ("T4",), [("T4", "1000")] * 3, 0, 0, 1.0)
        started = simulate_churn(offered, rank, "fifo", 0, patience_s=patience_s).outcome.started_s
        return "share" if started[1] < started[2] else "whole"

    assert first_of(600.0, patience_s=0.0) == "share"
    assert first_of(600.0, patience_s=900.0) == "whole"
    assert first_of(1200.0, patience_s=900.0) == "share"  # came too late to be given way to


def test_more_in_use_and_less_delay_are_better() -> None:
    better = {"allocated_gpus": [9.0, 8.0], "mean_delay_s": [1.0, 2.0], "large_delay_s": [7.0, 7.0]}
    worse = {"allocated_gpus": [7.0, 7.0], "mean_delay_s": [4.0, 4.0], "large_delay_s": [5.0, 6.0]}
    found = differences({"kerf": better, "fgd": worse})
    gains = {measure: gap.mean for measure, gap in found["fgd"].items()}
    assert gains == {"allocated_gpus": 1.5, "mean_delay_s": 2.5, "large_delay_s": -1.5}


def test_other_nodes_and_patience_give_other_figures(traces: Path) -> None:
    whole, half = (evaluated(traces, "--policies", "fgd", "--nodes", nodes) for nodes in ("all", "half"))
    assert "nodes" not in whole and half["nodes"] == "half"
    assert half["policies"] != whole["policies"]
    call = ("--departures", "--load", "1", "--nodes", "half", "--policies", "kerf-selective,kerf,fgd")
    found = evaluated(traces, *call)["loads"]["1"]
    assert 0 < found["fgd"]["allocated_gpus"][0] < 0.75 * read_nodes(traces).num_gpus.sum()
    assert found["kerf-selective"] != found["kerf"]


def test_faults_are_told(traces: Path) -> None:
    call = ("evaluate", "--traces", traces, "--trace", "small", "--seeds", "3")
    refused("--load heavy", *call, "--departures", "--load", "heavy")
    refused("different numbers", *call, "--departures", "--load", "1,1")
    refused("0.001", *call, "--departures", "--load", "0")
    refused("needs --departures", *call, "--load", "1")
    refused("there are all, half", *call, "--nodes", "round")
    refused("named twice", *call, "--policies", "fgd,kerf,fgd")
    refused("no policy 'best'", *call, "--policies", "best")
    refused("nowhere", *call, "--departures", "--policies", "kerf=nowhere")
    refused("kerf-selective needs --departures", *call, "--policies", "kerf-selective,kerf")
    refused("a range must be ascending", *call, "--seeds", "5-3")


def test_nothing_passes_the_pool(traces: Path) -> None:
    loads = evaluated(traces, "--departures", "--load", "0.7,1.3", "--policies", "fgd,spread,pool")["loads"]
    for load in loads.values():
        for policy in ("fgd", "spread"):
            pairs = zip(load[policy]["allocated_gpus"], load["pool"]["allocated_gpus"], strict=True)
            assert all(mine <= most * 1.001 for mine, most in pairs)
    assert loads["0.7"]["pool"]["mean_delay_s"] < loads["1.3"]["pool"]["mean_delay_s"]


def test_a_pool_has_all_that_its_nodes_have() -> None:
    cpu, memory = np.array([8000, 4000, 2000]), np.array([100, 100, 100])
    free = np.array([[1000, 300], [500, 0], [0, 0]], np.int32)
    nodes = Nodes(cpu, memory, np.array([2, 1, 1]), np.array([1, 0, 1]), cpu.copy(), memory.copy(), free)
    asked_for = [7000, 1000, 1], [999, 0, 0], [1, 0, 2], [600, 0, 1000], [-1, -1, 2]
    asks = PodClasses(*(np.array(values) for values in asked_for))
    pools, asked = pooled(nodes, asks)
    assert (pools.gpu_free_milli.tolist(), pools.cpu_free_milli.tolist()) == ([[500], [1300]], [14_000, 14_000])
    assert (asked.gpu_milli.tolist(), asked.num_gpus.tolist()) == ([600, 0, 2000], [1, 0, 1])
    engine = Pools(pools, asked)
    assert [engine.decide(c) for c in range(3)] == [1, 1, -1]  # 2000 milli of model 1 are more than there are
    taken = engine.take(0, 1)
    assert (pools.gpu_free_milli.tolist(), pools.cpu_free_milli.tolist()) == ([[500], [700]], [7000, 7000])
    assert [engine.decide(0), engine.take(0, 1), engine.decide(0)] == [1, 1, -1]  # no CPU is left, in any pool
    engine.give_back(0, 1, taken)
    fitting = np.zeros(3, np.bool_)
    engine.mark_fitting(1, fitting)
    assert fitting.tolist() == [True, True, False]
