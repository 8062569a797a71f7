"""`kerf simulate moves`: what is told of runs with moves and without."""

import json
from pathlib import Path

import numpy as np
import pytest

from model.evaluation import moves
from model.evaluation.moves import _PAIRED, _better, _figures, _measures
from model.simulations.baselines import BASELINES
from model.simulations.departures import simulate_churn
from model.simulations.making_room import MakingRoom
from model.workloads.jobs import drawn_jobs
from tests.model.builders import write_openb
from tests.model.cli.calls import kerf
from tests.model.simulations.test_making_room import WAITS, churn_of


@pytest.fixture(scope="module")
def jobs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jobs = drawn_jobs(4000, 1)
    rows = list(zip(jobs.submitted_s, jobs.duration_s, jobs.num_gpus, jobs.cluster, strict=True))[::6]
    path = tmp_path_factory.mktemp("jobs") / "jobs.csv"
    path.write_text(
        "\n".join(["timestamp,duration,num_gpus,cluster", *(",".join(map(str, row)) for row in rows)]) + "\n"
    )
    return path


def test_a_wait_that_a_move_ends_is_told_with_what_it_cost() -> None:
    offered = churn_of([*WAITS, (20000, 1, 1, "a", 0)])
    off, on = (
        _measures(offered, simulate_churn(offered, BASELINES["bestfit"], "fifo", 0, room=room))
        for room in (None, MakingRoom(least_gain=1.0))
    )
    # Of four jobs of 4 GPUs and more three start at once.
    assert (off["num_large"], off["large_delay_s"], off["large_median_s"]) == (4, 19800 / 4, 0)
    assert on["large_delay_s"] == 760 / 4
    # 4 x 960 GPU-seconds again, and 8 GPUs kept for 60 s; all of 16 GPUs for 20,000 s are there.
    lost = 4 * 960 + 8 * 60
    assert on["in_use_percent"] - on["useful_percent"] == pytest.approx(100 * lost / 320_000, abs=2e-4)
    assert off["moves_a_day"] == 0
    assert on["moves_a_day"] == pytest.approx(86400 / 20000, abs=1e-4)
    assert off["useful_percent"] == off["in_use_percent"]
    # JCT by GPUs: 4, 4, 4, 8 and 1 GPUs.
    jct = (4 * 20000 + 4 * 100 + 4 * 20960 + 8 * 1760 + 1) / 21
    assert on["gpu_jct_s"] == pytest.approx(jct, abs=1e-3)


def test_gains_are_paired_by_seed() -> None:
    names = [*_PAIRED, "days"]
    off = [dict.fromkeys(names, 100.0), dict.fromkeys(names, 300.0)]
    on = [dict.fromkeys(names, 60.0), dict.fromkeys(names, 240.0)]
    found = _better({"off": off, "moves": on})["moves"]
    # 40 and 60 less: 50 +- 12.706 x sqrt(200) / sqrt(2).
    assert found["large_delay_s"] == {"mean": 50, "half_width": 127.06, "percent": 25, "percent_half_width": 63.53}
    assert found["useful_percent"]["mean"] == -50


@pytest.mark.slow
def test_simulate_moves(jobs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "moves.json"
    arguments = ("simulate", "moves", "--jobs", jobs_file, "--nodes", "6", "--days", "1", "--load", "1.1")
    done = kerf(*arguments, "--seeds", "1,2", "--least-gain", "1", "--processes", "1", "--json", out)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    cell = found["cells"]["1.1"]
    assert list(cell) == ["off", "moves", "checkpoints", "pool"]
    assert all(row["moves_a_day"] == 0 for name in ("off", "pool") for row in cell[name])
    assert sum(row["moves_a_day"] for row in cell["moves"]) > 0
    assert cell["moves"] != cell["checkpoints"]
    off = np.mean([row["large_delay_s"] for row in cell["off"]])
    assert found["means"]["1.1"]["off"]["large_delay_s"] == pytest.approx(off, abs=1e-3)
    plan = moves.Plan(jobs_file, num_nodes=6, num_days=1, room=MakingRoom(least_gain=1.0))
    assert _figures(plan, 1.1, "moves", 2) == cell["moves"][1]


@pytest.mark.slow
def test_simulate_moves_on_a_part_of_a_trace(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=12, num_pods=100)
    out = tmp_path / "moves.json"
    done = kerf(
        *("simulate", "moves", "--traces", tmp_path, "--trace", "small", "--nodes", "6", "--load", "1.0"),
        *("--seeds", "1", "--variants", "off,moves", "--processes", "1", "--json", out),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["plan"]["trace"] == "small"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --jobs FILE or --trace NAME"),
        (("--jobs", "a.csv", "--trace", "default"), "give either --jobs FILE or --trace NAME"),
        (("--jobs", "missing.csv"), "missing.csv"),
        (("--jobs", "a.csv", "--load", "0.9,much"), "--load 0.9,much: write numbers up to 10"),
        (("--jobs", "a.csv", "--load", "0"), "--load 0: write numbers up to 10"),
        (("--jobs", "a.csv", "--variants", "off,on"), "no variant on; there are off, moves, checkpoints, pool"),
        (("--jobs", "a.csv", "--seeds", "x"), "--seeds x: write whole numbers"),
    ],
)
def test_what_can_not_be_simulated_is_refused(arguments: tuple[str, ...], message: str) -> None:
    refused = kerf("simulate", "moves", *arguments)
    assert refused.exit_code == 2
    assert message in refused.output
