"""The simulator's commands: figures, messages, exit statuses."""

import json
from pathlib import Path

import pytest

from model.simulations.baselines import BASELINES
from tests.model.builders import write_openb
from tests.model.cli.calls import figures, kerf, refused

OPENB = ("simulate", "openb", "--trace", "small", "--traces")
PARTITIONS = ("simulate", "partitions", "--seeds", "1,2", "--gpus", "8", "--requests", "60", "--jobs", "1")


def test_simulate_openb(tmp_path: Path) -> None:
    write_openb(tmp_path)
    for policy in BASELINES:
        found = figures(*OPENB, tmp_path, "--seed", "3", "--policy", policy)
        assert (found["trace"], found["seed"], found["policy"]) == ("small", 3, policy)
        assert set(found["allocation"]) == {"100", "130"} and found["decisions_per_s"]


def test_simulate_live(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    write_openb(tmp_path)
    given = ("simulate", "live", "--traces", tmp_path, "--trace", "small", "--seeds", "1001,1002", "--nodes", "6")
    runs = figures(*given, "--weights", "0, 8")["weights"]
    assert {name: len(rows) for name, rows in runs.items()} == {"0": 2, "8": 2}
    assert all(fast <= held for row in runs["8"] for fast, held in zip(row["effective"], row["allocated"], strict=True))
    refused("--weights 0,much: write numbers of 0 or more, as in 0,2,8", *given, "--weights", "0,much")


@pytest.mark.slow
def test_simulate_partitions() -> None:
    pytest.importorskip("scipy")
    chosen = ("--kinds", "h100-80gb", "--mixes", "small, drawn", "--weight", "1g.10gb=0.5")
    report = figures(*PARTITIONS, *chosen)
    assert list(report["cells"]) == ["h100-80gb, small", "h100-80gb, drawn"]
    assert report["weights"]["by_kind"] == {"1g.10gb": 0.5}
    assert set(report["better"]["all"]) == {"first-fit", "kube-scheduler", "best-fit"}


def test_a_folder_with_an_openb_folder_will_do(tmp_path: Path) -> None:
    write_openb(tmp_path / "openb")
    result = kerf(*OPENB[:-1], KERF_TRACES=str(tmp_path))
    assert result.exit_code == 0 and "allocation 100" in result.output


def test_faults_are_told(tmp_path: Path) -> None:
    write_openb(tmp_path)
    refused("there are small", *OPENB, tmp_path, "--trace", "other")
    refused("no policy 'best'", *OPENB, tmp_path, "--policy", "best")
    refused("'abacus'", *OPENB, tmp_path, "--engine", "abacus")
    refused("/nowhere/x.json", *OPENB, tmp_path, "--json", "/nowhere/x.json")
    refused("choose from uniform", *PARTITIONS, "--mixes=tiny")
    refused("write PROFILE=NUMBER", *PARTITIONS, "--weight=1g.10gb")


def test_verify_published_tells_differences(tmp_path: Path) -> None:
    write_openb(tmp_path)
    table = tmp_path / "published_allocation.csv"
    table.write_text("trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,7,1.0,99.0\n")
    result = kerf("verify", "published", "--traces", tmp_path)
    assert result.exit_code == 1 and "0 of 1 runs equal" in result.output
    refused("", "verify", "published", "--traces", tmp_path, "--seed", "8")
    table.write_text("trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,7,1.0,nan\n")
    refused('line 2, column alloc_at_130: "nan"', "verify", "published", "--traces", tmp_path)


@pytest.mark.slow
def test_a_demo_that_needs_no_file_says_what_its_figures_mean(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    result = kerf("simulate", "demo", "--seeds", "1", "--seed", "7", "--json", target)
    assert result.exit_code == 0, result.output
    report = json.loads(target.read_text())
    assert (report["seeds"], len(report["gpus"])) == ([7], 1)
    percents = {policy: row["allocated_percent"] for policy, row in report["policies"].items()}
    assert percents["spread"] < percents["kube-default"] < percents["fgd"] < 100
    gained = (percents["fgd"] - percents["kube-default"]) / 100 * report["gpus"][0]
    assert f"than kube-scheduler's own scores (kube-default): {gained:.1f} GPUs of" in result.output
    shown = [policy for line in result.output.splitlines() for policy in percents if line.startswith(f"│ {policy} ")]
    assert shown == sorted(percents, key=percents.__getitem__, reverse=True)
