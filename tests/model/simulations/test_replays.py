"""Replays of traces, by both engines."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from extender.core.fit import filters
from extender.core.fragmentation import Nodes
from model.evaluation.published import table, verify
from model.simulations.baselines import BASELINES, baseline
from model.simulations.measures import allocation_curve, measures
from model.simulations.replays import Engine, InvariantError, check, listed, replay
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.docs.example import broken, example_on_path
from tests.model.builders import PUBLISHED, needs_traces, write_openb


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory = write_openb(tmp_path_factory.mktemp("traces"), num_nodes=30, num_pods=200, seed=3)
    return workload(directory, "small", 5, read_nodes(directory), read_pods(directory, "small"))


@pytest.mark.slow
def test_engines_place_alike(small: Workload) -> None:
    for rule in map(baseline, BASELINES):
        compiled, slow = replay(small, rule, 5), replay(small, rule, 5, Engine.NUMPY)
        for name in ("placed", "gpus", "fragment_milli"):
            assert getattr(compiled, name).tobytes() == getattr(slow, name).tobytes(), rule
        assert (compiled.placed >= 0).any() and (compiled.placed < 0).any()


@pytest.mark.parametrize("engine", Engine)
def test_a_filter_that_cannot_be_loaded_stops_the_simulator(small: Workload, tmp_path: Path, engine: Engine) -> None:
    """As it stops the service."""
    broken(tmp_path, "[kerf.filters]\nODD = kerf_broken:FILTER", "import no_such_module")
    with example_on_path(tmp_path):
        filters.load_installed()
        with pytest.raises(ValueError, match=r"filter ODD.*ModuleNotFoundError"):
            replay(small, baseline("fgd"), 5, engine)


def test_random_ties_follow_the_seed(small: Workload) -> None:
    first, second, other = (replay(small, baseline("random"), seed).placed.tobytes() for seed in (1, 1, 2))
    assert first == second != other


def test_a_replay_that_lies_is_found(small: Workload) -> None:
    done = replay(small, baseline("fgd"), 5)
    p = int(np.flatnonzero((done.placed >= 0) & (small.asks.num_gpus[small.classes] > 0))[0])
    other_gpu, nowhere = done.gpus.copy(), done.placed.copy()
    other_gpu[p] = 0
    nowhere[p] = -1
    for lie, fault in (
        (dataclasses.replace(done, gpus=other_gpu), "different number of GPUs"),
        (dataclasses.replace(done, placed=nowhere), "do not add up"),
        (dataclasses.replace(done, placed=np.where(done.placed >= 0, 0, -1)), "more GPU, CPU or memory"),
    ):
        with pytest.raises(InvariantError, match=fault):
            check(small, lie)


def test_measures_add_up(small: Workload) -> None:
    done = replay(small, baseline("fgd"), 5)
    told = measures(small, done)
    assert told["placed"] + told["failed"] == told["pods"] == len(small.pods) and told["refused"] == 0
    held = small.asked_milli[done.placed >= 0].sum()
    assert told["gpu_utilisation"] == pytest.approx(100 * held / small.gpu_milli, abs=5e-4)
    assert held + done.nodes.gpu_free_milli.sum() == small.gpu_milli
    assert told["allocation"]["130"] <= 100
    assert told["curve"]["arrived"][-1] in (130, 131)  # the last arrival may overshoot
    done.placed[np.flatnonzero(done.placed >= 0)[-1]] = -1  # it fitted, as no pod after it was placed
    assert measures(small, done)["refused"] == 1


def test_allocation_is_averaged_over_the_arrivals_at_a_load(small: Workload) -> None:
    # 2 GPUs; 0.5 + 1 + 1 + 0.5 arrive: at 25, 75, 125, 150 %, of which the third fits nowhere.
    arrivals = dataclasses.replace(
        small,
        asked_milli=np.array([500, 1000, 0, 1000, 500]),
        nodes=small.nodes._replace(num_gpus=np.array([2])),
    )
    curve = allocation_curve(arrivals, np.array([0, 0, 0, -1, 0]))
    assert curve.arrived_percent.tolist() == [25, 75, 125, 150]
    assert curve.percent.tolist() == [25, 75, 75, 100]
    assert (curve.at(75), curve.at(100)) == (75, None)


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize("trace", ["default", "gpuspec10", "gpuspec33", "gpushare100", "multigpu50"])
def test_published_results(trace: str) -> None:
    directory = PUBLISHED / "openb"
    lines = [line for line in table(directory) if line[0] == trace and line[2] == 44]
    assert [line[1] for line in lines] == ["BestFit", "FGD"]
    assert [run.difference for run in verify(directory, lines, lambda _: None)] == pytest.approx([0, 0], abs=1e-9)


def test_verification_finds_another_result(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=40, num_pods=250)
    path = tmp_path / "published_allocation.csv"
    path.write_text("trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,7,1.0,99.0\nsmall,Random,7,1.0,99.0\n")
    (run,) = verify(tmp_path, table(tmp_path), lambda _: None)
    assert not run.equal
    assert dataclasses.replace(run, published=tuple(value for value in run.ours if value is not None)).equal


T4 = {"memory": 15360, "multiprocessors": 40, "decoders": 2, "encoders": 1, "bandwidth": 320}
V100 = {"memory": 32768, "multiprocessors": 80, "decoders": 1, "encoders": 3, "bandwidth": 900}
WEIGHTS = {"memory": 2, "multiprocessors": 2, "decoders": 1, "encoders": 1, "bandwidth": 2}


def genius_order(*nodes: tuple[int, int]) -> list[int]:
    """The order of nodes of (number of GPUs, model): T4, V100M32, or an unknown one."""
    num_gpus, model = np.array(nodes).T
    some = np.full(len(nodes), 1000)
    free = np.where(np.arange(8) < num_gpus[:, None], 1000, 0).astype(np.int32)
    made = Nodes(some, some, num_gpus, model, some, some, free)
    found: list[int] = listed(BASELINES["genius"], made, ("T4", "V100M32", "G9")).tolist()
    return found


def test_genius_order_is_that_of_its_formula() -> None:
    nodes = [(2, 0), (1, 1), (4, 0), (2, 1)]
    totals = {key: sum(num * (T4, V100)[model][key] for num, model in nodes) for key in WEIGHTS}
    scores = [sum(WEIGHTS[key] * num * (T4, V100)[model][key] / totals[key] for key in WEIGHTS) for num, model in nodes]
    assert genius_order(*nodes) == sorted(range(4), key=lambda row: -scores[row])
    assert genius_order((1, 0), (1, 2), (1, 1)) == [2, 1, 0]  # an unknown product counts as average
    assert genius_order((0, -1), (1, 0), (2, 0), (0, -1), (2, 0)) == [2, 4, 0, 1, 3]  # equals keep their order
