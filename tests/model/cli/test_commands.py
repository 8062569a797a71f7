"""The simulator's commands: figures, messages, exit statuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extender.cli.main import app
from model.simulations.baselines import BASELINES
from tests.model.builders import write_openb
from tests.model.cli.calls import kerf


def simulate(directory: Path, *arguments: str) -> dict[str, object]:
    """The figures of `kerf simulate openb` on the small trace."""
    target = directory / "figures.json"
    result = kerf("simulate", "openb", "--traces", directory, "--trace", "small", *arguments, "--json", target)
    assert result.exit_code == 0, result.output
    figures: dict[str, object] = json.loads(target.read_text())
    return figures


@pytest.mark.parametrize("policy", BASELINES)
def test_simulate_openb(tmp_path: Path, policy: str) -> None:
    figures = simulate(write_openb(tmp_path), "--seed", "3", "--policy", policy)
    assert (figures["trace"], figures["seed"], figures["policy"]) == ("small", 3, policy)
    allocation = figures["allocation"]
    assert isinstance(allocation, dict)
    assert set(allocation) == {"100", "130"}
    assert figures["decisions_per_s"]


def test_equal_seeds_give_equal_figures(tmp_path: Path) -> None:
    write_openb(tmp_path)
    first, second = (simulate(tmp_path, "--policy", "random", "--seed", "9") for _ in range(2))
    # How fast it was is no result.
    assert {**first, "decisions_per_s": 0} == {**second, "decisions_per_s": 0}
    assert {**simulate(tmp_path, "--policy", "random", "--seed", "10"), "seed": 9, "decisions_per_s": 0} != {
        **first,
        "decisions_per_s": 0,
    }


def test_simulate_live(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    write_openb(tmp_path)
    given = ("simulate", "live", "--traces", tmp_path, "--trace", "small", "--seeds", "1001,1002", "--nodes", "6")
    target = tmp_path / "figures.json"
    result = kerf(*given, "--weights", "0, 8", "--json", target)
    assert result.exit_code == 0, result.output
    runs = json.loads(target.read_text())["weights"]
    assert {name: len(rows) for name, rows in runs.items()} == {"0": 2, "8": 2}
    assert all(fast <= held for row in runs["8"] for fast, held in zip(row["effective"], row["allocated"], strict=True))
    refused = kerf(*given, "--weights", "0,much")
    assert refused.exit_code == 2
    assert "--weights 0,much: write numbers of 0 or more, as in 0,2,8" in refused.output


PARTITIONS = ("simulate", "partitions", "--seeds", "1,2", "--gpus", "8", "--requests", "60", "--jobs", "1")


@pytest.mark.slow
def test_simulate_partitions(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    target = tmp_path / "figures.json"
    chosen = ("--kinds", "h100-80gb", "--mixes", "small, drawn", "--weight", "1g.10gb=0.5")
    result = kerf(*PARTITIONS, *chosen, "--json", target)
    assert result.exit_code == 0, result.output
    report = json.loads(target.read_text())
    assert list(report["cells"]) == ["h100-80gb, small", "h100-80gb, drawn"]
    assert report["weights"]["by_kind"] == {"1g.10gb": 0.5}
    assert set(report["better"]["all"]) == {"first-fit", "kube-scheduler", "best-fit"}


@pytest.mark.parametrize(
    ("option", "message"), [("--mixes=tiny", "choose from uniform"), ("--weight=1g.10gb", "write PROFILE=NUMBER")]
)
def test_simulate_partitions_says_what_it_does_not_know(option: str, message: str) -> None:
    refused = kerf(*PARTITIONS, option)
    assert refused.exit_code == 2
    assert message in refused.output


def test_figures_on_standard_output_are_alone_there(tmp_path: Path) -> None:
    write_openb(tmp_path)
    result = kerf("simulate", "openb", "--traces", tmp_path, "--trace", "small", "--json", "-")
    assert json.loads(result.stdout)["trace"] == "small"


def test_a_folder_with_an_openb_folder_will_do(tmp_path: Path) -> None:
    write_openb(tmp_path / "openb")
    result = CliRunner().invoke(app, ["simulate", "openb", "--trace", "small"], env={"KERF_TRACES": str(tmp_path)})
    assert result.exit_code == 0, result.output
    assert "allocation 100" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "other"], "there are small"),
        (["--policy", "best"], "no policy 'best'"),
        (["--engine", "abacus"], "'abacus'"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json"),
    ],
    ids=["trace", "policy", "engine", "target"],
)
def test_faults_are_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_openb(tmp_path)
    result = kerf("simulate", "openb", "--traces", tmp_path, "--trace", "small", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_verify_published_tells_differences(tmp_path: Path) -> None:
    write_openb(tmp_path)
    table = tmp_path / "published_allocation.csv"
    table.write_text("trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,7,1.0,99.0\n")
    result = kerf("verify", "published", "--traces", tmp_path)
    assert result.exit_code == 1
    assert "0 of 1 runs equal" in result.output
    assert kerf("verify", "published", "--traces", tmp_path, "--seed", "8").exit_code == 2
    table.write_text("trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,7,1.0,nan\n")
    result = kerf("verify", "published", "--traces", tmp_path)
    assert 'line 2, column alloc_at_130: "nan"' in result.output.replace("\n", "")


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
    lines = result.output.splitlines()
    shown = [policy for line in lines for policy in percents if line.startswith(f"│ {policy} ")]
    assert shown == sorted(percents, key=percents.__getitem__, reverse=True)
