"""Reports: one HTML file and its pictures, from small runs; intervals by hand."""

import struct
from pathlib import Path

import pytest

from model.evaluation import reports
from model.evaluation.comparisons import compare_sizes
from tests.model.builders import write_openb
from tests.model.cli.calls import kerf


def test_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: 4.303 / sqrt(3).
    found = reports.interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.303 / 3**0.5)
    assert str(found) == "2.00 ± 2.48"


def test_one_value_has_no_interval() -> None:
    found = reports.interval([5.0])
    assert (found.half_width, str(found)) == (None, "5.00")


@pytest.mark.slow
def test_report(tmp_path: Path) -> None:
    write_openb(tmp_path / "openb", num_nodes=60, num_pods=300)
    (tmp_path / "openb" / "published_allocation.csv").write_text(
        "trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,1,81.25,82.5\nsmall,FGD,2,82.25,83.5\n"
    )
    jobs = tmp_path / "jobs.csv"
    rows = [f"{i * 60},{300 + i * 7 % 900},{1 + i % 8},0,v{i % 3}" for i in range(60)]
    jobs.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows) + "\n")
    out = tmp_path / "report"
    arguments: list[str | Path] = [
        "--trace",
        "small",
        "--policies",
        "fgd,random",
        "--seeds",
        "1,2",
        "--jobs",
        jobs,
        "--orders",
        "fifo,kerf",
    ]
    result = kerf("report", "--traces", tmp_path, "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    page = (out / "index.html").read_text()
    for text in ("Trace small", "81.75", "Paired differences", "kerf", "Jobs over time", "data:image/png;base64,"):
        assert text in page
    pictures = sorted(path.name for path in out.glob("*.png"))
    names = ["queueing-delay", "small-allocation", "small-fragmentation", "small-utilisation"]
    assert pictures == [f"{name}.png" for name in names]
    for path in out.glob("*.png"):
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert (width, height) == (880, 506)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seeds", "1,x", "--seeds 1,x: write whole numbers"),
        ("--policies", "best", "no policy 'best'"),
        ("--trace", "other", "there are small"),
    ],
)
def test_faults_are_told(tmp_path: Path, option: str, value: str, message: str) -> None:
    write_openb(tmp_path)
    result = kerf("report", "--traces", tmp_path, "--trace", "small", option, value)
    assert result.exit_code == 2
    assert message in result.output


def test_cost_of_a_decision_by_the_number_of_nodes(tmp_path: Path) -> None:
    write_openb(tmp_path)
    told: list[str] = []
    small, large = compare_sizes(tmp_path, "small", "fgd", (20, 40), told.append)
    assert told == ["20 nodes", "40 nodes"]
    assert (small["nodes"], large["nodes"]) == (20, 40)
    assert large["mb"] > small["mb"]
    assert small["us"] > 0


@pytest.mark.slow
def test_the_report_draws_it(tmp_path: Path) -> None:
    write_openb(tmp_path)
    out = tmp_path / "out"
    result = kerf(
        "report", "--traces", tmp_path, "--trace", "small", "--policies", "fgd", "--seeds", "1", "--sizes", "--out", out
    )
    assert result.exit_code == 0, result.output
    assert (out / "sizes.png").stat().st_size > 1000
