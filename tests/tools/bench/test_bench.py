"""The benchmarks themselves, at sizes that say nothing about speed: they run, and refuse wrong results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e, pytest.mark.slow]


def bench(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extender", "bench", *arguments]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # a failed measurement leaves its logs there
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)


def report_of(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    target = tmp_path / "report.json"
    result = bench(tmp_path, *arguments, "--json", str(target))
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(target.read_text())
    return report


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report of all benchmarks at their smallest, and what is printed beside it."""
    result = bench(tmp_path_factory.mktemp("bench"), "all", "--quick", "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_all_prints_every_table(everything: tuple[dict[str, Any], str]) -> None:
    report, printed = everything
    assert report.keys() == {"ledger", "calls", "start", "scheduler"}
    for title in ("Ledger", "Milliseconds per call", "Start of Kerf", "Pods per second"):
        assert title in printed


def test_scheduler_reports_every_mode(everything: tuple[dict[str, Any], str]) -> None:
    report = everything[0]["scheduler"][0]
    sizes = {"nodes": 120, "pods": 60, "view": "full", "pod_gpus": 1}
    assert {key: report[key] for key in sizes} == sizes
    assert list(report["modes"]) == ["none", "echo", "best", "decisive", "scores", "planned", "planner", "bare"]
    assert all(len(mode["pods_per_s"]) == 1 and mode["pods_per_s"][0] > 0 for mode in report["modes"].values())
    assert {"decisive/none", "decisive/echo", "decisive/best", "scores/echo"} <= report["ratios"].keys()
    assert report["counts"] == (report["ratios"]["best/none"] >= 0.9)
    for mode in report["modes"].values():
        (of_api,) = mode["api_per_pod"]
        assert 2 <= of_api["writes"] <= of_api["requests"]  # the pod and its Binding
        assert of_api["watch_events"] >= 2
        assert of_api["watch_bytes"] > of_api["watch_events"]
    assert {"cpus", "python", "date"} <= report["machine"].keys()


def test_scheduler_has_unlike_nodes_and_streams(everything: tuple[dict[str, Any], str]) -> None:
    *_, unlike, stream = everything[0]["scheduler"]
    assert unlike["unlike"]
    assert list(unlike["modes"]) == ["none", "decisive", "best"]
    assert stream["stream_s"] == 2.0
    for mode in stream["modes"].values():
        (of_api,) = mode["api_per_pod"]
        assert of_api["events_written"] >= 1  # kube-scheduler's, and Kerf's where it places
    assert stream["modes"]["decisive"]["api_per_pod"][0]["events_written"] >= 1.9
    assert "unlike nodes" in everything[1]
    assert "a stream of 2 s" in everything[1]


def test_kube_scheduler_can_do_without_batching(tmp_path: Path) -> None:
    sizes = ("--nodes=20", "--pods=40", "--modes=none,none-unbatched", "--repetitions=1")
    assert report_of(tmp_path, "scheduler", *sizes)["ratios"].keys() == {"none-unbatched/none"}


def test_a_stream_has_no_backlog(tmp_path: Path) -> None:
    result = bench(tmp_path, "scheduler", "--stream=60", "--backlog")
    assert result.returncode == 2
    assert "a stream has no --backlog" in result.stderr


def test_calls_reports_both_verbs(everything: tuple[dict[str, Any], str]) -> None:
    report = everything[0]["calls"]
    assert [(call["verb"], call["names"]) for call in report["calls"]] == [
        *(("filter", 100), ("filter", 200)),
        *(("prioritize", 100), ("prioritize", 200)),
    ]
    for call in report["calls"]:
        for target in ("kerf_ms", "echo_ms", "go_raw_ms", "go_echo_ms"):
            assert 0 < call[target]["p50"] <= call[target]["p99"]
        assert call["ratio"] > 0


def test_start_reports_time_and_memory(everything: tuple[dict[str, Any], str]) -> None:
    report = everything[0]["start"]
    assert report["ready_s"] > 0
    assert report["cpu_s"] > 0
    assert report["rss_mb"] >= report["rss_steady_mb"] > 20
    assert report["gpu_pods"] == 250


def test_ledger_reports_events_and_filter(everything: tuple[dict[str, Any], str]) -> None:
    report = everything[0]["ledger"]
    assert 0 < report["event_us"]["p50"] <= report["event_us"]["p99"]
    assert report["filter_ms"].keys() == {"devices", "counted"}
    assert report["filter_ratio"] > 0


def test_scheduler_places_a_backlog(tmp_path: Path) -> None:
    sizes = ("--nodes=20", "--pods=40", "--modes=decisive,planned", "--repetitions=1", "--backlog")
    report = report_of(tmp_path, "scheduler", *sizes)
    assert report["backlog"]
    assert all(rate > 0 for mode in report["modes"].values() for rate in mode["pods_per_s"])


def test_scheduler_reports_pods_with_claims(tmp_path: Path) -> None:
    sizes = ("--nodes=20", "--pods=40", "--repetitions=1")
    report = report_of(tmp_path, "scheduler", *sizes, "--modes=dra,dra-written")
    assert {"dra/dra-written", "dra-written/dra"} == report["ratios"].keys()
    assert all(rate > 0 for mode in report["modes"].values() for rate in mode["pods_per_s"])


def test_scheduler_has_claims_made_from_a_template(tmp_path: Path) -> None:
    sizes = ("--nodes=20", "--pods=40", "--repetitions=1")
    report = report_of(tmp_path, "scheduler", *sizes, "--modes=dra", "--templates")
    assert report["templates"]
    assert "controller-manager" in report["modes"]["dra"]["cpu_ms_per_pod"][0]


def test_scheduler_fails_when_pods_stay_unbound(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    # 2 nodes hold 2 pods of 8 GPUs.
    sizes = ("--nodes=2", "--pods=3", "--pod-gpus=8", "--modes=decisive", "--repetitions=1", "--timeout=3")
    result = bench(tmp_path, "scheduler", *sizes, "--json", str(target))
    assert result.returncode == 1
    assert "1 of 3 pods stayed unbound (decisive, full view" in result.stderr
    assert not target.exists()


def test_calls_goes_to_a_cluster_with_running_pods(tmp_path: Path) -> None:
    report = report_of(tmp_path, "calls", "--nodes=20", "--requests=5", "--repetitions=1", "--pods=100")
    assert report["pods"] == 100
    assert [(call["verb"], call["names"]) for call in report["calls"]] == [("filter", 20), ("prioritize", 20)]


def test_idle_reports_processor_time_and_memory_of_each_row(tmp_path: Path) -> None:
    report = report_of(tmp_path, "idle", "--nodes=20", "--seconds=2", "--settle=0")
    assert report["rows"].keys() == {"default", "queue", "called"}
    for row in report["rows"].values():
        assert 0 <= row["own_cpu_percent"] <= row["cpu_percent"] < 150
        assert row["peak_mb"] >= row["rss_mb"] > 20
        assert row["beside_mb"] >= 0


def test_guard_fails_where_a_ratio_is_worse_than_before(tmp_path: Path) -> None:
    before, target = tmp_path / "before.json", tmp_path / "now.json"
    of_calls = {"filter / Go echo": 0.0001, "live scores / none": 1e6, "of another version": 0.0001}
    before.write_text(json.dumps({"ratios": of_calls, "counts": {"calls of filter, c": 1, "calls of bind, c": 1e6}}))
    sizes = ("--nodes=500", "--requests=20", "--scheduler-nodes=20", "--pods=30", "--repetitions=1")
    result = bench(tmp_path, "guard", *sizes, "--against", str(before), "--json", str(target))
    assert result.returncode == 1, result.stderr
    report = json.loads(target.read_text())
    assert report["worse"] == ["filter / Go echo", "calls of filter, c"]
    assert report["ratios"].keys() - {"Kerf / Go echo, CPU a pod"} == {
        *("filter / Go echo", "live scores / none"),
        *(f"learned rank / best fit, {kind}" for kind in ("cached", "new, whole", "new, share")),
        *(f"{mode} / decisive, pods/s" for mode in ("none", "echo", "best")),
    }
    assert report["counts"].keys() == {
        *(f"calls of {what}, {kind}" for what in ("filter", "bind", "watch", "round") for kind in ("python", "c")),
        *(f"API server, {what}" for what in ("requests", "writes", "events_written", "watch_events", "watch_bytes")),
    }
    assert all(ratio > 0 for ratio in report["ratios"].values())
    assert report["machine"]["cpus"] > 0


def test_guard_refuses_a_file_without_ratios_before_it_measures(tmp_path: Path) -> None:
    result = bench(tmp_path, "guard", "--against", str(tmp_path / "missing.json"))
    assert result.returncode == 1
    assert "missing.json has no ratios" in " ".join(result.stderr.split())


def test_calls_refuses_more_requests_than_gpus(tmp_path: Path) -> None:
    result = bench(tmp_path, "calls", "--nodes=2", "--requests=100", "--repetitions=1")
    assert result.returncode == 1
    assert "reserve more than the 16 GPUs" in result.stderr


def test_planners_compares_them(tmp_path: Path) -> None:
    sizes = ("--pods=20", "--nodes=10", "--many-pods=30", "--many-nodes=10")
    report = report_of(tmp_path, "planners", *sizes, "--repetitions=1")
    demo = {result["planner"]: result for result in report["results"] if result["batch"].startswith("demo")}
    assert demo.keys() == {"greedy", "genetic", "q-learning", "exact", "genetic, cold"}
    assert all(result["placed"] <= 19 for result in demo.values())
    assert demo["exact"]["worth"] >= demo["genetic"]["worth"] >= demo["greedy"]["worth"]


def test_telemetry_reports_costs(tmp_path: Path) -> None:
    report = report_of(tmp_path, "telemetry", "--nodes=30", "--requests=100", "--refreshes=1")
    assert {"refresh_s", "stall_ms", "filter_p99_ratio_dead"} <= report.keys()
    assert report["series"] == 30 * 8 * 6
    assert 0 < report["refresh_s"] < 600


FIGURES = {"mean_jct_s", "mean_delay_s", "p99_delay_s", "whole_nodes_mean_delay_s"}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One team's jobs take twenty times as long as the other's, and each a whole node: who goes first matters."""
    folder = tmp_path_factory.mktemp("jobs")
    teams = [("long", 3000) if number % 3 == 0 else ("short", 150) for number in range(90)]
    rows = [f"{10 * number},{seconds},8,{8 * seconds},{team}" for number, (team, seconds) in enumerate(teams)]
    listed = folder / "uneven.csv"
    listed.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]))
    # So long that what a busy machine adds to each job is small beside it.
    sizes = ("--number=24", "--nodes=1", "--span=16", "--load=3", "--seeds=1")
    return report_of(folder, "jobs", f"--jobs={listed}", *sizes)


def test_a4_jobs_end_on_the_control_plane_as_simulated(uneven: dict[str, Any]) -> None:
    (run,) = uneven["runs"]
    for mode in ("native", "queue"):
        found = run[mode]
        assert found["real"].keys() == found["simulated"].keys() == FIGURES
        # Without the delay a job takes its duration, and on the control plane some time until its end is seen.
        real_s, simulated_s = (
            found[which]["mean_jct_s"] - found[which]["mean_delay_s"] for which in ("real", "simulated")
        )
        assert real_s >= simulated_s - 0.002  # rounded figures
    assert run["native"]["retried"].keys() == FIGURES


def test_a4_the_queue_lowers_completion_times_on_the_control_plane(uneven: dict[str, Any]) -> None:
    reductions = uneven["reductions"]
    assert reductions.keys() == {"real", "simulated", "retried"}
    lower = {which: found["jct_reduction"]["mean"] for which, found in reductions.items()}
    assert lower["simulated"] > 0.2
    assert lower["real"] > 0.1  # the queue itself, its looks at the cluster included


def test_hostile_pods_are_measured_beside_plain_ones(tmp_path: Path) -> None:
    report = report_of(tmp_path, "hostile", "--nodes=60", "--pods=112")
    assert list(report)[:6] == ["pods", "kinds", "nodes", "filter_p99_ratio", "rss_ratio", "ready"]
    assert report["ready"]
    assert len(report["kinds"]) + len(report["refused"].keys() - report["kinds"].keys()) == 29
    assert report["pods"] + sum(report["refused"].values()) >= 112
    assert report["filter_p99_ratio"] > 0
    assert 0 < report["rss_ratio"] < 1.5
