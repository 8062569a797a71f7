"""`kerf simulate moves`: what is told of runs with moves and without."""

from pathlib import Path

import numpy as np
import pytest

from model.evaluation import moves
from model.evaluation.moves import _PAIRED, _better, _figures, _measures
from model.simulations.baselines import BASELINES
from model.simulations.departures import simulate_churn
from model.simulations.making_room import MakingRoom
from model.workloads.jobs import drawn_jobs
from tests.model.cli.calls import figures, refused
from tests.model.simulations.test_making_room import WAITS, churn_of


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
def test_simulate_moves(tmp_path: Path) -> None:
    jobs, csv = drawn_jobs(4000, 1), tmp_path / "jobs.csv"
    rows = list(zip(jobs.submitted_s, jobs.duration_s, jobs.num_gpus, jobs.cluster, strict=True))[::6]
    csv.write_text(
        "\n".join(["timestamp,duration,num_gpus,cluster", *(",".join(map(str, row)) for row in rows)]) + "\n"
    )
    given = ("--jobs", csv, "--nodes", "6", "--days", "1", "--load", "1.1", "--seeds", "1,2", "--least-gain", "1")
    found = figures("simulate", "moves", *given, "--processes", "1")
    cell = found["cells"]["1.1"]
    assert list(cell) == ["off", "moves", "checkpoints", "pool"]
    assert all(row["moves_a_day"] == 0 for name in ("off", "pool") for row in cell[name])
    assert sum(row["moves_a_day"] for row in cell["moves"]) > 0
    assert cell["moves"] != cell["checkpoints"]
    off = np.mean([row["large_delay_s"] for row in cell["off"]])
    assert found["means"]["1.1"]["off"]["large_delay_s"] == pytest.approx(off, abs=1e-3)
    plan = moves.Plan(csv, num_nodes=6, num_days=1, room=MakingRoom(least_gain=1.0))
    assert _figures(plan, 1.1, "moves", 2) == cell["moves"][1]


def test_what_can_not_be_simulated_is_refused() -> None:
    call = ("simulate", "moves", "--jobs", "a.csv")
    refused("give either --jobs FILE or --trace NAME", "simulate", "moves")
    refused("missing.csv", "simulate", "moves", "--jobs", "missing.csv")
    refused("--load 0.9,much: write numbers up to 10", *call, "--load", "0.9,much")
    refused("no variant on; there are off, moves, checkpoints, pool", *call, "--variants", "off,on")
    refused("--seeds x: write whole numbers", *call, "--seeds", "x")
