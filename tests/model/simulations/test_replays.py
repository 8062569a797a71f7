"""Replays: both engines alike, equal seeds equal bytes, and the published results."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from extender.core.fit import filters
from model.evaluation.published import table, verify
from model.simulations.baselines import BASELINES, UnknownPolicyError, baseline
from model.simulations.measures import allocation_curve, measures
from model.simulations.replays import Engine, InvariantError, check, replay
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.docs.example import broken, example_on_path
from tests.model.builders import PUBLISHED, needs_traces, write_openb


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory = write_openb(tmp_path_factory.mktemp("traces"), num_nodes=30, num_pods=200, seed=3)
    return workload(directory, "small", 5, read_nodes(directory), read_pods(directory, "small"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", BASELINES)
def test_engines_place_alike(small: Workload, policy: str) -> None:
    rule = baseline(policy)
    compiled, slow = replay(small, rule, 5), replay(small, rule, 5, Engine.NUMPY)
    for name in ("placed", "gpus", "fragment_milli"):
        assert getattr(compiled, name).tobytes() == getattr(slow, name).tobytes()
    assert (compiled.placed >= 0).any()
    assert (compiled.placed < 0).any()


@pytest.mark.parametrize("engine", Engine)
def test_a_filter_that_cannot_be_loaded_stops_the_simulator(small: Workload, tmp_path: Path, engine: Engine) -> None:
    """As it stops the service."""
    broken(tmp_path, "[kerf.filters]\nODD = kerf_broken:FILTER", "import no_such_module")
    with example_on_path(tmp_path):
        filters.load_installed()
        with pytest.raises(ValueError, match=r"filter ODD.*ModuleNotFoundError"):
            replay(small, baseline("fgd"), 5, engine)


def test_random_ties_follow_the_seed(small: Workload) -> None:
    rule = baseline("random")
    assert replay(small, rule, 1).placed.tobytes() == replay(small, rule, 1).placed.tobytes()
    assert replay(small, rule, 1).placed.tobytes() != replay(small, rule, 2).placed.tobytes()


def test_a_replay_that_lies_is_found(small: Workload) -> None:
    done = replay(small, baseline("fgd"), 5)
    p = int(np.flatnonzero((done.placed >= 0) & (small.asks.num_gpus[small.classes] > 0))[0])
    other_gpu, nowhere = done.gpus.copy(), done.placed.copy()
    other_gpu[p] = 0
    nowhere[p] = -1
    with pytest.raises(InvariantError, match="different number of GPUs"):
        check(small, dataclasses.replace(done, gpus=other_gpu))
    with pytest.raises(InvariantError, match="do not add up"):
        check(small, dataclasses.replace(done, placed=nowhere))
    all_on_one = np.where(done.placed >= 0, 0, -1)
    with pytest.raises(InvariantError, match="more GPU, CPU or memory"):
        check(small, dataclasses.replace(done, placed=all_on_one))


def test_measures_add_up(small: Workload) -> None:
    done = replay(small, baseline("fgd"), 5)
    told = measures(small, done)
    assert told["placed"] + told["failed"] + told["refused"] == told["pods"] == len(small.pods)
    held = small.asked_milli[done.placed >= 0].sum()
    assert told["gpu_utilisation"] == pytest.approx(100 * held / small.gpu_milli, abs=5e-4)
    free = done.nodes.gpu_free_milli.sum()
    assert held + free == small.gpu_milli
    assert told["allocation"]["130"] <= 100
    assert told["curve"]["arrived"][-1] in (130, 131)  # the last arrival may overshoot


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


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(UnknownPolicyError, match="no policy 'best'; there are fgd, bestfit, tightest, binpack"):
        baseline("best")


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
    same = dataclasses.replace(run, published=tuple(value for value in run.ours if value is not None))
    assert same.equal


def test_a_pod_that_was_left_though_it_fitted_is_counted_as_refused(small: Workload) -> None:
    done = replay(small, baseline("fgd"), 5)
    assert measures(small, done)["refused"] == 0
    placed = done.placed.copy()
    first = int(np.flatnonzero(placed >= 0)[-1])  # the last one placed: nothing that comes after it is missed
    placed[first] = -1
    told = measures(small, dataclasses.replace(done, placed=placed))
    assert told["refused"] == 1
    assert told["placed"] + told["failed"] + told["refused"] == told["pods"]
