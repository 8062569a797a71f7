"""Histories as simulations: which pods come when, run how long, and on which nodes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history.records import HistoryError
from model.pasts.happened import happened
from model.pasts.pasts import past
from model.simulations import histories
from model.simulations.baselines import BASELINES, POOL
from model.simulations.departures import churn_measures, simulate_churn
from model.workloads.histories import node_list
from model.workloads.traces import TraceError
from tests.history.builders import history, nodes, pods
from tests.model.builders import write_openb
from tests.model.cli.calls import kerf, refused

HOUR = 3600.0


def measured(*rows: dict[str, Any], gpus: tuple[int, ...] = (2,), **about: float) -> dict[str, float]:
    known = past(history(pods(*rows), nodes(*gpus), **about))
    return churn_measures(known.offered, simulate_churn(known.offered, BASELINES["fgd"], "fifo", 0))


def test_pods_come_when_they_came_and_run_as_long_as_they_ran() -> None:
    """Two GPUs: the third pod waits until the first has gone, and the fourth, of two, until both are free."""
    told = measured(
        {"ended_s": 2 * HOUR}, {"ended_s": 3 * HOUR}, {"submitted_s": HOUR}, {"submitted_s": 2 * HOUR, "gpus": 2}
    )
    # The third runs from 2 to 3 h, the fourth starts at 3 h; the period ends with the last submission, at 2 h.
    assert told["allocated_gpus"] == pytest.approx(2.0)
    assert told["mean_delay_s"] == pytest.approx((0 + 0 + HOUR + HOUR) / 4)
    assert told["large_delay_s"] == pytest.approx(HOUR)


def test_pods_of_before_are_there_with_the_rest_of_their_time() -> None:
    before = {"submitted_s": -5 * HOUR, "ended_s": HOUR, "gpus": 2}
    told = measured(before, {"submitted_s": 0.5 * HOUR}, {"submitted_s": 2 * HOUR})
    assert told["mean_delay_s"] == pytest.approx((0.5 * HOUR + 0) / 2)  # the first is not counted


def test_a_gang_starts_together() -> None:
    gang = [{"gang": "g", "gpus": 2}, {"gang": "g", "gpus": 2, "submitted_s": HOUR}]
    known = past(history(pods({"gpus": 2, "ended_s": 3 * HOUR}, *gang, {"submitted_s": 2 * HOUR}), nodes(2, 2)))
    tasks = known.offered.tasks
    assert tasks.asked_milli.tolist() == [2000, 4000, 1000]
    assert tasks.submitted_s.tolist() == [0.0, HOUR, 2 * HOUR]  # complete when its last pod has come
    run = simulate_churn(known.offered, BASELINES["fgd"], "fifo", 0)
    assert run.outcome.started_s.tolist() == [0.0, 3 * HOUR, 2 * HOUR]


def test_who_has_not_ended_runs_at_least_as_long_and_who_has_not_started_as_long_as_others() -> None:
    running, waiting = (
        {"started_s": HOUR, "ended_s": np.nan},
        {"submitted_s": HOUR, "started_s": np.nan, "ended_s": np.nan},
    )
    known = past(history(pods(running, {"ended_s": 2 * HOUR}, waiting), nodes(8), until_s=9 * HOUR))
    assert known.duration_guessed == 2
    assert known.offered.tasks.duration_s.tolist() == [9 * HOUR, 2 * HOUR, 2 * HOUR]


def test_pods_that_fit_no_node_are_left_out_and_counted() -> None:
    gang: list[dict[str, Any]] = [{"gang": "g"}, {"gang": "g", "gpus": 4}]
    rows: list[dict[str, Any]] = [{}, {"gpus": 4}, {"gpu_models": "H100"}, *gang, {"submitted_s": 1.0}]
    known = past(history(pods(*rows), nodes(2)))
    assert known.offered.left_out == 4
    assert len(known.offered.tasks.kinds) == 2
    with pytest.raises(HistoryError, match="no pod of the history fits"):
        past(history(pods({"gpus": 4}), nodes(2)))
    with pytest.raises(HistoryError, match="no nodes with GPUs"):
        past(history(pods({}), nodes(0)))


def test_public_traces_as_histories(tmp_path: Path) -> None:
    found = histories.openb(write_openb(tmp_path, num_nodes=4, num_pods=30), "small")
    assert (len(found.pods["pod"]), len(found.nodes["node"])) == (30, 4)
    assert (np.diff(found.pods["submitted_s"]) >= 0).all()
    assert happened(found, past(found)) is None
    jobs = tmp_path / "jobs.csv"
    rows = "2017-09-04 10:00:00,3600,20,72000,a\n2017-09-04 11:00:00,60,1,60,b\n"
    jobs.write_text(f"timestamp,duration,num_gpus,gpu_time,cluster\n{rows}")
    found = histories.philly(jobs, 0.9)
    assert (found.pods["gpus"].tolist(), found.pods["gang"].tolist()) == ([8, 8, 4, 1], [*["job-000000"] * 3, ""])
    assert len(found.nodes["node"]) == 3
    assert histories.philly(jobs, 900.0).nodes["gpus"].sum() == 24  # the largest job fits
    (tmp_path / "openb_pod_list_timeless.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n")
    with pytest.raises(TraceError, match="a history needs them"):
        histories.openb(tmp_path, "timeless")


def test_the_commands(tmp_path: Path) -> None:
    traces, out = write_openb(tmp_path / "openb", num_nodes=4, num_pods=30), tmp_path / "h"
    told, html = tmp_path / "told.json", tmp_path / "report.html"
    done = kerf("history", "--openb", traces, "--trace", "small", "--out", out)
    assert done.exit_code == 0 and "30 pods on 4 nodes" in done.stderr
    given = ("replay", "--history", out, "--policies", "kerf,fgd", "--jobs", "1")
    done = kerf(*given, "--price", "2", "--currency", "EUR", "--json", told, "--html", html)
    assert done.exit_code == 0, done.output
    assert "GPUs in use" in done.output and "2 EUR a GPU-hour" in done.output
    report = json.loads(told.read_text())
    assert list(report["policies"]) == ["kerf", "fgd"]
    assert report["history"]["source"] == "openb" and report["actual"] is None
    assert report["verdict"][0] in html.read_text().replace("\u00a0", " ") and report["fewer"]["policies"]["kerf"]
    done = kerf(*given, "--no-fewer", "--json", "-")
    assert done.exit_code == 0 and json.loads(done.stdout)["fewer"] is None
    refused("one of --openb, --philly, --prometheus and --server", "history", "--out", out)
    refused("one of --openb, --philly", "history", "--openb", traces, "--philly", traces, "--out", out)
    refused("no trace 'default'", "history", "--openb", traces, "--out", out)
    refused("kerf history --out", "replay", "--history", tmp_path)
    refused("named twice", "replay", "--history", out, "--policies", "fgd,fgd")
    refused("nonesuch", "replay", "--history", out, "--policies", "nonesuch")
    refused("--currency EUR: needs --price", "replay", "--history", out, "--currency", "EUR")


def test_nodes_come_and_go() -> None:
    """The second node is there from 1 to 3 h: what runs there when it goes starts over when there is room."""
    table = nodes(1, 1)
    table["from_s"][1], table["until_s"][1] = HOUR, 3 * HOUR
    rows: list[dict[str, Any]] = [
        {"ended_s": 9 * HOUR}, {"ended_s": 4 * HOUR}, {"submitted_s": 10 * HOUR, "ended_s": 11 * HOUR},
    ]  # fmt: skip
    known = past(history(pods(*rows), table, until_s=20 * HOUR))
    assert len(known.offered.absences) == 2
    for policy in ("fgd", "genius"):  # the latter takes nodes in an order of its own
        run = simulate_churn(known.offered, BASELINES[policy], "fifo", 0)
        assert run.outcome.started_s.tolist() == [0.0, HOUR, 13 * HOUR]  # the second has run from 9 to 13 h, anew
        assert run.outcome.num_restarts.tolist() == [0, 1, 0]
        # In use: one GPU all the time but from 9 on, when the second is on the first node; two from 1 to 3 h.
        assert run.outcome.allocated_gpu_s == pytest.approx((10 + 2) * HOUR)
    with pytest.raises(ValueError, match="pool"):
        simulate_churn(known.offered, POOL, "fifo", 0)


def test_times_are_counted_from_the_begin_of_the_history() -> None:
    near, far = (
        measured(*({"submitted_s": at_s + hour * HOUR} for hour in range(3)), since_s=at_s, until_s=at_s + 10 * HOUR)
        for at_s in (0.0, 1.8e9)
    )
    assert near == far


def test_a_node_is_as_it_was_for_longest() -> None:
    """A device plugin that restarts, or is down when the history ends, is no smaller node."""
    rows = nodes(8, 0, 4)
    rows["node"][:] = "n"
    rows["from_s"][:] = [0.0, 100.0, 160.0]
    rows["until_s"][:] = [100.0, 160.0, np.nan]
    assert node_list(history(pods({}), rows, until_s=170.0)).num_gpus.tolist() == [8]
    assert node_list(history(pods({}), rows, until_s=900.0)).num_gpus.tolist() == [4]
