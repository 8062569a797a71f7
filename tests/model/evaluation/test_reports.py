"""Reports: one HTML file and its pictures; intervals."""

import struct
from pathlib import Path

import pytest

from model.evaluation import reports
from model.evaluation.comparisons import compare_sizes
from tests.model.builders import write_openb
from tests.model.cli.calls import kerf, refused


def test_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: 4.303 / sqrt(3).
    found = reports.interval([1.0, 2.0, 3.0])
    assert (found.mean, str(found)) == (2.0, "2.00 ± 2.48")
    assert found.half_width == pytest.approx(4.303 / 3**0.5)
    one = reports.interval([5.0])
    assert (one.half_width, str(one)) == (None, "5.00")


@pytest.mark.slow
def test_report(tmp_path: Path) -> None:
    openb, jobs, out = tmp_path / "openb", tmp_path / "jobs.csv", tmp_path / "report"
    write_openb(openb, num_nodes=60, num_pods=300)
    (openb / "published_allocation.csv").write_text(
        "trace,policy,seed,alloc_at_100,alloc_at_130\nsmall,FGD,1,81.25,82.5\nsmall,FGD,2,82.25,83.5\n"
    )
    rows = [f"{i * 60},{300 + i * 7 % 900},{1 + i % 8},0,v{i % 3}" for i in range(60)]
    jobs.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows) + "\n")
    chosen = ("--trace", "small", "--policies", "fgd,random", "--seeds", "1,2", "--orders", "fifo,kerf", "--sizes")
    result = kerf("report", "--traces", tmp_path, "--out", out, "--jobs", jobs, *chosen)
    assert result.exit_code == 0, result.output
    page = (out / "index.html").read_text()
    for text in ("Trace small", "81.75", "Paired differences", "kerf", "Jobs over time", "data:image/png;base64,"):
        assert text in page
    names = ["queueing-delay", "sizes", "small-allocation", "small-fragmentation", "small-utilisation"]
    assert sorted(path.stem for path in out.glob("*.png")) == names
    for path in out.glob("*.png"):
        assert struct.unpack(">II", path.read_bytes()[16:24]) == (880, 506)


def test_faults_are_told(tmp_path: Path) -> None:
    write_openb(tmp_path)
    report = ("report", "--traces", tmp_path, "--trace", "small")
    refused("--seeds 1,x: write whole numbers", *report, "--seeds", "1,x")
    refused("no policy 'best'", *report, "--policies", "best")
    refused("there are small", *report, "--trace", "other")


def test_cost_of_a_decision_by_the_number_of_nodes(tmp_path: Path) -> None:
    write_openb(tmp_path)
    told: list[str] = []
    small, large = compare_sizes(tmp_path, "small", "fgd", (20, 40), told.append)
    assert told == ["20 nodes", "40 nodes"]
    assert (small["nodes"], large["nodes"]) == (20, 40)
    assert large["mb"] > small["mb"] and small["us"] > 0
