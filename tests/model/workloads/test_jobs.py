"""Lists of jobs, and the commands that run them."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.evaluation.job_trials import met
from model.workloads.jobs import drawn_jobs, nodes_for_load, read_jobs
from model.workloads.traces import TraceError, read_nodes, read_pods
from tests.model.builders import write_openb
from tests.model.cli.calls import figures, kerf, refused

HEADING = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ROWS = "2017-09-04 10:30:41,100.0,8,800.0,v1\n2017-09-04 10:30:31,50,1,50,v2\n2017-09-04 10:32:11,10,2,20,v1\n"


def test_jobs_are_sorted_by_submission(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress((HEADING + ROWS).encode()))
    jobs = read_jobs(path)
    assert jobs.submitted_s.tolist() == [0, 10, 100]
    assert jobs.num_gpus.tolist() == [1, 8, 2]
    assert jobs.cluster == ("v2", "v1", "v1")
    # (50 + 800 + 20) GPU seconds in 100 s on nodes of 8: 870 / (0.5 x 100 x 8) = 2.2 nodes.
    assert nodes_for_load(jobs, 0.5) == 3


def test_bad_jobs(tmp_path: Path) -> None:
    plain, packed = tmp_path / "jobs.csv", tmp_path / "jobs.csv.gz"
    for row, fault in (
        ("yesterday,1,1,1,v", 'line 2, column timestamp: "yesterday" is not a time such as'),
        ("1,-1,1,1,v", 'line 2, column duration: "-1" is not between 0'),
        ("1,1,0,1,v", 'line 2, column num_gpus: "0" is not between 1'),
        ("1,1,1,1", "line 2: 4 values, but 5 columns"),
    ):
        plain.write_text(f"{HEADING}{row}\n")
        with pytest.raises(TraceError, match=f"{plain}: {fault}"):
            read_jobs(plain)
    for content in (b"no gzip", gzip.compress(b"timestamp" * 1000)[:30], b""):
        packed.write_bytes(content)
        with pytest.raises(TraceError, match=r"jobs\.csv\.gz"):
            read_jobs(packed)
    plain.write_text(HEADING + "5,1,1,1,v\n5,1,1,1,v\n")
    with pytest.raises(TraceError, match="all jobs are submitted at once"):
        nodes_for_load(read_jobs(plain), 0.9)


def test_drawn_jobs_follow_the_seed() -> None:
    jobs = drawn_jobs(2000, 1)
    assert jobs.submitted_s.tobytes() == drawn_jobs(2000, 1).submitted_s.tobytes()
    assert jobs.duration_s.tobytes() != drawn_jobs(2000, 2).duration_s.tobytes()
    assert np.mean(jobs.num_gpus == 1) == pytest.approx(0.7, abs=0.05)


def test_the_jobs_command(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADING + ROWS + "2017-09-04 10:32:12,10,9,90,v3\n")
    found = figures("simulate", "jobs", "--jobs", path, "--gpus", "8", "--order", "kerf")
    assert (found["gpus"], found["nodes"], found["jobs"], found["left_out"]["jobs"]) == (8, 1, 3, 1)
    assert set(found["jct_s"]) == set(found["queueing_delay_s"]) == {"mean", "p50", "p95", "p99"}
    assert found["fairness"]["clusters"]["v1"]["jobs"] == 2
    refused("give either --jobs FILE or --generate NUMBER", "simulate", "jobs")
    refused("nowhere.csv", "simulate", "jobs", "--jobs", "nowhere.csv")
    refused("no order 'srtf'", "simulate", "jobs", "--generate", "3", "--order", "srtf")
    refused("no policy 'best'", "simulate", "jobs", "--generate", "3", "--policy", "best")


@pytest.mark.slow
def test_verify_jobs_reports_pairs_and_its_status_says_whether_the_aim_is_reached(tmp_path: Path) -> None:
    jobs = drawn_jobs(800, 5)
    rows = zip(jobs.submitted_s, jobs.duration_s, jobs.num_gpus, jobs.cluster, strict=True)
    path, target = tmp_path / "jobs.csv", tmp_path / "out.json"
    path.write_text(HEADING + "".join(f"{at},{took},{gpus},{took * gpus},{team}\n" for at, took, gpus, team in rows))
    windows = ("--window-days", "0.25", "--skip-days", "0.25")
    result = kerf("verify", "jobs", "--jobs", path, "--load", "3", "--seeds", "1,2", *windows, "--json", target)
    report = json.loads(target.read_text())
    assert result.exit_code == (0 if met(report) else 1), result.output
    assert [len(report[part]) for part in ("windows", "samples", "apart")] == [2, 2, 2]
    assert [window["held_out"] for window in report["windows"]] == [False, True]
    # One window is held out: its interval has no width, and its mean is the window's own.
    known, held_out = report["windows"]
    assert report["intervals"]["windows"]["jct_reduction"] == {"mean": held_out["jct_reduction"], "half_width": None}
    for row in (report["whole"], known, held_out, *report["samples"]):
        before, after = row["jct_s"]
        assert row["jct_reduction"] == pytest.approx(1 - after / before, abs=2e-4)
    assert "fairness between virtual clusters" in result.output


def test_the_aim_is_missed_where_one_sample_waits_too_long_or_the_interval_is_wide() -> None:
    def report(whole: float, mean: float, half_width: float, *ratios: float) -> dict[str, Any]:
        runs = [{"jct_reduction": whole, "p99_ratio": ratio} for ratio in ratios]
        spread = {"jct_reduction": {"mean": mean, "half_width": half_width}}
        return {"whole": runs[0], "samples": runs[1:], "intervals": {"samples": spread}}

    assert met(report(0.5, 0.5, 0.1, 1.0, 1.2))
    assert not met(report(0.5, 0.5, 0.1, 1.0, 1.21))
    assert not met(report(0.5, 0.5, 0.21, 1.0, 1.0))
    assert not met(report(0.29, 0.5, 0.1, 1.0, 1.0))


def test_pods_with_their_own_durations(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=20, num_pods=150)
    openb = ("simulate", "openb", "--traces", tmp_path, "--trace")
    found = figures(*openb, "small", "--departures", "--load", "0.7")
    assert found["pods"] + found["left_out"]["pods"] == len(read_pods(tmp_path, "small").names)
    # No pod waits long at that load, so what is submitted is what is held: load x GPUs.
    gpus = int(read_nodes(tmp_path).num_gpus.sum())
    assert found["mean_allocated_gpus"] == pytest.approx(0.7 * gpus, rel=0.1)
    (tmp_path / "openb_pod_list_x.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,1000\n")
    refused("no creation_time and deletion_time", *openb, "x", "--departures")
    refused("", *openb, "small", "--load", "1")
